"""Records with an offset and without a checksum: Day1's and RustLog's.

Offsets need not rise. Day1 opens a log again for each request that arrives while another one has it open, and each handle
counts by itself, so a log written by several producers repeats offsets and jumps back. No handle can jump ahead of all
earlier offsets, because each starts after a record that is in the file. So an offset is natural up to one above the highest
so far, and a record is accepted if its lengths lead to a record with a natural offset, or to the end of the file.

An offset further ahead is a gap (left by RustLog's compaction, or by damage) or is damaged itself; the next record decides.
A damaged offset does not lose its record, because records with invalid offsets are renumbered (`numbering`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.imports.bytes_of_file import FileBytes, read_frames
from penstock.imports.frames import ZEROS, Frame, Head, Parse, what_is_wrong
from penstock.imports.numbering import number_frames
from penstock.imports.source import Findings, SourcePartition, SourceRecord

GAP_MAX = 1 << 31
"""Step from one offset to the next above which it is damage."""
ZEROS_BYTES = 512
"""The size of a sector. This many zeros are not records, although a format may have records that are all zeros."""
EARLY_OFFSET = 64
"""Below it records of offset 0 are natural if offsets repeat: many requests may open a log while it is empty."""
_AGREEING = 3
"""Consecutive records that confirm a position."""

LEADS_NOWHERE = "the record's length is wrong: no record follows it"

Peek = Callable[[FileBytes, int], int | None]
"""The offset stored at a position, whatever the lengths there are; None if the file ends before it."""


class NumberedFormat(NamedTuple):
    parse: Parse
    peek: Peek
    head: Head
    record_bytes_min: int
    """Of a record without key and value, which with offset 0 is all zeros."""
    repeats_offsets: bool
    """Whether its broker gives offsets twice. If not, offsets rise, and gaps are common."""


def numbered_records(partition: SourcePartition, form: NumberedFormat, findings: Findings) -> Iterator[SourceRecord]:
    """The records of files without times. An offset that is already used becomes the next free one."""
    for offset, frame in number_frames(_frames(partition, form, findings), findings):
        yield SourceRecord(offset, frame.timestamp, frame.key, frame.value)


def _frames(partition: SourcePartition, form: NumberedFormat, findings: Findings) -> Iterator[Frame]:
    for path, size in zip(partition.files, partition.sizes, strict=True):
        yield from read_frames(path, size, findings, lambda file: numbered_frames(file, form, findings))


def numbered_frames(file: FileBytes, form: NumberedFormat, findings: Findings) -> Iterator[Frame]:
    """Frames in file order with their stored offsets."""
    scan = _Scan(file, form)
    position = 0
    while position < file.size:
        frame = form.parse(file, position)
        if frame is not None and scan.believe(frame, position):
            yield frame
            position = frame.end
            continue
        following = scan.resume(position)
        end = file.size if following is None else following
        reason = what_is_wrong(file, end)
        if frame is not None and following is not None and scan.is_before_damage(frame, following):
            scan.note(frame)
            yield frame
            position = frame.end
        elif frame is not None:
            reason = ZEROS if scan.is_blank(frame, position) else LEADS_NOWHERE
        if position < end:
            findings.add(str(file.path), position, end - position, reason)
        position = end


class _Scan:
    def __init__(self, file: FileBytes, form: NumberedFormat) -> None:
        self._file = file
        self._form = form
        self._early_offset = EARLY_OFFSET if form.repeats_offsets else 0
        self._highest = -1
        """The highest offset so far."""

    def note(self, frame: Frame) -> None:
        self._highest = self._highest_after(frame)

    def _highest_after(self, frame: Frame) -> int:
        if 0 <= frame.offset <= self._highest + 1:
            return max(self._highest, frame.offset)
        following = self._form.peek(self._file, frame.end)
        step = 1 if following is None else following - frame.offset
        is_start = self._highest < 0 and abs(step) <= EARLY_OFFSET
        is_known = frame.offset >= 0 and (is_start or 0 < step <= GAP_MAX)
        return frame.offset if is_known else self._highest + 1

    def believe(self, frame: Frame, position: int) -> bool:
        """Whether another record starts at the end of the frame. If so, its offset is noted."""
        highest = self._highest_after(frame)
        following = self._form.peek(self._file, frame.end)
        is_natural = frame.offset > 0 and following is not None and 0 < following <= highest + 1
        if not is_natural and not self._is_believed(frame, position, following, highest):
            return False
        self._highest = highest
        return True

    def _is_believed(self, frame: Frame, position: int, offset: int | None, highest: int) -> bool:
        """The same for a frame with offset 0, or with an unusual `offset` after it."""
        end = frame.end
        if self.is_blank(frame, position) and (
            self._highest >= self._early_offset
            or (position + ZEROS_BYTES <= self._file.size and self._are_zeros(position))
        ):
            return False
        if offset is None or 0 < offset <= highest + 1:
            return True
        after = self._form.parse(self._file, end)
        is_early = offset == 0 and highest < self._early_offset and after is not None
        if is_early and after is not None and not self.is_blank(after, end):
            return True
        if not is_early and not self._are_zeros(end) and not self._agrees(after, highest):
            return False
        # That is weak evidence, which a wrong length may lead to by accident: past records that it would hide.
        if not self._form.repeats_offsets:
            return not self._hides(frame, position, offset)
        following = self.resume(position)
        return following is None or following >= end

    def _hides(self, frame: Frame, position: int, offset: int) -> bool:
        """Whether the records that `offset` leaves room for lie inside the frame. Anything that looks like a record does
        not count: where offsets have gaps, and values are empty or full of zeros, much of a sound log does."""
        for place in self._form.head.places(self._file, position + 1):
            if place >= frame.end:
                return False
            if self._fills(place, frame, offset):
                return True
        return False

    def _fills(self, position: int, outer: Frame, offset: int) -> bool:
        """Whether records with rising offsets between the frame's and `offset` lie from a place to the frame's end, or
        several that begin with the next offset."""
        previous, count = outer.offset, 0
        while position < outer.end:
            frame = self._form.parse(self._file, position)
            if frame is None or not previous < frame.offset < offset:
                return False
            previous, position, count = frame.offset, frame.end, count + 1
            if count == _AGREEING and previous == outer.offset + count:
                return True
        return position == outer.end

    def _agrees(self, frame: Frame | None, highest: int) -> bool:
        """Whether a frame with an unusual offset leads to a record that fits it, or fits those before it."""
        if frame is None:
            return False
        following = self._form.peek(self._file, frame.end)
        if following is None or 0 < following <= highest + 2:
            return True
        return frame.offset >= 0 and 0 < following - frame.offset <= GAP_MAX

    def is_before_damage(self, frame: Frame, following: int) -> bool:
        """Whether a frame without a following record is valid and the bytes after it are not: the next offset after the
        damage shows that more than this record is missing."""
        offset = self._form.peek(self._file, following)
        return frame.offset == self._highest + 1 and following >= frame.end and (offset or 0) > frame.offset + 1

    def resume(self, damaged: int) -> int | None:
        """Where records continue after damage, if anywhere."""
        for place in self._form.head.places(self._file, damaged + 1):
            # No more records are missing than the damaged bytes could hold.
            highest = self._highest + 1 + (place - damaged) // self._form.record_bytes_min
            if self._chain(place, highest):
                return place
        return None

    def _chain(self, position: int, highest: int) -> bool:
        """Whether several consecutive records start here, or all that are left: with natural offsets, or with rising ones
        after a gap."""
        previous: int | None = None
        is_after_gap = False
        for _ in range(_AGREEING):
            frame = self._form.parse(self._file, position)
            if frame is None or self.is_blank(frame, position) or (frame.offset == 0 and previous is None):
                return False
            least = highest if previous is None else previous
            if is_after_gap or not 0 <= frame.offset <= highest + 1:
                if not least < frame.offset <= least + GAP_MAX:
                    return False
                is_after_gap = True
            previous = frame.offset
            highest = max(highest, frame.offset)
            position = frame.end
            if position == self._file.size:
                return True
        return True

    def is_blank(self, frame: Frame, position: int) -> bool:
        return frame.offset == 0 and frame.end - position == self._form.record_bytes_min

    def _are_zeros(self, position: int) -> bool:
        """Whether a sector of zeros starts here, or only zeros follow."""
        return not self._file.at(position, ZEROS_BYTES).strip(b"\0")
