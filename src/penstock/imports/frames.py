"""Records that follow each other in a file, each with its own length: code shared by the readers of such files.

None of the five small brokers has a checksum over a whole record, so records are validated in different ways:

    numbered    by their offset, and a following record with a natural offset (Day1, RustLog)
    checked     by lengths that agree with each other, and the checksum of the payload (MiniKafka)
    counted     by lengths that agree with each other, or an index of the starts of records (FlyMQ, FluxGo)

Other bytes are reported, and the search continues after them for the start of the next record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.imports.bytes_of_file import FileBytes
from penstock.records.record import Headers

SEARCH_BYTES_MAX = 256 * 1024 * 1024
"""Distance after damage within which the next record is searched: more than the largest record of these brokers."""
SEARCH_TRIES_MAX = 2_000_000
"""Number of positions tried: about ten seconds."""

CUT_OFF = "the file ends inside a record, or its length is wrong"
ZEROS = "zeros instead of records"
WRONG_LENGTH = "no record begins here, or its length is wrong"


class Frame(NamedTuple):
    """What lies at a place, if lengths can be believed."""

    end: int
    offset: int
    """-1 where the format has none."""
    timestamp: int
    """The record's timestamp, or the modification time of the file if it has none."""
    key: bytes | None
    value: bytes
    sound: bool = True
    """False when a checksum says otherwise."""
    headers: Headers = ()


Parse = Callable[[FileBytes, int], Frame | None]
"""The frame at a position; None when its lengths make no sense or it does not fit the file."""


class Head(NamedTuple):
    """A pattern for the first bytes of a record, so that most positions of a file need not be tried."""

    pattern: re.Pattern[bytes]
    length: int
    """Number of bytes that the pattern matches."""

    @classmethod
    def of(cls, pattern: bytes, length: int) -> Head:
        return cls(re.compile(pattern, re.DOTALL), length)

    def places(self, file: FileBytes, position: int) -> Iterator[int]:
        """Possible starts of records from `position` on, within the bounds of a search."""
        end = min(file.size, position + SEARCH_BYTES_MAX)
        for tried, place in enumerate(file.matches(self.pattern, self.length, position, end)):
            if tried == SEARCH_TRIES_MAX:
                return
            yield place


def what_is_wrong(file: FileBytes, end: int) -> str:
    """Why no record starts at a position; `end` is the start of the next record."""
    return CUT_OFF if end == file.size else WRONG_LENGTH
