"""Polls, ACK and SET_OFFSET, as bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.dialects.minikafka.service import MiniKafkaService
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import Broker
from tests.dialects.minikafka.conftest import Peer

NOTHING = b"-ERR no outstanding msg\n"
BAD_POLL = b"-ERR bad format, expected TOPIC:GROUP:PARTITION[:toOffset]\n"
BAD_SET = b"-ERR bad format, expected SET_OFFSET topic:group offset|BEGIN\n"
BAD_PLACE = b"-ERR bad format, expected topic:group\n"


@pytest.fixture(autouse=True)
def orders(broker: Broker) -> None:
    broker.make_topic("orders", 4)


# ---- polls -------------------------------------------------------------------------------------------------------------


def test_a_poll_gives_one_message_with_a_line_feed_behind_it(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 2, b"hello", b"more", key=b"k1")
    assert peer.send(b"orders:g:2\n") == b"+MSG 0 5 2 k1\nhello\n"


def test_the_same_message_comes_until_it_is_acknowledged_once(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", b"b", key=b"k")
    assert peer.send(b"orders:g:0\norders:g:0\n") == b"+MSG 0 1 0 k\na\n" * 2
    assert peer.send(b"ACK\nACK\n") == b"+OK\n" + NOTHING
    assert peer.send(b"orders:g:0\nACK\norders:g:0\n") == b"+MSG 1 1 0 k\nb\n+OK\n+EMPTY\n"
    assert Peer(broker).send(b"orders:g:0\n") == b"+EMPTY\n"
    assert Peer(broker).send(b"orders:other:0\n") == b"+MSG 0 1 0 k\na\n"


def test_minus_one_is_every_partition_in_order(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 3, b"d", key=b"k")
    broker.append("orders", 1, b"b", b"c", key=b"k")
    seen = [peer.send(b"orders:g:-1\nACK\n") for _ in range(3)]
    assert seen == [
        b"+MSG 0 1 1 k\nb\n+OK\n",
        b"+MSG 1 1 1 k\nc\n+OK\n",
        b"+MSG 0 1 3 k\nd\n+OK\n",
    ]
    assert peer.send(b"orders:g:-1\nACK\n") == b"+EMPTY\n" + NOTHING


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"orders:g:0:0", b"+MSG 0 1 0 k\na\n"),
        (b"orders:g:0:1", b"+MSG 0 1 0 k\na\n"),
        (b"orders:g:0:-1", b"+MSG 0 1 0 k\na\n"),
        (b"orders:g:1:5", b"+END 5\n"),
        (b"orders:g:1:-5", b"+EMPTY\n"),
        (b"orders:g:1", b"+EMPTY\n"),
        (b"orders:g:0:9223372036854775807", b"+MSG 0 1 0 k\na\n"),
        (b"orders:g:0:", b"+MSG 0 1 0 k\na\n"),
        (b"orders:g:+0:+0:more", b"+MSG 0 1 0 k\na\n"),
    ],
)
def test_to_offset_is_the_last_one_wanted(peer: Peer, broker: Broker, line: bytes, answer: bytes) -> None:
    broker.append("orders", 0, b"a", b"b", key=b"k")
    assert peer.send(line + b"\n") == answer


def test_beyond_to_offset_is_the_end(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", b"b", key=b"k")
    broker.append("orders", 1, b"c", key=b"k")
    assert peer.send(b"SET_OFFSET orders:g 1\norders:g:0:0\norders:g:-1:0\n") == b"+OK\n+END 0\n+END 0\n"
    assert peer.send(b"orders:g:0:1\n") == b"+MSG 1 1 0 k\nb\n"


@pytest.mark.parametrize("line", [b"nothing:g:0", b"nothing:g:-1", b"orders:g:4", b"orders:g:99", b"orders:g:-2"])
def test_what_does_not_exist_is_empty_and_is_not_made(peer: Peer, broker: Broker, tmp_path: Path, line: bytes) -> None:
    assert peer.send(line + b"\n" + line + b":7\n") == b"+EMPTY\n+END 7\n"
    assert broker.engine.topic("nothing") is None
    assert not list(tmp_path.rglob("orders-4"))
    assert not list(tmp_path.rglob("orders-99"))


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b":", BAD_POLL),
        (b"orders:g", BAD_POLL),
        (b"orders:g:", BAD_POLL),
        (b":::", BAD_POLL),
        (b"orders:g:x", b"-ERR invalid partition number\n"),
        (b"orders:g::1", b"-ERR invalid partition number\n"),
        (b"orders:g: 0", b"-ERR invalid partition number\n"),
        (b"orders:g:2147483648", b"-ERR invalid partition number\n"),
        (b"orders:g:0\r", b"-ERR invalid partition number\n"),
        (b"orders:g:0:x", b"-ERR invalid toOffset\n"),
        (b"orders:g:0:9223372036854775808", b"-ERR invalid toOffset\n"),
        (b"", b"-ERR unknown command\n"),
        (b"ACK\r", b"-ERR unknown command\n"),
        (b"ack", b"-ERR unknown command\n"),
        (b"ACK ", b"-ERR unknown command\n"),
        (b"HELLO", b"-ERR unknown command\n"),
    ],
)
def test_wrong_lines_are_said_and_the_connection_stays(peer: Peer, broker: Broker, line: bytes, answer: bytes) -> None:
    broker.append("orders", 0, b"a", key=b"k")
    assert peer.send(line + b"\n") == answer
    assert peer.send(b"orders:g:0\n") == b"+MSG 0 1 0 k\na\n"


@pytest.mark.parametrize("line", [b"../x:g:0", b"a/b:g:0", b"..:g:0", b":g:0", b"\xff:g:0"])
def test_topics_outside_the_grammar_are_refused(peer: Peer, line: bytes) -> None:
    assert peer.send(line + b"\n").startswith(b"-ERR topic name ")


@pytest.mark.parametrize("group", [b"", b"\xff", b"x" * 256, b"a\tb"])
def test_groups_outside_the_rules_are_refused(peer: Peer, group: bytes) -> None:
    assert peer.send(b"orders:%b:0\n" % group).startswith(b"-ERR the group name is not ")
    assert peer.send(b"SET_OFFSET orders:%b 1\n" % group).startswith(b"-ERR ")


def test_the_longest_group_and_one_in_utf8_are_taken(peer: Peer) -> None:
    assert peer.send(b"orders:%b:0\n" % (b"x" * 255)) == b"+EMPTY\n"
    assert peer.send("orders:größe:0\n".encode()) == b"+EMPTY\n"


# ---- what others wrote -------------------------------------------------------------------------------------------------


def test_a_line_feed_in_a_key_is_sent_as_two_characters_and_null_as_nothing(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, None, key=b"a\nb c")
    broker.append("orders", 0, b"v", key=None)
    assert peer.send(b"orders:g:0\nACK\norders:g:0\n") == b"+MSG 0 0 0 a\\nb c\n\n+OK\n+MSG 1 1 0 \nv\n"


def test_offsets_that_no_reader_sees_are_skipped(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", b"b", b"c", key=b"k")
    broker.transaction("orders", 0, b"no", commits=False)
    broker.transaction("orders", 0, b"yes", commits=True)
    broker.transaction("orders", 0, b"open", commits=None)
    broker.delete_before("orders", 0, 2)
    assert peer.send(b"orders:g:0\nACK\norders:g:0\nACK\norders:g:0\n") == (
        b"+MSG 2 1 0 k\nc\n+OK\n+MSG 5 3 0 \nyes\n+OK\n+EMPTY\n"
    )


def test_a_compressed_batch_is_unpacked(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"z" * 100_000, b"last", key=b"k", compression=4)
    assert peer.send(b"orders:g:0\nACK\norders:g:0\n") == (
        b"+MSG 0 100000 0 k\n" + b"z" * 100_000 + b"\n+OK\n+MSG 1 4 0 k\nlast\n"
    )


def test_a_message_above_the_limit_is_an_error_that_names_its_offset(broker: Broker) -> None:
    broker.service = MiniKafkaService(broker.engine, replace(DEFAULTS["minikafka"], frame_bytes_max=10))
    broker.append("orders", 0, b"x" * 11, b"y" * 10, key=b"k")
    peer = Peer(broker)
    answer = peer.send(b"orders:g:0\nACK\n")
    assert answer.startswith(b"-ERR the message at offset 0 of partition 0 has 11 bytes, more than 10")
    assert answer.endswith(NOTHING)
    assert peer.send(b"SET_OFFSET orders:g 1\norders:g:0\n") == b"+OK\n+MSG 1 10 0 k\nyyyyyyyyyy\n"


def test_what_was_just_produced_is_polled_though_its_flush_is_under_way(tmp_path: Path) -> None:
    service = lambda engine: MiniKafkaService(engine, DEFAULTS["minikafka"])  # noqa: E731
    with Broker(tmp_path / "slow", service, flush="acks") as broker:
        broker.make_topic("t", 4)
        sent = b"TOPIC t a 1\nxt:g:-1\nACK\nTOPIC t b 1\nyt:g:-1\nACK\nt:g:-1\n"
        assert Peer(broker).send(sent) == (
            b"+OFFSET 0\n+MSG 0 1 1 a\nx\n+OK\n+OFFSET 0\n+MSG 0 1 2 b\ny\n+OK\n+EMPTY\n"
        )


def test_a_partition_that_is_waited_for_and_has_nothing_is_followed_by_the_next(tmp_path: Path) -> None:
    service = lambda engine: MiniKafkaService(engine, DEFAULTS["minikafka"])  # noqa: E731
    with Broker(tmp_path / "slow", service, flush="acks") as broker:
        broker.make_topic("t", 4)
        peer = Peer(broker)
        assert peer.send(b"TOPIC t d 1\nxt:g:0\nACK\n") == b"+OFFSET 0\n+MSG 0 1 0 d\nx\n+OK\n"
        answers = peer.send(b"TOPIC t d 1\nyTOPIC t a 1\nzt:g:-1:0\n")
        assert answers == b"+OFFSET 1\n+OFFSET 0\n+MSG 0 1 1 a\nz\n"


def test_a_thousand_pipelined_polls_and_acks_are_answered_in_order(tmp_path: Path) -> None:
    service = lambda engine: MiniKafkaService(engine, DEFAULTS["minikafka"])  # noqa: E731
    with Broker(tmp_path / "slow", service, flush="acks") as broker:
        broker.make_topic("t", 1)
        broker.append("t", 0, *[b"%d" % at for at in range(500)], key=b"k")
        answers = Peer(broker).send(b"t:g:0\nACK\n" * 500)
        expected = [b"+MSG %d %d 0 k\n%d\n+OK\n" % (at, len(b"%d" % at), at) for at in range(500)]
        assert answers == b"".join(expected)


# ---- ACK ---------------------------------------------------------------------------------------------------------------


def test_an_ack_without_a_delivery_is_an_error(peer: Peer) -> None:
    assert peer.send(b"ACK\n") == NOTHING
    assert peer.send(b"orders:g:0\nACK\n") == b"+EMPTY\n" + NOTHING


def test_a_poll_that_finds_nothing_forgets_the_delivery_before_it(peer: Peer, broker: Broker) -> None:
    """The original acknowledges the earlier message under the name of the later poll."""
    broker.append("orders", 0, b"a", key=b"k")
    assert peer.send(b"orders:g:0\nnothing:h:3\nACK\n") == b"+MSG 0 1 0 k\na\n+EMPTY\n" + NOTHING
    assert peer.send(b"orders:g:0\n") == b"+MSG 0 1 0 k\na\n"
    assert peer.send(b"orders:h:0\n") == b"+MSG 0 1 0 k\na\n"


def test_a_line_that_is_no_poll_keeps_the_delivery(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", key=b"k")
    sent = b"orders:g:0\nwhat\nTOPIC orders x 1\nySET_OFFSET orders:h 5\nACK\n"
    assert peer.send(sent) == b"+MSG 0 1 0 k\na\n-ERR unknown command\n+OFFSET 1\n+OK\n+OK\n"
    assert peer.send(b"orders:g:0\n") == b"+MSG 1 1 0 x\ny\n"


def test_a_delivery_belongs_to_its_connection(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", key=b"k")
    peer.send(b"orders:g:0\n")
    assert Peer(broker).send(b"ACK\n") == NOTHING


def test_commits_survive_a_restart(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", b"b", key=b"k")
    assert peer.send(b"orders:g:0\nACK\n").endswith(b"+OK\n")
    broker.restart()
    assert Peer(broker).send(b"orders:g:0\n") == b"+MSG 1 1 0 k\nb\n"


def test_a_group_with_members_takes_no_commit_from_outside(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", key=b"k")
    broker.join("busy")
    answers = peer.send(b"orders:busy:0\nACK\nSET_OFFSET orders:busy 1\n")
    assert answers == b"+MSG 0 1 0 k\na\n" + b"-ERR the group has members\n" * 2


# ---- SET_OFFSET --------------------------------------------------------------------------------------------------------


def test_an_offset_is_set_in_all_partitions(peer: Peer, broker: Broker) -> None:
    for at in range(4):
        broker.append("orders", at, b"a", b"b", b"c", key=b"k")
    assert peer.send(b"SET_OFFSET orders:g 2\n") == b"+OK\n"
    for at in range(4):
        assert peer.send(b"orders:g:%d\n" % at) == b"+MSG 2 1 %d k\nc\n" % at
    assert peer.send(b"SET_OFFSET orders:g BEGIN\norders:g:3\n") == b"+OK\n+MSG 0 1 3 k\na\n"
    assert peer.send(b"SET_OFFSET orders:g 3\norders:g:-1\n") == b"+OK\n+EMPTY\n"
    assert peer.send(b"SET_OFFSET orders:g 9223372036854775807\norders:g:-1\n") == b"+OK\n+EMPTY\n"
    assert [broker.committed("g", "orders", at) for at in range(4)] == [2**63 - 1] * 4
    assert peer.send(b"SET_OFFSET orders:g -5\norders:g:0\n") == b"+OK\n+MSG 0 1 0 k\na\n"
    assert [broker.committed("g", "orders", at) for at in range(4)] == [0] * 4


def test_an_offset_may_be_set_before_the_topic_is_there(peer: Peer, broker: Broker) -> None:
    assert peer.send(b"SET_OFFSET later:g 1\n") == b"+OK\n"
    assert broker.engine.topic("later") is None
    assert peer.send(b"TOPIC later  1\naTOPIC later  1\nblater:g:0\n") == b"+OFFSET 0\n+OFFSET 1\n+MSG 1 1 0 \nb\n"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"SET_OFFSET ", BAD_SET),
        (b"SET_OFFSETS", BAD_SET),
        (b"SET_OFFSET orders:g", BAD_SET),
        (b"SET_OFFSET orders:g ", BAD_SET),
        (b"SET_OFFSET orders:g 1 2", BAD_SET),
        (b"SET_OFFSET orders:g  1", BAD_SET),
        (b"SET_OFFSET orders 1", BAD_PLACE),
        (b"SET_OFFSET orders: 1", BAD_PLACE),
        (b"SET_OFFSET a:b:c 1", BAD_PLACE),
        (b"SET_OFFSET orders:g x", b"-ERR invalid offset format\n"),
        (b"SET_OFFSET orders:g begin", b"-ERR invalid offset format\n"),
        (b"SET_OFFSET orders:g 9223372036854775808", b"-ERR invalid offset format\n"),
    ],
)
def test_wrong_set_offsets_are_said(peer: Peer, line: bytes, answer: bytes) -> None:
    assert peer.send(line + b"\nACK\n") == answer + NOTHING


def test_a_bare_set_offset_closes_without_a_word(peer: Peer) -> None:
    assert peer.send(b"orders:g:0\nSET_OFFSET\n") == b"+EMPTY\n"
    assert peer.fatal is not None


def test_a_topic_name_outside_the_grammar_is_refused(peer: Peer) -> None:
    assert peer.send(b"SET_OFFSET ../x:g 1\n").startswith(b"-ERR topic name ")


def test_who_polls_right_after_a_start_waits_until_the_groups_are_loaded(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"a", b"b", key=b"k")
    assert peer.send(b"orders:g:0\nACK\n") == b"+MSG 0 1 0 k\na\n+OK\n"
    broker.load_groups_again(0.2)
    assert peer.send(b"orders:g:0\nACK\norders:g:0\n") == b"+MSG 1 1 0 k\nb\n+OK\n+EMPTY\n"
    broker.load_groups_again(0.2)
    assert peer.send(b"SET_OFFSET orders:g BEGIN\norders:g:0\n") == b"+OK\n+MSG 0 1 0 k\na\n"
