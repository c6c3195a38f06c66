"""Classic groups and offsets under anything that clients may do, in any order, with restarts in between.

After each event: replaying the log gives the live durable state; nobody waits longer than the rebalance timeout; in one
generation a partition has one owner; and a commit that names a generation is taken only from a member of the present one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from penstock.coordination.classic_group import ClassicGroup
from penstock.coordination.classic_states import State
from penstock.coordination.group_commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    DropTopics,
    FetchOffsets,
    GroupSettings,
    Heartbeat,
    JoinResult,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Producer,
    SyncGroup,
)
from penstock.model.errors import Fault
from tests.coordination.group_driver import Driver, join_command, subscription

REBALANCE_MS_MAX = 60_000
PARTITIONS = 5

numbers = st.integers(0, 7)
instances = st.sampled_from([None, None, "i1", "i2"])
protocol_lists = st.sampled_from(
    [
        (("range", subscription("t")),),
        (("range", subscription("t", "u")), ("sticky", b"s")),
        (("sticky", b"s"), ("range", b"not a subscription")),
    ]
)


class ClassicGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(
            GroupSettings(
                initial_rebalance_delay_ms=3_000,
                group_size_max=4,
                offsets_retention_ms=200_000,
                offsets_retention_check_interval_ms=50_000,
            )
        )
        self.asked: dict[int, tuple[int, Any]] = {}
        self.handled: set[int] = set()
        self.member_ids: list[str] = ["unknown"]
        self.instance_of: dict[str, str | None] = {}
        self.leading: dict[str, JoinResult] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.synced_by: dict[int, SyncGroup] = {}

    def _group(self) -> ClassicGroup | None:
        group = self.driver.coordinator._groups.get("g")
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def _send(self, command: Any) -> int:
        ticket = self.driver.send(command)
        self.asked[ticket] = (self.driver.now_ms, command)
        self._look()
        return ticket

    def _look(self) -> None:
        """Clients read their answers."""
        for ticket, (_, command) in self.asked.items():
            if ticket in self.handled or ticket not in self.driver.answers:
                continue
            self.handled.add(ticket)
            result = self.driver.answers[ticket]
            if isinstance(result, JoinResult):
                if result.member_id and result.member_id not in self.member_ids:
                    self.member_ids.append(result.member_id)
                    self.instance_of[result.member_id] = command.instance_id
                if result.fault is Fault.NONE and result.members:
                    self.leading[result.member_id] = result
            elif isinstance(command, SyncGroup) and result.fault is Fault.NONE:
                owner = self.instance_of[command.member_id] or command.member_id
                for partition in result.assignment:
                    holder = self.owners.setdefault((command.generation, partition), owner)
                    assert holder == owner, "one owner in a generation"

    def _pick(self, number: int) -> str:
        """Mostly a member, so that something happens; else anybody who ever was one."""
        group = self._group()
        if group is not None and len(group.members) and number < 6:
            members = list(group.members)
            return members[number % len(members)].member_id
        return self.member_ids[-1 - number % len(self.member_ids)]

    @initialize(count=st.integers(0, 3), static=st.booleans())
    def begin(self, count: int, static: bool) -> None:
        for number in range(count):
            self._send(join_command(instance_id=f"i{number}" if static else None))
        self.wait(3_000)
        self.settle()

    # ------------------------------------------------------------------------------------------------- what clients do

    @rule(
        number=st.sampled_from([None, None, *range(8)]),
        instance=instances,
        protocols=protocol_lists,
        rebalance_timeout_ms=st.sampled_from([-5, 0, 10_000, REBALANCE_MS_MAX]),
        needs_member_id=st.booleans(),
        may_skip=st.booleans(),
    )
    def join(
        self,
        number: int | None,
        instance: str | None,
        protocols: Any,
        rebalance_timeout_ms: int,
        needs_member_id: bool,
        may_skip: bool,
    ) -> None:
        member_id = "" if number is None else self._pick(number)
        if member_id:
            instance = self.instance_of.get(member_id)
        self._send(
            join_command(
                member_id,
                instance_id=instance,
                protocols=protocols,
                rebalance_timeout_ms=rebalance_timeout_ms,
                needs_member_id=needs_member_id,
                may_skip_assignment=may_skip,
            )
        )

    @rule(number=numbers, behind=st.sampled_from([0, 0, 0, 1, -1]))
    def sync(self, number: int, behind: int) -> None:
        group = self._group()
        member_id = self._pick(number)
        generation = (group.generation if group else 0) - behind
        assignments: dict[str, bytes] = {}
        lead = self.leading.get(member_id)
        if lead is not None and lead.generation == generation:
            names = [member.member_id for member in lead.members]
            for place, name in enumerate(names):
                assignments[name] = bytes(range(place, PARTITIONS, len(names)))
        self._send(SyncGroup("g", member_id, self.instance_of.get(member_id), generation, None, None, assignments))

    @rule(rejoin=st.booleans())
    def settle(self, rejoin: bool = True) -> None:
        """Everybody does what is asked of it: rejoins, waits, assigns."""
        group = self._group()
        if group is None:
            return
        for member in list(group.members) if rejoin and group.state is State.PREPARING else []:
            if member.member_id in self.instance_of or not member.is_new:
                self._send(join_command(member.member_id, instance_id=member.instance_id, protocols=member.protocols))
        if group.state is State.PREPARING:
            self.wait(3_000)
        if group.state is State.COMPLETING:
            for place in reversed(range(len(group.members))):
                self.sync(place, 0)

    @rule(number=numbers, behind=st.sampled_from([0, 0, 1]))
    def heartbeat(self, number: int, behind: int) -> None:
        group = self._group()
        member_id = self._pick(number)
        generation = (group.generation if group else 0) - behind
        self._send(Heartbeat("g", member_id, self.instance_of.get(member_id), generation))

    @rule(number=numbers, by_instance=st.booleans(), sure=st.booleans())
    def leave(self, number: int, by_instance: bool, sure: bool) -> None:
        if not sure:
            return
        member_id = self._pick(number)
        leaving = LeavingMember("", "i1") if by_instance else LeavingMember(member_id, self.instance_of.get(member_id))
        self._send(LeaveGroup("g", (leaving,)))

    @rule(
        number=st.none() | numbers,
        behind=st.sampled_from([0, 0, 1, 2, -1]),
        partition=st.integers(0, 2),
        topic=st.sampled_from(["t", "u"]),
        metadata=st.sampled_from([None, "", "m"]),
        producer=st.sampled_from([None, None, Producer(1, 0), Producer(2, 0)]),
        retention_ms=st.sampled_from([None, None, 5_000]),
    )
    def commit(
        self,
        number: int | None,
        behind: int,
        partition: int,
        topic: str,
        metadata: str | None,
        producer: Producer | None,
        retention_ms: int | None,
    ) -> None:
        group = self._group()
        member_id = "" if number is None else self._pick(number)
        generation = -1 if number is None else (group.generation if group else 0) - behind
        is_member = group is not None and member_id in group.members and generation == group.generation
        was_empty = group is None or group.state is State.EMPTY
        offsets = (OffsetToCommit(topic, partition, len(self.asked), 1, metadata),)
        instance = self.instance_of.get(member_id)
        command = CommitOffsets("g", member_id, instance, generation, offsets, producer, retention_ms)
        result = self.driver.answers[self._send(command)]
        if result.fault is Fault.NONE:
            assert is_member or (generation < 0 and (was_empty or producer is not None))
            if producer is None:
                fetched = self.driver.ask(FetchOffsets("g", {topic: (partition,)})).offsets[topic][partition]
                assert fetched.value.offset == offsets[0].offset

    @rule(producer_id=st.integers(1, 2), committed=st.booleans())
    def marker(self, producer_id: int, committed: bool) -> None:
        self.driver.mark(producer_id, committed=committed)

    # ------------------------------------------------------------------------------------------------ what others do

    @rule(ms=st.sampled_from([1, 1, 1_000, 1_000, 3_000, 3_000, 9_000, 10_000, 60_000, 250_000]))
    def wait(self, ms: int) -> None:
        self.driver.wait(ms)
        self._look()

    @rule(sure=st.integers(0, 3))
    def restart(self, sure: int) -> None:
        if sure:
            return
        for answer in self.driver.coordinator.unload(Fault.NOT_COORDINATOR).answers:
            assert answer.ticket not in self.driver.answers
            self.driver.answers[answer.ticket] = answer.result
        self._look()
        self.driver.restart()

    @rule(sure=st.integers(0, 3))
    def delete_group(self, sure: int) -> None:
        if not sure and self.driver.ask(DeleteGroup("g")).fault is Fault.NONE:
            self.owners.clear()

    @rule(topic=st.sampled_from(["t", "u"]), drop=st.booleans())
    def delete_offsets(self, topic: str, drop: bool) -> None:
        if drop:
            self.driver.ask(DropTopics(frozenset({topic})))
            assert not self.driver.ask(FetchOffsets("g", None)).offsets.get(topic)
        else:
            self.driver.ask(DeleteOffsets("g", ((topic, 0), (topic, 1))))

    # ---------------------------------------------------------------------------------------------------- what must hold

    @invariant()
    def replay_gives_the_live_state(self) -> None:
        assert self.driver.replayed().durable_state() == self.driver.coordinator.durable_state()

    @invariant()
    def nobody_waits_longer_than_the_rebalance_timeout(self) -> None:
        self._look()
        for ticket, (asked_ms, command) in self.asked.items():
            if ticket not in self.driver.answers:
                assert self.driver.now_ms - asked_ms <= REBALANCE_MS_MAX, command

    @invariant()
    def a_group_that_is_gone_starts_anew(self) -> None:
        if self._group() is None:
            self.owners.clear()

    @invariant()
    def the_description_agrees_with_the_state(self) -> None:
        described = self.driver.ask(DescribeGroup("g"))
        assert (described.state == "Empty") <= (not described.members)
        if described.state in ("Stable", "CompletingRebalance"):
            assert described.members


def test_anything_that_clients_do_leaves_a_classic_group_whole() -> None:
    run_state_machine_as_test(
        ClassicGroupMachine, settings=settings(stateful_step_count=60, max_examples=settings().max_examples * 2)
    )
