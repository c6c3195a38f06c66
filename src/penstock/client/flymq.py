"""A small synchronous FlyMQ client: opcode frames to one of several servers, from any number of threads.

It speaks to this broker or to FlyMQ itself and raises `FlyMQError` for every error that a server answers. When a server
dies the next one is asked; a failure of all is a ConnectionError. When all connections are in use for too long it is
`PoolExhausted`. With a key, values are encrypted before they leave and decrypted when they come back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from penstock.client.flymq_connection import (
    PAYLOAD_BYTES_MAX,
    Connection,
    FlyMQError,
    NotLeader,
    PoolExhausted,
    Servers,
    address_of,
    frame,
)
from penstock.client.flymq_encryption import Encryption
from penstock.client.stream import windows

__all__ = ["FlyMQClient", "FlyMQError", "Group", "PoolExhausted", "Record", "RecordMetadata", "Transaction"]

T = TypeVar("T")

PORT = 9095
ANY_PARTITION = -1

PRODUCE, CONSUME, CREATE_TOPIC, METADATA, SUBSCRIBE, COMMIT, FETCH, LIST_TOPICS, DELETE_TOPIC = range(0x01, 0x0A)
TXN_BEGIN, TXN_COMMIT, TXN_ABORT, TXN_PRODUCE = range(0x40, 0x44)
GET_OFFSET, RESET_OFFSET, LIST_GROUPS, DESCRIBE_GROUP, GET_LAG, DELETE_GROUP = range(0x60, 0x66)

_GROUP_NOT_FOUND = "consumer group not found"


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key_size: int
    """-1 without a key."""
    value_size: int


class Record(NamedTuple):
    offset: int
    key: bytes
    value: bytes


class Lag(NamedTuple):
    current: int
    committed: int
    latest: int
    lag: int


class Group(NamedTuple):
    """One topic's offsets of a group."""

    topic: str
    group: str
    members: int
    offsets: dict[int, int]


class PartitionMetadata(NamedTuple):
    partition: int
    leader: int
    oldest: int
    newest: int


class FlyMQClient:
    """`servers` are `HOST:PORT` texts, or one text with commas. Connections are made when they are needed, at most
    `connections_max` to a server; `with` closes them. A request that no server answers is tried at each of them, and
    `attempts_max - 1` times more."""

    def __init__(
        self,
        servers: str | Sequence[str] = f"127.0.0.1:{PORT}",
        *,
        timeout_s: float = 30.0,
        connections_max: int = 4,
        attempts_max: int = 3,
        encryption_key: bytes | str | None = None,
    ) -> None:
        named = [servers] if isinstance(servers, str) else servers
        addresses = [address_of(text, PORT) for server in named for text in server.split(",") if text.strip()]
        self._encryption = None if encryption_key is None else Encryption(encryption_key)
        self._servers = Servers(
            addresses, connections_max=connections_max, attempts_max=attempts_max, timeout_s=timeout_s
        )

    # ------------------------------------------------------------------------------------------------ records

    def produce(self, topic: str, value: bytes, key: bytes = b"", partition: int = ANY_PARTITION) -> RecordMetadata:
        """Append one. When the connection dies before the answer it is sent again, so it may be there twice."""
        return _record_metadata(self._servers.ask(PRODUCE, self._produce_payload(topic, value, key, partition)))

    def produce_many(
        self, topic: str, values: Sequence[bytes], keys: Sequence[bytes] | None = None, partition: int = ANY_PARTITION
    ) -> list[RecordMetadata]:
        """Append many without waiting for each.

        As with `produce`, those whose answers had not come when a connection died are sent again, so they may be there
        twice; what was acknowledged is never sent again. When a server answers an error, nothing is sent after it, and
        the records without an answer may be there or not.
        """
        rows = zip(values, keys or [b""] * len(values), strict=True)
        frames = [frame(PRODUCE, self._produce_payload(topic, value, key, partition)) for value, key in rows]
        placed: list[RecordMetadata] = []
        for window in windows(frames):
            placed += map(_record_metadata, self._answers(window))
        return placed

    def _answers(self, window: Sequence[bytes]) -> list[bytes]:
        """To the produces of a window that is sent at once, in their order."""
        answers: dict[int, bytes] = {}

        def exchange(connection: Connection) -> None:
            missing = [at for at in range(len(window)) if at not in answers]
            connection.send(b"".join(window[at] for at in missing), len(missing))
            _read_answers(connection, missing, answers)

        while len(answers) < len(window):
            before = len(answers)
            try:
                self._servers.use(exchange)
            except (NotLeader, ConnectionError):
                # Each partition may have a leader of its own: as long as some records find theirs, it goes on.
                if len(answers) == before:
                    raise
        return [answers[at] for at in range(len(window))]

    def consume(self, topic: str, partition: int, offset: int) -> Record:
        """The record at `offset`; FlyMQError "EOF" at the end of the log."""
        fields = _Fields(self._servers.ask(CONSUME, _string(topic) + _I32.pack(partition) + _U64.pack(offset)))
        return Record(offset, fields.raw(), self._opened(fields.raw()))

    def fetch(
        self, topic: str, partition: int, offset: int, records_max: int = 10, wanted: str = ""
    ) -> tuple[list[Record], int]:
        """Records from `offset` on that fit the filter `wanted`, and where to go on."""
        payload = _string(topic) + _I32.pack(partition) + _U64.pack(offset) + _I32.pack(records_max)
        fields = _Fields(self._servers.ask(FETCH, payload + (_string(wanted) if wanted else b"")))
        count, next_offset = fields.number(_U32), fields.number(_U64)
        rows = [Record(fields.number(_U64), fields.raw(), self._opened(fields.raw())) for _ in range(count)]
        return rows, next_offset

    def records(self, topic: str, partition: int, offset: int = 0) -> Iterator[Record]:
        """From `offset` to the end of the log, over offsets that are gone."""
        while True:
            rows, next_offset = self.fetch(topic, partition, offset, 1_000)
            yield from rows
            if next_offset == offset:
                return
            offset = next_offset

    def _produce_payload(self, topic: str, value: bytes, key: bytes, partition: int) -> bytes:
        return _string(topic) + _raw(key) + _raw(self._sealed(value)) + _I32.pack(partition)

    def _sealed(self, value: bytes) -> bytes:
        return value if self._encryption is None else self._encryption.encrypt(value)

    def _opened(self, value: bytes) -> bytes:
        return value if self._encryption is None else self._encryption.decrypt(value)

    # ------------------------------------------------------------------------------------------------ topics

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._servers.ask(CREATE_TOPIC, _string(topic) + _I32.pack(partitions))

    def delete_topic(self, topic: str) -> None:
        self._servers.ask(DELETE_TOPIC, _string(topic))

    def topics(self) -> list[str]:
        fields = _Fields(self._servers.ask(LIST_TOPICS, b""))
        return fields.array(fields.string)

    def metadata(self, topic: str) -> list[PartitionMetadata]:
        """Partitions with their leaders and ends; the original does not answer this."""
        fields = _Fields(self._servers.ask(METADATA, _string(topic)))
        fields.string()
        return fields.array(
            lambda: PartitionMetadata(
                fields.number(_I32), fields.number(_I32), fields.number(_U64), fields.number(_U64)
            )
        )

    # ------------------------------------------------------------------------------------------------ groups

    def subscribe(self, topic: str, group: str, partition: int = 0, mode: str = "latest") -> int:
        """Where to begin: "earliest", "latest" or "commit"."""
        text = mode.encode()
        payload = _place(topic, group, partition) + bytes((len(text),)) + text
        return _Fields(self._servers.ask(SUBSCRIBE, payload)).number(_U64)

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        self._servers.ask(COMMIT, _place(topic, group, partition) + _U64.pack(offset))

    def committed(self, topic: str, group: str, partition: int = 0) -> int | None:
        """Where the group goes on, 0 when it committed nothing for that partition; None when nobody knows it."""
        try:
            return _Fields(self._servers.ask(GET_OFFSET, _place(topic, group, partition))).number(_U64)
        except FlyMQError as error:
            if error.text.startswith(_GROUP_NOT_FOUND):
                return None
            raise

    def reset_offset(self, topic: str, group: str, partition: int, to: str | int) -> None:
        """To "earliest", to "latest" or to an offset."""
        mode, offset = (to, b"") if isinstance(to, str) else ("offset", _U64.pack(to))
        text = mode.encode()
        self._servers.ask(RESET_OFFSET, _place(topic, group, partition) + bytes((len(text),)) + text + offset)

    def lag(self, topic: str, group: str, partition: int = 0) -> Lag:
        fields = _Fields(self._servers.ask(GET_LAG, _place(topic, group, partition)))
        return Lag(fields.number(_U64), fields.number(_U64), fields.number(_U64), fields.number(_U64))

    def groups(self) -> list[Group]:
        fields = _Fields(self._servers.ask(LIST_GROUPS, b""))
        return fields.array(lambda: _group(fields))

    def describe_group(self, topic: str, group: str) -> Group:
        return _group(_Fields(self._servers.ask(DESCRIBE_GROUP, _string(topic) + _string(group))))

    def delete_group(self, topic: str, group: str) -> None:
        self._servers.ask(DELETE_GROUP, _string(topic) + _string(group))

    # ------------------------------------------------------------------------------------------------ transactions

    def begin(self) -> Transaction:
        """A transaction; with `with` it commits at the end, and aborts when an exception comes out."""
        name = _Fields(self._servers.ask(TXN_BEGIN, b"")).string()
        return Transaction(self._servers, name, self._sealed)

    def close(self) -> None:
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transaction:
    def __init__(self, servers: Servers, name: str, sealed: Callable[[bytes], bytes]) -> None:
        self.name = name
        self._servers = servers
        self._sealed = sealed

    def produce(self, topic: str, value: bytes) -> RecordMetadata:
        payload = _string(self.name) + _string(topic) + _raw(self._sealed(value))
        return _record_metadata(self._servers.ask(TXN_PRODUCE, payload))

    def commit(self) -> None:
        """Raises FlyMQError when the transaction had ended already."""
        self._end(TXN_COMMIT, "committed")

    def abort(self) -> None:
        self._end(TXN_ABORT, "aborted")

    def _end(self, opcode: int, how: str) -> None:
        fields = _Fields(self._servers.ask(opcode, _string(self.name)))
        fields.string()
        if not fields.take(1)[0]:
            raise FlyMQError(0, f"transaction {self.name} cannot be {how}: it is unknown or has ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


# ---------------------------------------------------------------------------------------------------------- fields

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_U64 = struct.Struct(">Q")
_METADATA = struct.Struct(">iQqii")


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise ConnectionError("response is too short: the server does not speak FlyMQ")
        self._at += size
        return data

    def number(self, kind: struct.Struct) -> int:
        return int(kind.unpack(self.take(kind.size))[0])

    def string(self) -> str:
        return self.take(self.number(_U16)).decode("utf-8", "replace")

    def raw(self) -> bytes:
        return self.take(self.number(_U32))

    def array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.number(_U32))]


def _record_metadata(payload: bytes) -> RecordMetadata:
    fields = _Fields(payload)
    topic = fields.string()
    return RecordMetadata(topic, *_METADATA.unpack(fields.take(_METADATA.size)))


def _group(fields: _Fields) -> Group:
    topic, group, members = fields.string(), fields.string(), fields.number(_U32)
    return Group(topic, group, members, dict(fields.array(lambda: (fields.number(_I32), fields.number(_U64)))))


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0xFFFF:
        raise ValueError(f"a name of {len(data)} bytes exceeds FlyMQ's limit of 65535")
    return _U16.pack(len(data)) + data


def _raw(data: bytes) -> bytes:
    if len(data) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes exceed FlyMQ's limit of {PAYLOAD_BYTES_MAX}")
    return _U32.pack(len(data)) + data


def _place(topic: str, group: str, partition: int) -> bytes:
    return _string(topic) + _string(group) + _I32.pack(partition)


def _read_answers(connection: Connection, places: Sequence[int], answers: dict[int, bytes]) -> None:
    """Into `answers` by place. All are read, so that the connection stays of use; then the first error is raised. One that
    says that another server leads comes last: nothing may be sent again once a server refused a record."""
    refused: FlyMQError | None = None
    elsewhere: NotLeader | None = None
    try:
        for place in places:
            try:
                answers[place] = connection.answer(PRODUCE)
            except NotLeader as error:
                elsewhere = elsewhere or error
            except FlyMQError as error:
                refused = refused or error
    except OSError:
        if refused is None:
            raise
    failure = refused or elsewhere
    if failure is not None:
        raise failure
