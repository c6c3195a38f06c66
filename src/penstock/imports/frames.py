"""Records that lie one behind the other in a file, each with its own length: telling sound ones from damage.

None of the five small brokers has a checksum over a whole record, so one record vouches for the next. A record is believed
when what follows it fits:

    numbered    records carry their offset: the next one's is one higher, or two agree on a gap or on a new beginning
    counted     records carry none: their lengths must agree with each other, and an index, if there is one, says where
                records begin (it never says how many there are: FluxGo's loses entries at every restart)

What is not believed is reported, and the search goes on behind it for the next place from which records fit. A byte that
flipped inside a value is seen by nobody where there is no checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.source import Findings, SourcePartition, SourceRecord

SEARCH_BYTES_MAX = 8 * 1024 * 1024
"""How far behind damage a sound record is looked for, byte by byte; about ten seconds."""
GAP_MAX = 1 << 31
"""A larger step from one offset to the next is damage."""
_AGREEING = 3
"""So many records in a row make a place believable."""


class Frame(NamedTuple):
    """What lies at a place, if lengths can be believed."""

    end: int
    offset: int
    """-1 where the format has none."""
    timestamp: int
    key: bytes | None
    value: bytes
    sound: bool = True
    """False when a checksum says otherwise."""


Parse = Callable[[FileBytes, int], Frame | None]
"""The frame at a position; None when its lengths make no sense or it does not fit the file."""
Peek = Callable[[FileBytes, int], int | None]
"""The offset that stands at a position, whatever the lengths there say; None where the file ends before it."""


def numbered_frames(
    file: FileBytes, parse: Parse, peek: Peek, findings: Findings, position: int = 0
) -> Iterator[tuple[int, Frame]]:
    """Frames from a position where one begins, and the offsets that stand in them: gaps and new beginnings are the
    caller's matter."""
    expected: int | None = None
    while position < file.size:
        frame = parse(file, position)
        if expected is None and frame is not None:
            expected = frame.offset
        reason = _numbered_problem(file, parse, peek, frame, position, expected or 0)
        if frame is not None and reason is None:
            if frame.sound:
                yield position, frame
            else:
                findings.add(str(file.path), position, frame.end - position, "the checksum does not fit the record")
            expected = frame.offset + 1
            position = frame.end
            continue
        if frame is not None and reason == _WRONG_OFFSET:
            findings.add(str(file.path), position, frame.end - position, f"{reason} {frame.offset}, {expected} is due")
            expected = (expected or 0) + 1
            position = frame.end
            continue
        following = _search_chain(file, parse, position + 1, expected or 0)
        end = file.size if following is None else following
        findings.add(str(file.path), position, end - position, reason or _what_is_left(file, parse, position))
        if following is not None:
            expected = None
        position = end


def numbered_records(
    partition: SourcePartition, parse: Parse, peek: Peek, findings: Findings
) -> Iterator[SourceRecord]:
    """The records of files without times; an offset that was given before becomes the next free one."""
    following = 0
    for path in partition.files:
        with FileBytes(Path(path)) as file:
            for _, frame in numbered_frames(file, parse, peek, findings):
                offset = max(frame.offset, following)
                findings.renumbered += offset != frame.offset
                following = offset + 1
                yield SourceRecord(offset, file.modified_ms, frame.key, frame.value)


_WRONG_OFFSET = "offset"


def _numbered_problem(
    file: FileBytes, parse: Parse, peek: Peek, frame: Frame | None, position: int, expected: int
) -> str | None:
    """Why the frame is not believed, or None."""
    if frame is None:
        return _what_is_left(file, parse, position)
    following_offset = peek(file, frame.end)
    if frame.offset == expected and following_offset in (None, expected + 1):
        return None
    following = parse(file, frame.end)
    if frame.offset != expected:
        if following_offset == expected + 1 and following is not None:
            return _WRONG_OFFSET
        if not -1 < frame.offset < expected + GAP_MAX:
            return f"offset {frame.offset}, {expected} is due"
        if following_offset in (None, frame.offset + 1):
            return None
    # The next offset is neither: a gap, a new beginning, or damage here or there.
    if following is not None:
        if _chain(file, parse, frame.end, 0):
            return None
        after = peek(file, following.end)
        if after in (frame.offset + 2, None):
            return None
    return "the record's lengths lead to a place where none begins"


def _chain(file: FileBytes, parse: Parse, position: int, least: int) -> bool:
    """Whether several records in a row begin here, or all that are left, with rising offsets."""
    for _ in range(_AGREEING):
        frame = parse(file, position)
        if frame is None or not frame.sound or not least <= frame.offset < least + GAP_MAX:
            return False
        least = frame.offset + 1
        position = frame.end
        if position == file.size:
            return True
    return True


def counted_frames(
    file: FileBytes, parse: Parse, findings: Findings, anchors: Mapping[int, int], *, searches: bool
) -> Iterator[tuple[int, int, Frame]]:
    """Frames that carry no offset, each with its position and its number in the file.

    `anchors` are places where records begin, as an index says, with their numbers. With `searches` the lengths of a frame
    vouch for each other, and a place to go on from can be found without an index.
    """
    position = number = 0
    places = sorted(anchors)
    while position < file.size:
        frame = parse(file, position)
        if frame is not None and not _misleads(file, parse, frame, anchors, places):
            yield position, number, frame
            number += 1
            position = frame.end
            continue
        following = next((place for place in places if position < place < file.size and parse(file, place)), None)
        if following is None and searches:
            following = _search(file, position + 1, lambda at: _runs_on(file, parse, at))
        end = file.size if following is None else following
        findings.add(str(file.path), position, end - position, _what_is_left(file, parse, position))
        number = max(number + 1, anchors.get(end, 0))
        position = end


def _misleads(file: FileBytes, parse: Parse, frame: Frame, anchors: Mapping[int, int], places: list[int]) -> bool:
    """Whether the frame leads to a place where no record begins, and the index knows better."""
    if not places or frame.end in anchors or frame.end >= places[-1]:
        return False
    return parse(file, frame.end) is None


def _runs_on(file: FileBytes, parse: Parse, position: int) -> bool:
    for _ in range(_AGREEING):
        frame = parse(file, position)
        if frame is None:
            return False
        position = frame.end
        if position == file.size:
            return True
    return True


def _search_chain(file: FileBytes, parse: Parse, position: int, least: int) -> int | None:
    return _search(file, position, lambda at: _chain(file, parse, at, least))


def _search(file: FileBytes, position: int, fits: Callable[[int], bool]) -> int | None:
    for at in range(position, min(file.size, position + SEARCH_BYTES_MAX)):
        if fits(at):
            return at
    return None


def _what_is_left(file: FileBytes, parse: Parse, position: int) -> str:
    return "a record is cut off or its length is wrong" if parse(file, position) is None else "no record begins here"
