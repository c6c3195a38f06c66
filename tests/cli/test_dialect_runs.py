from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from penstock.cli.dialect_clients import Pair
from penstock.cli.dialect_runs import DialectDelivery
from penstock.cli.dialects import DialectName
from penstock.cli.record_text import LineParser, TextRecord


class Taken:
    """As much of a client as a delivery uses."""

    takes_partitions = True
    carries_keys = True

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self.values += [bytes(record.value) for record in records]


class Pieces(io.BytesIO):
    """Delivers so many bytes a read, as a pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(self._size)


def delivered(data: bytes, size: int) -> list[bytes]:
    client: Any = Taken()
    delivery = DialectDelivery(DialectName.fluxgo, client, "t", None)
    parser = LineParser(lambda line: TextRecord(None, line), lambda _: None)
    assert delivery.run(Pieces(data, size), parser, lambda _read, _delivered: None)
    assert delivery.delivered == len(client.values)
    return client.values  # type: ignore[no-any-return]


def test_lines_are_the_same_however_they_arrive() -> None:
    data = b"first\n\nthird line\nlast without an end"
    for size in range(1, len(data) + 1):
        assert delivered(data, size) == [b"first", b"", b"third line", b"last without an end"]


def test_long_line_takes_time_in_proportion_to_its_length() -> None:
    """Put together at each read, this one would copy two terabytes."""
    data = b"x" * 65_536_000 + b"\nend\n"
    assert [len(value) for value in delivered(data, 1_000)] == [65_536_000, 3]
