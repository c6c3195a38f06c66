"""The JSON form, as the document has it: its examples, its edge cases, and the bound of the frame."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.rustlog import json_form
from tests.dialects.in_process import Broker
from tests.dialects.rustlog.peer import FRAME_BYTES_MAX, Peer, frame, offset_fetch, produce

LOG_START_ERROR = "offset out of range: offset={}, log start offset={}"


def json_produce(*records: bytes, topic: str = "orders", partition: int = 0) -> dict[str, Any]:
    return {"Produce": {"topic": topic, "partition": partition, "records": [list(record) for record in records]}}


def json_fetch(offset: int = 0, max_bytes: int = 1_048_576, **fields: Any) -> dict[str, Any]:
    return {"Fetch": {"topic": "orders", "partition": 0, "offset": offset, "max_bytes": max_bytes, **fields}}


def json_commit(offset: int, group: str = "processor", **fields: Any) -> dict[str, Any]:
    return {"OffsetCommit": {"topic": "orders", "partition": 0, "group_id": group, "offset": offset, **fields}}


def json_offset(group: str = "processor", **fields: Any) -> dict[str, Any]:
    return {"OffsetFetch": {"topic": "orders", "partition": 0, "group_id": group, **fields}}


def produced(*offsets: int) -> dict[str, Any]:
    return {"Produce": {"offsets": list(offsets)}}


def fetched(records: dict[int, bytes], next_offset: int) -> dict[str, Any]:
    rows = [{"offset": offset, "payload": list(value)} for offset, value in records.items()]
    return {"Fetch": {"records": rows, "next_offset": next_offset}}


def failed(message: str) -> dict[str, Any]:
    return {"Error": {"message": message}}


def text_of(answer: Any) -> str:
    message: str = answer["Error"]["message"]
    assert answer == failed(message)
    return message


# ---- the document's examples -------------------------------------------------------------------------------------------


def test_the_documents_first_example_produce_and_produce_again(peer: Peer) -> None:
    assert peer.ask(json_produce(bytes([10, 20]), bytes([30, 40]))) == produced(0, 1)
    assert peer.ask(json_produce(bytes([50, 60]))) == produced(2)


def test_the_documents_second_example_a_group_goes_on_where_it_committed(peer: Peer) -> None:
    peer.ask(json_produce(bytes([10, 20]), bytes([30, 40])))
    fetch = json_fetch(0, group_id="processor")
    assert peer.ask(fetch) == fetched({0: bytes([10, 20]), 1: bytes([30, 40])}, 2)
    assert peer.ask(json_commit(2)) == {"OffsetCommit": {"success": True}}
    peer.ask(json_produce(bytes([50, 60])))
    assert peer.ask(fetch) == fetched({2: bytes([50, 60])}, 3)


def test_the_documents_third_example_without_a_group_the_offset_counts(peer: Peer) -> None:
    peer.ask(json_produce(*[bytes([at]) for at in range(102)]))
    assert peer.ask(json_fetch(100, group_id=None)) == fetched({100: b"d", 101: b"e"}, 102)
    assert peer.ask(json_fetch(100)) == fetched({100: b"d", 101: b"e"}, 102)


def test_the_documents_fourth_example_an_unknown_partition_is_an_error(peer: Peer) -> None:
    message = "partition not found: topic=nonexistent, partition=0"
    assert peer.ask(json_fetch(topic="nonexistent", group_id=None)) == failed(message)
    assert peer.ask(json_produce(b"a", topic="nonexistent")) == failed(message)
    assert peer.ask(json_fetch(partition=99)) == failed("partition not found: topic=orders, partition=99")
    assert peer.ask(json_fetch(partition=99, group_id="g")) == failed("partition not found: topic=orders, partition=99")


def test_an_answer_is_compact_json_in_a_frame(peer: Peer) -> None:
    sent = b'{"Produce":{"topic":"orders","partition":0,"records":[[104,105]]}}'
    body = b'{"Produce":{"offsets":[0]}}'
    assert peer.send(frame(sent)) == frame(body)
    body = b'{"Fetch":{"records":[{"offset":0,"payload":[104,105]}],"next_offset":1}}'
    assert peer.send(frame(json.dumps(json_fetch()).encode())) == frame(body)
    assert peer.send(frame(json.dumps(json_commit(1)).encode())) == frame(b'{"OffsetCommit":{"success":true}}')
    assert peer.send(frame(json.dumps(json_offset()).encode())) == frame(b'{"OffsetFetch":{"offset":1}}')
    assert peer.send(frame(json.dumps(json_offset("other")).encode())) == frame(b'{"OffsetFetch":{"offset":null}}')


# ---- produce -----------------------------------------------------------------------------------------------------------


def test_every_byte_value_and_the_empty_record_go_in_and_come_out(peer: Peer, broker: Broker) -> None:
    every = bytes(range(256))
    assert peer.ask(json_produce(every, b"")) == produced(0, 1)
    assert broker.values("orders") == [(None, every), (None, b"")]
    assert peer.ask(json_fetch()) == fetched({0: every, 1: b""}, 2)


def test_a_produce_of_no_records_does_nothing(peer: Peer) -> None:
    assert peer.ask(json_produce()) == produced()
    assert peer.ask(json_produce(partition=7)) == failed("partition not found: topic=orders, partition=7")


@pytest.mark.parametrize(
    "record", ["[256]", "[-1]", "[1.5]", "[true]", '["a"]', '"text"', "7", "null", "[1e2]", "[9" + "9" * 30 + "]"]
)
def test_records_are_arrays_of_bytes_and_nothing_else(peer: Peer, broker: Broker, record: str) -> None:
    sent = '{"Produce":{"topic":"orders","partition":0,"records":[[1],%s]}}' % record
    assert text_of(peer.ask(sent.encode())).startswith("failed to parse request: ")
    assert broker.values("orders") == []


def test_what_the_broker_cannot_write_is_an_error_with_its_reason(peer: Peer, broker: Broker) -> None:
    broker.make_topic("compacted", 1, {"cleanup.policy": "compact"})
    assert text_of(peer.ask(json_produce(b"a", topic="compacted"))) == (
        "failed to write record: a record of a compacted topic needs a key"
    )
    peer.ask(json_commit(1))
    message = "__consumer_offsets is an internal topic: clients can read it but not change it"
    assert peer.ask(json_produce(b"a", topic="__consumer_offsets")) == failed(message)


def test_a_produce_whose_offsets_would_not_fit_the_answer_is_refused_before_it_is_written(
    peer: Peer, broker: Broker
) -> None:
    most = FRAME_BYTES_MAX // 32
    head, tail = b'{"Produce":{"topic":"orders","partition":0,"records":[', b"]}}"
    assert text_of(peer.ask(head + b",".join([b"[]"] * (most + 1)) + tail)).endswith(
        f"{most + 1} records; an answer has room for {most} offsets"
    )
    assert broker.values("orders") == []


# ---- fetch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_bytes", "count"), [(0, 1), (1, 1), (9, 1), (10, 2), (14, 2), (15, 3), (2**64 - 1, 3)])
def test_max_bytes_counts_payloads_and_one_record_always_comes(peer: Peer, max_bytes: int, count: int) -> None:
    values = [b"aaaaa", b"bbbbb", b"ccccc"]
    peer.ask(json_produce(*values))
    assert peer.ask(json_fetch(0, max_bytes)) == fetched(dict(enumerate(values[:count])), count)


@pytest.mark.parametrize("offset", [3, 4, 1_000, 2**63, 2**64 - 1])
def test_past_the_end_there_are_no_records_and_the_log_end(peer: Peer, offset: int) -> None:
    peer.ask(json_produce(b"a", b"b", b"c"))
    assert peer.ask(json_fetch(offset)) == fetched({}, 3)


def test_before_the_log_start_is_out_of_range(peer: Peer, broker: Broker) -> None:
    peer.ask(json_produce(b"a", b"b", b"c"))
    broker.delete_before("orders", 0, 2)
    assert peer.ask(json_fetch(1)) == failed(LOG_START_ERROR.format(1, 2))
    assert peer.ask(json_fetch(2)) == fetched({2: b"c"}, 3)


def test_a_group_reads_from_the_larger_of_committed_and_asked_offset(peer: Peer) -> None:
    peer.ask(json_produce(b"a", b"b", b"c"))
    assert peer.ask(json_fetch(1, group_id="new")) == fetched({1: b"b", 2: b"c"}, 3)
    peer.ask(json_commit(1, "g"))
    assert peer.ask(json_fetch(0, group_id="g")) == fetched({1: b"b", 2: b"c"}, 3)
    assert peer.ask(json_fetch(2, group_id="g")) == fetched({2: b"c"}, 3)
    assert peer.ask(json_fetch(0, group_id="")) == fetched({0: b"a", 1: b"b", 2: b"c"}, 3)


def test_offsets_that_no_reader_sees_are_skipped_and_records_keep_theirs(peer: Peer, broker: Broker) -> None:
    peer.ask(json_produce(b"a"))
    broker.transaction("orders", 0, b"no", commits=False)
    broker.transaction("orders", 0, b"yes", commits=True)
    broker.append("orders", 0, None, key=b"k")
    assert peer.ask(json_fetch()) == fetched({0: b"a", 3: b"yes", 5: b""}, 6)
    broker.transaction("orders", 0, b"open", commits=None)
    assert peer.ask(json_fetch(6)) == fetched({}, 6)


def test_an_answer_has_fewer_records_rather_than_a_larger_frame(peer: Peer, broker: Broker) -> None:
    value = b"\xff" * 1_000_000  # four characters a byte
    broker.append("orders", 0, *[value] * 4)
    answer = peer.ask(json_fetch(0, 2**32))
    assert [row["offset"] for row in answer["Fetch"]["records"]] == [0, 1]
    assert answer["Fetch"]["next_offset"] == 2
    answer = peer.ask(json_fetch(2, 2**32))
    assert [row["offset"] for row in answer["Fetch"]["records"]] == [2, 3]


def test_the_largest_record_that_fits_is_given_and_one_byte_more_is_an_error_that_names_it(
    peer: Peer, broker: Broker
) -> None:
    around = len(b'{"Fetch":{"records":[{"offset":0,"payload":[]}],"next_offset":1}}')
    count, odd = divmod(FRAME_BYTES_MAX - around + 1, 2)  # two characters a byte, but no comma behind the last
    fits = b"\n" * odd + b"\0" * (count - odd)
    broker.append("orders", 0, fits, b"\n\n" + fits[2:], b"x" * (FRAME_BYTES_MAX - 100))
    answer = peer.send(frame(json.dumps(json_fetch(0, 2**32)).encode()))
    assert len(answer) == 4 + FRAME_BYTES_MAX
    assert [bytes(row["payload"]) for row in json.loads(answer[4:])["Fetch"]["records"]] == [fits]
    for offset in (1, 2):
        message = text_of(peer.ask(json_fetch(offset, 2**32)))
        assert message.startswith(f"fetch failed: the record at offset {offset} has ")
        assert message.endswith(f"go on at {offset + 1}")
    assert peer.ask(json_fetch(3)) == fetched({}, 3)


# ---- offsets -----------------------------------------------------------------------------------------------------------


def test_a_commit_is_overwritten_by_the_next_and_seen_by_the_binary_form(peer: Peer) -> None:
    assert peer.ask(json_offset()) == {"OffsetFetch": {"offset": None}}
    assert peer.ask(json_commit(1500)) == {"OffsetCommit": {"success": True}}
    assert peer.ask(json_commit(7)) == {"OffsetCommit": {"success": True}}
    assert peer.ask(json_offset()) == {"OffsetFetch": {"offset": 7}}
    assert peer.send(offset_fetch("processor")) == frame(b"\x04" + b"\x01" + struct.pack(">Q", 7))
    assert peer.ask(json_offset(partition=1)) == {"OffsetFetch": {"offset": None}}
    assert peer.ask(json_offset(topic="nothing")) == {"OffsetFetch": {"offset": None}}


def test_a_commit_that_cannot_be_kept_has_no_success(peer: Peer, broker: Broker) -> None:
    broker.join("busy")
    for commit in (
        json_commit(1, topic="nothing"),
        json_commit(1, partition=2),
        json_commit(1, topic="../x"),
        json_commit(2**63),
        json_commit(1, ""),
        json_commit(1, "a\tb"),
        json_commit(1, "x" * 256),
        json_commit(1, "busy"),
    ):
        assert peer.ask(commit) == {"OffsetCommit": {"success": False}}, commit
    assert text_of(peer.ask(json_offset(""))) == "internal error: the group name is not valid"
    assert text_of(peer.ask(json_fetch(group_id="\n"))) == "fetch failed: the group name is not valid"


# ---- what is no request ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"{}",
        b"{]",
        b'{"Produce":null}',
        b'{"Produce":{}}',
        b'{"Unknown":{}}',
        b'{"produce":{"topic":"orders","partition":0,"records":[]}}',
        b'{"Produce":{"topic":"orders","partition":0,"records":[]}} x',
        b'{"Produce":{"topic":"orders","partition":0,"records":[]},"Ping":{}}',
        b'{"OffsetFetch":{"topic":"a","partition":0,"group_id":"g"},"Fetch":{"topic":"a","partition":0,"offset":0,"max_bytes":0}}',
        b'{"Produce":{"topic":7,"partition":0,"records":[]}}',
        b'{"Produce":{"topic":"orders","partition":-1,"records":[]}}',
        b'{"Produce":{"topic":"orders","partition":4294967296,"records":[]}}',
        b'{"Produce":{"topic":"orders","partition":"0","records":[]}}',
        b'{"Produce":{"topic":"\xff","partition":0,"records":[]}}',
        b'{"Produce":{"topic":"\\ud800","partition":0,"records":[]}}',
        b'{"Fetch":{"topic":"orders","partition":0,"offset":-1,"max_bytes":1}}',
        b'{"Fetch":{"topic":"orders","partition":0,"offset":18446744073709551616,"max_bytes":1}}',
        b'{"Fetch":{"topic":"orders","partition":0,"offset":0,"max_bytes":-1}}',
        b'{"Fetch":{"topic":"orders","partition":0,"max_bytes":1}}',
        b'{"OffsetCommit":{"topic":"orders","partition":0,"group_id":null,"offset":1}}',
        b'{"OffsetFetch":{"topic":"orders","partition":0}}',
        b'{"x":' + b"[" * 100_000,
        b'{"Fetch":{"topic":"orders","partition":0,"offset":' + b"9" * 5_000 + b',"max_bytes":1}}',
    ],
    ids=range(24),
)
def test_what_cannot_be_parsed_is_an_error_and_the_connection_stays(peer: Peer, payload: bytes) -> None:
    assert text_of(peer.ask(payload)).startswith("failed to parse request: ")
    assert peer.ask(json_produce(b"a")) == produced(0)


def test_unknown_fields_are_ignored_and_order_does_not_matter(peer: Peer) -> None:
    sent = b' "records" : [ [ 1 ] ], "extra": {"a": [1, 2]}, "partition": 0, "topic": "orders" '
    assert peer.ask(b'{ "Produce": {' + sent + b"} }") == produced(0)
    assert peer.ask(json_fetch(0, isolation="any")) == fetched({0: b"\x01"}, 1)


@pytest.mark.parametrize(
    "first",
    [
        b'{"Produce":{"records":[[1]],"topic":"orders","partition":0,"x":[[2]]}}',
        b'{"Produce":{"records":[[1] ],"topic":"orders","partition":0,"x":[[2]]}}',
        b'{"Produce":{"records":[[1]],"x":[[]],"topic":"orders","partition":0}}',
        b'{"Produce":{"topic":"nothing","records":[[1]],"topic":"orders","partition":0,"y":[[]]}}',
    ],
)
def test_what_one_produce_says_holds_for_no_other(peer: Peer, first: bytes) -> None:
    assert peer.ask(first) == produced(0)
    assert peer.ask(first) == produced(1)
    for lacking in (
        b'{"Produce":{"records":[[5]]}}',
        b'{"Produce":{"topic":"orders","records":[[5]]}}',
        b'{"Produce":{"records":[[5]],"x":[[2]]}}',
        b'{"Produce":{"records":[[5]],"partition":0}}',
    ):
        assert "missing required field" in text_of(peer.ask(lacking))
    assert peer.ask(first) == produced(2)


@pytest.mark.parametrize("second", [b'"Produce"', b'"\\u0050roduce"'])
def test_the_same_name_twice_is_no_request(peer: Peer, second: bytes) -> None:
    body = b'{"topic":"orders","partition":0,"records":[[1]]}'
    answer = peer.ask(b'{"Produce":%b,%b:%b}' % (body, second, body))
    assert text_of(answer).endswith("an object with the name of one request is expected")
    assert peer.ask(json_fetch()) == fetched({}, 0)
    named = b'{"Produce":{"topic":"orders","partition":0,"records":[[1]],"note":"\\"Produce\\" \\u0050"}}'
    assert peer.ask(named) == produced(0)


def test_json_and_binary_mix_on_one_connection_and_keep_their_order(peer: Peer) -> None:
    request = frame(json.dumps(json_produce(b"j")).encode())
    answers = peer.send(produce(b"a") + request + produce(b"b") + produce(b"c") + request + request)
    json_answers = [frame(b'{"Produce":{"offsets":[%d]}}' % at) for at in range(6)]
    binary = [frame(b"\x01" + at.to_bytes(8, "big") + b"\0\0\0\1") for at in range(6)]
    assert answers == b"".join((binary[0], json_answers[1], binary[2], binary[3], json_answers[4], json_answers[5]))


def test_a_long_name_in_an_error_does_not_make_the_answer_long(peer: Peer) -> None:
    message = text_of(peer.ask(json_produce(b"a", topic="\x01" * 1_000_000)))
    assert len(message) < 400


# ---- produces that look like the one before ------------------------------------------------------------------------------

ONE = b'{"Produce":{"topic":"orders","partition":0,"records":[[%b]]}}'
LOOKALIKES = (
    ONE % b"1,2",
    ONE % b"",
    ONE % b"3",
    ONE % b" 4 , 5 ",
    ONE % b"6],[7",
    ONE % b"256",
    ONE % b"-1",
    ONE % b'"8"',
    ONE % b"[9]",
    ONE % b"10]",
    ONE % b'11]],"records":[[12',
    ONE % b'13]],"x":[[14',
    ONE.replace(b"orders", b"unknown") % b"15",
    b'{"Produce":{"topic":"orders","partition":0,"records":[ [16] ],"x":{"records":[[17]]}}}',
    b'{"Produce":{"topic":"orders","partition":0,"records":[ [16] ],"x":{"records":[[18]]}}}',
    b'{"Produce":{"topic":"orders","partition":0,"\\u0072ecords":[ [19] ],"x":{"records":[[20]]}}}',
    b'{"Produce":{"topic":"orders","partition":0,"\\u0072ecords":[ [19] ],"x":{"records":[[21]]}}}',
    b'{"Produce":{"records":[[22]],"topic":"orders","partition":0}}',
    b'{"Produce":{"records":[[23]],"topic":"orders","partition":0}}',
)


@pytest.mark.parametrize("first", LOOKALIKES)
def test_a_produce_is_read_the_same_behind_any_other_as_by_itself(first: bytes, broker: Broker) -> None:
    def stored_by(*peers: Peer) -> list[bytes | None]:
        """What all pairs store, each pair in one read, the peers taking turns."""
        before = len(broker.values("orders"))
        for at, second in enumerate(LOOKALIKES):
            peers[at % len(peers)].send(frame(first) + frame(second))
        return [value for _, value in broker.values("orders")[before:]]

    def stored_alone() -> list[bytes | None]:
        before = len(broker.values("orders"))
        for second in LOOKALIKES:
            for payload in (first, second):
                Peer(broker).send(frame(payload))
        return [value for _, value in broker.values("orders")[before:]]

    expected = stored_alone()
    assert stored_by(Peer(broker)) == expected
    assert stored_by(*(Peer(broker) for _ in LOOKALIKES)) == expected


def test_a_frame_that_ends_within_the_common_beginning_is_no_produce(broker: Broker) -> None:
    payload = b'{"Produce":{"x":"]]}}","topic":"orders","partition":0,"records":[[1]]}}'
    end = payload.index(b"]]}}") + 4
    peer = Peer(broker)
    peer.send(frame(payload))
    assert b"failed to parse request" in peer.send(end.to_bytes(4, "big") + payload)
    assert [value for _, value in broker.values("orders")] == [b"\x01"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(payloads=st.lists(st.sampled_from(LOOKALIKES[:12]), min_size=3, max_size=8))
def test_many_produces_in_one_read_are_read_as_each_by_itself(payloads: list[bytes], broker: Broker) -> None:
    """They are parsed together where they look alike: none may run into its neighbour."""

    def stored_by(*reads: bytes) -> list[bytes | None]:
        peer = Peer(broker)
        peer.send(frame(ONE % b"0"))
        before = len(broker.values("orders"))
        for read in reads:
            peer.send(read)
        return [value for _, value in broker.values("orders")[before:]]

    frames = [frame(payload) for payload in payloads]
    assert stored_by(b"".join(frames)) == stored_by(*frames)


@pytest.mark.parametrize("base_offset", [0, 8, 95, 999_998, 9_999_999_999, 10**11 - 3])
def test_the_answers_of_a_run_are_those_of_single_produces(base_offset: int) -> None:
    """Their sizes change with the digits of the offset, and 0x25, which is a percent sign, is one of them."""
    one_by_one = [json_form.produced(base_offset + at, 1) for at in range(20)]
    assert json_form.produced_singles(base_offset, 20) == b"".join(one_by_one)
