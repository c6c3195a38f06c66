"""The small clients of the other dialects, behind the few methods that `produce` and `consume` need of them.

They differ in what they call things, and in who keeps the place of a reader: the reader itself (`_ByOffset`), or the broker
for a group (MiniKafka). What is asked of each is `DialectClient`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.client.fluxgo import FluxGoClient
    from penstock.client.rustlog import RustLogClient

Address = tuple[str, int]
ValuesClient = TypeVar("ValuesClient", "FluxGoClient", "RustLogClient")


class Pair(NamedTuple):
    key: bytes
    value: bytes


class Found(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    """None: the dialect has no keys."""
    value: bytes


class Groups(enum.Enum):
    """Whether one reads a dialect in a group."""

    NEVER = enum.auto()
    MAY = enum.auto()
    MUST = enum.auto()


class DialectClient(Protocol):
    @property
    def failure(self) -> type[Exception]:
        """What it raises for an answer that is an error."""

    @property
    def carries_keys(self) -> bool: ...

    @property
    def takes_partitions(self) -> bool:
        """Whether a producer says where a record goes; else its key does."""

    @property
    def groups(self) -> Groups: ...

    @property
    def records_per_commit(self) -> int:
        """How many records may be read before `commit`."""

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        """Append them in order; returns when every one is acknowledged. ValueError when one fits no request: then none
        has left."""

    def read(self, topic: str, partitions: list[int] | None, group: str | None, start: int) -> Iterator[Found]:
        """To the end of the log, from where the group is, or `start` where it committed nothing. Without partitions all
        there are, as far as the dialect can say. Called again it goes on behind what it gave."""

    def commit(self) -> None:
        """What `read` gave so far is done with, for its group."""

    def close(self) -> None: ...


class _Source(Protocol):
    """A dialect in which the reader says the offset."""

    @property
    def failure(self) -> type[Exception]: ...

    @property
    def carries_keys(self) -> bool: ...

    @property
    def groups(self) -> Groups: ...

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None: ...

    def records(self, topic: str, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Offset, key and value, over offsets that are gone, to the end of the log."""

    def partitions(self, topic: str) -> list[int]: ...

    def committed(self, group: str, topic: str, partition: int) -> int | None: ...

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    def close(self) -> None: ...


class _ByOffset:
    """Keeps where a reader is in each partition."""

    takes_partitions = True
    records_per_commit = 1_000

    def __init__(self, source: _Source) -> None:
        self._source = source
        self.failure, self.carries_keys, self.groups = source.failure, source.carries_keys, source.groups
        self.produce, self.close = source.produce, source.close
        self._next: dict[int, int] | None = None
        self._uncommitted: dict[tuple[str, str, int], int] = {}

    def read(self, topic: str, partitions: list[int] | None, group: str | None, start: int) -> Iterator[Found]:
        if self._next is None:
            chosen = partitions or self._source.partitions(topic)
            self._next = {partition: self._first(topic, partition, group, start) for partition in chosen}
        for partition, first in self._next.items():
            for offset, key, value in self._source.records(topic, partition, first):
                self._next[partition] = offset + 1
                if group is not None:
                    self._uncommitted[group, topic, partition] = offset + 1
                yield Found(partition, offset, key if self.carries_keys else None, value)

    def _first(self, topic: str, partition: int, group: str | None, start: int) -> int:
        committed = None if group is None else self._source.committed(group, topic, partition)
        return start if committed is None else committed

    def commit(self) -> None:
        for where, offset in self._uncommitted.items():
            self._source.commit(*where, offset)
        self._uncommitted.clear()


# ---------------------------------------------------------------------------------------------- the dialects


class _Values(Generic[ValuesClient]):
    """FluxGo or RustLog: records are values alone. They differ in how partitions are found out."""

    carries_keys = False
    groups = Groups.MAY

    def __init__(
        self, client: ValuesClient, failure: type[Exception], partitions: Callable[[ValuesClient, str], list[int]]
    ) -> None:
        self._client: ValuesClient = client
        self._partitions: Callable[[ValuesClient, str], list[int]] = partitions
        self.failure = failure
        self.committed, self.commit, self.close = client.fetch_offset, client.commit, client.close

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self._client.produce_many(topic, partition or 0, [record.value for record in records])

    def records(self, topic: str, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        for at, value in self._client.records(topic, partition, offset):
            yield at, b"", value

    def partitions(self, topic: str) -> list[int]:
        return self._partitions(self._client, topic)


def _fluxgo(addresses: Sequence[Address], timeout_s: float) -> _Values[FluxGoClient]:
    from penstock.client.fluxgo import NOT_FOUND, OFFSET_INVALID, READ_FAILED, FluxGoClient, FluxGoError

    def partitions(client: FluxGoClient, topic: str) -> list[int]:
        """FluxGo lists nothing, but says which partition is not there."""
        found: list[int] = []
        for partition in count():
            try:
                client.consume(topic, partition, 0)
            except FluxGoError as error:
                if error.code == NOT_FOUND and found:
                    break
                if error.code not in (OFFSET_INVALID, READ_FAILED):  # which say that it is there
                    raise
            found.append(partition)
        return found

    return _Values(FluxGoClient(*addresses[0], timeout_s), FluxGoError, partitions)


def _rustlog(addresses: Sequence[Address], timeout_s: float) -> _Values[RustLogClient]:
    from penstock.client.rustlog import RustLogClient, RustLogError

    def partitions(client: RustLogClient, topic: str) -> list[int]:
        return sorted(client.high_watermarks(topic))

    return _Values(RustLogClient(*addresses[0], timeout_s), RustLogError, partitions)


class _Day1:
    carries_keys = True
    groups = Groups.NEVER

    def __init__(self, addresses: Sequence[Address], timeout_s: float) -> None:
        from penstock.client.day1 import Day1Client, Day1Error

        self._client = Day1Client(*addresses[0], timeout_s)
        self.failure = Day1Error
        self.records, self.close = self._client.records, self._client.close

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self._client.produce_many(topic, partition or 0, records)

    def partitions(self, topic: str) -> list[int]:
        """Day1 has no word for them: a partition that is not there is an empty one."""
        return [0]

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return None

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Nothing to commit to: `groups` is NEVER."""


class _FlyMQ:
    """In opcode frames. It knows the other servers too, and goes to them when one dies."""

    carries_keys = True
    groups = Groups.MAY

    def __init__(self, addresses: Sequence[Address], timeout_s: float) -> None:
        from penstock.client.flymq import FlyMQClient, FlyMQError

        self._client = FlyMQClient([f"[{host}]:{port}" for host, port in addresses], timeout_s=timeout_s)
        self.failure = FlyMQError
        self.records, self.close = self._client.records, self._client.close

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        from penstock.client.flymq import ANY_PARTITION

        keys, values = [record.key for record in records], [record.value for record in records]
        self._client.produce_many(topic, values, keys, ANY_PARTITION if partition is None else partition)

    def partitions(self, topic: str) -> list[int]:
        return sorted(row.partition for row in self._client.metadata(topic))

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """From the description: asked for one partition, FlyMQ says 0 for "none" too."""
        if self._client.committed(topic, group, partition) is None:
            return None
        return self._client.describe_group(topic, group).offsets.get(partition)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._client.commit(topic, group, partition, offset)


class _MiniKafka:
    """The broker keeps the group's place, and gives the same message until it is acknowledged."""

    carries_keys = True
    takes_partitions = False
    groups = Groups.MUST
    records_per_commit = 1

    def __init__(self, addresses: Sequence[Address], timeout_s: float) -> None:
        from penstock.client.minikafka import MiniKafkaClient, MiniKafkaError

        self._client = MiniKafkaClient(*addresses[0], timeout_s)
        self.failure = MiniKafkaError
        self.close = self._client.close
        self._unacknowledged = False

    def produce(self, topic: str, partition: int | None, records: Sequence[Pair]) -> None:
        self._client.produce_many(topic, records)

    def read(self, topic: str, partitions: list[int] | None, group: str | None, start: int) -> Iterator[Found]:
        from penstock.client.minikafka import ALL_PARTITIONS

        for partition in partitions or [ALL_PARTITIONS]:
            while (message := self._client.consume(topic, group or "", partition)) is not None:
                self._unacknowledged = True
                yield Found(message.partition, message.offset, message.key, message.value)

    def commit(self) -> None:
        if self._unacknowledged:
            self._client.ack()
            self._unacknowledged = False


CLIENTS: Mapping[str, Callable[[Sequence[Address], float], DialectClient]] = MappingProxyType(
    {
        "fluxgo": lambda *where: _ByOffset(_fluxgo(*where)),
        "minikafka": _MiniKafka,
        "rustlog": lambda *where: _ByOffset(_rustlog(*where)),
        "flymq": lambda *where: _ByOffset(_FlyMQ(*where)),
        "day1": lambda *where: _ByOffset(_Day1(*where)),
    }
)
"""Made of the addresses of its servers and a timeout; the first is one that can be reached."""
