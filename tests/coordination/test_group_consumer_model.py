"""Consumer groups under anything that clients may do: lost answers, slow revocations, crashes, static members, restarts.

The clients are honest: each owns what it was told and has taken over, and says so. After each event: replaying the log gives
the live durable state; no partition is held by two members, nor owned by two clients that are members; a commit is taken
only in the member's epoch. And whenever all clients do what they are told, the group becomes stable with every partition
of every subscribed topic assigned once.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from penstock.coordination.consumer_group import ConsumerGroup
from penstock.coordination.group_commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    GroupSettings,
    OffsetToCommit,
)
from penstock.model.errors import Fault
from tests.coordination.group_driver import Driver

NAMES = ("t", "u", "log-1")
numbers = st.integers(0, 5)
subscriptions = st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "u", "log-1")])
patterns = st.sampled_from([None, None, "", "log-.*", "t|u"])


class Client:
    def __init__(self, member_id: str, instance_id: str | None, assignor: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.assignor = assignor
        self.names: tuple[str, ...] = ("t",)
        self.regex: str | None = None
        self.epoch = 0
        self.owned: dict[uuid.UUID, frozenset[int]] = {}
        self.told: dict[uuid.UUID, frozenset[int]] | None = None
        self.needs_to_say_all = True

    def heartbeat(self) -> ConsumerHeartbeat:
        command = ConsumerHeartbeat("g", self.member_id, self.epoch, self.instance_id, owned=self.owned)
        if self.needs_to_say_all:
            command = command._replace(
                rebalance_timeout_ms=30_000,
                subscribed_names=self.names,
                subscribed_regex=self.regex,
                assignor=self.assignor,
            )
        return command

    def start_over(self) -> None:
        self.epoch = 0
        self.owned = {}
        self.told = None
        self.needs_to_say_all = True


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(GroupSettings(consumer_session_timeout_ms=45_000))
        self.clients: list[Client] = []
        self.count = 0

    def _group(self) -> ConsumerGroup | None:
        group = self.driver.coordinator._groups.get("g")
        return group if isinstance(group, ConsumerGroup) else None

    def _beat(self, client: Client, *, lost: bool = False, quiet: bool = False) -> Any:
        command = client.heartbeat()
        if client.needs_to_say_all:
            client.told = None  # it says what it owns, so it must not take over more without being told again
        elif quiet or client.told is not None:
            command = command._replace(owned=None)
        result = self.driver.ask(command)
        if lost:
            client.needs_to_say_all = True
            return result
        if result.fault in (Fault.FENCED_MEMBER_EPOCH, Fault.UNKNOWN_MEMBER_ID, Fault.GROUP_ID_NOT_FOUND):
            client.start_over()
        elif result.fault in (Fault.FENCED_INSTANCE_ID, Fault.UNRELEASED_INSTANCE_ID):
            self.clients.remove(client)
        else:
            assert result.fault is Fault.NONE, result
            client.needs_to_say_all = False
            client.epoch = result.epoch
            if result.assignment is not None:
                client.told = dict(result.assignment)
        return result

    def _take_over(self, client: Client) -> None:
        if client.told is not None:
            client.owned = client.told
            client.told = None

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.driver.create_topic("t", 3)
        self.driver.create_topic("u", 2)
        for _ in range(count):
            self.start(None, None, ("t", "u"), None)
        self.all_obey()

    @rule(
        instance=st.sampled_from([None, None, "i1", "i2"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
        names=subscriptions,
        regex=patterns,
    )
    def start(self, instance: str | None, assignor: str | None, names: tuple[str, ...], regex: str | None) -> None:
        if len(self.clients) >= 5:
            return
        self.count += 1
        client = Client(f"m{self.count}", instance, assignor)
        client.names, client.regex = names, regex
        self.clients.append(client)
        self._beat(client)

    def _pick(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    @rule(number=numbers, lost=st.booleans(), quiet=st.booleans())
    def beat(self, number: int, lost: bool, quiet: bool) -> None:
        if client := self._pick(number):
            self._beat(client, lost=lost, quiet=quiet)

    @rule(number=numbers)
    def take_over(self, number: int) -> None:
        if client := self._pick(number):
            self._take_over(client)

    @rule(number=numbers, names=subscriptions, regex=patterns)
    def subscribe(self, number: int, names: tuple[str, ...], regex: str | None) -> None:
        if client := self._pick(number):
            client.names, client.regex = names, regex if regex is not None else client.regex
            client.needs_to_say_all = True
            self._beat(client)

    @rule(number=numbers, how=st.sampled_from(["leave", "pause", "crash"]))
    def stop(self, number: int, how: str) -> None:
        client = self._pick(number)
        if client is None:
            return
        self.clients.remove(client)
        if how == "leave":
            self.driver.ask(ConsumerHeartbeat("g", client.member_id, -1, client.instance_id))
        elif how == "pause" and client.instance_id is not None:
            self.driver.ask(ConsumerHeartbeat("g", client.member_id, -2, client.instance_id))
            if len(self.clients) < 5:
                self.start(client.instance_id, client.assignor, client.names, client.regex)

    @rule(number=numbers, behind=st.sampled_from([0, 0, 1, -1]))
    def commit(self, number: int, behind: int) -> None:
        client = self._pick(number)
        group = self._group()
        if client is None or client.epoch < 1:
            return
        epoch = client.epoch - behind
        offsets = (OffsetToCommit("t", 0, 1, 0, ""),)
        fault = self.driver.ask(CommitOffsets("g", client.member_id, client.instance_id, epoch, offsets)).fault
        if fault is Fault.NONE:
            assert group is not None
            assert group.current[client.member_id].epoch == epoch

    @rule(ms=st.sampled_from([1_000, 5_000, 20_000, 31_000, 50_000]))
    def wait(self, ms: int) -> None:
        self.driver.wait(ms)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 4), delete=st.booleans())
    def change_topic(self, name: str, partitions: int, delete: bool) -> None:
        topics = dict(self.driver.topics)
        if delete and name in topics:
            del topics[name]
        elif name in topics:
            topics[name] = topics[name]._replace(partitions=max(partitions, topics[name].partitions))
        else:
            self.driver.create_topic(name, partitions)
            return
        self.driver.topics = topics
        self.driver.coordinator.topics_changed(topics)

    @rule()
    def all_obey(self) -> None:
        """Everybody takes over what it is told; those who are gone time out."""
        for _ in range(20):
            for client in tuple(self.clients):
                self._take_over(client)
                self._beat(client)
            self.driver.wait(5_000)
        if not self.clients:
            return
        described = self.driver.ask(DescribeConsumerGroup("g"))
        assert described.state == "Stable", described
        assert {member.member_id for member in described.members} == {client.member_id for client in self.clients}
        wanted = {
            (topic.topic_id, partition)
            for name, topic in self.driver.topics.items()
            if any(name in c.names or (c.regex and re.fullmatch(c.regex, name)) for c in self.clients)
            for partition in range(topic.partitions)
        }
        owned = [
            (topic, partition)
            for client in self.clients
            for topic, partitions in client.owned.items()
            for partition in partitions
        ]
        assert sorted(owned) == sorted(wanted)

    @invariant()
    def replay_gives_the_live_state(self) -> None:
        assert self.driver.replayed().durable_state() == self.driver.coordinator.durable_state()

    @invariant()
    def no_partition_is_held_twice(self) -> None:
        group = self._group()
        if group is None:
            return
        held = [
            (topic, partition)
            for current in group.current.values()
            for assignment in (current.assigned, current.revoking)
            for topic, partitions in assignment.items()
            for partition in partitions
        ]
        assert len(held) == len(set(held))
        assert set(held) == {(topic, at) for topic, holders in group._holders.items() for at in holders}

    @invariant()
    def patterns_are_kept_as_long_as_somebody_uses_them(self) -> None:
        if group := self._group():
            assert group.regexes.keys() == {m.subscribed_regex for m in group.members.values()} - {None}

    @invariant()
    def no_partition_is_owned_by_two_members(self) -> None:
        group = self._group()
        owned: dict[tuple[uuid.UUID, int], str] = {}
        for client in self.clients:
            if group is None or client.member_id not in group.members:
                continue
            # What it was told and has not taken over yet counts too: it may do so at any moment.
            for assignment in (client.owned, client.told or {}):
                for topic, partitions in assignment.items():
                    for partition in partitions:
                        holder = owned.setdefault((topic, partition), client.member_id)
                        assert holder == client.member_id


def test_anything_that_clients_do_leaves_a_consumer_group_whole() -> None:
    run_state_machine_as_test(
        ConsumerGroupMachine, settings=settings(stateful_step_count=50, max_examples=settings().max_examples)
    )
