"""Topics, the cluster, committed offsets and groups by opcode, on a real socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.coordination.group_commands import JoinGroup, SyncGroup
from tests.dialects.flymq.broker import Broker, Fields, Wire, i32, op, produce, s, s8, u64

TRUE = b"\x01"


def create(topic: str, partitions: int) -> bytes:
    return op(0x03, s(topic) + i32(partitions))


def commit(topic: str, group: str, partition: int, offset: int) -> bytes:
    return op(0x06, s(topic) + s(group) + i32(partition) + u64(offset))


def pair(opcode: int, topic: str, group: str, *more: bytes) -> bytes:
    return op(opcode, s(topic) + s(group) + b"".join(more))


def subscribe(topic: str, group: str, mode: str = "latest") -> bytes:
    return pair(0x05, topic, group, i32(0), s8(mode))


def groups_in(fields: Fields) -> tuple[str, str, int, list[tuple[int, int]]]:
    topic, group, members = fields.s(), fields.s(), fields.number("I")
    return topic, group, members, fields.array(lambda: (fields.number("i"), fields.number("Q")))


def groups(wire: Wire) -> list[Any]:
    fields = Fields(wire.good(op(0x62)))
    found = fields.array(lambda: groups_in(fields))
    fields.end()
    return found


# ---- topics -------------------------------------------------------------------------------------------------------


def test_topics_are_made_listed_and_deleted(wire: Wire) -> None:
    assert wire.good(op(0x08)) == i32(0)
    assert wire.good(create("b", 3)) == TRUE
    assert wire.good(create("a", 0)) == TRUE
    assert wire.good(create("b", 7)) == TRUE  # exists, unchanged
    assert wire.good(op(0x08)) == i32(2) + s("a") + s("b")
    assert wire.good(op(0x09, s("b"))) == TRUE
    assert wire.good(op(0x09, s("b"))) == TRUE  # also when absent
    assert wire.good(op(0x08)) == i32(1) + s("a")


def test_a_topic_has_the_partitions_asked_for_and_one_for_0(broker: Broker, wire: Wire) -> None:
    for name, asked, made in (("a", 0, 1), ("b", 1, 1), ("c", 5, 5)):
        wire.good(create(name, asked))
        assert len(broker.call(lambda name=name: broker.engine.topic(name)).partitions) == made


def test_a_negative_number_of_partitions_is_an_error_and_no_crash(wire: Wire) -> None:
    assert wire.ask(create("t", -1)).text == "a topic cannot have -1 partitions"
    assert wire.ask(create("t", -(2**31))).text == f"a topic cannot have {-(2**31)} partitions"
    assert "10000 partitions" in wire.ask(create("t", 10_001)).text
    assert wire.ask(op(0x03, s("t"))).text == "buffer too small"
    assert wire.good(op(0x08)) == i32(0)


def test_names_with_two_underscores_are_not_listed(wire: Wire) -> None:
    wire.good(create("__mine", 1))
    wire.good(create("_mine", 1))
    wire.good(commit("t", "g", 0, 1))
    assert wire.good(op(0x08)) == i32(1) + s("_mine")


def test_pipelined_requests_find_what_the_one_before_left(wire: Wire) -> None:
    wire.send(create("t", 2) + op(0x08) + op(0x09, s("t")) + op(0x08) + create("t", 1) + produce("t", b"v"))
    answers = [wire.answer() for _ in range(6)]
    assert [answer.opcode for answer in answers] == [3, 8, 9, 8, 3, 1]
    assert answers[1].payload == i32(1) + s("t")
    assert answers[3].payload == i32(0)
    get = pair(0x60, "t", "g", i32(0))
    reset = pair(0x61, "t", "g", i32(0), s8("offset"), u64(7))
    wire.send(commit("t", "g", 0, 5) + get + reset + get + pair(0x65, "t", "g") + get + commit("t", "g", 0, 6) + get)
    answers = [wire.answer() for _ in range(8)]
    assert [answer.payload for answer in answers[:5]] == [TRUE, u64(5), TRUE, u64(7), TRUE]
    assert answers[5].text == "consumer group not found: t:g"
    assert [answer.payload for answer in answers[6:]] == [TRUE, u64(6)]


def test_metadata_names_partitions_leader_and_both_ends(broker: Broker, wire: Wire) -> None:
    wire.good(create("t", 2))
    for _ in range(3):
        wire.good(produce("t", b"v", partition=1))
    broker.delete_records("t", 1, 1)
    empty = i32(0) + i32(0) + u64(0) + u64(0)
    assert wire.good(op(0x04, s("t"))) == s("t") + i32(2) + empty + i32(1) + i32(0) + u64(1) + u64(3)
    assert wire.ask(op(0x04, s("x"))).text == "topic not found: x"
    assert wire.ask(op(0x04)).text == "buffer too small"


def test_cluster_metadata_names_this_broker_as_leader_of_all(broker: Broker, wire: Wire) -> None:
    wire.good(create("a", 1))
    wire.good(create("b", 2))
    fields = Fields(wire.good(op(0x53)))
    assert fields.s() == "standalone"

    def partition() -> tuple[Any, ...]:
        return (
            fields.number("i"), fields.s(), fields.s(), fields.number("Q"), fields.s(),
            fields.array(fields.s), fields.array(fields.s),
        )  # fmt: skip

    found = fields.array(lambda: (fields.s(), fields.array(partition)))
    fields.end()
    address = f"127.0.0.1:{broker.port}"
    row = ("0", address, broker.engine.leader_epoch, "online", ["0"], ["0"])
    assert found == [("a", [(0, *row)]), ("b", [(0, *row), (1, *row)])]
    assert wire.good(op(0x53, s(""))) == wire.good(op(0x53))
    assert Fields(wire.good(op(0x53, s("b")))).s() == "standalone"
    assert wire.ask(op(0x53, s("x"))).text == "topic not found: x"


# ---- offsets ------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_and_found_again_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path, flush="acks") as broker, broker.connect() as wire:
        wire.good(produce("t", b"v"))
        assert wire.good(commit("t", "g", 0, 41)) == TRUE
        assert wire.good(commit("t", "g", 0, 42)) == TRUE
        assert wire.good(pair(0x60, "t", "g", i32(0))) == u64(42)
    with Broker(tmp_path) as broker, broker.connect() as wire:
        broker.until(lambda: all(shard.machine is not None for shard in broker.engine.groups.shards.values()))
        assert wire.good(pair(0x60, "t", "g", i32(0))) == u64(42)
        assert wire.good(pair(0x60, "t", "g", i32(1))) == u64(0)
        found = wire.good(produce("t", b"w"))
        assert Fields(found[2 + 1 + 4 :]).number("Q") == 1


def test_get_offset_of_an_unknown_pair_is_an_error(wire: Wire) -> None:
    wire.good(create("t", 1))
    assert wire.ask(pair(0x60, "t", "g", i32(0))).text == "consumer group not found: t:g"
    wire.good(commit("t", "g", 0, 1))
    assert wire.ask(pair(0x60, "other", "g", i32(0))).text == "consumer group not found: other:g"
    assert wire.ask(op(0x60, s("t") + s("g"))).text == "buffer too small"


def test_a_commit_needs_no_topic_but_a_partition_and_a_name(wire: Wire) -> None:
    assert wire.good(commit("not.there", "g", 3, 7)) == TRUE
    assert wire.good(pair(0x60, "not.there", "g", i32(3))) == u64(7)
    assert wire.ask(commit("t", "g", -1, 7)).text == "partition -1 not found"
    assert wire.ask(commit("t", "", 0, 7)).text == "a group name has 1 to 255 bytes"
    assert wire.ask(commit("t", "g" * 256, 0, 7)).text == "a group name has 1 to 255 bytes"
    assert wire.good(commit("t", "g" * 255, 0, 7)) == TRUE
    assert wire.ask(commit("t", "a\x7fb", 0, 7)).text == "a group name has no control characters"


def test_lag_counts_from_the_committed_offset(wire: Wire) -> None:
    wire.good(create("t", 1))
    wire.good(subscribe("t", "g"))
    assert wire.good(pair(0x64, "t", "g", i32(0))) == u64(0) * 4  # an empty topic is no record behind
    for _ in range(5):
        wire.good(produce("t", b"v"))
    wire.good(commit("t", "g", 0, 2))
    assert wire.good(pair(0x64, "t", "g", i32(0))) == u64(2) + u64(2) + u64(5) + u64(3)
    wire.good(commit("t", "g", 0, 9))
    assert wire.good(pair(0x64, "t", "g", i32(0))) == u64(9) + u64(9) + u64(5) + u64(0)
    assert wire.ask(pair(0x64, "t", "x", i32(0))).text == "consumer group not found: t:x"
    assert wire.ask(pair(0x64, "t", "g", i32(1))).text == "partition 1 not found"
    assert wire.ask(pair(0x64, "x", "g", i32(0))).text == "topic not found: x"


def test_the_latest_offset_has_what_was_acknowledged_before_and_nothing_from_behind(tmp_path: Path) -> None:
    """Also where a produce is answered before its flush, and where all of it is one write."""
    with Broker(tmp_path, flush="acks", acks=1) as broker, broker.connect() as wire:
        wire.good(create("t", 1))
        wire.good(subscribe("t", "g"))
        for at in range(1, 40, 2):
            asked = [
                produce("t", b"v"),
                subscribe("t", "g", mode="latest"),
                pair(0x64, "t", "g", i32(0)),
                op(0x04, s("t")),
                pair(0x61, "t", "g", i32(0), s8("latest")),
                produce("t", b"behind"),
                pair(0x60, "t", "g", i32(0)),
            ]
            wire.send(b"".join(asked))
            answers = [wire.answer().payload for _ in asked]
            assert answers[1] == u64(at)
            assert answers[2][16:24] == u64(at)
            assert answers[3].endswith(u64(at))
            assert answers[6] == u64(at)


def test_an_offset_is_reset_to_either_end_or_to_a_number(broker: Broker, wire: Wire) -> None:
    for _ in range(5):
        wire.good(produce("t", b"v"))
    broker.delete_records("t", 0, 2)
    for mode, more, expected in (
        ("earliest", b"", 2),
        ("latest", b"", 5),
        ("offset", u64(4), 4),
        ("offset", u64(2**64 - 1), 2**63 - 1),
    ):
        assert wire.good(pair(0x61, "t", "g", i32(0), s8(mode), more)) == TRUE
        assert wire.good(pair(0x60, "t", "g", i32(0))) == u64(expected)
    assert wire.ask(pair(0x61, "t", "g", i32(0), s8("there"))).text == "unknown reset mode: there"
    assert wire.ask(pair(0x61, "t", "g", i32(0), s8("offset"))).text == "buffer too small"
    for partition in (1, -1):
        assert wire.ask(pair(0x61, "t", "g", i32(partition), s8("latest"))).text == f"partition {partition} not found"
    assert wire.ask(pair(0x61, "x", "g", i32(0), s8("latest"))).text == "topic not found: x"


# ---- groups -------------------------------------------------------------------------------------------------------


def test_groups_are_pairs_of_topic_and_name(wire: Wire) -> None:
    assert groups(wire) == []
    wire.good(commit("t", "g", 0, 1))
    wire.good(commit("t", "g", 2, 3))
    wire.good(commit("u", "g", 0, 4))
    wire.good(commit("t", "h", 0, 5))
    everything = [("t", "g", 0, [(0, 1), (2, 3)]), ("u", "g", 0, [(0, 4)]), ("t", "h", 0, [(0, 5)])]
    assert groups(wire) == everything
    fields = Fields(wire.good(pair(0x63, "t", "g")))
    assert groups_in(fields) == everything[0]
    fields.end()
    assert wire.ask(pair(0x63, "u", "h")).text == "consumer group not found: u:h"


@pytest.mark.parametrize("connect", [Broker.connect, Broker.connect_to_other_listener])
def test_members_are_connections_that_subscribed_until_they_go(
    broker: Broker, wire: Wire, connect: Callable[[Broker], Wire]
) -> None:
    wire.good(create("t", 1))
    with connect(broker) as other:
        for _ in range(2):
            other.good(subscribe("t", "g"))
        assert groups(wire) == [("t", "g", 1, [])]
        wire.good(subscribe("t", "g"))
        assert groups(wire) == [("t", "g", 2, [])]
        assert wire.good(pair(0x60, "t", "g", i32(0))) == u64(0)
    broker.until(lambda: broker.service.subscribers("t", "g") == 1)
    assert groups(wire) == [("t", "g", 1, [])]
    wire.good(commit("t", "g", 0, 1))  # a connection that subscribed is no member that would stand in the way
    assert groups(wire) == [("t", "g", 1, [(0, 1)])]


def test_deleting_a_group_drops_the_offsets_of_its_topic_only(wire: Wire) -> None:
    wire.good(create("t", 1))
    wire.good(commit("t", "g", 0, 1))
    wire.good(commit("u", "g", 0, 2))
    assert wire.good(pair(0x65, "t", "g")) == TRUE
    assert groups(wire) == [("u", "g", 0, [(0, 2)])]
    assert wire.ask(pair(0x65, "t", "g")).text == "consumer group not found: t:g"
    wire.good(subscribe("t", "g"))
    assert wire.good(pair(0x65, "t", "g")) == TRUE  # subscribed only
    assert wire.ask(pair(0x60, "t", "g", i32(0))).text == "consumer group not found: t:g"


def test_a_group_that_is_deleted_and_subscribed_to_again_has_its_new_members(broker: Broker, wire: Wire) -> None:
    wire.good(create("t", 1))
    with broker.connect() as other:
        other.good(subscribe("t", "g"))
        wire.good(pair(0x65, "t", "g"))
        wire.good(subscribe("t", "g"))
        assert groups(wire) == [("t", "g", 1, [])]
        other.good(subscribe("t", "g"))
        assert groups(wire) == [("t", "g", 2, [])]
        wire.good(pair(0x65, "t", "g"))
        wire.good(subscribe("t", "g"))
    broker.until(lambda: len(broker.listener.connections) == 1)
    assert groups(wire) == [("t", "g", 1, [])]


def test_deleting_a_topic_drops_its_offsets(wire: Wire) -> None:
    wire.good(create("t", 1))
    wire.good(commit("t", "g", 0, 1))
    wire.good(op(0x09, s("t")))
    assert wire.ask(pair(0x60, "t", "g", i32(0))).text == "consumer group not found: t:g"


@pytest.mark.parametrize("protocol_type", ["consumer", "flymq"])
def test_a_group_with_members_takes_no_commit_from_outside(broker: Broker, wire: Wire, protocol_type: str) -> None:
    wire.good(create("t", 1))
    wire.good(commit("t", "g", 0, 1))
    join = JoinGroup("g", "", None, "client", "host", 10_000, 10_000, protocol_type, (("range", b""),))
    joined = broker.call(lambda: broker.engine.groups.ask("g", join))
    assert joined.leader == joined.member_id
    sync = SyncGroup("g", joined.member_id, None, joined.generation, None, None, {})
    broker.call(lambda: broker.engine.groups.ask("g", sync))
    refused = "consumer group g has members: only they commit"
    assert wire.ask(commit("t", "g", 0, 2)).text == refused
    assert wire.ask(pair(0x61, "t", "g", i32(0), s8("latest"))).text == refused
    assert wire.good(pair(0x60, "t", "g", i32(0))) == u64(1)
    assert groups(wire) == [("t", "g", 1, [(0, 1)])]
    if protocol_type == "flymq":
        assert wire.ask(pair(0x65, "t", "g")).text == "consumer group g has members"


def test_many_commits_in_one_write_are_answered_in_order(wire: Wire) -> None:
    wire.send(b"".join(commit("t", "g", at % 3, at) + pair(0x60, "t", "g", i32(at % 3)) for at in range(200)))
    for at in range(200):
        assert wire.answer().payload == TRUE
        assert wire.answer().payload == u64(at)
