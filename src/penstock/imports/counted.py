"""Records without an offset: FlyMQ's and FluxGo's. They are numbered by their position in the file.

An index, if there is one, gives the starts of records but not their number: FluxGo's index loses entries at each restart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.frames import ZEROS, Frame, Head, Parse, what_is_wrong
from penstock.imports.source import Findings

ZEROS_BYTES = 4096
"""Zeros that are not taken for empty records, unless an index lists them."""
_AGREEING = 3
"""Consecutive records that confirm a position."""


def counted_frames(
    file: FileBytes,
    parse: Parse,
    findings: Findings,
    anchors: Mapping[int, int],
    *,
    head: Head | None = None,
    blank_bytes: int = 0,
) -> Iterator[tuple[int, Frame]]:
    """Frames without an offset, each with its number in the file.

    `anchors` are the starts of records listed by an index, with their numbers. With a `head`, the lengths of a frame confirm
    each other, and the search after damage needs no index. `blank_bytes` is the size of a record that is all zeros, if the
    format has one.
    """
    position = number = 0
    places = sorted(place for place in anchors if place < file.size)
    parse = _remembering(parse)
    while position < file.size:
        frame = parse(file, position)
        is_blank = (
            frame is not None
            and frame.end - position == blank_bytes
            and _are_zeros(file, parse, position, blank_bytes, places)
        )
        if frame is not None and not (
            is_blank
            or _misleads(file, parse, frame, anchors, places)
            or (head and _hides(file, parse, head, position, frame))
        ):
            yield number, frame
            number += 1
            position = frame.end
            continue
        following = _next_anchor(file, parse, places, position)
        if following is None and head is not None:
            following = next((place for place in head.places(file, position + 1) if runs_on(file, parse, place)), None)
        end = file.size if following is None else following
        findings.add(str(file.path), position, end - position, ZEROS if is_blank else what_is_wrong(file, end))
        number = max(number + 1, anchors.get(end, 0))
        position = end


def _remembering(parse: Parse) -> Parse:
    """The last frame read: most positions are read twice in a row, as the end of a frame and as the next frame."""
    last: tuple[int, Frame | None] = (-1, None)

    def parse_once(file: FileBytes, position: int) -> Frame | None:
        nonlocal last
        if last[0] != position:
            last = (position, parse(file, position))
        return last[1]

    return parse_once


def _are_zeros(file: FileBytes, parse: Parse, position: int, blank_bytes: int, places: list[int]) -> bool:
    """Whether a record that is all zeros is none: its place was overwritten with zeros, or never written.

    A record that the index knows is one if the next entry's record follows it, or if records that are not all zeros lie
    between the two, whose entries a restart overwrote. Elsewhere many zeros are no records, and neither are zeros up to the
    end of the file after the last entry.
    """
    at = bisect_right(places, position)
    if at and places[at - 1] == position:
        is_last = at == len(places)
        return not is_last and not _reaches(file, parse, position, blank_bytes, places[at])
    data = file.at(position, ZEROS_BYTES)
    is_after_index = bool(places) and at == len(places)
    return not data.strip(b"\0") and (is_after_index or len(data) == ZEROS_BYTES)


def _reaches(file: FileBytes, parse: Parse, position: int, blank_bytes: int, end: int) -> bool:
    """Whether records lie between two places without a gap: one, or several that are not all zeros."""
    if position + blank_bytes == end:
        return True
    are_blank = True
    while position < end:
        frame = parse(file, position)
        if frame is None:
            return False
        are_blank = are_blank and frame.end - position == blank_bytes
        position = frame.end
    return position == end and not are_blank


def _next_anchor(file: FileBytes, parse: Parse, places: list[int], position: int) -> int | None:
    for at in range(bisect_right(places, position), len(places)):
        if places[at] < file.size and parse(file, places[at]) is not None:
            return places[at]
    return None


def _misleads(file: FileBytes, parse: Parse, frame: Frame, anchors: Mapping[int, int], places: list[int]) -> bool:
    """Whether no record starts at the end of the frame, and the index lists another one."""
    if not places or frame.end in anchors or frame.end >= places[-1]:
        return False
    return parse(file, frame.end) is None


def _hides(file: FileBytes, parse: Parse, head: Head, position: int, frame: Frame) -> bool:
    """Whether no record starts at the end of the frame, and there are records inside it."""
    if frame.end == file.size or parse(file, frame.end) is not None:
        return False
    inside = (place for place in head.places(file, position + 1) if place < frame.end)
    return any(runs_on(file, parse, place) for place in inside)


def runs_on(file: FileBytes, parse: Parse, position: int) -> bool:
    """Whether several consecutive records start here, or all that are left."""
    for _ in range(_AGREEING):
        frame = parse(file, position)
        if frame is None:
            return False
        position = frame.end
        if position == file.size:
            return True
    return True
