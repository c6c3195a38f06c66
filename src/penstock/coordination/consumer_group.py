"""A consumer group (KIP-848): the broker assigns, members follow one by one, nobody waits for anybody else.

    group epoch    rises when a member comes, goes or subscribes otherwise, or when a subscribed topic changes
    target epoch   the group epoch for which the target assignment was made; it follows at the next heartbeat
    member epoch   the target epoch that the member has reached

    Empty          no members
    Assigning      group epoch > target epoch
    Reconciling    some member is not in the target epoch, or not Stable (consumer_members has the states of a member)
    Stable         all have what they should have

Rules:

1. Everything but deadlines is durable: it changes in `replay`, and heartbeats only write records. There are no parked
   requests: a heartbeat is answered at once with what the member may have now.
2. Membership is kept by heartbeats: no heartbeat for a session timeout, or a revocation that is not confirmed within the
   member's rebalance timeout, and it is out.
3. A static member that leaves for a moment (epoch -2) keeps what it holds for a session timeout; only then may another
   process come back with its instance id. One that is still here may not be replaced.

The log has no time of becoming empty; the target assignment of nobody is written with its time for that (KIP-1263).
"""

from __future__ import annotations

import uuid
from collections import Counter

from penstock.coordination.assignors import CONSUMER_ASSIGNORS, Subscriber
from penstock.coordination.classic_rebalance import FOREVER_MS
from penstock.coordination.consumer_group_records import (
    Assignment,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    GroupEpochRecord,
    GroupTopicsRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopic,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from penstock.coordination.consumer_limits import Subscription, Topics, too_many
from penstock.coordination.consumer_members import NEW_MEMBER, epoch_fault, merged, reconcile
from penstock.coordination.group_commands import (
    JOIN_EPOCH,
    NO_MEMBER,
    STATIC_LEAVE_EPOCH,
    CommitOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Effects,
    FetchOffsets,
    GroupSettings,
)
from penstock.model.errors import BrokerError, Fault

DEFAULT_ASSIGNOR = next(iter(CONSUMER_ASSIGNORS))


class ConsumerGroup:
    __slots__ = (
        "_holders",
        "_rebalance_deadlines_ms",
        "_session_deadlines_ms",
        "_settings",
        "_static",
        "_subscription_of",
        "_subscriptions",
        "_topics",
        "_topics_seen",
        "current",
        "epoch",
        "group",
        "members",
        "regexes",
        "scheduled_ms",
        "subscribed",
        "target",
        "target_epoch",
        "wake_ms",
    )

    def __init__(self, group: str, settings: GroupSettings, topics: Topics) -> None:
        self.group = group
        self._settings = settings
        self._topics = topics
        self.epoch = 0
        self.subscribed: dict[str, SubscribedTopic] = {}
        self.members: dict[str, MemberMetadata] = {}
        self.target_epoch = TargetEpoch(0, 0)
        self.target: dict[str, Assignment] = {}
        self.current: dict[str, CurrentAssignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self._static: dict[str, str] = {}
        self._subscriptions: dict[tuple[tuple[str, ...], str | None], Subscription] = {}
        self._subscription_of: dict[str, Subscription] = {}
        self._holders: dict[uuid.UUID, dict[int, str]] = {}
        """Who holds a partition, by topic. Ids are slow to hash, so partitions are not looked up by topic and number."""
        self._topics_seen = -1
        self._session_deadlines_ms: dict[str, int] = {}
        self._rebalance_deadlines_ms: dict[str, int] = {}
        self.wake_ms = FOREVER_MS
        self.scheduled_ms = FOREVER_MS
        """When the coordinator will call; its own note."""

    # -------------------------------------------------------------------------------------------------- what is durable

    def replay(self, record: ConsumerGroupRecord) -> None:
        match record:
            case GroupEpochRecord(value=epoch):
                self.epoch = epoch or 0
            case GroupTopicsRecord(value=topics):
                self.subscribed = topics or {}
            case TargetEpochRecord(value=target_epoch):
                self.target_epoch = target_epoch or TargetEpoch(0, 0)
            case MemberRecord(member_id=member_id, value=metadata):
                self._replay_member(member_id, metadata)
            case TargetMemberRecord(member_id=member_id, value=None):
                self.target.pop(member_id, None)
            case TargetMemberRecord(member_id=member_id, value=dict(target)):
                self.target[member_id] = target
            case CurrentAssignmentRecord(member_id=member_id, value=current):
                self._replay_current(member_id, current)
            case RegexRecord(regex=regex, value=None):
                self.regexes.pop(regex, None)
            case RegexRecord(regex=regex, value=ResolvedRegex() as resolved):
                self.regexes[regex] = resolved

    def _replay_member(self, member_id: str, metadata: MemberMetadata | None) -> None:
        old = self.members.pop(member_id, None)
        if old is not None and old.instance_id is not None and self._static.get(old.instance_id) == member_id:
            del self._static[old.instance_id]
        self._subscribe(member_id, metadata)
        if metadata is None:
            self._session_deadlines_ms.pop(member_id, None)
            self._rebalance_deadlines_ms.pop(member_id, None)
            return
        self.members[member_id] = metadata
        if metadata.instance_id is not None:
            self._static[metadata.instance_id] = member_id

    def _subscribe(self, member_id: str, metadata: MemberMetadata | None) -> None:
        """Subscriptions by value: members with equal ones share an object, so that work is done once for all of them."""
        old = self._subscription_of.pop(member_id, None)
        if old is not None:
            old.members -= 1
            if not old.members:
                del self._subscriptions[old.names, old.regex]
        if metadata is not None:
            key = metadata.subscribed_names, metadata.subscribed_regex
            subscription = self._subscriptions.get(key)
            if subscription is None:
                subscription = self._subscriptions[key] = Subscription(*key)
            subscription.members += 1
            self._subscription_of[member_id] = subscription

    def _replay_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        old = self.current.pop(member_id, NEW_MEMBER)
        for assignment in (old.assigned, old.revoking):
            for topic, partitions in assignment.items():
                holders = self._holders.get(topic, {})
                for partition in partitions:
                    if holders.get(partition) == member_id:
                        del holders[partition]
                if not holders:
                    self._holders.pop(topic, None)
        if current is None:
            return
        self.current[member_id] = current
        for assignment in (current.assigned, current.revoking):
            for topic, partitions in assignment.items():
                if partitions:
                    self._holders.setdefault(topic, {}).update(dict.fromkeys(partitions, member_id))

    def resume(self, now_ms: int) -> None:
        """After loading: nobody is late yet."""
        for member_id in self.members:
            self._restart_session(member_id, now_ms)
            current = self.current.get(member_id, NEW_MEMBER)
            self._watch_revocation(member_id, current, current, now_ms)

    def durable_state(self) -> object:
        """What a replay of the log must lead to again."""
        return (
            self.epoch,
            self.subscribed,
            self.members,
            self.target_epoch,
            self.target,
            self.current,
            self.regexes,
            self._static,
            self._holders,
        )

    # -------------------------------------------------------------------------------------------------------- heartbeat

    def heartbeat(self, command: ConsumerHeartbeat, now_ms: int, effects: Effects) -> ConsumerHeartbeatResult:
        """A member joins or stays."""
        fault = self._fault(command)
        if fault is not Fault.NONE:
            return ConsumerHeartbeatResult(fault)
        member_id = command.member_id
        regex = command.subscribed_regex
        resolved: frozenset[str] | None = None
        if regex and regex not in self.regexes:
            try:
                resolved = self._topics.resolve(regex)
            except BrokerError as error:
                return ConsumerHeartbeatResult(error.fault, error.text)
        known = self.members.get(member_id)
        metadata = merged(known, command)
        too_many = self._too_many(member_id, metadata)
        if too_many is not None:
            return ConsumerHeartbeatResult(Fault.INVALID_REQUEST, too_many)
        if command.epoch == JOIN_EPOCH:
            self._replace_static(command, effects)
            known = self.members.get(member_id)
            metadata = merged(known, command)
        if metadata != known:
            effects.write(MemberRecord(self.group, member_id, metadata))
        if resolved is not None and regex:
            effects.write(RegexRecord(self.group, regex, ResolvedRegex(resolved, self._topics.version, now_ms)))
        has_changed = known is None or _subscription(known) != _subscription(metadata)
        if has_changed and known is not None:
            self._drop_unused_regexes(effects)
        self._assign(has_changed, now_ms, effects)

        before = self.current.get(member_id, NEW_MEMBER)
        after = reconcile(
            before,
            self.target.get(member_id, {}),
            self.target_epoch.epoch,
            command.owned,
            self._holders,
            member_id,
        )
        if after != before:
            effects.write(CurrentAssignmentRecord(self.group, member_id, after))
        self._restart_session(member_id, now_ms)
        self._watch_revocation(member_id, before, after, now_ms)
        is_full = command.owned is not None and command.rebalance_timeout_ms != -1
        is_told = is_full or command.epoch != before.epoch or after.assigned != before.assigned
        return ConsumerHeartbeatResult(
            Fault.NONE,
            None,
            member_id,
            after.epoch,
            self._settings.consumer_heartbeat_interval_ms,
            after.assigned if is_told or command.epoch == JOIN_EPOCH else None,
        )

    def _fault(self, command: ConsumerHeartbeat) -> Fault:
        member_id = command.member_id
        holder = None if command.instance_id is None else self._static.get(command.instance_id)
        if command.epoch == JOIN_EPOCH:
            if holder is not None and holder != member_id:
                has_left = self.current.get(holder, NEW_MEMBER).epoch == STATIC_LEAVE_EPOCH
                return Fault.NONE if has_left else Fault.UNRELEASED_INSTANCE_ID
            if member_id not in self.members and len(self.members) >= self._settings.consumer_group_size_max:
                return Fault.GROUP_MAX_SIZE_REACHED
            return Fault.NONE
        fault = self._member_fault(member_id, command.instance_id)
        return fault if fault is not Fault.NONE else epoch_fault(self.current.get(member_id, NEW_MEMBER), command)

    def _member_fault(self, member_id: str, instance_id: str | None) -> Fault:
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is None:
                return Fault.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Fault.FENCED_INSTANCE_ID
        return Fault.NONE if member_id in self.members else Fault.UNKNOWN_MEMBER_ID

    def _replace_static(self, command: ConsumerHeartbeat, effects: Effects) -> None:
        """A static member comes back, perhaps as another process: it takes the old one's place without a rebalance."""
        old_id = None if command.instance_id is None else self._static.get(command.instance_id)
        if old_id is None or old_id == command.member_id:
            return
        metadata, target, current = self.members[old_id], self.target.get(old_id, {}), self.current[old_id]
        self._write_tombstones(old_id, effects)
        effects.write(MemberRecord(self.group, command.member_id, metadata))
        effects.write(TargetMemberRecord(self.group, command.member_id, target))
        heir = CurrentAssignment(0, 0, MemberState.STABLE, current.assigned, {})
        effects.write(CurrentAssignmentRecord(self.group, command.member_id, heir))

    def _write_tombstones(self, member_id: str, effects: Effects) -> None:
        effects.write(CurrentAssignmentRecord(self.group, member_id, None))
        effects.write(TargetMemberRecord(self.group, member_id, None))
        effects.write(MemberRecord(self.group, member_id, None))

    def _drop_unused_regexes(self, effects: Effects) -> None:
        used = {metadata.subscribed_regex for metadata in self.members.values()}
        for regex in self.regexes.keys() - used:
            effects.write(RegexRecord(self.group, regex, None))

    # ------------------------------------------------------------------------------------------------------- assignment

    def _topics_of(self, subscription: Subscription) -> frozenset[str]:
        names = frozenset(subscription.names)
        resolved = self.regexes.get(subscription.regex or "")
        return names if resolved is None else names | resolved.topics

    def _too_many(self, member_id: str, metadata: MemberMetadata) -> str | None:
        """The limit that a subscription would exceed, checked if the subscription is new or the topics have changed."""
        key = metadata.subscribed_names, metadata.subscribed_regex
        old = self._subscription_of.get(member_id)
        is_new = old is None or (old.names, old.regex) != key
        if not is_new and self._topics_seen == self._topics.version:
            return None
        subscriptions = [
            each for each in self._subscriptions.values() if each is not old or each.members > 1 or not is_new
        ]
        if is_new and key not in self._subscriptions:
            subscriptions.append(Subscription(*key))
        try:
            return too_many(subscriptions, self._topics)
        except BrokerError as error:
            return error.text

    def _assign(self, has_changed: bool, now_ms: int, effects: Effects) -> None:
        """Raise the epoch if something changed, and bring the target up to it."""
        if self._topics_seen != self._topics.version:
            has_changed = self._resolve_again(now_ms, effects) or has_changed
        if has_changed or self._topics_seen != self._topics.version or self.epoch > self.target_epoch.epoch:
            self._topics_seen = self._topics.version
            names = self.subscribed_topics()
            exist = self._topics.by_name
            subscribed = {name: exist[name] for name in sorted(names) if name in exist}
            if subscribed != self.subscribed:
                effects.write(GroupTopicsRecord(self.group, subscribed))
                has_changed = True
        if has_changed:
            effects.write(GroupEpochRecord(self.group, self.epoch + 1))
        if self.epoch > self.target_epoch.epoch:
            self._make_target(now_ms, effects)

    def _resolve_again(self, now_ms: int, effects: Effects) -> bool:
        has_changed = False
        for regex, old in sorted(self.regexes.items()):
            topics = self._topics.resolve(regex)
            if topics != old.topics:
                effects.write(RegexRecord(self.group, regex, ResolvedRegex(topics, self._topics.version, now_ms)))
                has_changed = True
        return has_changed

    def assignor(self) -> str:
        """The one that most members ask for."""
        wishes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        return max(wishes, key=lambda name: (wishes[name], name)) if wishes else DEFAULT_ASSIGNOR

    def _make_target(self, now_ms: int, effects: Effects) -> None:
        # The assignor gets numbers in the order of the ids: ids are slow to hash and to compare.
        ids = sorted([topic.topic_id for topic in self.subscribed.values()], key=lambda topic_id: topic_id.int)
        number_of_id = {topic_id: number for number, topic_id in enumerate(ids)}
        numbers = {name: number_of_id[topic.topic_id] for name, topic in self.subscribed.items()}
        topics_of = {
            subscription: frozenset([numbers[name] for name in self._topics_of(subscription) if name in numbers])
            for subscription in self._subscriptions.values()
        }
        subscribers = {
            member_id: Subscriber(
                topics_of[self._subscription_of[member_id]],
                {
                    number: partitions
                    for topic_id, partitions in self.target.get(member_id, {}).items()
                    if (number := number_of_id.get(topic_id)) is not None
                },
                metadata.instance_id,
            )
            for member_id, metadata in self.members.items()
        }
        partitions = {numbers[name]: topic.partitions for name, topic in self.subscribed.items()}
        target = CONSUMER_ASSIGNORS[self.assignor()](subscribers, partitions)
        for member_id, assigned in target.items():
            old = self.target.get(member_id)
            if old is None or len(old) != len(assigned) or subscribers[member_id].held != assigned:
                assignment = {ids[number]: held for number, held in assigned.items()}
                effects.write(TargetMemberRecord(self.group, member_id, assignment))
        effects.write(TargetEpochRecord(self.group, TargetEpoch(self.epoch, now_ms)))

    # ---------------------------------------------------------------------------------------------- leaving, and time

    def leave(self, command: ConsumerHeartbeat, now_ms: int, effects: Effects) -> ConsumerHeartbeatResult:
        member_id = command.member_id
        fault = self._member_fault(member_id, command.instance_id)
        if fault is not Fault.NONE:
            return ConsumerHeartbeatResult(fault)
        if command.epoch == STATIC_LEAVE_EPOCH:
            current = self.current.get(member_id, NEW_MEMBER)
            away = CurrentAssignment(STATIC_LEAVE_EPOCH, current.epoch, MemberState.STABLE, current.assigned, {})
            effects.write(CurrentAssignmentRecord(self.group, member_id, away))
            self._rebalance_deadlines_ms.pop(member_id, None)
        else:
            self._remove(member_id, now_ms, effects)
        return ConsumerHeartbeatResult(Fault.NONE, None, member_id, command.epoch)

    def _remove(self, member_id: str, now_ms: int, effects: Effects) -> None:
        self._write_tombstones(member_id, effects)
        self._drop_unused_regexes(effects)
        effects.write(GroupEpochRecord(self.group, self.epoch + 1))
        if not self.members:
            effects.write(TargetEpochRecord(self.group, TargetEpoch(self.epoch, now_ms)))

    def _want(self, deadline_ms: int) -> int:
        self.wake_ms = min(self.wake_ms, deadline_ms)
        return deadline_ms

    def _restart_session(self, member_id: str, now_ms: int) -> None:
        deadline_ms = now_ms + self._settings.consumer_session_timeout_ms
        self._session_deadlines_ms[member_id] = self._want(deadline_ms)

    def _watch_revocation(
        self, member_id: str, before: CurrentAssignment, after: CurrentAssignment, now_ms: int
    ) -> None:
        if after.state is not MemberState.UNREVOKED_PARTITIONS:
            self._rebalance_deadlines_ms.pop(member_id, None)
        elif after != before or member_id not in self._rebalance_deadlines_ms:
            timeout_ms = max(self.members[member_id].rebalance_timeout_ms, 1)
            self._rebalance_deadlines_ms[member_id] = self._want(now_ms + timeout_ms)

    def tick(self, now_ms: int, effects: Effects) -> None:
        """Do what is due."""
        if self.wake_ms > now_ms:
            return
        for deadlines in (self._session_deadlines_ms, self._rebalance_deadlines_ms):
            for member_id, deadline_ms in tuple(deadlines.items()):
                if deadline_ms <= now_ms and member_id in self.members:
                    self._remove(member_id, now_ms, effects)
        deadlines_ms = (*self._session_deadlines_ms.values(), *self._rebalance_deadlines_ms.values())
        self.wake_ms = min(deadlines_ms, default=FOREVER_MS)

    # --------------------------------------------------------------------------------------- what the coordinator asks

    def is_empty(self) -> bool:
        return not self.members

    def is_nothing(self) -> bool:
        """The log does not know of it."""
        return self.epoch == 0 and not self.members

    def empty_since_ms(self) -> int | None:
        """Since when it has no members; None when it has some."""
        return None if self.members else self.target_epoch.timestamp_ms

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """The records that remove the group, which has no members."""
        assert not self.members
        records: list[ConsumerGroupRecord] = [RegexRecord(self.group, regex, None) for regex in self.regexes]
        records.append(TargetEpochRecord(self.group, None))
        records.append(GroupTopicsRecord(self.group, None))
        records.append(GroupEpochRecord(self.group, None))
        return records

    def commit_fault(self, command: CommitOffsets) -> Fault:
        """Whether this committer may commit: a member in its epoch, or anybody while the group is empty."""
        if command.generation < 0 and not self.members:
            return Fault.NONE
        is_anonymous = command.generation < 0 and command.member_id == NO_MEMBER and command.instance_id is None
        if command.producer is not None and is_anonymous:
            return Fault.NONE
        if command.member_id not in self.members:
            return Fault.UNKNOWN_MEMBER_ID
        if command.producer is None and not command.knows_consumer_groups:
            return Fault.UNSUPPORTED_VERSION
        return self._stale_fault(command.member_id, command.generation)

    def fetch_fault(self, command: FetchOffsets) -> Fault:
        if not command.member_id and command.member_epoch < 0:
            return Fault.NONE
        if command.member_id is None or command.member_id not in self.members:
            return Fault.UNKNOWN_MEMBER_ID
        return self._stale_fault(command.member_id, command.member_epoch)

    def _stale_fault(self, member_id: str, epoch: int) -> Fault:
        return Fault.NONE if epoch == self.current.get(member_id, NEW_MEMBER).epoch else Fault.STALE_MEMBER_EPOCH

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*map(self._topics_of, self._subscriptions.values()))


def _subscription(metadata: MemberMetadata) -> tuple[tuple[str, ...], str | None, str | None]:
    return metadata.subscribed_names, metadata.subscribed_regex, metadata.assignor
