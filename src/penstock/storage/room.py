"""The state of disk space that decides which writes are allowed: set by `reserve`, checked by every append."""

from __future__ import annotations

import enum
import errno

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk or an exhausted quota."""


class Room(enum.IntEnum):
    """The state of a disk. A write names the worst state in which it is still allowed."""

    AMPLE = 0
    """Everything is written."""
    TIGHT = 1
    """Everything is written except records from clients and new topics."""
    CRITICAL = 2
    """Only small files are written."""


def no_reserve(_seen: Room) -> bool:
    """The `make_room` of a disk without a reserve: nothing can be freed."""
    return False
