"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, and TxnOffsetCommit, which commits inside a transaction.

Topics are named before version 10 and have ids from then on; a topic or partition that does not exist is refused here, the
rest is the coordinator's.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    DeleteOffsets,
    DeleteOffsetsResult,
    FetchedOffset,
    FetchOffsets,
    FetchResult,
    OffsetToCommit,
    Producer,
)
from penstock.coordination.transaction_commands import AddPartitions, PartitionsResult, VerifyPartitions
from penstock.coordination.transaction_states import Identity
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.coordinators import ask_group, ask_transaction, known_fault
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.model.errors import Fault
from penstock.model.pending import Pending, gather, in_turn, when

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

_FIRST_WITH_TOPIC_IDS = 10
_FIRST_WITH_CONSUMER_GROUPS = 9
_FIRST_WITH_IMPLICIT_ADD = 5
_FIRST_WITH_LOADING = 2

_NO_OFFSET = -1
_NO_EPOCH = -1


def _topic(service: KafkaService, topic: Any, version: int) -> tuple[str | None, dict[str, Any]]:
    """The name, None if the id is not known, and how the answer names the topic."""
    if version < _FIRST_WITH_TOPIC_IDS:
        return topic.name, {"name": topic.name}
    topic_id: uuid.UUID | None = topic.topic_id
    name = None if topic_id is None else service.engine.topic_name_of(topic_id.bytes)
    return name, {"name": name or "", "topic_id": topic_id}


# ---- commit -----------------------------------------------------------------------------------------------------------


class _Commit:
    """The partitions of a commit: those for the coordinator, those refused at sight, and the answer about all."""

    def __init__(self, service: KafkaService, topics: Any, version: int) -> None:
        self.offsets: list[OffsetToCommit] = []
        self._rows: list[tuple[dict[str, Any], list[tuple[int, str, Fault]]]] = []
        for topic in topics:
            name, head = _topic(service, topic, version)
            rows: list[tuple[int, str, Fault]] = []
            for entry in topic.partitions:
                partition = entry.partition_index
                if name is None:
                    rows.append((partition, "", Fault.UNKNOWN_TOPIC_ID))
                elif service.engine.partition(name, partition) is None:
                    rows.append((partition, name, Fault.UNKNOWN_TOPIC_OR_PARTITION))
                else:
                    rows.append((partition, name, Fault.NONE))
                    self.offsets.append(
                        OffsetToCommit(
                            name,
                            partition,
                            entry.committed_offset,
                            getattr(entry, "committed_leader_epoch", _NO_EPOCH),
                            entry.committed_metadata,
                        )
                    )
            self._rows.append((head, rows))

    def answer(self, fault: Fault, refused: Mapping[tuple[str, int], Fault] | None = None) -> dict[str, Any]:
        """`fault` is for all that went to the coordinator; without one, `refused` has those of single partitions."""
        single = refused or {}
        topics = []
        for head, rows in self._rows:
            partitions = []
            for partition, name, at_sight in rows:
                found = at_sight
                if found is Fault.NONE:
                    found = single.get((name, partition), Fault.NONE) if fault is Fault.NONE else fault
                partitions.append({"partition_index": partition, "error_code": found})
            topics.append({**head, "partitions": partitions})
        return {"topics": topics}


def offset_commit(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    commit = _Commit(service, body.topics, version)
    if not commit.offsets:
        return commit.answer(Fault.NONE)
    retention_ms = milliseconds(body.retention_time) if hasattr(body, "retention_time") else -1
    command = CommitOffsets(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id_or_member_epoch,
        offsets=tuple(commit.offsets),
        retention_ms=None if retention_ms < 0 else retention_ms,
        knows_consumer_groups=version >= _FIRST_WITH_CONSUMER_GROUPS,
    )

    def answer(result: CommitResult | Fault) -> dict[str, Any]:
        return commit.answer(result) if isinstance(result, Fault) else commit.answer(*result)

    return when(ask_group(service, command.group, command), answer)


def txn_offset_commit(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """First the transaction must have the group's partition (from version 5 on it gets it now, KIP-890), then the offsets
    are committed in the producer's name: pending until its marker."""
    commit = _Commit(service, body.topics, version)
    if not body.group_id:
        return commit.answer(Fault.INVALID_GROUP_ID)
    if not commit.offsets:
        return commit.answer(Fault.NONE)
    engine = service.engine
    identity = Identity(body.producer_id, body.producer_epoch)
    command = CommitOffsets(
        group=body.group_id,
        member_id=getattr(body, "member_id", NO_MEMBER),
        instance_id=getattr(body, "group_instance_id", None),
        generation=getattr(body, "generation_id", NO_GENERATION),
        offsets=tuple(commit.offsets),
        producer=Producer(*identity),
    )

    def add_or_verify(made: Fault) -> Any:
        if made is not Fault.NONE:
            return made
        ask = AddPartitions if version >= _FIRST_WITH_IMPLICIT_ADD else VerifyPartitions
        partitions = frozenset((engine.groups.partition_of(body.group_id),))
        return ask_transaction(service, body.transactional_id, ask(body.transactional_id, identity, partitions))

    def commit_offsets(verified: PartitionsResult | Fault) -> Any:
        # Asked in the moment of the verification: a marker written between the two would leave the offsets pending
        # for ever.
        fault = verified if isinstance(verified, Fault) else verified.fault
        if fault is Fault.NONE and not isinstance(verified, Fault) and verified.strangers:
            fault = Fault.TRANSACTION_ABORTABLE
        return ask_group(service, body.group_id, command) if fault is Fault.NONE else fault

    def answer(result: CommitResult | Fault) -> dict[str, Any]:
        fault, refused = (result, None) if isinstance(result, Fault) else result
        return commit.answer(_txn_commit_fault(fault, version), refused)

    verified = in_turn(engine.groups.ensure(), add_or_verify)
    return when(in_turn(verified, commit_offsets), answer)


def _txn_commit_fault(fault: Fault, version: int) -> Fault:
    """What transactional producers know of it."""
    if fault is Fault.STALE_MEMBER_EPOCH:
        return Fault.ILLEGAL_GENERATION
    if fault is Fault.CONCURRENT_TRANSACTIONS and version < _FIRST_WITH_IMPLICIT_ADD:
        fault = Fault.COORDINATOR_LOADING  # which is repeated; the other is not, where adding is a request of its own
    if fault is Fault.COORDINATOR_LOADING and version < _FIRST_WITH_LOADING:
        return Fault.COORDINATOR_NOT_AVAILABLE
    return known_fault(fault, ApiKey.TXN_OFFSET_COMMIT, version)


# ---- fetch ------------------------------------------------------------------------------------------------------------


def offset_fetch(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """One group, with its fields on top, before version 8; any number of them from then on (KIP-709)."""
    require_stable = getattr(body, "require_stable", False)
    if version < 8:
        return when(_fetch(service, body, version, require_stable), _flat)
    parts = [_fetch(service, group, version, require_stable) for group in body.groups]
    return when(gather(parts), lambda groups: {"groups": groups})


def _flat(group: dict[str, Any]) -> dict[str, Any]:
    return {"topics": group["topics"], "error_code": group["error_code"]}


def _fetch(
    service: KafkaService, asked: Any, version: int, require_stable: bool
) -> dict[str, Any] | Pending[dict[str, Any]]:
    wanted: dict[str, tuple[int, ...]] | None = None
    topics: list[tuple[str | None, dict[str, Any], tuple[int, ...]]] | None = None
    if asked.topics is not None:
        wanted = {}
        topics = []
        for topic in asked.topics:
            name, head = _topic(service, topic, version)
            partitions = tuple(topic.partition_indexes)
            topics.append((name, head, partitions))
            if name is not None:
                wanted[name] = wanted.get(name, ()) + partitions
    command = FetchOffsets(
        group=asked.group_id,
        partitions=wanted,
        require_stable=require_stable,
        member_id=getattr(asked, "member_id", None),
        member_epoch=getattr(asked, "member_epoch", -1),
    )

    def answer(result: FetchResult | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = FetchResult(result)
        fault = result.fault
        if fault is not Fault.NONE:
            rows = [
                {**head, "partitions": [_offset(at, None, fault) for at in partitions]}
                for _, head, partitions in topics or ()
                if version < 2  # where only a partition can have an error
            ]
        elif topics is None:
            rows = _all_offsets(service, result.offsets, version)
        else:
            rows = [
                {**head, "partitions": [_offset(at, None, Fault.UNKNOWN_TOPIC_ID) for at in partitions]}
                if name is None
                else {**head, "partitions": [_offset(at, result.offsets[name][at]) for at in partitions]}
                for name, head, partitions in topics
            ]
        return {"group_id": asked.group_id, "error_code": fault, "topics": rows}

    return when(ask_group(service, command.group, command), answer)


def _all_offsets(
    service: KafkaService, offsets: Mapping[str, Mapping[int, FetchedOffset]], version: int
) -> list[dict[str, Any]]:
    rows = []
    for name, partitions in offsets.items():
        head: dict[str, Any] = {"name": name}
        if version >= _FIRST_WITH_TOPIC_IDS:
            info = service.engine.topic(name)
            if info is None:  # deleted just now: there is nothing to call it by
                continue
            head["topic_id"] = info.topic_id
        rows.append({**head, "partitions": [_offset(at, fetched) for at, fetched in partitions.items()]})
    return rows


def _offset(partition: int, fetched: FetchedOffset | None, fault: Fault = Fault.NONE) -> dict[str, Any]:
    value = None if fetched is None else fetched.value
    is_unstable = fetched is not None and fetched.is_unstable
    return {
        "partition_index": partition,
        "committed_offset": _NO_OFFSET if value is None else value.offset,
        "committed_leader_epoch": _NO_EPOCH if value is None else value.leader_epoch,
        "metadata": "" if value is None else value.metadata,
        "error_code": ErrorCode.unstable_offset_commit if is_unstable else fault,
    }


# ---- delete -----------------------------------------------------------------------------------------------------------


def offset_delete(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    known = tuple(
        (topic.name, entry.partition_index)
        for topic in body.topics
        for entry in topic.partitions
        if service.engine.partition(topic.name, entry.partition_index) is not None
    )

    def answer(result: DeleteOffsetsResult | Fault) -> dict[str, Any]:
        fault, refused = (result, {}) if isinstance(result, Fault) else result
        if fault is not Fault.NONE:
            return {"error_code": fault, "topics": []}
        outcome = dict.fromkeys(known, Fault.NONE) | dict(refused)
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": entry.partition_index,
                        "error_code": outcome.get(
                            (topic.name, entry.partition_index), Fault.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    }
                    for entry in topic.partitions
                ],
            }
            for topic in body.topics
        ]
        return {"error_code": Fault.NONE, "topics": topics}

    if not body.group_id:
        return answer(Fault.INVALID_GROUP_ID)
    return when(ask_group(service, body.group_id, DeleteOffsets(body.group_id, known)), answer)
