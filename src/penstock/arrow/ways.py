"""Three ways to do the same: plain Python, numpy, numba. The fastest that is installed is taken unless one is named."""

from __future__ import annotations

import enum
import functools
import importlib.util


class Way(enum.Enum):
    PURE = "pure"
    """`penstock.records` and Python lists: slow, and what the others are held against."""
    NUMPY = "numpy"
    """Comes with the extra `spark`."""
    NUMBA = "numba"
    """Comes with the extra `fast`: compiled at its first use, and kept."""


@functools.cache
def best_way() -> Way:
    for way in (Way.NUMBA, Way.NUMPY):
        if importlib.util.find_spec("numpy") and importlib.util.find_spec(way.value):
            return way
    return Way.PURE
