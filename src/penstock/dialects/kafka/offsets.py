"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, and TxnOffsetCommit, which commits inside a transaction.

Topics are named before version 10 and have ids from then on; a topic or partition that does not exist is refused here, the
rest is the coordinator's.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
    Producer,
)
from penstock.coordination.transaction_commands import AddPartitions, PartitionsResult, VerifyPartitions
from penstock.coordination.transaction_states import Identity
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.coordinators import ASKED_AT_ONCE, Room, ask_group, ask_transaction, known_fault
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.model.errors import NO_FAULT, Fault
from penstock.model.pending import Pending, in_turn, when
from penstock.model.slices import Work

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


T = TypeVar("T")

_PIECE = 32
"""Partitions between two pauses."""
COMMITTED_AT_ONCE = 200
"""Offsets that one command commits, deletes or looks up: about a millisecond. Larger requests need several commands."""


class _Commit:
    """The partitions of a commit: those for the coordinator, those refused at sight, and the answer about all."""

    __slots__ = ("_fault", "_left", "_parts", "_single", "offsets", "rows")

    def __init__(self) -> None:
        self.offsets: list[OffsetToCommit] = []
        self.rows: list[tuple[dict[str, Any], list[tuple[int, str, Fault]]]] = []
        self._parts: Iterator[CommitResult | Fault] = iter(())
        """The coordinator's answers for the parts of the offsets; `_left` partitions of the first part are left."""
        self._left = 0
        self._fault = NO_FAULT
        self._single: Mapping[tuple[str, int], Fault] = {}

    def add(self, service: KafkaService, name: str | None, entries: Any, rows: list[tuple[int, str, Fault]]) -> None:
        for entry in entries:
            partition = entry.partition_index
            if name is None:
                rows.append((partition, "", Fault.UNKNOWN_TOPIC_ID))
            elif service.engine.partition(name, partition) is None:
                rows.append((partition, name, Fault.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                rows.append((partition, name, NO_FAULT))
                self.offsets.append(
                    OffsetToCommit(
                        name,
                        partition,
                        entry.committed_offset,
                        getattr(entry, "committed_leader_epoch", _NO_EPOCH),
                        entry.committed_metadata,
                    )
                )

    def told(self, parts: list[CommitResult | Fault]) -> None:
        self._parts = iter(parts)

    def answers(
        self, rows: Sequence[tuple[int, str, Fault]], known: Callable[[Fault], Fault] | None
    ) -> list[dict[str, Any]]:
        """The answers about some partitions, in the order of the request."""
        answers = []
        for partition, name, found in rows:
            if found is NO_FAULT:
                if not self._left:
                    part = next(self._parts)
                    fault, self._single = (part, {}) if isinstance(part, Fault) else part
                    self._fault = fault if known is None else known(fault)
                    self._left = COMMITTED_AT_ONCE
                self._left -= 1
                found = self._fault
                if found is NO_FAULT and self._single:
                    found = self._single.get((name, partition), NO_FAULT)
            answers.append({"partition_index": partition, "error_code": found})
        return answers


def _committed(
    service: KafkaService,
    topics: Any,
    version: int,
    ask: Callable[[tuple[OffsetToCommit, ...]], Any],
    known: Callable[[Fault], Fault] | None = None,
) -> Work[dict[str, Any]]:
    """Pass the offsets to the coordinator with `ask`, which returns a `CommitResult`, or a Fault for a whole part, now or
    later. `known` translates its faults into those that the client knows."""
    commit = _Commit()
    for topic in topics:
        name, head = _topic(service, topic, version)
        rows: list[tuple[int, str, Fault]] = []
        commit.rows.append((head, rows))
        for first in range(0, len(topic.partitions) or 1, _PIECE):
            commit.add(service, name, topic.partitions[first : first + _PIECE], rows)
            yield None
    asked: list[Any] = []
    for first in range(0, len(commit.offsets), COMMITTED_AT_ONCE):
        asked.append(ask(tuple(commit.offsets[first : first + COMMITTED_AT_ONCE])))
        yield None
    for number, answer in enumerate(asked):
        if isinstance(answer, Pending):
            asked[number] = yield answer
    commit.told(asked)
    answers = []
    for head, rows in commit.rows:
        partitions: list[dict[str, Any]] = []
        for first in range(0, len(rows) or 1, _PIECE):
            partitions += commit.answers(rows[first : first + _PIECE], known)
            yield None
        answers.append({**head, "partitions": partitions})
    return {"topics": answers}


def _pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in pieces; at least one, so that a loop over no items pauses, too."""
    if len(items) <= _PIECE:
        yield items
        return
    for first in range(0, len(items), _PIECE):
        yield items[first : first + _PIECE]


def offset_commit(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    retention_ms = milliseconds(body.retention_time) if hasattr(body, "retention_time") else -1

    def ask(offsets: tuple[OffsetToCommit, ...]) -> Any:
        command = CommitOffsets(
            group=body.group_id,
            member_id=body.member_id,
            instance_id=getattr(body, "group_instance_id", None),
            generation=body.generation_id_or_member_epoch,
            offsets=offsets,
            retention_ms=None if retention_ms < 0 else retention_ms,
            knows_consumer_groups=version >= _FIRST_WITH_CONSUMER_GROUPS,
        )
        return ask_group(service, command.group, command)

    if len(body.topics) == 1 and len(body.topics[0].partitions) <= _PIECE:
        return _commit_few(service, body.topics[0], version, ask)
    return _committed(service, body.topics, version, ask)


def _commit_few(
    service: KafkaService, topic: Any, version: int, ask: Callable[[tuple[OffsetToCommit, ...]], Any]
) -> Any:
    """As `_committed`, for a few partitions of one topic, the most common request."""
    commit = _Commit()
    name, head = _topic(service, topic, version)
    rows: list[tuple[int, str, Fault]] = []
    commit.add(service, name, topic.partitions, rows)

    def answer(part: CommitResult | Fault) -> dict[str, Any]:
        commit.told([part])
        return {"topics": [{**head, "partitions": commit.answers(rows, None)}]}

    return when(ask(tuple(commit.offsets)), answer) if commit.offsets else answer(NO_FAULT)


def txn_offset_commit(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """First the transaction must have the group's partition (from version 5 on it gets it now, KIP-890), then the offsets
    are committed in the producer's name: pending until its marker."""
    engine = service.engine
    identity = Identity(body.producer_id, body.producer_epoch)
    command = CommitOffsets(
        group=body.group_id,
        member_id=getattr(body, "member_id", NO_MEMBER),
        instance_id=getattr(body, "group_instance_id", None),
        generation=getattr(body, "generation_id", NO_GENERATION),
        offsets=(),
        producer=Producer(*identity),
    )

    def add_or_verify(made: Fault) -> Any:
        if made is not NO_FAULT:
            return made
        ask = AddPartitions if version >= _FIRST_WITH_IMPLICIT_ADD else VerifyPartitions
        partitions = frozenset((engine.groups.partition_of(body.group_id),))
        return ask_transaction(service, body.transactional_id, ask(body.transactional_id, identity, partitions))

    def commit_offsets(offsets: tuple[OffsetToCommit, ...], verified: PartitionsResult | Fault) -> Any:
        fault = verified if isinstance(verified, Fault) else verified.fault
        if fault is NO_FAULT and not isinstance(verified, Fault) and verified.strangers:
            fault = Fault.TRANSACTION_ABORTABLE
        return ask_group(service, body.group_id, command._replace(offsets=offsets)) if fault is NO_FAULT else fault

    def verify_and_commit(offsets: tuple[OffsetToCommit, ...]) -> Any:
        # Every part is sent right after its verification: a marker written in between would leave the offsets pending
        # forever.
        if not body.group_id:
            return Fault.INVALID_GROUP_ID
        return in_turn(in_turn(engine.groups.ensure(), add_or_verify), partial(commit_offsets, offsets))

    return _committed(service, body.topics, version, verify_and_commit, lambda fault: _txn_commit_fault(fault, version))


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


def offset_fetch(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """One group, with its fields on top, before version 8; any number of them from then on (KIP-709)."""
    require_stable = getattr(body, "require_stable", False)
    if version < 8:
        fetch = _Fetch(service, body, version)
        yield from fetch.ask(require_stable)
        group = yield from fetch.answer(Room())
        return {"topics": group["topics"], "error_code": group["error_code"]}
    room = Room()
    groups: list[dict[str, Any]] = []
    waiting: deque[_Fetch] = deque()
    for asked in body.groups:
        fetch = _Fetch(service, asked, version)
        yield from fetch.ask(require_stable)
        waiting.append(fetch)
        if len(waiting) >= ASKED_AT_ONCE:
            groups.append((yield from waiting.popleft().answer(room)))
    while waiting:
        groups.append((yield from waiting.popleft().answer(room)))
    return {"groups": groups}


class _Fetch:
    """The offsets of one group: requested in parts, answered as a whole."""

    def __init__(self, service: KafkaService, asked: Any, version: int) -> None:
        self._service = service
        self._asked = asked
        self._version = version
        self._topics: list[tuple[str | None, dict[str, Any], tuple[int, ...]]] | None = None
        """None for all offsets."""
        self._answers: list[Any] = []

    def ask(self, require_stable: bool) -> Work[None]:
        asked = self._asked
        places: dict[str, list[int]] = {}
        parts: Iterable[dict[str, tuple[int, ...]] | None]
        if asked.topics is None:
            places = self._service.engine.groups.partitions_of(asked.group_id)
            parts = (None,) if sum(map(len, places.values())) <= COMMITTED_AT_ONCE else _parts(places)
        else:
            self._topics = []
            for topic in asked.topics:
                name, head = _topic(self._service, topic, self._version)
                partitions = tuple(topic.partition_indexes)
                self._topics.append((name, head, partitions))
                if name is not None:
                    places.setdefault(name, []).extend(partitions)
                yield None
            parts = _parts(places)
        command = FetchOffsets(
            group=asked.group_id,
            partitions={},
            require_stable=require_stable,
            member_id=getattr(asked, "member_id", None),
            member_epoch=getattr(asked, "member_epoch", -1),
        )
        for part in parts:
            self._answers.append(ask_group(self._service, command.group, command._replace(partitions=part)))
            yield None

    def answer(self, room: Room) -> Work[dict[str, Any]]:
        fault = NO_FAULT
        offsets: dict[str, dict[int, FetchedOffset]] = {}
        for answer in self._answers:
            result = (yield answer) if isinstance(answer, Pending) else answer
            part_fault = result if isinstance(result, Fault) else result.fault
            if part_fault is not NO_FAULT:
                fault = part_fault
            else:
                for name, found in result.offsets.items():
                    room.take(1 + len(found))
                    offsets.setdefault(name, {}).update(found)
                yield None
        rows: list[dict[str, Any]] = []
        if fault is not NO_FAULT:
            if self._version < 2:  # in versions where only partitions have an error field
                for _, head, partitions in self._topics or ():
                    rows.append((yield from _offset_rows(head, partitions, None, fault)))
        elif self._topics is None:
            rows = yield from self._all_offsets(offsets)
        else:
            for name, head, partitions in self._topics:
                unknown = Fault.UNKNOWN_TOPIC_ID if name is None else NO_FAULT
                found = None if name is None else offsets.get(name, {})
                rows.append((yield from _offset_rows(head, partitions, found, unknown)))
        return {"group_id": self._asked.group_id, "error_code": fault, "topics": rows}

    def _all_offsets(self, offsets: Mapping[str, Mapping[int, FetchedOffset]]) -> Work[list[dict[str, Any]]]:
        rows = []
        for name, partitions in offsets.items():
            head: dict[str, Any] = {"name": name}
            if self._version >= _FIRST_WITH_TOPIC_IDS:
                info = self._service.engine.topic(name)
                if info is None:  # just deleted: it has no name any more
                    continue
                head["topic_id"] = info.topic_id
            rows.append((yield from _offset_rows(head, tuple(partitions), partitions, NO_FAULT)))
        return rows


def _parts(places: Mapping[str, Sequence[int]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """The partitions in parts for one command each; at least one part, because the group may have a fault, too."""
    part: dict[str, tuple[int, ...]] = {}
    room = COMMITTED_AT_ONCE
    for name, partitions in places.items():
        at = 0
        while at < len(partitions) or not partitions:
            part[name] = tuple(partitions[at : at + room])
            at += len(part[name])
            room -= max(1, len(part[name]))
            if room <= 0:
                yield part
                part, room = {}, COMMITTED_AT_ONCE
            if not partitions:
                break
    if part or not places:
        yield part


def _offset_rows(
    head: dict[str, Any], partitions: Sequence[int], found: Mapping[int, FetchedOffset] | None, fault: Fault
) -> Work[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for piece in _pieces(partitions):
        rows += [_offset(partition, None if found is None else found.get(partition), fault) for partition in piece]
        yield None
    return {**head, "partitions": rows}


def _offset(partition: int, fetched: FetchedOffset | None, fault: Fault = NO_FAULT) -> dict[str, Any]:
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


def offset_delete(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    if not body.group_id:
        return {"error_code": Fault.INVALID_GROUP_ID, "topics": []}
    known: list[tuple[str, int]] = []
    for topic in body.topics:
        for entry in topic.partitions:
            if service.engine.partition(topic.name, entry.partition_index) is not None:
                known.append((topic.name, entry.partition_index))
            yield None
        yield None
    outcome = dict.fromkeys(known, NO_FAULT)
    for first in range(0, max(1, len(known)), COMMITTED_AT_ONCE):
        command = DeleteOffsets(body.group_id, tuple(known[first : first + COMMITTED_AT_ONCE]))
        result = ask_group(service, body.group_id, command)
        if isinstance(result, Pending):
            result = yield result
        fault, refused = (result, {}) if isinstance(result, Fault) else result
        if fault is Fault.GROUP_ID_NOT_FOUND and first:
            break  # the group was deleted with its last offset
        if fault is not NO_FAULT:
            return {"error_code": fault, "topics": []}
        outcome.update(refused)
    topics = []
    for topic in body.topics:
        rows = []
        for entry in topic.partitions:
            place = (topic.name, entry.partition_index)
            fault = outcome.get(place, Fault.UNKNOWN_TOPIC_OR_PARTITION)
            rows.append({"partition_index": entry.partition_index, "error_code": fault})
            yield None
        topics.append({"name": topic.name, "partitions": rows})
        yield None
    return {"error_code": NO_FAULT, "topics": topics}
