"""Records that lie one behind the other in a file, each with its own length: what the readers of such files share.

None of the five small brokers has a checksum over a whole record, so what vouches for a record differs:

    numbered    its offset, and that a record with a natural offset follows it (Day1, RustLog)
    checked     lengths that agree with each other, and the payload's checksum (MiniKafka)
    counted     lengths that agree with each other, or an index that says where records begin (FlyMQ, FluxGo)

Bytes that are no record are reported, and the search continues after them for the next place where one begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.imports.bytes_of_file import FileBytes
from penstock.records.record import Headers

SEARCH_BYTES_MAX = 256 * 1024 * 1024
"""How far after damage a record is looked for: more than the largest record of any of these brokers."""
SEARCH_TRIES_MAX = 2_000_000
"""How many places are tried: about ten seconds."""

CUT_OFF = "the file ends inside a record, or its length is wrong"
ZEROS = "zeros instead of records"
WRONG_LENGTH = "no record begins here, or its length is wrong"


class Frame(NamedTuple):
    """What lies at a place, if lengths can be believed."""

    end: int
    offset: int
    """-1 where the format has none."""
    timestamp: int
    """The record's, or where it has none that of the file's last change."""
    key: bytes | None
    value: bytes
    sound: bool = True
    """False when a checksum says otherwise."""
    headers: Headers = ()


Parse = Callable[[FileBytes, int], Frame | None]
"""The frame at a position; None when its lengths make no sense or it does not fit the file."""


class Head(NamedTuple):
    """What the first bytes of a record look like, so that most places of a file need not be tried."""

    pattern: re.Pattern[bytes]
    length: int
    """Of what the pattern matches."""

    @classmethod
    def of(cls, pattern: bytes, length: int) -> Head:
        return cls(re.compile(pattern, re.DOTALL), length)

    def places(self, file: FileBytes, position: int) -> Iterator[int]:
        """Where a record may begin, from `position` on, within the bounds of a search."""
        end = min(file.size, position + SEARCH_BYTES_MAX)
        for tried, place in enumerate(file.matches(self.pattern, self.length, position, end)):
            if tried == SEARCH_TRIES_MAX:
                return
            yield place


def what_is_wrong(file: FileBytes, end: int) -> str:
    """Why there is no record where one should begin; `end` is where the next one does."""
    return CUT_OFF if end == file.size else WRONG_LENGTH
