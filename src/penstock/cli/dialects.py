"""The other dialects as `produce` and `consume` see them: the small client of each, behind the same few methods.

They carry less than Kafka does: no headers, no timestamps of the producer's, no null, some no keys.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, NamedTuple, Protocol

import typer

from penstock.cli.connection import TIMEOUT_S, host_and_port
from penstock.cli.failure import Failed
from penstock.model.listeners import PORTS

_FLUXGO_NOT_FOUND = 0x22


class DialectName(enum.StrEnum):
    fluxgo = "fluxgo"
    rustlog = "rustlog"
    day1 = "day1"


DialectOption = Annotated[
    DialectName | None,
    typer.Option(
        "--dialect", help="Speak this one, not Kafka; --bootstrap names its listener. [default port: its own]"
    ),
]


class Pair(NamedTuple):
    key: bytes
    value: bytes


class Found(NamedTuple):
    offset: int
    key: bytes
    value: bytes


class DialectClient(Protocol):
    carries_keys: bool
    keeps_offsets: bool
    """Whether a group can commit; else the two methods for it are not called."""

    @property
    def failure(self) -> type[Exception]:
        """What it raises for an answer that is an error."""

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        """Append them in order, to the partition that the dialect chooses when None is given; returns when every one is
        acknowledged."""

    def consume(self, topic: str, partition: int, offset: int) -> Iterator[Found]:
        """From the offset, or the first behind it that is there, to the end of the log."""

    def partitions(self, topic: str) -> list[int]:
        """All there are, as far as the dialect can say."""

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Where the group goes on."""

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    def close(self) -> None: ...


class _FluxGo:
    carries_keys = False
    keeps_offsets = True

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        from penstock.client.fluxgo import FluxGoClient, FluxGoError

        client = FluxGoClient(host, port, timeout_s)
        self._client = client
        self.failure = FluxGoError
        self.committed, self.commit, self.close = client.fetch_offset, client.commit, client.close

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self._client.produce_many(topic, partition or 0, [record.value for record in records])

    def consume(self, topic: str, partition: int, offset: int) -> Iterator[Found]:
        for at, value in self._client.records(topic, partition, offset):
            yield Found(at, b"", value)

    def partitions(self, topic: str) -> list[int]:
        """FluxGo lists nothing, but says which partition is not there."""
        from penstock.client.fluxgo import FluxGoError

        found: list[int] = []
        for partition in count():
            try:
                self._client.consume(topic, partition, 0)
            except FluxGoError as error:
                if error.code == _FLUXGO_NOT_FOUND:
                    if not partition:
                        raise
                    break
            found.append(partition)
        return found


class _RustLog:
    carries_keys = False
    keeps_offsets = True

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        from penstock.client.rustlog import RustLogClient, RustLogError

        client = RustLogClient(host, port, timeout_s)
        self._client = client
        self.failure = RustLogError
        self.committed, self.commit, self.close = client.fetch_offset, client.commit, client.close

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self._client.produce_many(topic, partition or 0, [record.value for record in records])

    def consume(self, topic: str, partition: int, offset: int) -> Iterator[Found]:
        for at, value in self._client.records(topic, partition, offset):
            yield Found(at, b"", value)

    def partitions(self, topic: str) -> list[int]:
        return sorted(self._client.high_watermarks(topic))


class _Day1:
    carries_keys = True
    keeps_offsets = False

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        from penstock.client.day1 import Day1Client, Day1Error

        self._client = Day1Client(host, port, timeout_s)
        self.failure = Day1Error
        self.close = self._client.close

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self._client.produce_many(topic, partition or 0, records)

    def consume(self, topic: str, partition: int, offset: int) -> Iterator[Found]:
        for record in self._client.records(topic, partition, offset):
            yield Found(*record)

    def partitions(self, topic: str) -> list[int]:
        """Day1 has no word for them: a partition that is not there is an empty one."""
        return [0]

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return None

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        raise self.failure(255, "Day1 keeps no offsets")


_CLIENTS: Mapping[DialectName, Callable[[str, int, float], DialectClient]] = {
    DialectName.fluxgo: _FluxGo,
    DialectName.rustlog: _RustLog,
    DialectName.day1: _Day1,
}


def given(context: typer.Context, option: str) -> bool:
    """Whether it stands on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def dialect_address(context: typer.Context, name: DialectName, bootstrap: str) -> str:
    """Where that listener is: as given on the command line, else on this machine at the dialect's own port. What the
    environment says is where Kafka is spoken."""
    return bootstrap if given(context, "bootstrap") else f"127.0.0.1:{PORTS[name]}"


@contextlib.contextmanager
def speaking(name: DialectName, address: str, timeout_s: float = TIMEOUT_S) -> Iterator[DialectClient]:
    """A connected client; whatever goes wrong with it becomes `Failed`."""
    host, port = host_and_port(address)
    try:
        client = _CLIENTS[name](host, port, timeout_s)
    except OSError as error:
        raise Failed(
            f"no broker at {address}: {error.strerror or error} (start one with `penstock serve`, or name its {name} "
            "listener with --bootstrap)"
        ) from None
    try:
        with contextlib.closing(client):
            yield client
    except TimeoutError:
        raise Failed(f"{name} at {address}: the broker does not answer") from None
    except OSError as error:
        raise Failed(f"{name} at {address}: {error.strerror or error}") from None
    except client.failure as error:
        raise Failed(f"{name} at {address}: {error}") from None
