"""How much room the disk has, as far as writes go: what `reserve` decides and every append looks at."""

from __future__ import annotations

import enum
import errno

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk or a quota is full."""


class Room(enum.IntEnum):
    """The state of a disk. A write names the worst one that it may still be made in."""

    AMPLE = 0
    """Everything is written."""
    TIGHT = 1
    """Everything but records from clients and new topics."""
    CRITICAL = 2
    """Small files alone."""


def no_reserve(_seen: Room) -> bool:
    """What a disk without a reserve does when it is full: nothing."""
    return False
