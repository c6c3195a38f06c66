"""TOPIC lines, as bytes: offsets, partitions by Java's hash, limits, and topics that a produce makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.engine import RunAppended
from penstock.dialects.minikafka.lines import java_hash, partition_of
from penstock.dialects.minikafka.service import MiniKafkaService, Placed
from penstock.dialects.minikafka.session import WINDOW_BYTES, MiniKafkaSession
from penstock.model.errors import Fault
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from tests.dialects.in_process import Broker
from tests.dialects.minikafka.conftest import Peer

BAD_FORMAT = b"-ERR bad format, expected TOPIC <topic> <key> <payload_length>\\n<payload>\n"


def produce(value: bytes, key: bytes = b"k", topic: bytes = b"orders") -> bytes:
    return b"TOPIC %b %b %d\n%b" % (topic, key, len(value), value)


def everything(broker: Broker, topic: str) -> list[list[tuple[bytes | None, bytes | None]]]:
    info = broker.engine.topic(topic)
    assert info is not None
    return [broker.values(topic, at.partition) for at in info.partitions]


# ---- offsets -----------------------------------------------------------------------------------------------------------


def test_a_produce_makes_the_topic_with_four_partitions_and_answers_the_offset(peer: Peer, broker: Broker) -> None:
    assert peer.send(b"TOPIC orders k1 5\nhello") == b"+OFFSET 0\n"
    assert peer.send(b"TOPIC orders k1 5\nagain") == b"+OFFSET 1\n"
    found = everything(broker, "orders")
    assert len(found) == 4
    assert found[partition_of(b"k1", 4)] == [(b"k1", b"hello"), (b"k1", b"again")]


def test_offsets_count_in_each_partition_and_answers_keep_the_order_of_the_lines(peer: Peer, broker: Broker) -> None:
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]  # 97, 98 and 99 modulo 4
    answers = peer.send(b"".join(produce(b"%d" % at, key) for at, key in enumerate(keys)))
    assert answers == b"+OFFSET 0\n+OFFSET 0\n+OFFSET 1\n+OFFSET 0\n+OFFSET 1\n+OFFSET 2\n"
    assert everything(broker, "orders") == [
        [],
        [(b"a", b"0"), (b"a", b"2"), (b"a", b"5")],
        [(b"b", b"1"), (b"b", b"4")],
        [(b"c", b"3")],
    ]


def test_payloads_may_be_empty_and_hold_any_bytes(peer: Peer, broker: Broker) -> None:
    every = bytes(range(256))
    assert peer.send(produce(b"") + produce(every) + produce(b"\nACK\n")) == b"+OFFSET 0\n+OFFSET 1\n+OFFSET 2\n"
    assert [value for _, value in everything(broker, "orders")[partition_of(b"k", 4)]] == [b"", every, b"\nACK\n"]


def test_an_empty_key_is_two_blanks_and_goes_to_partition_0(peer: Peer, broker: Broker) -> None:
    assert peer.send(b"TOPIC orders  2\nhi") == b"+OFFSET 0\n"
    assert everything(broker, "orders")[0] == [(b"", b"hi")]


def test_keys_are_opaque_bytes(peer: Peer, broker: Broker) -> None:
    key = bytes(byte for byte in range(1, 256) if byte not in b" \n")
    assert peer.send(produce(b"v", key)) == b"+OFFSET 0\n"
    assert everything(broker, "orders")[partition_of(key, 4)] == [(key, b"v")]


def test_ids_go_on_after_a_restart(peer: Peer, broker: Broker) -> None:
    peer.send(produce(b"a") + produce(b"b"))
    broker.restart()
    assert Peer(broker).send(produce(b"c")) == b"+OFFSET 2\n"


def test_any_word_that_begins_with_topic_is_a_produce(peer: Peer) -> None:
    assert peer.send(b"TOPICS orders k 1\nx") == b"+OFFSET 0\n"
    assert peer.send(b"TOPICS:g:0\n") == BAD_FORMAT


# ---- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b"TOPIC", b"TOPIC ", b"TOPIC orders", b"TOPIC orders 5", b"TOPIC orders k", b"TOPIC  5"]
)
def test_a_missing_part_is_a_bad_format_and_the_connection_stays(peer: Peer, line: bytes) -> None:
    assert peer.send(line + b"\n") == BAD_FORMAT
    assert peer.send(produce(b"a")) == b"+OFFSET 0\n"


@pytest.mark.parametrize(
    "length",
    [b"", b"five", b"5 ", b"0x5", b"5.0", b"1_0", b"2147483648", b"-2147483649", b"9" * 400, b"\xb2", b"5\r", b"+"],
)
def test_a_length_that_is_no_number_is_said_and_the_payload_is_read_as_lines(peer: Peer, length: bytes) -> None:
    assert peer.send(b"TOPIC orders k " + length + b"\nhello\n") == (
        b"-ERR invalid payload length\n-ERR unknown command\n"
    )
    assert peer.fatal is None


@pytest.mark.parametrize("length", [b"+2", b"02", b"0000000000002"])
def test_a_length_is_read_as_java_reads_it(peer: Peer, length: bytes) -> None:
    assert peer.send(b"TOPIC orders k " + length + b"\nhi") == b"+OFFSET 0\n"
    assert peer.send(b"TOPIC orders k -0\n") == b"+OFFSET 1\n"


@pytest.mark.parametrize("length", [b"-1", b"-2147483648"])
def test_a_negative_length_closes_without_a_word_after_the_answers_before_it(peer: Peer, length: bytes) -> None:
    assert peer.send(produce(b"a") + b"TOPIC orders k " + length + b"\n") == b"+OFFSET 0\n"
    assert peer.fatal is not None


def test_a_payload_above_the_limit_is_refused_before_it_comes_and_closes(peer: Peer) -> None:
    fed = peer.session.feed(memoryview(b"TOPIC orders k 100000000\n"))
    assert (fed.needed, fed.fatal) == (100_000_025, None)
    assert peer.send(produce(b"a") + b"TOPIC orders k 100000001\n") == (
        b"+OFFSET 0\n-ERR a payload of 100000001 bytes; 100000000 are allowed\n"
    )
    assert peer.fatal is not None


def test_the_limit_is_the_listeners(broker: Broker) -> None:
    broker.service = MiniKafkaService(broker.engine, replace(DEFAULTS["minikafka"], frame_bytes_max=10))
    assert Peer(broker).send(produce(b"x" * 10)) == b"+OFFSET 0\n"
    peer = Peer(broker)
    assert peer.send(produce(b"x" * 11)) == b"-ERR a payload of 11 bytes; 10 are allowed\n"
    assert peer.fatal is not None


@pytest.mark.parametrize("topic", [b"../evil", b"a/b", b"..", b".", b"\xe9", b"x" * 250, b""])
def test_names_outside_the_grammar_are_refused_and_make_nothing(peer: Peer, tmp_path: Path, topic: bytes) -> None:
    answer = peer.send(produce(b"a", topic=topic) + b"nonsense\n")
    assert answer.startswith(b"-ERR topic name ")
    assert answer.endswith(b"\n-ERR unknown command\n")
    assert answer.count(b"\n") == 2
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir() and path.name[0] != "."] == []
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_line_that_begins_with_topic_may_not_name_the_brokers_own_topics(peer: Peer) -> None:
    assert peer.send(b"SET_OFFSET orders:g 1\n") == b"+OK\n"
    answer = peer.send(produce(b"a", topic=b"__consumer_offsets"))
    assert answer == b"-ERR __consumer_offsets is an internal topic: clients can read it but not change it\n"


def test_where_the_listener_makes_no_topics_an_unknown_one_is_an_error(broker: Broker) -> None:
    broker.service = MiniKafkaService(broker.engine, replace(DEFAULTS["minikafka"], creates_topics=False))
    assert Peer(broker).send(produce(b"a") + produce(b"b")) == b"-ERR there is no topic 'orders'\n" * 2
    assert broker.engine.topic("orders") is None


def test_a_topic_that_grows_or_goes_is_noticed(peer: Peer, broker: Broker) -> None:
    broker.make_topic("orders", 1)
    assert peer.send(produce(b"a", b"c")) == b"+OFFSET 0\n"
    broker.wait(broker.engine.add_partitions([("orders", 4)], validate_only=False))
    assert peer.send(produce(b"b", b"c")) == b"+OFFSET 0\n"
    assert everything(broker, "orders") == [[(b"c", b"a")], [], [], [(b"c", b"b")]]
    broker.wait(broker.engine.delete_topics(["orders"]))
    assert peer.send(produce(b"x", b"c") + b"orders:g:-1\n") == b"+OFFSET 0\n+MSG 0 1 3 c\nx\n"


# ---- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, WINDOW_BYTES])
def test_lines_behind_one_that_makes_its_topic_wait_for_it_in_order(peer: Peer, broker: Broker, size: int) -> None:
    values = [bytes([65 + at]) * size for at in range(4)]
    sent = (
        produce(values[0])
        + produce(values[1], topic=b"other")
        + produce(values[2])
        + b"orders:g:-1\nACK\nother:g:-1\nACK\nACK\n"
        + produce(values[3], topic=b"other")
    )
    at = partition_of(b"k", 4)
    assert peer.send(sent) == (
        b"+OFFSET 0\n+OFFSET 0\n+OFFSET 1\n"
        + b"+MSG 0 %d %d k\n%b\n+OK\n" % (size, at, values[0])
        + b"+MSG 0 %d %d k\n%b\n+OK\n" % (size, at, values[1])
        + b"-ERR no outstanding msg\n+OFFSET 1\n"
    )
    assert [value for _, value in everything(broker, "orders")[at]] == [values[0], values[2]]


def test_a_thousand_lines_for_one_topic_are_one_run_and_one_write_a_partition(peer: Peer, broker: Broker) -> None:
    broker.make_topic("orders", 4)
    sent = b"".join(produce(b"x", b"%d" % at) for at in range(1_000))
    fed = peer.session.feed(memoryview(sent))
    assert len(fed.requests) == 1
    answers = peer.send(sent).splitlines()
    assert len(answers) == 1_000
    for at in range(4):
        partition = broker.engine.partition("orders", at)
        assert partition is not None
        assert partition.log is not None
        [segment] = partition.log.segments
        assert segment.size < 30 * partition.log.log_end_offset


def test_a_run_that_is_written_in_part_answers_each_line_for_itself(peer: Peer) -> None:
    [run] = peer.session.feed(memoryview(produce(b"a") + produce(b"b") + produce(b"c"))).requests
    full = RunAppended(Fault.STORAGE_ERROR, 7, 1, "no room on the disk")
    fine = RunAppended(Fault.NONE, 3, 1)
    [answer] = peer.session.answer(run, Placed([(0, 0), (1, 0), (0, 1)], [full, fine]))
    assert answer == b"+OFFSET 7\n+OFFSET 3\n-ERR no room on the disk\n"


def test_with_acks_all_an_answer_waits_for_every_flush_it_needs(tmp_path: Path) -> None:
    settings = replace(DEFAULTS["minikafka"], acks=-1)
    with Broker(tmp_path, lambda engine: MiniKafkaService(engine, settings), flush="acks") as broker:
        broker.make_topic("orders", 4)
        session = MiniKafkaSession(broker.service)
        sent = produce(b"1", b"a") + produce(b"2", b"b") + produce(b"3", b"a")
        [run] = session.feed(memoryview(sent)).requests
        result = session.perform(run)
        assert isinstance(result, Pending)
        assert not result.done
        assert session.answer(run, broker.wait(result)) == [b"+OFFSET 0\n+OFFSET 0\n+OFFSET 1\n"]
        for at in (1, 2):
            partition = broker.engine.partition("orders", at)
            assert partition is not None
            assert partition.log is not None
            assert partition.high_watermark == partition.log.log_end_offset


# ---- Java's hash -------------------------------------------------------------------------------------------------------


def java_hash_code(key: bytes) -> int:
    """String.hashCode as its documentation has it, over signed 32-bit integers."""
    value = 0
    for byte in key:
        value = (31 * value + byte + 2**31) % 2**32 - 2**31
    return value


@given(st.binary(max_size=200), st.integers(1, 50))
def test_a_key_goes_where_java_puts_it(key: bytes, partitions: int) -> None:
    assert java_hash(key) == abs(java_hash_code(key))
    assert partition_of(key, partitions) == abs(java_hash_code(key)) % partitions


@pytest.mark.parametrize(("key", "value"), [(b"", 0), (b"a", 97), (b"hello", 99162322), (b"k1", 3366), (b"\xff", 255)])
def test_known_hashes(key: bytes, value: int) -> None:
    assert java_hash(key) == value


@pytest.mark.parametrize("size", [64, 65, 1_023, 1_024, 1_025, 2_048, 5_000])
def test_long_keys_go_where_java_puts_them(size: int) -> None:
    key = bytes((at * at + 7) % 251 for at in range(size))
    assert partition_of(key, 1_009) == abs(java_hash_code(key)) % 1_009


def test_the_smallest_hash_has_no_negative_partition(peer: Peer, broker: Broker) -> None:
    key = b"polygenelubricants"  # its hash is the smallest integer
    assert java_hash_code(key) == -(2**31)
    broker.make_topic("orders", 3)
    assert peer.send(produce(b"v", key)) == b"+OFFSET 0\n"
    assert everything(broker, "orders")[2**31 % 3] == [(key, b"v")]
    assert partition_of(key, 4) == 0
