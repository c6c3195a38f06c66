"""Producer ids and transactions: what producers ask, and what administrators ask about producers.

The coordinator decides; here is what each version of a request means and which errors its clients know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from penstock.broker.transactions import TRANSACTIONS_TOPIC
from penstock.coordination.transaction_commands import (
    AddPartitions,
    DescribeTransaction,
    Description,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    PartitionsResult,
    ProducerResult,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.coordination.transaction_states import NO_EPOCH, NO_PRODUCER_ID, Identity
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.coordinators import ASKED_AT_ONCE, Room, ask_transaction, known_fault
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition, is_internal
from penstock.model.pending import Pending, in_turn, when
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

_FIRST_WITH_EXPECTED_IDENTITY = 3
_FIRST_BATCHED = 4
_FIRST_THAT_RAISES_EPOCH = 5

_NO_IDENTITY = Identity(NO_PRODUCER_ID, NO_EPOCH)


# ---- producers --------------------------------------------------------------------------------------------------------


def init_producer_id(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """Without a transactional id a fresh id with epoch 0; with one, the coordinator says who the producer is."""

    def answer(result: ProducerResult | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = ProducerResult(result)
        return _producer_answer(result, ApiKey.INIT_PRODUCER_ID, version)

    engine = service.engine
    name = body.transactional_id
    if name is None:

        async def take() -> dict[str, Any]:
            return answer(ProducerResult(Fault.NONE, await engine.new_producer_id(), 0))

        return engine.spawn(take(), lambda _: answer(Fault.COORDINATOR_NOT_AVAILABLE))
    expected: Identity | None = None
    if version >= _FIRST_WITH_EXPECTED_IDENTITY:
        shown = Identity(body.producer_id, body.producer_epoch)
        if shown != _NO_IDENTITY:
            if shown.producer_id == NO_PRODUCER_ID or shown.producer_epoch == NO_EPOCH:
                return answer(Fault.INVALID_REQUEST)
            expected = shown
    command = InitProducerId(name, milliseconds(body.transaction_timeout), expected)
    return when(ask_transaction(service, name, command), answer)


def _producer_answer(result: ProducerResult, key: ApiKey, version: int) -> dict[str, Any]:
    producer = Identity(*result[1:]) if result.fault is Fault.NONE else _NO_IDENTITY
    return {
        "error_code": known_fault(result.fault, key, version),
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


# ---- transactions -----------------------------------------------------------------------------------------------------


def add_partitions_to_txn(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """One transaction, all of its partitions or none, from producers; several from version 4 on, as brokers ask."""
    if version < _FIRST_BATCHED:
        identity = Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        addition = _Addition(service, body.v3_and_below_transactional_id, body.v3_and_below_topics, version)
        yield from addition.ask(identity, verify_only=False)
        return {"results_by_topic_v3_and_below": (yield from addition.answer())}
    rows: list[dict[str, Any]] = []
    waiting: deque[_Addition] = deque()
    for asked in body.transactions:
        addition = _Addition(service, asked.transactional_id, asked.topics, version)
        yield from addition.ask(Identity(asked.producer_id, asked.producer_epoch), verify_only=asked.verify_only)
        waiting.append(addition)
        if len(waiting) >= ASKED_AT_ONCE:
            rows.append((yield from _added(waiting.popleft())))
    while waiting:
        rows.append((yield from _added(waiting.popleft())))
    return {"error_code": Fault.NONE, "results_by_transaction": rows}


def _added(addition: _Addition) -> Work[dict[str, Any]]:
    return {"transactional_id": addition.name, "topic_results": (yield from addition.answer())}


class _Addition:
    """Adds partitions to a transaction: checks them, sends them to the coordinator in one command, builds the answer."""

    def __init__(self, service: KafkaService, name: str, topics: Any, version: int) -> None:
        self.name = name
        self._service = service
        self._topics = topics
        self._version = version
        self._refused: dict[TopicPartition, Fault] = {}
        self._answer: Any = Fault.NONE

    def ask(self, identity: Identity, *, verify_only: bool) -> Work[None]:
        partitions: set[TopicPartition] = set()
        for topic in self._topics:
            name = TopicName(topic.name)
            for at in topic.partitions:
                place = TopicPartition(name, at)
                fault = _addition_fault(self._service, place, verify_only)
                if fault is None:
                    partitions.add(place)
                else:
                    self._refused[place] = fault
                yield None
            yield None
        if not self._refused:
            ask = VerifyPartitions if verify_only else AddPartitions
            self._answer = ask_transaction(self._service, self.name, ask(self.name, identity, frozenset(partitions)))

    def answer(self) -> Work[list[dict[str, Any]]]:
        refused = self._refused
        result = (yield self._answer) if isinstance(self._answer, Pending) else self._answer
        fault, strangers = (result, frozenset()) if isinstance(result, Fault) else result
        rows = []
        for topic in self._topics:
            name = TopicName(topic.name)
            partitions = []
            for at in topic.partitions:
                place = TopicPartition(name, at)
                error: Fault | ErrorCode
                if refused:
                    error = refused.get(place, ErrorCode.operation_not_attempted)
                else:
                    here = Fault.TRANSACTION_ABORTABLE if fault is Fault.NONE and place in strangers else fault
                    error = known_fault(here, ApiKey.ADD_PARTITIONS_TO_TXN, self._version)
                partitions.append({"partition_index": at, "partition_error_code": error})
                yield None
            rows.append({"name": topic.name, "results_by_partition": partitions})
            yield None
        return rows


def _addition_fault(service: KafkaService, place: TopicPartition, verify_only: bool) -> Fault | None:
    if service.engine.partition(*place) is None:
        return Fault.UNKNOWN_TOPIC_OR_PARTITION
    # Offsets join a transaction by AddOffsetsToTxn; the transaction log itself is never part of one.
    return Fault.INVALID_TOPIC if is_internal(place.topic) and not verify_only else None


def add_offsets_to_txn(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """The group's partition of the offsets topic becomes part of the transaction."""
    engine = service.engine
    name = body.transactional_id
    if not body.group_id:
        return {"error_code": Fault.INVALID_GROUP_ID}

    def ask(made: Fault) -> Any:
        if made is not Fault.NONE:
            return made
        partitions = frozenset((engine.groups.partition_of(body.group_id),))
        identity = Identity(body.producer_id, body.producer_epoch)
        return ask_transaction(service, name, AddPartitions(name, identity, partitions))

    def answer(result: PartitionsResult | Fault) -> dict[str, Any]:
        fault = result if isinstance(result, Fault) else result.fault
        return {"error_code": known_fault(fault, ApiKey.ADD_OFFSETS_TO_TXN, version)}

    return when(in_turn(engine.groups.ensure(), ask), answer)


def end_txn(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    name = body.transactional_id
    command = EndTransaction(
        name,
        Identity(body.producer_id, body.producer_epoch),
        commit=body.committed,
        raises_epoch=version >= _FIRST_THAT_RAISES_EPOCH,
    )

    def answer(result: ProducerResult | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = ProducerResult(result)
        return _producer_answer(result, ApiKey.END_TXN, version)

    ended = service.engine.behind_appends(name, lambda: ask_transaction(service, name, command))
    return when(ended, answer)


# ---- administration ---------------------------------------------------------------------------------------------------


def write_txn_markers(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """An administrator ends a transaction that hangs in a partition; the coordinator is not asked."""
    rows = []
    for asked in body.markers:
        partitions: set[TopicPartition] = set()
        for topic in asked.topics:
            name = TopicName(topic.name)
            for at in topic.partition_indexes:
                if _may_be_marked(service, TopicPartition(name, at)):
                    partitions.add(TopicPartition(name, at))
                yield None
            yield None
        markers = WriteMarkers(
            transactional_id="",
            identity=Identity(asked.producer_id, asked.producer_epoch),
            coordinator_epoch=asked.coordinator_epoch,
            commit=asked.transaction_result,
            partitions=frozenset(partitions),
            transaction_version=getattr(asked, "transaction_version", 0),
        )
        written = yield from service.engine.transactions.write_markers_in_slices(markers)
        rows.append((asked, written))
        yield None
    return {"markers": (yield from _marked(rows))}


def _marked(rows: Sequence[tuple[Any, Mapping[TopicPartition, Fault | Pending[Fault]]]]) -> Work[list[dict[str, Any]]]:
    """Write all markers, then wait for their flush."""
    answers = []
    for asked, written in rows:
        topics = []
        for topic in asked.topics:
            name = TopicName(topic.name)
            partitions = []
            for at in topic.partition_indexes:
                marker = written.get(TopicPartition(name, at))
                if marker is None:
                    fault = Fault.UNKNOWN_TOPIC_OR_PARTITION
                elif isinstance(marker, Fault):
                    fault = marker
                else:
                    fault = marker.result if marker.done else (yield marker)
                partitions.append({"partition_index": at, "error_code": fault})
                yield None
            topics.append({"name": topic.name, "partitions": partitions})
            yield None
        answers.append({"producer_id": asked.producer_id, "topics": topics})
        yield None
    return answers


def _may_be_marked(service: KafkaService, place: TopicPartition) -> bool:
    """Not the coordinator's own log: it holds no transactions, and a marker in it could not be replayed."""
    return service.engine.partition(*place) is not None and place.topic != TRANSACTIONS_TOPIC


def describe_transactions(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    def ask(name: str) -> Any:
        return ask_transaction(service, name, DescribeTransaction(name))

    rows = []
    room = Room()
    for name in body.transactional_ids:
        result = ask(name)
        rows.append((yield from _described(name, (yield result) if isinstance(result, Pending) else result, room)))
        yield None
    return {"transaction_states": rows}


def _described(name: str, result: Description | Fault, room: Room) -> Work[dict[str, Any]]:
    if isinstance(result, Fault):
        result = Description(result, name)
    state = result.state
    room.take(1 if state is None else 1 + len(state.partitions))
    if state is None:
        return {
            "error_code": result.fault,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_EPOCH,
            "topics": [],
        }
    topics: dict[str, list[int]] = {}
    for topic, partition in state.partitions:
        topics.setdefault(topic, []).append(partition)
        yield None
    return {
        "error_code": result.fault,
        "transactional_id": name,
        "transaction_state": state.status.title,
        "transaction_timeout": state.timeout_ms,
        "transaction_start_time": state.start_ms,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "topics": [{"topic": topic, "partitions": sorted(topics[topic])} for topic in sorted(topics)],
    }


def list_transactions(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    try:
        matches = _pattern(getattr(body, "transactional_id_pattern", None))
    except BrokerError as error:
        return {"error_code": error.fault, "transaction_states": []}
    command = ListTransactions(
        producer_ids=frozenset(body.producer_id_filters),
        statuses=frozenset(body.state_filters),
        running_longer_than_ms=getattr(body, "duration_filter", -1),
        matches=matches,
    )
    found = yield from service.engine.transactions.list_in_slices(command)
    if isinstance(found, Fault):
        return {"error_code": found, "transaction_states": []}
    rows = []
    for name, state in found.transactions:
        rows.append(
            {"transactional_id": name, "producer_id": state.producer_id, "transaction_state": state.status.title}
        )
        yield None
    return {
        "error_code": Fault.NONE,
        "unknown_state_filters": list(found.unknown_statuses),
        "transaction_states": rows,
    }


def _pattern(text: str | None) -> Callable[[str], bool] | None:
    """Whether a whole transactional id fits a client's RE2 pattern (KIP-1152); raises BrokerError when it is none."""
    if not text:
        return None
    import re2

    try:
        fits = re2.compile(text).fullmatch
    except re2.error as error:
        raise BrokerError(Fault.INVALID_REGULAR_EXPRESSION, f"{text!r}: {error}") from None
    return lambda name: fits(name) is not None


def describe_producers(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    topics = []
    room = Room()
    for topic in body.topics:
        rows = []
        for partition in topic.partition_indexes:
            rows.append((yield from _producers(service, topic.name, partition, room)))
            yield None
        topics.append({"name": topic.name, "partitions": rows})
        yield None
    return {"topics": topics}


def _producers(service: KafkaService, topic: str, partition: int, room: Room) -> Work[dict[str, Any]]:
    found = service.engine.partition(topic, partition)
    fault = Fault.NONE
    if found is None:
        fault = Fault.UNKNOWN_TOPIC_OR_PARTITION
    elif not found.online:
        fault = Fault.STORAGE_ERROR
    if found is None or fault is not Fault.NONE:
        return {
            "partition_index": partition,
            "error_code": fault,
            "error_message": fault.value,
            "active_producers": [],
        }
    producers = []
    for producer_id in found.producers.ids():
        room.take(1)
        row = found.producers.row(producer_id)
        if row is not None:
            producers.append(
                {
                    "producer_id": row.producer_id,
                    "producer_epoch": row.producer_epoch,
                    "last_sequence": row.last_sequence,
                    "last_timestamp": row.last_timestamp_ms,
                    "coordinator_epoch": row.coordinator_epoch,
                    "current_txn_start_offset": row.transaction_first_offset,
                }
            )
        yield None
    return {"partition_index": partition, "error_code": Fault.NONE, "active_producers": producers}
