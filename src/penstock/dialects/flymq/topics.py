"""Topics and the cluster: CREATE_TOPIC, METADATA, LIST_TOPICS, DELETE_TOPIC, CLUSTER_METADATA, and Metadata by API key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.engine import NewTopic, PartitionInfo, TopicInfo, TopicResult
from penstock.dialects.flymq.reading import end_of, start_of
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I16, I32, TRUE, U64, Reader, Rows, array, ints, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES
from penstock.model.ids import topic_name
from penstock.model.pending import Pending
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

HIDDEN_PREFIX = "__"
ROWS_AT_ONCE = 100
"""Topics or partitions that are described between two pauses."""
STANDALONE = "standalone"
"""What a FlyMQ server that is alone calls its cluster."""


# ---- opcode frames ------------------------------------------------------------------------------------------------


def create_topic(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    name, partitions = reader.string(), reader.i32()
    topic_name(name)
    if partitions < 0:
        raise BrokerError(Fault.INVALID_PARTITIONS, f"a topic cannot have {partitions} partitions")
    made = service.engine.create_topics([NewTopic(name, partitions or 1)], validate_only=False)
    return follow(made, lambda results: _done(results, Fault.TOPIC_EXISTS))


def delete_topic(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    name = reader.string()
    if service.engine.topic(name) is None:
        return TRUE
    deleted = service.engine.delete_topics([name])
    return follow(deleted, lambda results: _done(results, Fault.UNKNOWN_TOPIC_OR_PARTITION))


def _done(results: list[TopicResult], harmless: Fault) -> bytes:
    result = results[0]
    if result.fault not in (Fault.NONE, harmless):
        raise BrokerError(result.fault, result.text or "")
    return TRUE


def list_topics(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    rows = Rows(service.frame_bytes_max)
    for info in _shown(service):
        rows.add(string(info.name))
        if len(rows) % ROWS_AT_ONCE == 0:
            yield None
    return rows.array()


def metadata(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    name = reader.string()
    count = len(_known(service, name).partitions)
    node_id = service.engine.identity.node_id
    starts: list[int] = []
    asked: list[Any] = []
    for at in range(count):
        starts.append(start_of(service, name, at))
        asked.append(end_of(service, name, at))
        if at % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            yield None
    rows = []
    for at, end in enumerate(asked):
        if isinstance(end, Pending):
            end = yield end
        if isinstance(end, BrokerError):
            raise end
        rows.append(I32.pack(at) + I32.pack(node_id) + U64.pack(starts[at]) + U64.pack(end))
        if at % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            yield None
    return string(name) + array(rows)


def cluster_metadata(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    name = reader.string() if reader.left else ""
    topics = [_known(service, name)] if name else _shown(service)
    node = string(str(service.engine.identity.node_id))
    led = node + string(service.address)
    held = array([node])

    def row(partition: PartitionInfo) -> bytes:
        at, online, epoch = partition
        state = string("online" if online else "offline")
        return b"".join((I32.pack(at), led, U64.pack(max(epoch, 0)), state, held, held))

    rows = Rows(service.frame_bytes_max)
    for info in topics:
        rows.add(string(info.name) + (yield from _partition_rows(info, row)))
        if len(rows) % ROWS_AT_ONCE == 0:
            yield None
    return string(STANDALONE) + rows.array()


def _partition_rows(info: TopicInfo, row: Callable[[PartitionInfo], bytes]) -> Work[bytes]:
    count = len(info.partitions)
    if count <= ROWS_AT_ONCE:
        return array(list(map(row, info.partitions)))
    rows: list[bytes] = []
    for start in range(0, count, ROWS_AT_ONCE):
        rows += map(row, info.partitions[start : start + ROWS_AT_ONCE])
        yield None
    return array(rows)


def _shown(service: FlyMQService) -> Iterator[TopicInfo]:
    for name in service.engine.topic_names():
        info = None if name.startswith(HIDDEN_PREFIX) else service.engine.topic(name)
        if info is not None:
            yield info


def _known(service: FlyMQService, name: str) -> TopicInfo:
    info = service.engine.topic(name)
    if info is None:
        raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"topic not found: {name}")
    return info


# ---- API-key frames -----------------------------------------------------------------------------------------------


def api_metadata(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    names: Sequence[str] = yield from reader.array_in_slices(reader.string, 2)
    node_id = service.engine.identity.node_id
    broker = I32.pack(node_id) + string(service.settings.advertised_host) + I32.pack(service.settings.advertised_port)
    rows = Rows(service.frame_bytes_max)
    for name in names or service.engine.topic_names():
        rows.add((yield from _described(service, name, node_id)))
        if len(rows) % ROWS_AT_ONCE == 0:
            yield None
    return b"".join((string(service.engine.identity.cluster_id), array([broker]), rows.array()))


def _described(service: FlyMQService, name: str, node_id: int) -> Work[bytes]:
    info = service.engine.topic(name)
    if info is None:
        try:
            topic_name(name)
            fault = Fault.UNKNOWN_TOPIC_OR_PARTITION
        except BrokerError as error:
            fault = error.fault
        return I16.pack(CODES[fault]) + string(name) + array([])
    held = ints([node_id])

    def row(partition: PartitionInfo) -> bytes:
        at, online, epoch = partition
        return b"".join((I32.pack(at), I32.pack(node_id if online else -1), I32.pack(epoch), held, held))

    return I16.pack(CODES[Fault.NONE]) + string(name) + (yield from _partition_rows(info, row))
