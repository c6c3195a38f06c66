"""The offsets that records get, computed from their stored offsets.

Every record gets an offset above the one before it. A record keeps its own offset if possible; if it is already used, the
record gets the next free one. An offset ahead of the next free one has one of three reasons:

    a gap       records are missing, and later offsets continue from there: it is kept
    disorder    the skipped offsets follow soon, because producers overtook each other: the next free one is used
    damage      later offsets continue as if it were not there: the next free one is used

So racing producers and flipped bits move single records, and the offsets after them do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from penstock.imports.frames import Frame
from penstock.imports.source import OFFSET_END, Findings

AHEAD_RECORDS = 64
AHEAD_BYTES_MAX = 16 * 1024 * 1024
"""Number of records read ahead if an offset is not the next one."""
DISORDER_MAX = 1024
"""Maximum distance by which producers overtake each other; a larger step back is a broker that restarted its count."""
LAST_GAP_MAX = 1 << 20
"""Gap before the last record above which it is damage, because no later record confirms it."""


def number_frames(frames: Iterator[Frame], findings: Findings) -> Iterator[tuple[int, Frame]]:
    """Each frame with its offset. `findings.renumbered` counts the changed offsets."""
    ahead: deque[Frame] = deque()
    following: int | None = None
    while (frame := ahead.popleft() if ahead else next(frames, None)) is not None:
        offset = frame.offset
        if following is None:
            _look_ahead(ahead, frames)
            offset = _first(offset, ahead)
        elif offset > following:
            _look_ahead(ahead, frames)
            offset = _ahead_of(offset, following, ahead)
        else:
            offset = following
        findings.renumbered += offset != frame.offset
        following = offset + 1
        yield offset, frame


def _look_ahead(ahead: deque[Frame], frames: Iterator[Frame]) -> None:
    size = sum(len(frame.value) for frame in ahead)
    while len(ahead) < AHEAD_RECORDS and size < AHEAD_BYTES_MAX and (frame := next(frames, None)) is not None:
        size += len(frame.value)
        ahead.append(frame)


def _first(offset: int, ahead: deque[Frame]) -> int:
    """The first offset of a log."""
    is_possible = 0 <= offset < OFFSET_END
    if not ahead or (is_possible and offset < ahead[0].offset):
        return offset if is_possible else 0
    others = {frame.offset for frame in ahead}
    if others.isdisjoint((offset - 1, offset, offset + 1)):  # damaged: use one less than the next record
        return min(max(0, ahead[0].offset - 1), OFFSET_END - 1)
    near = [other for other in others | {offset} if 0 <= other < OFFSET_END and offset - other <= DISORDER_MAX]
    return min(near, default=0)


def _ahead_of(offset: int, following: int, ahead: deque[Frame]) -> int:
    """The offset of a record whose stored offset is above the next free one."""
    if offset >= OFFSET_END:
        return following
    if any(following <= frame.offset < offset and offset - frame.offset <= DISORDER_MAX for frame in ahead):
        return following
    if not ahead:
        return offset if offset - following <= LAST_GAP_MAX else following
    return offset if ahead[0].offset > offset else following
