"""The other dialects as `produce` and `consume` see them: one small client each, behind the same two methods.

They carry less than Kafka: no headers, no timestamps of the producer's, no null, and some no keys. What a dialect cannot
carry is refused, not dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

import typer

from penstock.cli.failure import Misused
from penstock.model.listeners import PORTS

if TYPE_CHECKING:
    from penstock.client.day1 import Day1Client
    from penstock.client.fluxgo import FluxGoClient
    from penstock.client.rustlog import RustLogClient


class Carried(NamedTuple):
    key: bytes
    value: bytes


class Found(NamedTuple):
    offset: int
    key: bytes
    value: bytes


class DialectClient(Protocol):
    def produce(self, topic: str, partition: int, records: Sequence[Carried]) -> None:
        """Append them in order; returns when the broker has acknowledged every one."""

    def consume(self, topic: str, partition: int, offset: int) -> Iterator[Found]:
        """From the offset, or the first behind it that is there, to the end of the log."""

    def close(self) -> None: ...
