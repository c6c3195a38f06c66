"""Topics and the cluster: CREATE_TOPIC, METADATA, LIST_TOPICS, DELETE_TOPIC, CLUSTER_METADATA, and Metadata by API key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.engine import NewTopic, TopicInfo, TopicResult
from penstock.dialects.flymq.reading import end_of, start_of
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I16, I32, TRUE, U64, Reader, array, ints, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES
from penstock.model.ids import topic_name
from penstock.model.pending import gather

if TYPE_CHECKING:
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

HIDDEN_PREFIX = "__"
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


def list_topics(service: FlyMQService, session: FlyMQSession, reader: Reader) -> bytes:
    return array([string(info.name) for info in _shown(service)])


def metadata(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    name = reader.string()
    info = _known(service, name)
    numbers = [at for at, _, _ in info.partitions]
    starts = [start_of(service, name, at) for at in numbers]

    def described(ends: list[int | BrokerError]) -> bytes:
        rows = []
        for at, start, end in zip(numbers, starts, ends, strict=True):
            if isinstance(end, BrokerError):
                raise end
            rows.append(I32.pack(at) + I32.pack(service.engine.identity.node_id) + U64.pack(start) + U64.pack(end))
        return string(name) + array(rows)

    return follow(gather([end_of(service, name, at) for at in numbers]), described)


def cluster_metadata(service: FlyMQService, session: FlyMQSession, reader: Reader) -> bytes:
    name = reader.string() if reader.left else ""
    topics = [_known(service, name)] if name else _shown(service)
    node = string(str(service.engine.identity.node_id))
    led = node + string(service.address)
    held = array([node])
    rows = []
    for info in topics:
        partitions = [
            b"".join(
                (I32.pack(at), led, U64.pack(max(epoch, 0)), string("online" if online else "offline"), held, held)
            )
            for at, online, epoch in info.partitions
        ]
        rows.append(string(info.name) + array(partitions))
    return string(STANDALONE) + array(rows)


def _shown(service: FlyMQService) -> list[TopicInfo]:
    return [info for info in service.engine.topics() if not info.name.startswith(HIDDEN_PREFIX)]


def _known(service: FlyMQService, name: str) -> TopicInfo:
    info = service.engine.topic(name)
    if info is None:
        raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"topic not found: {name}")
    return info


# ---- API-key frames -----------------------------------------------------------------------------------------------


def api_metadata(service: FlyMQService, session: FlyMQSession, reader: Reader) -> bytes:
    names = reader.array(reader.string, 2)
    node_id = service.engine.identity.node_id
    broker = I32.pack(node_id) + string(service.settings.advertised_host) + I32.pack(service.settings.advertised_port)
    names = names or [info.name for info in service.engine.topics()]
    rows = [_described(service, name, node_id) for name in names]
    return b"".join((string(service.engine.identity.cluster_id), array([broker]), array(rows)))


def _described(service: FlyMQService, name: str, node_id: int) -> bytes:
    info = service.engine.topic(name)
    if info is None:
        try:
            topic_name(name)
            fault = Fault.UNKNOWN_TOPIC_OR_PARTITION
        except BrokerError as error:
            fault = error.fault
        return I16.pack(CODES[fault]) + string(name) + array([])
    held = ints([node_id])
    partitions = [
        b"".join((I32.pack(at), I32.pack(node_id if online else -1), I32.pack(epoch), held, held))
        for at, online, epoch in info.partitions
    ]
    return I16.pack(CODES[Fault.NONE]) + string(name) + array(partitions)
