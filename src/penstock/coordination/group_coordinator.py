"""The group coordinator of one `__consumer_offsets` partition: all groups whose records live there, behind one door.

    loading   replay(record, producer_id), end_transaction(producer_id), then loaded(now_ms) once
    serving   handle(command, now_ms, ticket) -> Effects, tick(now_ms) -> Effects at next_deadline_ms or later,
              end_transaction when a marker was appended, topics_changed when topics came, went or grew
    the end   unload(fault) answers who still waits

Rules:

1. Durable state changes only through `replay` and `end_transaction`, whether the record is new or read from the log. So a
   coordinator that replays what another wrote has the same durable state (`durable_state` is there to be compared).
2. All waiting is inside: every ticket is answered exactly once, at the latest by a deadline that `next_deadline_ms` covers.
   That time is a lower bound, since heartbeats move deadlines without telling: an early `tick` does nothing.
3. A group is classic or consumer. An empty one becomes the other kind when such a member joins; members of both kinds do not
   meet (Kafka's group.consumer.migration.policy=disabled).

A group that has neither members, nor anything in the log, nor offsets does not exist. Clock, random ids, topics and the log
are the caller's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.coordination import classic_description, consumer_description
from penstock.coordination.classic_group import ClassicGroup
from penstock.coordination.classic_rebalance import FOREVER_MS
from penstock.coordination.consumer_group import ConsumerGroup
from penstock.coordination.consumer_group_records import GroupEpochRecord, SubscribedTopic
from penstock.coordination.consumer_limits import Topics
from penstock.coordination.group_commands import (
    JOIN_EPOCH,
    NAME_CHARS_MAX,
    NO_MEMBER,
    Command,
    CommitOffsets,
    CommitResult,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsResult,
    DeleteResult,
    DescribeConsumerGroup,
    DescribeGroup,
    DropTopics,
    Effects,
    FetchOffsets,
    FetchResult,
    GroupDescription,
    GroupList,
    GroupSettings,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeaveResult,
    ListedGroup,
    ListGroups,
    SyncGroup,
    SyncResult,
    Ticket,
)
from penstock.coordination.group_records import ClassicGroupRecord, GroupRecord, OffsetRecord
from penstock.coordination.offsets import Offsets
from penstock.model import limits
from penstock.model.errors import BrokerError, Fault

Group = ClassicGroup | ConsumerGroup

_EXPIRED_PER_TICK_MAX = 200
"""Offsets that one tick removes, in about a millisecond. The next tick follows at once."""
_LOOKED_AT_PER_TICK_MAX = 1_000
"""Groups, or offsets in them, that one tick checks."""


class GroupCoordinator:
    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        resolve: Callable[[str], frozenset[str]],
    ) -> None:
        """`new_id` makes the random part of member ids; `resolve` finds the topics of a pattern or raises BrokerError."""
        self._settings = settings
        self._new_id = new_id
        self._topics = Topics(resolve)
        self._offsets = Offsets()
        self._groups: dict[str, Group] = {}
        self._due: list[tuple[int, str]] = []
        self._expiry_check_ms = FOREVER_MS
        self._unchecked: list[str] = []
        """Groups whose offsets have not been visited in this check yet."""
        self._handlers: dict[type[Any], Callable[[Any, Ticket, int, Effects], None]] = {
            JoinGroup: self._join,
            SyncGroup: self._sync,
            Heartbeat: self._heartbeat,
            LeaveGroup: self._leave,
            DescribeGroup: self._describe,
            ListGroups: self._list,
            DeleteGroup: self._delete,
            CommitOffsets: self._commit,
            FetchOffsets: self._fetch,
            DeleteOffsets: self._delete_offsets,
            DropTopics: self._drop_topics,
            ConsumerHeartbeat: self._consumer_heartbeat,
            DescribeConsumerGroup: self._describe_consumer,
        }

    # -------------------------------------------------------------------------------------------------------- the log

    def replay(self, record: GroupRecord, producer_id: int | None = None) -> None:
        """Take in one record of the log; with the producer's id when it belongs to a transaction."""
        name = record.group
        if isinstance(record, OffsetRecord):
            self._offsets.replay(record, producer_id)
            if record.value is None or name not in self._groups:
                self._settle(name)
            return
        group = self._groups.get(name)
        if isinstance(record, ClassicGroupRecord):
            if not isinstance(group, ClassicGroup):
                if record.value is None:
                    return
                group = self._groups[name] = ClassicGroup(name, self._settings)
            group.replay(record.value)
            self._settle(name)
        else:
            if not isinstance(group, ConsumerGroup):
                if record.value is None:
                    return
                group = self._groups[name] = ConsumerGroup(name, self._settings, self._topics)
            group.replay(record)
            if isinstance(record, GroupEpochRecord) and record.value is None:
                self._settle(name)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The producer's marker is in the log."""
        for name in self._offsets.end_transaction(producer_id, committed=committed):
            self._settle(name)

    def _settle(self, name: str) -> None:
        """A group exists if the log or a client knows it; offsets alone make a classic group without members."""
        group = self._groups.get(name)
        if group is not None and not group.is_nothing():
            return
        if not self._offsets.has_any(name):
            self._groups.pop(name, None)
        elif not isinstance(group, ClassicGroup):
            self._groups[name] = ClassicGroup(name, self._settings)

    def loaded(self, now_ms: int) -> None:
        """The log is replayed: every member has a fresh session."""
        for group in tuple(self._groups.values()):
            group.resume(now_ms)
            self._touched(group)
        self._expiry_check_ms = now_ms + self._settings.offsets_retention_check_interval_ms

    def durable_state(self) -> object:
        """What a replay of the same records must lead to."""
        classic = {g.group: g.stored for g in self._groups.values() if isinstance(g, ClassicGroup) and g.stored}
        consumer = {g.group: g.durable_state() for g in self._groups.values() if isinstance(g, ConsumerGroup)}
        return self._offsets.durable_state(), classic, consumer

    def unload(self, fault: Fault) -> Effects:
        """Answer who waits; nothing may be asked afterwards."""
        effects = Effects(self.replay)
        for group in self._groups.values():
            if isinstance(group, ClassicGroup):
                group.unload(fault, effects)
        return effects

    def group_names(self) -> list[str]:
        return list(self._groups)

    def partitions_of(self, group: str) -> dict[str, list[int]]:
        """The partitions with committed offsets of the group, by topic."""
        return self._offsets.partitions_of(group)

    def patterns_of(self, group: str) -> tuple[str, ...]:
        """The patterns that the members of a consumer group subscribe to."""
        found = self._groups.get(group)
        return tuple(found.regexes) if isinstance(found, ConsumerGroup) else ()

    def has_offsets_of(self, topics: Iterable[str]) -> bool:
        """Whether some group has an offset of these topics. `DropTopics` removes the offsets of deleted topics."""
        return self._offsets.has_topics(topics)

    # ----------------------------------------------------------------------------------------------- commands and time

    def handle(self, command: Command, now_ms: int, ticket: Ticket) -> Effects:
        assert self._expiry_check_ms != FOREVER_MS, "the coordinator is not loaded"
        effects = Effects(self.replay)
        self._handlers[type(command)](command, ticket, now_ms, effects)
        return effects

    @property
    def next_deadline_ms(self) -> int:
        """When to call `tick`, at the earliest."""
        return min(self._due[0][0], self._expiry_check_ms) if self._due else self._expiry_check_ms

    def tick(self, now_ms: int) -> Effects:
        effects = Effects(self.replay)
        while self._due and self._due[0][0] <= now_ms:
            due_ms, name = heapq.heappop(self._due)
            group = self._groups.get(name)
            if group is None or group.scheduled_ms != due_ms:
                continue
            group.scheduled_ms = FOREVER_MS
            group.tick(now_ms, effects)
            self._bury(name, effects)
            self._touched(group)
        if self._expiry_check_ms <= now_ms:
            self._expire_offsets(now_ms, effects)
        return effects

    def topics_changed(self, topics: Mapping[str, SubscribedTopic]) -> None:
        """These topics exist now; consumer groups find out at their next heartbeat."""
        self._topics.by_name = topics
        self._topics.version += 1

    def _schedule(self, group: Group) -> None:
        if group.wake_ms < group.scheduled_ms:
            group.scheduled_ms = group.wake_ms
            heapq.heappush(self._due, (group.wake_ms, group.group))

    def _touched(self, group: Group) -> None:
        self._schedule(group)
        self._settle(group.group)

    def _expire_offsets(self, now_ms: int, effects: Effects) -> None:
        """Continue a check, which may take several ticks."""
        unchecked = self._unchecked or list(self._groups)
        left = _LOOKED_AT_PER_TICK_MAX
        while unchecked and left > 0:
            name = unchecked.pop()
            group = self._groups.get(name)
            left -= 1
            empty_since_ms = None if group is None else group.empty_since_ms()
            if group is None or empty_since_ms is None:
                continue
            left -= self._offsets.count(name)
            expired = self._offsets.expired(name, empty_since_ms, now_ms, self._settings.offsets_retention_ms)
            some = tuple(islice(expired, _EXPIRED_PER_TICK_MAX - len(effects.records)))
            for record in some:
                effects.write(record)
            if len(effects.records) >= _EXPIRED_PER_TICK_MAX:
                unchecked.append(name)  # the group may have more
                left = 0
            if not self._offsets.has_any(name):
                self._remove(group, effects)
        self._unchecked = unchecked
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._expiry_check_ms = now_ms + (1 if unchecked else interval_ms)

    def _bury(self, name: str, effects: Effects) -> None:
        """Without members and offsets a group is dead at once. Only groups of Kafka's consumers stay empty until the next
        look, as they do in Kafka: people close their consumers and then describe or delete the group."""
        group = self._classic(name)
        if group is None or group.protocol_type == classic_description.CONSUMER_PROTOCOL_TYPE:
            return
        if group.empty_since_ms() is not None and not self._offsets.has_any(name):
            self._remove(group, effects)

    def _remove(self, group: Group, effects: Effects) -> None:
        """Write an empty group's end; its offsets are not touched."""
        if isinstance(group, ConsumerGroup):
            for record in group.tombstones():
                effects.write(record)
        elif group.stored is not None:
            effects.write(ClassicGroupRecord(group.group, None))

    # -------------------------------------------------------------------------------------------------- classic groups

    def _classic(self, name: str) -> ClassicGroup | None:
        group = self._groups.get(name)
        return group if isinstance(group, ClassicGroup) else None

    def _join(self, command: JoinGroup, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        fault = self._join_fault(command)
        if fault is not Fault.NONE:
            effects.answer(ticket, JoinResult(fault, command.member_id))
            return
        group = self._groups.get(command.group)
        if isinstance(group, ConsumerGroup):
            self._remove(group, effects)
            group = self._groups.get(command.group)
        if not isinstance(group, ClassicGroup):
            group = self._groups[command.group] = ClassicGroup(command.group, self._settings)
        group.join(command, ticket, self._new_id(), now_ms, effects)
        self._touched(group)

    def _join_fault(self, command: JoinGroup) -> Fault:
        settings = self._settings
        if not 0 < len(command.group) <= NAME_CHARS_MAX:
            return Fault.INVALID_GROUP_ID
        names = (
            command.client_id,
            command.instance_id or "",
            command.protocol_type,
            *(p for p, _ in command.protocols),
        )
        if any(len(name) > NAME_CHARS_MAX // 2 for name in names):  # an id is made of a name and what makes it unique
            return Fault.INVALID_REQUEST
        if not settings.session_timeout_ms_min <= command.session_timeout_ms <= settings.session_timeout_ms_max:
            return Fault.INVALID_SESSION_TIMEOUT
        group = self._groups.get(command.group)
        if isinstance(group, ConsumerGroup) and not group.is_empty():
            return Fault.INCONSISTENT_GROUP_PROTOCOL
        if command.member_id != NO_MEMBER and not isinstance(group, ClassicGroup):
            return Fault.UNKNOWN_MEMBER_ID
        return Fault.NONE

    def _sync(self, command: SyncGroup, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        group = self._classic(command.group)
        if group is None:
            effects.answer(ticket, SyncResult(_missing(command.group)))
            return
        group.sync(command, ticket, now_ms, effects)
        self._touched(group)

    def _heartbeat(self, command: Heartbeat, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        group = self._classic(command.group)
        if group is None:
            effects.answer(ticket, HeartbeatResult(_missing(command.group)))
            return
        group.heartbeat(command, ticket, now_ms, effects)
        self._schedule(group)

    def _leave(self, command: LeaveGroup, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        group = self._classic(command.group)
        if group is None:
            members = tuple((member, Fault.UNKNOWN_MEMBER_ID) for member in command.members)
            effects.answer(ticket, LeaveResult(Fault.NONE if command.group else Fault.INVALID_GROUP_ID, members))
            return
        group.leave(command, ticket, now_ms, effects)
        self._bury(command.group, effects)
        self._touched(group)

    def _describe(self, command: DescribeGroup, ticket: Ticket, _now_ms: int, effects: Effects) -> None:
        group = self._classic(command.group)
        if group is None:
            effects.answer(ticket, GroupDescription(Fault.GROUP_ID_NOT_FOUND, command.group, "Dead"))
        else:
            effects.answer(ticket, classic_description.describe(group))

    # ------------------------------------------------------------------------------------------------------ all groups

    def _list(self, command: ListGroups, ticket: Ticket, _now_ms: int, effects: Effects) -> None:
        states = {state.lower() for state in command.states}
        types = {type_.lower() for type_ in command.types}
        found = self._groups.values() if command.groups is None else map(self._groups.get, command.groups)
        listed = (_listed(group) for group in found if group is not None)
        groups = tuple(
            group
            for group in listed
            if (not states or group.state.lower() in states) and (not types or group.type.lower() in types)
        )
        effects.answer(ticket, GroupList(groups))

    def _delete(self, command: DeleteGroup, ticket: Ticket, _now_ms: int, effects: Effects) -> None:
        group = self._groups.get(command.group)
        if group is None:
            effects.answer(ticket, DeleteResult(Fault.GROUP_ID_NOT_FOUND))
        elif not group.is_empty():
            effects.answer(ticket, DeleteResult(Fault.NON_EMPTY_GROUP))
        else:
            for record in tuple(islice(self._offsets.all_tombstones(command.group), command.offsets_max)):
                effects.write(record)
            if self._offsets.has_any(command.group):
                effects.answer(ticket, DeleteResult(Fault.NONE, is_partial=True))
                return
            self._remove(group, effects)
            self._groups.pop(command.group, None)
            if isinstance(group, ClassicGroup):
                group.die()
            effects.answer(ticket, DeleteResult(Fault.NONE))

    # --------------------------------------------------------------------------------------------------------- offsets

    def _commit(self, command: CommitOffsets, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        fault = self._commit_fault(command, now_ms)
        if fault is not Fault.NONE:
            effects.answer(ticket, CommitResult(fault))
            return
        effects.producer = command.producer
        if command.producer is not None:
            pending = self._offsets.pending_count(command.producer.producer_id) + len(command.offsets)
            if pending > limits.TRANSACTION_OFFSETS_MAX:
                effects.answer(ticket, CommitResult(Fault.POLICY_VIOLATION))
                return
        records, refused = self._offsets.commit(command, now_ms, self._settings)
        for record in records:
            effects.write(record)
        effects.answer(ticket, CommitResult(Fault.NONE, refused))

    def _commit_fault(self, command: CommitOffsets, now_ms: int) -> Fault:
        group = self._groups.get(command.group)
        if isinstance(group, ClassicGroup):
            fault = group.commit_fault(command, now_ms)
            self._schedule(group)
            return fault
        if group is not None:
            return group.commit_fault(command)
        if len(command.group) > NAME_CHARS_MAX:
            return Fault.INVALID_GROUP_ID
        if command.generation < 0:
            return Fault.NONE
        is_new_client = command.knows_consumer_groups and command.producer is None
        return Fault.GROUP_ID_NOT_FOUND if is_new_client else Fault.ILLEGAL_GENERATION

    def _fetch(self, command: FetchOffsets, ticket: Ticket, _now_ms: int, effects: Effects) -> None:
        group = self._groups.get(command.group)
        fault = group.fetch_fault(command) if isinstance(group, ConsumerGroup) else Fault.NONE
        if fault is not Fault.NONE:
            effects.answer(ticket, FetchResult(fault))
            return
        offsets = self._offsets.fetch(command.group, command.partitions, require_stable=command.require_stable)
        effects.answer(ticket, FetchResult(Fault.NONE, offsets))

    def _delete_offsets(self, command: DeleteOffsets, ticket: Ticket, _now_ms: int, effects: Effects) -> None:
        group = self._groups.get(command.group)
        if group is None:
            effects.answer(ticket, DeleteOffsetsResult(Fault.GROUP_ID_NOT_FOUND))
            return
        if isinstance(group, ClassicGroup):
            fault = classic_description.delete_offsets_fault(group)
            read = classic_description.topics_read_by(group)
        else:
            fault, read = Fault.NONE, group.subscribed_topics()
        if fault is not Fault.NONE:
            effects.answer(ticket, DeleteOffsetsResult(fault))
            return
        refused = {place: Fault.GROUP_SUBSCRIBED_TO_TOPIC for place in command.partitions if place[0] in read}
        wanted = (place for place in command.partitions if place not in refused)
        for record in self._offsets.tombstones(command.group, wanted):
            effects.write(record)
        self._bury(command.group, effects)
        effects.answer(ticket, DeleteOffsetsResult(Fault.NONE, refused))

    def _drop_topics(self, command: DropTopics, ticket: Ticket, _now_ms: int, effects: Effects) -> None:
        dropped = tuple(islice(self._offsets.tombstones_of_topics(command.topics), command.offsets_max))
        for record in dropped:
            effects.write(record)
        for name in {record.group: None for record in dropped}:
            self._bury(name, effects)
        effects.answer(ticket, len(dropped) == command.offsets_max)

    # ------------------------------------------------------------------------------------------------- consumer groups

    def _consumer_heartbeat(self, command: ConsumerHeartbeat, ticket: Ticket, now_ms: int, effects: Effects) -> None:
        fault, text = consumer_description.heartbeat_fault(command)
        if fault is not Fault.NONE:
            effects.answer(ticket, ConsumerHeartbeatResult(fault, text))
            return
        if command.member_id == NO_MEMBER:  # version 0 of the request: the broker names the member
            command = command._replace(member_id=self._new_id())
        group = self._groups.get(command.group)
        if not isinstance(group, ConsumerGroup):
            try:
                group = self._found_consumer_group(group, command, effects)
            except BrokerError as error:
                effects.answer(ticket, ConsumerHeartbeatResult(error.fault, error.text))
                return
        act = group.leave if command.epoch < JOIN_EPOCH else group.heartbeat
        effects.answer(ticket, act(command, now_ms, effects))
        self._touched(group)

    def _found_consumer_group(
        self, group: ClassicGroup | None, command: ConsumerHeartbeat, effects: Effects
    ) -> ConsumerGroup:
        """A consumer group where there was none, or an empty classic one."""
        if group is not None and not group.is_empty():
            raise BrokerError(Fault.GROUP_ID_NOT_FOUND, f"Group {command.group} is not a consumer group.")
        if command.epoch != JOIN_EPOCH:
            # Kafka says GROUP_ID_NOT_FOUND here too, which ends clients that could simply join again.
            raise BrokerError(Fault.UNKNOWN_MEMBER_ID, f"Group {command.group} has no member {command.member_id}.")
        if command.subscribed_regex:
            self._topics.resolve(command.subscribed_regex)
        if group is not None:
            self._remove(group, effects)
        founded = self._groups[command.group] = ConsumerGroup(command.group, self._settings, self._topics)
        return founded

    def _describe_consumer(
        self, command: DescribeConsumerGroup, ticket: Ticket, _now_ms: int, effects: Effects
    ) -> None:
        group = self._groups.get(command.group)
        if isinstance(group, ConsumerGroup):
            effects.answer(ticket, consumer_description.describe(group))
        else:
            effects.answer(ticket, ConsumerGroupDescription(Fault.GROUP_ID_NOT_FOUND, command.group))


def _missing(group: str) -> Fault:
    return Fault.UNKNOWN_MEMBER_ID if group else Fault.INVALID_GROUP_ID


def _listed(group: Group) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group.group, "consumer", consumer_description.state(group), "consumer")
    return ListedGroup(group.group, group.protocol_type, group.state.value, "classic")
