"""Groups by API key: the document's states, assignment by the broker, fencing, offsets, on real sockets."""

from __future__ import annotations

import random
import select
import socket
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.coordination.group_commands import DescribeGroup, GroupSettings, JoinGroup
from penstock.model.limits import FLYMQ_MEMBER_TOPICS_MAX, REQUEST_ELEMENTS_MAX
from tests.dialects.flymq.broker import ApiAnswer, Broker, Fields, MovedClock, Wire, api, arr, i32, i64, op, s

Share = dict[str, list[int]]
SESSION_MS = 100
REBALANCE_MS = 50
"""Only for tests that move the broker's clock: on a busy machine real time would expel members."""


class Joined(NamedTuple):
    generation: int
    member: str
    leader: str


def join_payload(
    group: str,
    member: str = "",
    strategy: str = "range",
    topics: tuple[str, ...] = ("t",),
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
) -> bytes:
    return s(group) + s(member) + i32(session_ms) + i32(rebalance_ms) + s(strategy) + arr(*map(s, topics))


def joined(answer: ApiAnswer) -> Joined:
    assert (answer.key, answer.error) == (11, 0), answer
    fields = Fields(answer.payload)
    found = Joined(fields.number("i"), fields.s(), fields.s())
    fields.end()
    return found


def sync(wire: Wire, group: str, member: Joined) -> Share:
    return share_in(wire.api_good(14, s(group) + i32(member.generation) + s(member.member)))


def share_in(payload: bytes) -> Share:
    fields = Fields(payload)
    share = dict(fields.array(lambda: (fields.s(), fields.array(lambda: fields.number("i")))))
    fields.end()
    return share


def heartbeat(wire: Wire, group: str, member: Joined) -> int:
    answer = wire.api(12, s(group) + i32(member.generation) + s(member.member))
    assert answer.error or answer.payload == b""
    return answer.error


def make(wire: Wire, topic: str, partitions: int) -> None:
    wire.good(op(0x03, s(topic) + i32(partitions)))


def group_shard(broker: Broker, group: str) -> Any:
    return broker.engine.groups.shards[broker.engine.groups.index_of(group)]


def pass_time(broker: Broker, clock: MovedClock, group: str, time_ms: int) -> None:
    """Move the broker's clock and do what is due in the group, without waiting for the broker's timer."""

    def move() -> None:
        clock.time_ms += time_ms
        shard = group_shard(broker, group)
        shard.tick(shard.machine)
        shard.schedule()

    broker.call(move)


def state(broker: Broker, group: str) -> str:
    return str(broker.call(lambda: broker.engine.groups.ask(group, DescribeGroup(group))).state)


def _join_frame(group: str, member: Joined | None, fields: dict[str, object]) -> bytes:
    return api(11, join_payload(group, "" if member is None else member.member, **fields))  # type: ignore[arg-type]


def settled(wires: list[Wire], group: str, **fields: object) -> list[Joined]:
    """A generation with all of them: who is in it joins again as long as others come."""
    members = [joined(wires[0].api(11, join_payload(group, **fields)))]  # type: ignore[arg-type]
    for count in range(2, len(wires) + 1):
        wires[count - 1].send(_join_frame(group, None, fields))
        for at, member in enumerate(members):
            while heartbeat(wires[at], group, member) != 27:
                pass
        for at, member in enumerate(members):
            wires[at].send(_join_frame(group, member, fields))
        members = [joined(wire.api_answer()) for wire in wires[:count]]
    return members


def test_a_single_member_gets_every_partition(broker: Broker, wire: Wire) -> None:
    make(wire, "t", 3)
    make(wire, "u", 1)
    assert state(broker, "g") == "Dead"
    member = joined(wire.api(11, join_payload("g", topics=("t", "u", "not.there"))))
    assert member == (1, member.member, member.member)
    assert sync(wire, "g", member) == {"t": [0, 1, 2], "u": [0]}
    assert state(broker, "g") == "Stable"
    assert heartbeat(wire, "g", member) == 0
    assert wire.api_good(13, s("g") + s(member.member)) == b""
    assert state(broker, "g") == "Dead"
    assert heartbeat(wire, "g", member) == 25
    assert joined(wire.api(11, join_payload("g"))).generation == 1


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        ("range", [{"t": [0, 1], "u": [0]}, {"t": [2, 3], "u": [1]}, {"t": [4]}]),
        ("roundrobin", [{"t": [0, 3], "u": [1]}, {"t": [1, 4]}, {"t": [2], "u": [0]}]),
    ],
)
def test_members_get_the_shares_of_their_strategy(broker: Broker, strategy: str, shares: list[Share]) -> None:
    wires = [broker.connect() for _ in range(3)]
    try:
        make(wires[0], "t", 5)
        make(wires[0], "u", 2)
        members = settled(wires, "g", strategy=strategy, topics=("t", "u"))
        assert len({member.generation for member in members}) == 1
        assert len({member.leader for member in members}) == 1
        order = sorted(range(3), key=lambda at: members[at].member)
        found = [sync(wires[at], "g", members[at]) for at in order]
        assert found == shares
    finally:
        for wire in wires:
            wire.socket.close()


def test_a_group_goes_through_the_states_of_the_document(tmp_path: Path) -> None:
    """A generation is complete when all have joined, for the broker assigns. Without members and offsets a group is
    dead at once."""
    groups = GroupSettings(initial_rebalance_delay_ms=0)
    with (
        Broker(tmp_path, engine={"groups": groups}) as broker,
        broker.connect() as wire,
        broker.connect() as other,
    ):
        make(wire, "t", 2)
        assert state(broker, "g") == "Dead"
        first = joined(wire.api(11, join_payload("g")))
        assert state(broker, "g") == "Stable"
        other.send(_join_frame("g", None, {}))
        while heartbeat(wire, "g", first) != 27:
            pass
        assert state(broker, "g") == "PreparingRebalance"
        wire.send(_join_frame("g", first, {}))
        members = [joined(side.api_answer()) for side in (wire, other)]
        assert state(broker, "g") == "Stable"
        assert [heartbeat(side, "g", member) for side, member in zip((wire, other), members, strict=True)] == [0, 0]
        other.api_good(13, s("g") + s(members[1].member))
        assert state(broker, "g") == "PreparingRebalance"
        last = joined(wire.api(11, join_payload("g", first.member)))
        assert state(broker, "g") == "Stable"
        assert offset_commit(wire, "g", last.generation, last.member, ("t", 0, 1, "")) == [0]
        wire.api_good(13, s("g") + s(last.member))
        assert state(broker, "g") == "Empty"
        assert wire.good(op(0x65, s("t") + s("g"))) == b"\x01"
        assert state(broker, "g") == "Dead"
        assert heartbeat(wire, "g", last) == 25


def test_a_member_that_leaves_gives_its_partitions_to_the_others(broker: Broker, wire: Wire) -> None:
    make(wire, "t", 4)
    with broker.connect() as other:
        members = settled([wire, other], "g")
        assert [len(sync(w, "g", m)["t"]) for w, m in zip((wire, other), members, strict=True)] == [2, 2]
        assert other.api_good(13, s("g") + s(members[1].member)) == b""
    assert heartbeat(wire, "g", members[0]) == 27
    alone = joined(wire.api(11, join_payload("g", members[0].member)))
    assert alone.generation == members[0].generation + 1
    assert sync(wire, "g", alone) == {"t": [0, 1, 2, 3]}


def test_a_member_that_falls_silent_is_out_after_its_session(tmp_path: Path) -> None:
    clock = MovedClock()
    with Broker(tmp_path, clock=clock) as broker, broker.connect() as wire, broker.connect() as other:
        make(wire, "t", 4)
        members = settled([wire, other], "g", session_ms=SESSION_MS)
        for w, m in zip((wire, other), members, strict=True):
            sync(w, "g", m)
        pass_time(broker, clock, "g", SESSION_MS - 1)
        assert heartbeat(wire, "g", members[0]) == 0
        clock.time_ms += 1
        while heartbeat(wire, "g", members[0]) == 0:  # until the broker's own timer ends the session
            pass
        alone = joined(wire.api(11, join_payload("g", members[0].member, session_ms=SESSION_MS)))
        assert sync(wire, "g", alone) == {"t": [0, 1, 2, 3]}
        assert heartbeat(other, "g", members[1]) == 25


def test_a_leader_that_dies_while_joining_leaves_the_others_with_their_shares(broker: Broker, wire: Wire) -> None:
    """The broker assigns; nobody waits for the leader's answer to be read."""
    make(wire, "t", 2)
    with broker.connect() as leader:
        first = joined(leader.api(11, join_payload("g")))
        wire.send(api(11, join_payload("g")))
        while heartbeat(leader, "g", first) != 27:
            pass
        leader.send(api(11, join_payload("g", first.member)))
    second = joined(wire.api_answer())
    assert second.leader == first.member
    assert len(sync(wire, "g", second)["t"]) == 1


def test_a_leader_that_dies_before_the_others_joined_leaves_them_with_their_shares(broker: Broker) -> None:
    """Its join waits; when its connection goes, the generation that it leads gets its assignment all the same."""
    leader, second, third = (broker.connect() for _ in range(3))
    make(leader, "t", 3)
    members = settled([leader, second], "g")
    third.send(_join_frame("g", None, {}))
    while heartbeat(leader, "g", members[0]) != 27:
        pass
    leader.send(_join_frame("g", members[0], {}))
    shard = group_shard(broker, "g")
    broker.until(lambda: members[0].member in shard.machine._groups["g"]._joining)
    leader.socket.close()
    broker.until(lambda: len(broker.listener.connections) == 2)
    second.send(_join_frame("g", members[1], {}))
    rest = [joined(wire.api_answer()) for wire in (second, third)]
    assert {member.leader for member in rest} == {members[0].member}
    shares = [sync(wire, "g", member)["t"] for wire, member in zip((second, third), rest, strict=True)]
    assert sorted(map(len, shares)) == [1, 1]
    assert not set(shares[0]) & set(shares[1])
    second.socket.close()
    third.socket.close()


def test_old_generations_and_strangers_are_refused(wire: Wire) -> None:
    make(wire, "t", 1)
    member = joined(wire.api(11, join_payload("g")))
    for key in (12, 14):
        assert wire.api(key, s("g") + i32(member.generation + 1) + s(member.member)).error == 22
        assert wire.api(key, s("g") + i32(member.generation) + s("stranger")).error == 25
        assert wire.api(key, s("nobody") + i32(1) + s(member.member)).error == 25
    assert wire.api(13, s("g") + s("stranger")).error == 25
    assert wire.api(11, join_payload("g", "stranger")).error == 25


def test_join_says_what_is_wrong(wire: Wire) -> None:
    answer = wire.api(11, join_payload("g", strategy="sticky"))
    assert (answer.error, answer.text) == (112, 'strategy \'sticky\': "range" and "roundrobin" are known')
    assert wire.api(11, join_payload("g", session_ms=49)).error == 26
    assert wire.api(11, join_payload("g", session_ms=1_800_001)).error == 26
    for name in ("", "x" * 256, "a\nb"):
        for key, payload in (
            (8, s(name) + i32(-1) + s("") + arr()),
            (9, s(name) + arr()),
            (10, s(name)),
            (11, join_payload(name)),
            (12, s(name) + i32(1) + s("m")),
            (13, s(name) + s("m")),
            (14, s(name) + i32(1) + s("m")),
        ):
            assert wire.api(key, payload).error == 24


def test_strategies_and_kinds_of_members_do_not_mix(broker: Broker, wire: Wire) -> None:
    make(wire, "t", 1)
    member = joined(wire.api(11, join_payload("g")))
    with broker.connect() as other:
        assert other.api(11, join_payload("g", strategy="roundrobin")).error == 23
    kafka = JoinGroup("g", "", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),))
    assert broker.call(lambda: broker.engine.groups.ask("g", kafka)).fault.name == "INCONSISTENT_GROUP_PROTOCOL"
    broker.call(lambda: broker.engine.groups.ask("k", kafka._replace(group="k")))
    assert wire.api(11, join_payload("k")).error == 23
    assert heartbeat(wire, "g", member) == 0


def test_the_coordinator_is_this_broker(broker: Broker, wire: Wire) -> None:
    assert wire.api_good(10, s("g")) == i32(0) + s("127.0.0.1") + i32(broker.port)


# ---- offsets ------------------------------------------------------------------------------------------------------


def offset_commit(wire: Wire, group: str, generation: int, member: str, *rows: tuple[str, int, int, str]) -> list[int]:
    items = (s(topic) + i32(partition) + i64(offset) + s(metadata) for topic, partition, offset, metadata in rows)
    fields = Fields(wire.api_good(8, s(group) + i32(generation) + s(member) + arr(*items)))
    found = fields.array(lambda: (fields.s(), fields.number("i"), fields.number("h")))
    fields.end()
    assert [row[:2] for row in found] == [row[:2] for row in rows]
    return [error for _, _, error in found]


def offset_fetch(wire: Wire, group: str, *places: tuple[str, int]) -> list[tuple[int, str]]:
    fields = Fields(wire.api_good(9, s(group) + arr(*(s(topic) + i32(at) for topic, at in places))))

    def row() -> tuple[int, str]:
        place = fields.s(), fields.number("i")
        offset, metadata, at_ms, error = fields.number("q"), fields.s(), fields.number("q"), fields.number("h")
        assert error == 0
        assert (at_ms > 1_700_000_000_000) is (offset >= 0)
        assert place in places
        return offset, metadata

    found = fields.array(row)
    fields.end()
    return found


def test_offsets_are_committed_with_metadata_and_fetched(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, broker.connect() as wire:
        make(wire, "t", 2)
        rows = [("t", 0, 5, "note"), ("t", 1, 2**63 - 1, ""), ("x", 0, 1, ""), ("t", 2, 1, ""), ("t", 0, -1, "")]
        assert offset_commit(wire, "g", -1, "", *rows[:4]) == [0, 0, 3, 3]
        assert offset_commit(wire, "g", -1, "", rows[4]) == [1]
        assert offset_commit(wire, "g", -1, "", ("t", 0, 5, "m" * 4_097)) == [12]
        assert offset_commit(wire, "g", -1, "") == []
        expected = [(2**63 - 1, ""), (5, "note"), (-1, "")]
        assert offset_fetch(wire, "g", ("t", 1), ("t", 0), ("x", 3)) == expected
        assert offset_fetch(wire, "nobody", ("t", 0)) == [(-1, "")]
    with Broker(tmp_path) as broker, broker.connect() as wire:
        broker.until(lambda: all(shard.machine is not None for shard in broker.engine.groups.shards.values()))
        assert offset_fetch(wire, "g", ("t", 1), ("t", 0), ("x", 3)) == expected


def test_one_place_twice_in_a_commit_is_committed_by_the_row_that_is_right(wire: Wire) -> None:
    make(wire, "t", 1)
    for rows, errors in (
        ([("t", 0, 3, "a"), ("t", 0, -1, "b")], [0, 1]),
        ([("t", 0, -1, "b"), ("t", 0, 4, "a")], [1, 0]),
        ([("t", 0, 5, "a"), ("t", 0, 6, "a")], [0, 0]),
    ):
        assert offset_commit(wire, "g", -1, "", *rows) == errors
        right = [row for row, error in zip(rows, errors, strict=True) if not error]
        assert offset_fetch(wire, "g", ("t", 0)) == [(right[-1][2], "a")]


def test_members_commit_in_their_generation_and_others_not_at_all(wire: Wire) -> None:
    make(wire, "t", 1)
    member = joined(wire.api(11, join_payload("g")))
    row = ("t", 0, 1, "")
    assert offset_commit(wire, "g", member.generation, member.member, row) == [0]
    assert offset_commit(wire, "g", member.generation + 1, member.member, row) == [22]
    assert offset_commit(wire, "g", member.generation, "stranger", row) == [25]
    assert offset_commit(wire, "g", -1, "", row) == [25]
    wire.api_good(13, s("g") + s(member.member))
    assert offset_commit(wire, "g", -1, "", row) == [0]


# ---- many members, killed and paused ------------------------------------------------------------------------------


def _joined_all(broker: Broker, clock: MovedClock, alive: dict[Wire, Joined | None]) -> dict[Wire, Joined | None]:
    """The answers to the joins of all, sent one after the other; None for a member that the group no longer has."""
    machine = group_shard(broker, "g").machine
    sent: list[socket.socket] = []

    def parked() -> int:
        return len(machine._groups["g"]._joining)

    for wire, member in alive.items():
        wire.send(_join_frame("g", member, {"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS}))
        sent.append(wire.socket)
        broker.until(lambda: len(select.select(sent, [], [], 0)[0]) + parked() == len(sent))
    if broker.call(parked):  # they wait for a member that is gone
        pass_time(broker, clock, "g", REBALANCE_MS)
    answers = {wire: wire.api_answer() for wire in alive}
    return {wire: None if answer.error else joined(answer) for wire, answer in answers.items()}


def test_no_partition_has_two_owners_in_a_generation(tmp_path: Path) -> None:
    """Members join, fall silent, die and are late at random; the test notes every share that a member gets.

    The committed offset keeps the group while it has no members: a new group would start again at generation 1.
    """
    dice = random.Random(7)
    owners: dict[int, dict[int, str]] = defaultdict(dict)
    alive: dict[Wire, Joined | None] = {}
    clock = MovedClock()
    with Broker(tmp_path, clock=clock) as broker, ExitStack() as wires:
        admin = wires.enter_context(broker.connect())
        make(admin, "t", 8)
        assert offset_commit(admin, "g", -1, "", ("t", 0, 0, "")) == [0]
        for _ in range(40):
            while len(alive) < 4:
                alive[wires.enter_context(broker.connect())] = None
            if dice.random() < 0.5:
                del alive[dice.choice(list(alive))]  # paused: it says nothing any more
            if dice.random() < 0.3:
                gone = dice.choice(list(alive))
                gone.socket.close()  # killed
                del alive[gone]
            order = dice.sample(list(alive), len(alive))
            alive = _joined_all(broker, clock, {wire: alive[wire] for wire in order})
            latest = max(owners, default=0)
            for wire, member in alive.items():
                if member is None:
                    continue
                assert member.generation >= latest
                pass_time(broker, clock, "g", dice.choice((0, 0, 0, REBALANCE_MS // 2, REBALANCE_MS, SESSION_MS)))
                answer = wire.api(14, s("g") + i32(member.generation) + s(member.member))
                if answer.error:
                    continue
                for partition in share_in(answer.payload).get("t", ()):
                    owner = owners[member.generation].setdefault(partition, member.member)
                    assert owner == member.member, (member.generation, partition)
    assert len(owners) > 10
    assert any(len(shares) == 8 for shares in owners.values())


# ---- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [3, 8, 9, 11])
def test_an_array_has_at_most_50000_items(wire: Wire, key: int) -> None:
    def request(count: int) -> bytes:
        place = s("u") + i32(0)
        match key:
            case 3:
                return arr(*[s("u")] * count)
            case 8:
                return s("g") + i32(-1) + s("") + arr(*[place + i64(1) + s("")] * count)
            case 9:
                return s("g") + arr(*[place] * count)
        return join_payload("g", topics=("u",) * count)

    most = REQUEST_ELEMENTS_MAX
    assert wire.api(key, request(most)).error == 0
    refused = wire.api(key, request(most + 1))
    assert (refused.error, refused.text) == (42, f"an array of {most + 1} items, at most {most} are allowed")


def test_a_member_has_at_most_10000_topics(wire: Wire) -> None:
    most = FLYMQ_MEMBER_TOPICS_MAX
    topics = tuple(f"u{at}" for at in range(most + 1))
    assert wire.api(11, join_payload("g", topics=topics[:most])).error == 0
    refused = wire.api(11, join_payload("h", topics=topics))
    assert (refused.error, refused.text) == (42, f"{most + 1} topics, a member has at most {most}")


def test_offsets_of_many_partitions_are_committed_and_found(wire: Wire) -> None:
    make(wire, "many", 450)
    rows = [s("many") + i32(at) + i64(at) + s(f"m{at}") for at in range(451)]
    fields = Fields(wire.api_good(8, s("g") + i32(-1) + s("") + arr(*rows)))
    faults = fields.array(lambda: (fields.s(), fields.number("i"), fields.number("h")))
    assert faults == [("many", at, 0 if at < 450 else 3) for at in range(451)]
    places = [*range(449, -1, -1), 7, 7, 450]
    fields = Fields(wire.api_good(9, s("g") + arr(*[s("many") + i32(at) for at in places])))
    found = fields.array(
        lambda: (fields.s(), fields.number("i"), fields.number("q"), fields.s(), fields.number("q"), fields.number("h"))
    )
    known = [(at, at, f"m{at}") if at < 450 else (at, -1, "") for at in places]
    assert [(at, offset, text) for _, at, offset, text, _, _ in found] == known
