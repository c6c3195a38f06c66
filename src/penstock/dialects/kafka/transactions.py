"""Producer ids and transactions: what producers ask, and what administrators ask about producers.

The coordinator decides; here is what each version of a request means and which errors its clients know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    TransactionList,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.coordination.transaction_states import NO_EPOCH, NO_PRODUCER_ID, Identity
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.coordinators import ask_transaction, known_fault
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition, is_internal
from penstock.model.pending import Pending, gather, in_turn, when

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


def add_partitions_to_txn(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """One transaction, all of its partitions or none, from producers; several from version 4 on, as brokers ask."""
    if version < _FIRST_BATCHED:
        identity = Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        added = _add(
            service, body.v3_and_below_transactional_id, identity, body.v3_and_below_topics, version, verify_only=False
        )
        return when(added, lambda topics: {"results_by_topic_v3_and_below": topics})
    parts = [
        _add(
            service,
            asked.transactional_id,
            Identity(asked.producer_id, asked.producer_epoch),
            asked.topics,
            version,
            verify_only=asked.verify_only,
        )
        for asked in body.transactions
    ]

    def answer(results: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {
            "error_code": Fault.NONE,
            "results_by_transaction": [
                {"transactional_id": asked.transactional_id, "topic_results": topics}
                for asked, topics in zip(body.transactions, results, strict=True)
            ],
        }

    return when(gather(parts), answer)


def _add(
    service: KafkaService, name: str, identity: Identity, topics: Any, version: int, *, verify_only: bool
) -> list[dict[str, Any]] | Pending[list[dict[str, Any]]]:
    partitions = _partitions((topic.name, topic.partitions) for topic in topics)
    refused = {place: fault for place in partitions if (fault := _addition_fault(service, place, verify_only))}
    if refused:
        return _partition_results(topics, lambda place: refused.get(place, ErrorCode.operation_not_attempted))
    ask = VerifyPartitions if verify_only else AddPartitions
    answered = ask_transaction(service, name, ask(name, identity, partitions))

    def answer(result: PartitionsResult | Fault) -> list[dict[str, Any]]:
        fault, strangers = (result, frozenset()) if isinstance(result, Fault) else result

        def outcome(place: TopicPartition) -> Fault:
            here = Fault.TRANSACTION_ABORTABLE if fault is Fault.NONE and place in strangers else fault
            return known_fault(here, ApiKey.ADD_PARTITIONS_TO_TXN, version)

        return _partition_results(topics, outcome)

    return when(answered, answer)


def _addition_fault(service: KafkaService, place: TopicPartition, verify_only: bool) -> Fault | None:
    if service.engine.partition(*place) is None:
        return Fault.UNKNOWN_TOPIC_OR_PARTITION
    # Offsets join a transaction by AddOffsetsToTxn; the transaction log itself is never part of one.
    return Fault.INVALID_TOPIC if is_internal(place.topic) and not verify_only else None


def _partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TopicName(name), at) for name, partitions in topics for at in partitions)


def _partition_results(topics: Any, outcome: Callable[[TopicPartition], Fault | ErrorCode]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": partition,
                    "partition_error_code": outcome(TopicPartition(TopicName(topic.name), partition)),
                }
                for partition in topic.partitions
            ],
        }
        for topic in topics
    ]


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


def write_txn_markers(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """An administrator ends a transaction that hangs in a partition; the coordinator is not asked."""
    engine = service.engine
    markers = [
        WriteMarkers(
            transactional_id="",
            identity=Identity(asked.producer_id, asked.producer_epoch),
            coordinator_epoch=asked.coordinator_epoch,
            commit=asked.transaction_result,
            partitions=frozenset(
                place
                for place in _partitions((topic.name, topic.partition_indexes) for topic in asked.topics)
                if _may_be_marked(service, place)
            ),
            transaction_version=getattr(asked, "transaction_version", 0),
        )
        for asked in body.markers
    ]

    def answer(results: list[dict[TopicPartition, Fault]]) -> dict[str, Any]:
        rows = []
        for asked, faults in zip(body.markers, results, strict=True):
            topics = []
            for topic in asked.topics:
                partitions = []
                for partition in topic.partition_indexes:
                    place = TopicPartition(TopicName(topic.name), partition)
                    fault = faults.get(place, Fault.UNKNOWN_TOPIC_OR_PARTITION)
                    partitions.append({"partition_index": partition, "error_code": fault})
                topics.append({"name": topic.name, "partitions": partitions})
            rows.append({"producer_id": asked.producer_id, "topics": topics})
        return {"markers": rows}

    return engine.transactions.write_markers(markers).map(answer)


def _may_be_marked(service: KafkaService, place: TopicPartition) -> bool:
    """Not the coordinator's own log: it holds no transactions, and a marker in it could not be replayed."""
    return service.engine.partition(*place) is not None and place.topic != TRANSACTIONS_TOPIC


def describe_transactions(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    names = body.transactional_ids
    asked = [ask_transaction(service, name, DescribeTransaction(name)) for name in names]
    return when(gather(asked), lambda results: {"transaction_states": list(map(_described, names, results))})


def _described(name: str, result: Description | Fault) -> dict[str, Any]:
    if isinstance(result, Fault):
        result = Description(result, name)
    state = result.state
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
    for topic, partition in sorted(state.partitions):
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": result.fault,
        "transactional_id": name,
        "transaction_state": state.status.title,
        "transaction_timeout": state.timeout_ms,
        "transaction_start_time": state.start_ms,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


def list_transactions(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
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

    def answer(results: list[TransactionList | Fault] | Fault) -> dict[str, Any]:
        if isinstance(results, Fault):
            return {"error_code": results, "transaction_states": []}
        unknown: set[str] = set()
        rows = []
        for result in results:
            if isinstance(result, Fault):
                return {"error_code": result, "transaction_states": []}
            unknown.update(result.unknown_statuses)
            rows += [
                {
                    "transactional_id": name,
                    "producer_id": state.producer_id,
                    "transaction_state": state.status.title,
                }
                for name, state in result.transactions
            ]
        return {"error_code": Fault.NONE, "unknown_state_filters": sorted(unknown), "transaction_states": rows}

    asked: Any = service.engine.transactions.ask_all(command)
    return when(asked, answer)


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


def describe_producers(service: KafkaService, body: Any, version: int, caller: Caller) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_producers(service, topic.name, partition) for partition in topic.partition_indexes],
            }
            for topic in body.topics
        ]
    }


def _producers(service: KafkaService, topic: str, partition: int) -> dict[str, Any]:
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
    return {
        "partition_index": partition,
        "error_code": Fault.NONE,
        "active_producers": [
            {
                "producer_id": row.producer_id,
                "producer_epoch": row.producer_epoch,
                "last_sequence": row.last_sequence,
                "last_timestamp": row.last_timestamp_ms,
                "coordinator_epoch": row.coordinator_epoch,
                "current_txn_start_offset": row.transaction_first_offset,
            }
            for row in found.producers.describe()
        ],
    }
