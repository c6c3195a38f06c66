"""Transactions by opcode are real ones: seen by nobody before the commit, by nobody after an abort, and over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.coordination.transaction_commands import DescribeTransaction
from penstock.dialects.flymq import transactions
from tests.dialects.flymq.broker import (
    Broker,
    Fields,
    Metadata,
    Wire,
    api,
    b,
    consume,
    fetch,
    i32,
    i64,
    op,
    produce,
    s,
    u64,
)


def begin(wire: Wire) -> str:
    fields = Fields(wire.good(op(0x40)))
    name = fields.s()
    assert fields.number("B") == 1
    fields.end()
    assert name.startswith("txn-producer-")
    return name


def txn_produce(name: str, topic: str, value: bytes) -> bytes:
    return op(0x43, s(name) + s(topic) + b(value))


def end(wire: Wire, name: str, *, commit: bool) -> bool:
    fields = Fields(wire.good(op(0x41 if commit else 0x42, s(name))))
    assert fields.s() == name
    ok = fields.number("B")
    fields.end()
    return bool(ok)


def values(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    answer = wire.ask(fetch(topic, partition, 0, 1_000))
    if answer.opcode == 0xFF:
        assert answer.text == f"topic not found: {topic}"
        return []
    return values_in(answer.payload)


def values_in(payload: bytes) -> list[bytes]:
    fields = Fields(payload)
    count, _ = fields.number("I"), fields.number("Q")
    return [(fields.number("Q"), fields.b(), fields.b())[2] for _ in range(count)]


@pytest.mark.parametrize("flush", ["os", "acks"])
def test_a_commit_shows_all_of_it_at_once(tmp_path: Path, flush: str) -> None:
    with Broker(tmp_path, flush=flush) as broker, broker.connect() as wire, broker.connect() as other:
        name = begin(wire)
        found = [Metadata.of(wire.good(txn_produce(name, topic, b"v"))) for topic in ("t", "t", "u")]
        assert [(row.topic, row.partition, row.offset, row.key_size, row.value_size) for row in found] == [
            ("t", 0, 0, -1, 1),
            ("t", 0, 1, -1, 1),
            ("u", 0, 0, -1, 1),
        ]
        assert values(other, "t") == values(other, "u") == []
        assert other.ask(consume("t", 0, 0)).text == "EOF"
        assert end(wire, name, commit=True)
        assert values(other, "t") == [b"v", b"v"]
        assert values(other, "u") == [b"v"]


def test_an_abort_shows_nothing_of_it_and_later_records_have_their_offsets(wire: Wire) -> None:
    name = begin(wire)
    wire.good(txn_produce(name, "t", b"gone"))
    assert end(wire, name, commit=False)
    assert values(wire, "t") == []
    assert wire.ask(consume("t", 0, 0)).text == "no record at offset 0; next is 2"
    found = Metadata.of(wire.good(produce("t", b"kept")))
    assert found.offset == 2  # behind the record and its marker
    assert values(wire, "t") == [b"kept"]
    assert wire.ask(consume("t", 0, 0)).text == "no record at offset 0; next is 2"


def test_an_unknown_transaction_is_not_ok_and_cannot_be_produced_to(wire: Wire) -> None:
    for name in ("", "nonsense", "txn-producer-1-2", "txn-producer-0-0-0", "txn-producer-99999999999-1-1"):
        for commit in (True, False):
            assert not end(wire, name, commit=commit)
        assert wire.ask(txn_produce(name, "t", b"v")).text == f"transaction not found: {name}"
    assert wire.good(op(0x08)) == i32(0)


def test_an_ended_transaction_is_not_ok_and_says_how_it_ended(wire: Wire) -> None:
    for commit, how in ((True, "committed"), (False, "aborted")):
        for used in (True, False):
            name = begin(wire)
            if used:
                wire.good(txn_produce(name, "t", b"v"))
            assert end(wire, name, commit=commit)
            assert not end(wire, name, commit=True)
            assert not end(wire, name, commit=False)
            assert wire.ask(txn_produce(name, "t", b"v")).text == f"transaction is not active: {how}"


def test_payloads_that_are_cut_short_are_coded_errors(wire: Wire) -> None:
    for opcode in (0x41, 0x42, 0x43):
        assert wire.ask(op(opcode, b"\0")).text == "buffer too small"
    name = begin(wire)
    assert wire.ask(op(0x43, s(name) + s("t"))).text == "buffer too small"


def test_a_bad_topic_does_not_end_the_transaction(wire: Wire) -> None:
    name = begin(wire)
    assert "is not 1 to 249 characters" in wire.ask(txn_produce(name, "a/b", b"v")).text
    assert wire.ask(txn_produce(name, "__transaction_state", b"v")).opcode == 0xFF
    wire.good(txn_produce(name, "t", b"v"))
    assert end(wire, name, commit=True)
    assert values(wire, "t") == [b"v"]


@pytest.mark.parametrize("flush", ["os", "acks"])
def test_a_whole_transaction_may_be_pipelined(tmp_path: Path, flush: str) -> None:
    with Broker(tmp_path, flush=flush) as broker, broker.connect() as wire:
        name = begin(wire)
        wire.send(
            b"".join(txn_produce(name, f"t{at % 2}", b"%d" % at) for at in range(100))
            + op(0x41, s(name))
            + txn_produce(name, "t0", b"late")
        )
        offsets = [Metadata.of(wire.answer().payload).offset for _ in range(100)]
        assert offsets == [at // 2 for at in range(100)]
        assert wire.answer().payload == s(name) + b"\x01"
        assert wire.answer().text == "transaction is not active: committed"
        assert values(wire, "t1") == [b"%d" % at for at in range(1, 100, 2)]


@pytest.mark.parametrize("flush", ["os", "acks"])
@pytest.mark.parametrize("commit", [True, False])
def test_what_is_pipelined_behind_the_end_of_a_transaction_finds_it_ended(
    tmp_path: Path, flush: str, commit: bool
) -> None:
    with Broker(tmp_path, flush=flush) as broker, broker.connect() as wire:
        wire.good(produce("t", b"before"))
        wire.good(op(0x06, s("t") + s("g") + i32(0) + u64(1)))
        name = begin(wire)
        wire.send(
            txn_produce(name, "t", b"p1")
            + txn_produce(name, "t", b"p2")
            + op(0x41 if commit else 0x42, s(name))
            + fetch("t", 0, 1, 10)
            + op(0x64, s("t") + s("g") + i32(0))
            + api(2, s("t") + i32(0) + i64(-1))
            + produce("t", b"behind")
        )
        assert [Metadata.of(wire.answer().payload).offset for _ in range(2)] == [1, 2]
        assert wire.answer().payload == s(name) + b"\x01"
        assert values_in(wire.answer().payload) == ([b"p1", b"p2"] if commit else [])
        assert wire.answer().payload == u64(1) + u64(1) + u64(4) + u64(3)
        assert wire.api_answer().payload[:8] == i64(4)
        assert Metadata.of(wire.answer().payload).offset == 4


def test_what_is_pipelined_behind_a_produce_of_a_transaction_is_behind_it_in_the_log(wire: Wire) -> None:
    """Also when the produce makes its topic, or is the first in its partition, or the broker has to look the name up."""
    name = begin(wire)
    for topic in ("made", "made", "other"):
        wire.send(txn_produce(name, topic, b"first") + produce(topic, b"second") + op(0x04, s(topic)))
        first, second = (Metadata.of(wire.answer().payload) for _ in range(2))
        assert second.offset == first.offset + 1
        assert wire.answer().opcode == 0x04
    assert end(wire, name, commit=True)


def test_partitions_take_turns(wire: Wire) -> None:
    wire.good(op(0x03, s("t") + i32(3)))
    name = begin(wire)
    found = [Metadata.of(wire.good(txn_produce(name, "t", b"v"))) for _ in range(6)]
    assert [row.partition for row in found] == [0, 1, 2, 0, 1, 2]
    assert end(wire, name, commit=True)
    assert all(values(wire, "t", partition) == [b"v", b"v"] for partition in range(3))


def test_any_connection_may_go_on_with_a_transaction(broker: Broker, wire: Wire) -> None:
    name = begin(wire)
    wire.good(txn_produce(name, "t", b"first"))
    with broker.connect() as other:
        other.good(txn_produce(name, "t", b"second"))
    with broker.connect() as third:
        assert end(third, name, commit=True)
    assert values(wire, "t") == [b"first", b"second"]


def test_a_transaction_is_one_for_all_listeners_of_the_broker(broker: Broker, wire: Wire) -> None:
    with broker.connect_to_other_listener() as other:
        for commit, how in ((True, "committed"), (False, "aborted")):
            name = begin(wire)
            wire.good(txn_produce(name, "t", b"first"))
            other.good(txn_produce(name, "t", b"second"))
            assert end(other, name, commit=commit)
            assert wire.ask(txn_produce(name, "t", b"late")).text == f"transaction is not active: {how}"
            assert not end(wire, name, commit=True)
        names = [begin(side) for side in (wire, other, wire, other)]
        for at, name in enumerate(names):
            wire.good(txn_produce(name, f"t{at}", b"v"))
        assert [end(other, name, commit=True) for name in names] == [True] * 4
        assert [values(wire, f"t{at}") for at in range(4)] == [[b"v"]] * 4
    assert values(wire, "t") == [b"first", b"second"]


def test_what_is_behind_an_open_transaction_waits_for_it(broker: Broker, wire: Wire) -> None:
    name = begin(wire)
    wire.good(txn_produce(name, "t", b"open"))
    wire.good(produce("t", b"plain"))
    assert values(wire, "t") == []
    assert end(wire, name, commit=True)
    assert values(wire, "t") == [b"open", b"plain"]


def test_commit_after_an_older_open_transaction_is_answered_in_time(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MARKER_WAIT_MS", 50)
    older, newer = begin(wire), begin(wire)
    wire.good(txn_produce(older, "t", b"older"))
    wire.good(txn_produce(newer, "t", b"newer"))
    assert end(wire, newer, commit=True)
    assert values(wire, "t") == [], "they become visible with the end of the older one"
    assert end(wire, older, commit=True)
    assert values(wire, "t") == [b"older", b"newer"]


def test_transactions_are_used_again_under_a_new_name(broker: Broker, wire: Wire) -> None:
    """The coordinator remembers each transactional id for a week: one is enough for those that follow each other."""
    names = set()
    for at in range(20):
        name = begin(wire)
        names.add(name)
        wire.good(txn_produce(name, "t", b"%d" % at))
        assert end(wire, name, commit=at % 2 == 0)
    assert len(names) == 20
    shards = broker.engine.transactions.shards.values()
    assert broker.call(lambda: sum(len(shard.machine.states) for shard in shards)) <= 5
    assert values(wire, "t") == [b"%d" % at for at in range(0, 20, 2)]


def test_transactions_that_are_open_at_once_do_not_meet(wire: Wire) -> None:
    names = [begin(wire) for _ in range(5)]
    assert len(set(names)) == 5
    for at, name in enumerate(names):
        wire.good(txn_produce(name, f"t{at}", b"%d" % at))
    assert [end(wire, name, commit=at != 2) for at, name in enumerate(names)] == [True] * 5
    assert [values(wire, f"t{at}") for at in range(5)] == [[b"0"], [b"1"], [], [b"3"], [b"4"]]


def test_no_more_than_the_allowed_transactions_are_open(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OPEN_MAX", 2)
    name = begin(wire)
    begin(wire)
    assert wire.ask(op(0x40)).text == "2 transactions are open, the most allowed"
    assert end(wire, name, commit=True)
    begin(wire)


def test_ended_transactions_that_are_remembered_are_bounded(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENDED_REMEMBERED", 2)
    names = []
    for _ in range(5):
        names.append(begin(wire))
        assert end(wire, names[-1], commit=True)
        assert broker.call(lambda: len(broker.service.transactions._ended)) <= 2
    assert "not active" in wire.ask(txn_produce(names[-1], "t", b"v")).text
    assert "not found" in wire.ask(txn_produce(names[0], "t", b"v")).text


def test_a_transaction_that_nobody_ends_is_aborted_in_time(tmp_path: Path) -> None:
    with Broker(tmp_path, engine={"transaction_max_timeout_ms": 2_500}) as broker, broker.connect() as wire:
        wire.good(op(0x03, s("t") + i32(1)))  # a disk may take its time for it
        name = begin(wire)
        wire.good(txn_produce(name, "t", b"late"))
        wire.good(produce("t", b"behind"))
        broker.until(lambda: broker.engine.partition("t", 0).last_stable_offset >= 3)
        assert values(wire, "t") == [b"behind"]
        assert wire.ask(txn_produce(name, "t", b"later")).text == "transaction is not active: aborted"
        assert not end(wire, name, commit=True)
        other = begin(wire)
        wire.good(txn_produce(other, "t", b"new"))
        assert end(wire, other, commit=True)
        assert values(wire, "t") == [b"behind", b"new"]


def loaded(broker: Broker) -> None:
    broker.until(lambda: all(shard.machine is not None for shard in broker.engine.transactions.shards.values()))
    broker.until(lambda: all(shard.machine is not None for shard in broker.engine.groups.shards.values()))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("produced", [True, False])
def test_a_transaction_goes_on_after_a_restart(tmp_path: Path, commit: bool, produced: bool) -> None:
    with Broker(tmp_path) as broker, broker.connect() as wire:
        name = begin(wire)
        if produced:
            wire.good(txn_produce(name, "t", b"before"))
    with Broker(tmp_path) as broker, broker.connect() as wire:
        loaded(broker)
        assert values(wire, "t") == []
        other = begin(wire)  # does not take the place of the open one
        wire.good(txn_produce(name, "t", b"after"))
        wire.good(txn_produce(name, "t", b"again"))
        assert end(wire, name, commit=commit)
        assert values(wire, "t") == ([b"before", b"after", b"again"][not produced :] if commit else [])
        assert end(wire, other, commit=True)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_ended_before_a_restart_is_known_to_have_ended(tmp_path: Path, commit: bool) -> None:
    with Broker(tmp_path) as broker, broker.connect() as wire:
        name = begin(wire)
        wire.good(txn_produce(name, "t", b"v"))
        assert end(wire, name, commit=commit)
    with Broker(tmp_path) as broker, broker.connect() as wire:
        loaded(broker)
        how = "committed" if commit else "aborted"
        assert wire.ask(txn_produce(name, "t", b"v")).text == f"transaction is not active: {how}"
        assert not end(wire, name, commit=True)
        assert values(wire, "t") == ([b"v"] if commit else [])


def test_a_connection_that_goes_takes_no_answer_from_others(tmp_path: Path) -> None:
    """Produces that nobody waits for any more are counted all the same: the commit does not wait for ever."""
    with Broker(tmp_path, flush="acks") as broker, broker.connect() as wire:
        name = begin(wire)
        for _ in range(20):
            with broker.connect() as other:
                other.send(txn_produce(name, "t", b"v") * 3)
        broker.until(lambda: len(broker.sessions) == 21 and len(broker.listener.connections) == 1)
        wire.good(txn_produce(name, "t", b"last"))
        assert end(wire, name, commit=True)
        assert values(wire, "t")[-1] == b"last"


def test_the_name_of_a_transaction_leads_to_its_place_in_the_coordinator(broker: Broker, wire: Wire) -> None:
    name = begin(wire)
    slot = "__flymq-transaction-" + name.split("-")[2]
    described = broker.call(lambda: broker.engine.transactions.ask(slot, DescribeTransaction(slot)))
    assert described.state.producer_id == int(name.split("-")[3])
    assert described.state.timeout_ms == 60_000
