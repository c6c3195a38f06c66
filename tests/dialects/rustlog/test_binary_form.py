"""The binary form, request by request, as bytes: what a client of the original server sends and must get."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.broker.cleaning import CleaningTotals
from penstock.broker.housekeeping import RetentionTotals
from penstock.dialects.rustlog import metrics
from penstock.dialects.rustlog.service import FETCH_RECORDS_MAX, RustLogService
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import Broker
from tests.dialects.rustlog.peer import (
    FRAME_BYTES_MAX,
    Peer,
    commit,
    error,
    fetch,
    fetched,
    frame,
    offset_fetch,
    produce,
    produced,
    text,
)

COMMITTED = frame(b"\x03\x01")
NOT_COMMITTED = frame(b"\x03\x00")
NO_OFFSET = frame(b"\x04\x00")


def offset_is(offset: int) -> bytes:
    return frame(b"\x04\x01" + struct.pack(">Q", offset))


def unknown(topic: str, partition: int) -> bytes:
    return error(10, f"Topic or partition does not exist: topic={topic}, partition={partition}")


# ---- produce -----------------------------------------------------------------------------------------------------------


def test_produce_answers_the_base_offset_and_the_count(peer: Peer, broker: Broker) -> None:
    sent = bytes.fromhex("00000017 01 0006 6f7264657273 00000000 00000001 00000002 6869".replace(" ", ""))
    assert sent == produce(b"hi")
    assert peer.send(sent).hex() == "0000000d" + "01" + "0000000000000000" + "00000001"
    assert peer.send(produce(b"a", b"", b"c")) == produced(1, 3)
    assert broker.values("orders") == [(None, b"hi"), (None, b"a"), (None, b""), (None, b"c")]


def test_produce_of_no_records_is_base_offset_zero_and_count_zero(peer: Peer) -> None:
    assert peer.send(produce(b"a")) == produced(0)
    assert peer.send(produce()) == produced(0, 0)
    assert peer.send(produce(b"b") + produce() + produce(b"c", b"d")) == produced(1) + produced(0, 0) + produced(2, 2)


@pytest.mark.parametrize(("topic", "partition"), [("nothing", 0), ("orders", 2), ("orders", 2**32 - 1), ("", 0)])
def test_requests_for_a_partition_that_does_not_exist_are_code_10(peer: Peer, topic: str, partition: int) -> None:
    assert peer.send(produce(b"a", topic=topic, partition=partition)) == unknown(topic, partition)
    assert peer.send(produce(topic=topic, partition=partition)) == unknown(topic, partition)
    assert peer.send(fetch(topic=topic, partition=partition)) == unknown(topic, partition)
    assert peer.send(fetch(group="g", topic=topic, partition=partition)) == unknown(topic, partition)


@pytest.mark.parametrize("topic", ["../evil", "a/b", "..", ".", "/etc/passwd", "x" * 250])
def test_names_outside_the_grammar_make_nothing(peer: Peer, tmp_path: Path, topic: str) -> None:
    assert peer.send(produce(b"a", topic=topic)) == unknown(topic, 0)
    answer = peer.send(frame(b"\x05" + text(topic) + b"\0\0\0\1"))
    assert answer[4:7] == b"\xfe\x00\x0a"
    assert b"topic name" in answer
    assert peer.send(commit("g", 1, topic=topic))[4:7] == b"\xfe\x00\x0a"
    folders = [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert sorted(name for name in folders if not name.startswith((".", "__"))) == ["orders-0", "orders-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_the_internal_topics_are_written_by_nobody(peer: Peer) -> None:
    assert peer.send(commit("g", 1)) == COMMITTED
    answer = peer.send(produce(b"x", topic="__consumer_offsets"))
    assert answer == error(10, "__consumer_offsets is an internal topic: clients can read it but not change it")
    assert peer.send(fetch(topic="__consumer_offsets", partition=99)) == unknown("__consumer_offsets", 99)


def test_a_broker_that_cannot_write_says_code_500(peer: Peer, broker: Broker) -> None:
    broker.make_topic("compacted", 1, {"cleanup.policy": "compact"})
    assert peer.send(produce(b"a", topic="compacted")) == error(
        500, "Failed to write record: a record of a compacted topic needs a key"
    )


def test_the_largest_frame_is_taken_and_its_record_comes_back(peer: Peer) -> None:
    record = b"r" * (FRAME_BYTES_MAX - len(produce(b"")) + 4)
    sent = produce(record)
    assert len(sent) == FRAME_BYTES_MAX + 4
    assert peer.send(sent) == produced(0)
    answer = peer.send(fetch())
    assert answer == fetched([record], 1)
    assert len(answer) <= FRAME_BYTES_MAX + 4


# ---- fetch -------------------------------------------------------------------------------------------------------------


def test_fetch_gives_records_and_the_next_offset(peer: Peer) -> None:
    peer.send(produce(b"hi", b"", b"x" * 300))
    sent = fetch(0, 1024)
    assert sent[4:].hex() == "02" + "0000" + "00066f7264657273" + "00000000" + "0000000000000000" + "00000400"
    assert peer.send(sent).hex()[8:] == (
        "02" + "00000003" + "00000002" + "6869" + "00000000" + "0000012c" + "78" * 300 + "0000000000000003"
    )
    assert peer.send(fetch(1)) == fetched([b"", b"x" * 300], 3)


@pytest.mark.parametrize(
    ("max_bytes", "count"), [(0, 0), (1, 1), (16, 1), (17, 1), (33, 1), (34, 2), (50, 2), (51, 3), (2**32 - 1, 3)]
)
def test_max_bytes_counts_twelve_bytes_more_than_each_record(peer: Peer, max_bytes: int, count: int) -> None:
    values = [b"aaaaa", b"bbbbb", b"ccccc"]
    peer.send(produce(*values))
    assert peer.send(fetch(0, max_bytes)) == fetched(values[:count], count)


def test_fetch_at_and_past_the_end_is_empty_and_keeps_the_offset(peer: Peer) -> None:
    peer.send(produce(b"a"))
    for offset in (1, 2, 1_000, 2**63, 2**64 - 1):
        assert peer.send(fetch(offset)) == fetched([], offset)


def test_fetch_below_the_log_start_goes_on_at_the_log_start(peer: Peer, broker: Broker) -> None:
    peer.send(produce(b"a", b"b", b"c"))
    broker.delete_before("orders", 0, 2)
    assert peer.send(fetch(0)) == fetched([b"c"], 3)


def test_fetch_skips_what_no_reader_sees_and_ends_at_a_gap_so_that_offsets_can_be_told(
    peer: Peer, broker: Broker
) -> None:
    peer.send(produce(b"a"))
    broker.transaction("orders", 0, b"no", b"no", commits=False)
    broker.transaction("orders", 0, b"yes", commits=True)
    peer.send(produce(b"b"))
    assert peer.send(fetch(0)) == fetched([b"a"], 1)
    assert peer.send(fetch(1)) == fetched([b"yes"], 5)
    assert peer.send(fetch(5)) == fetched([b"b"], 7)
    broker.transaction("orders", 0, b"open", commits=None)
    assert peer.send(fetch(7)) == fetched([], 7)


def test_null_values_are_empty_and_compressed_batches_are_unpacked(peer: Peer, broker: Broker) -> None:
    broker.append("orders", 0, b"plain", None, key=b"k")
    broker.append("orders", 0, b"z" * 1_000, b"y", compression=4)
    assert peer.send(fetch()) == fetched([b"plain", b"", b"z" * 1_000, b"y"], 4)


def test_a_record_that_fits_no_frame_is_an_error_that_names_its_offset(peer: Peer, broker: Broker) -> None:
    peer.send(produce(b"before"))
    largest = FRAME_BYTES_MAX - 17
    broker.append("orders", 0, b"x" * (largest + 1))
    broker.append("orders", 0, b"y" * largest)
    assert peer.send(fetch(0, 2**32 - 1)) == fetched([b"before"], 1)
    answer = peer.send(fetch(1, 2**32 - 1))
    assert answer[4:7] == b"\xfe\x00\x04"
    assert b"Fetch failed: the record at offset 1 has" in answer
    assert b"go on at 2" in answer
    assert peer.send(fetch(2)) == fetched([b"y" * largest], 3)


def test_one_answer_holds_a_bounded_number_of_records(peer: Peer) -> None:
    peer.send(produce(*[b""] * (FETCH_RECORDS_MAX + 5)))
    assert peer.send(fetch(0, 2**32 - 1)) == fetched([b""] * FETCH_RECORDS_MAX, FETCH_RECORDS_MAX)
    assert peer.send(fetch(FETCH_RECORDS_MAX, 2**32 - 1)) == fetched([b""] * 5, FETCH_RECORDS_MAX + 5)


def test_fetch_with_a_group_starts_at_its_commit_whatever_offset_was_asked(peer: Peer) -> None:
    peer.send(produce(b"a", b"b", b"c"))
    assert peer.send(fetch(0, group="g")) == fetched([], 0)
    assert peer.send(fetch(2, group="g")) == fetched([], 0)
    assert peer.send(commit("g", 1)) == COMMITTED
    assert peer.send(fetch(0, group="g")) == fetched([b"b", b"c"], 3)
    assert peer.send(fetch(2, group="g")) == fetched([b"b", b"c"], 3)


# ---- offsets -----------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_and_fetched_by_group_topic_and_partition(peer: Peer) -> None:
    assert peer.send(offset_fetch("g")) == NO_OFFSET
    sent = commit("g", 1500)
    assert sent[4:].hex() == "03" + "000167" + "00066f7264657273" + "00000000" + "00000000000005dc"
    assert peer.send(sent) == COMMITTED
    assert peer.send(offset_fetch("g")) == offset_is(1500)
    assert peer.send(offset_fetch("g", partition=1)) == NO_OFFSET
    assert peer.send(offset_fetch("h")) == NO_OFFSET
    assert peer.send(commit("g", 3)) == COMMITTED
    assert peer.send(offset_fetch("g")) == offset_is(3)


def test_a_commit_for_a_partition_that_does_not_exist_succeeds(peer: Peer) -> None:
    assert peer.send(commit("g", 7, topic="nothing", partition=2**31 - 1)) == COMMITTED
    assert peer.send(offset_fetch("g", topic="nothing", partition=2**31 - 1)) == offset_is(7)
    assert peer.send(commit("g", 7, partition=2**31)) == unknown("orders", 2**31)


def test_commits_that_cannot_be_kept_are_code_5(peer: Peer) -> None:
    assert peer.send(commit("g", 2**63 - 1)) == COMMITTED
    assert peer.send(offset_fetch("g")) == offset_is(2**63 - 1)
    assert peer.send(commit("g", 2**63)) == error(5, f"Offset commit failed: an offset is at most {2**63 - 1}")
    for group in ("", "x" * 256, "a\nb", "\x7f", "\x85"):
        assert peer.send(commit(group, 1)) == error(5, "Offset commit failed: the group name is not valid")
        assert peer.send(offset_fetch(group)) == error(1, "Internal error: the group name is not valid")
    assert peer.send(commit("x" * 255, 1)) == COMMITTED
    assert peer.send(commit("é" * 127, 1)) == COMMITTED


def test_a_group_with_members_takes_no_commit_from_outside(peer: Peer, broker: Broker) -> None:
    broker.join("busy")
    assert peer.send(commit("busy", 1)) == NOT_COMMITTED
    assert peer.send(offset_fetch("busy")) == NO_OFFSET


def test_offsets_and_records_survive_a_restart(peer: Peer, broker: Broker) -> None:
    peer.send(produce(b"a", b"b") + commit("g", 1))
    broker.restart()
    again = Peer(broker)
    assert again.send(offset_fetch("g")) == offset_is(1)
    assert again.send(fetch()) == fetched([b"a", b"b"], 2)
    assert again.send(produce(b"c")) == produced(2)


# ---- topics, metrics, ping ---------------------------------------------------------------------------------------------


def create(topic: str, partitions: int) -> bytes:
    return frame(b"\x05" + text(topic) + struct.pack(">I", partitions))


def test_topics_are_created_once_and_with_a_partition_at_least(peer: Peer, broker: Broker) -> None:
    assert peer.send(create("new", 3)) == frame(b"\x05\x01")
    assert peer.send(create("new", 3)) == error(11, "Topic 'new' already exists")
    assert peer.send(create("none", 0)) == error(12, "Invalid partition count: 0")
    assert peer.send(create("many", 10_001))[4:7] == b"\xfe\x00\x0c"
    assert broker.engine.topic("none") is None
    assert peer.send(produce(b"a", topic="new", partition=2)) == produced(0)


def test_a_produce_behind_the_request_that_creates_its_topic_finds_it(peer: Peer) -> None:
    answers = peer.frames(create("new", 1) + produce(b"a", topic="new") + fetch(topic="new") + frame(b"\xff"))
    assert answers == [frame(b"\x05\x01"), produced(0), fetched([b"a"], 1), frame(b"\xff")]


def test_topics_are_listed_by_name_without_the_brokers_own(peer: Peer) -> None:
    assert peer.send(frame(b"\x06")) == frame(b"\x06" + struct.pack(">I", 1) + text("orders") + struct.pack(">I", 2))
    peer.send(create("alpha", 1) + commit("g", 1))
    assert peer.send(frame(b"\x06")) == frame(
        b"\x06" + struct.pack(">I", 2) + text("alpha") + struct.pack(">I", 1) + text("orders") + struct.pack(">I", 2)
    )


def test_descriptions_have_the_real_high_watermark(peer: Peer) -> None:
    peer.send(produce(b"a", b"b", partition=1))
    assert peer.send(frame(b"\x07" + text("orders"))) == frame(
        b"\x07" + text("orders") + struct.pack(">II", 2, 2) + struct.pack(">IQIQ", 0, 0, 1, 2)
    )
    assert peer.send(frame(b"\x08" + text("orders") + struct.pack(">I", 1))) == frame(
        b"\x08" + text("orders") + struct.pack(">IQ", 1, 2)
    )


def test_descriptions_of_what_is_not_there_are_codes_13_and_14(peer: Peer) -> None:
    assert peer.send(frame(b"\x07" + text("no"))) == error(13, "DescribeTopic failed: Topic 'no' not found")
    assert peer.send(frame(b"\x08" + text("orders") + struct.pack(">I", 2))) == error(
        14, "DescribePartition failed: Partition 2 not found in topic 'orders'"
    )


def test_metrics_count_what_the_listener_did(peer: Peer, broker: Broker) -> None:
    sent = produce(b"a") + produce(b"b", b"c") + fetch(1)
    received = peer.send(sent)
    answer = peer.send(frame(b"\x09"))
    assert answer[4:5] == b"\x09"
    assert int.from_bytes(answer[5:9], "big") == len(answer) - 9
    rows = values_of(answer)
    counted = {
        "messages_produced_total": "3",
        "messages_fetched_total": "2",
        "bytes_in_total": str(len(sent) + 5),
        "bytes_out_total": str(len(received)),
        "active_connections": "1",
    }
    assert rows == dict.fromkeys(METRICS, "0") | counted
    Peer(broker).close()
    assert b"active_connections 1" in peer.send(frame(b"\x09"))


METRICS = {
    "messages_produced_total": ("counter", "Total number of messages produced"),
    "messages_fetched_total": ("counter", "Total number of messages fetched"),
    "bytes_in_total": ("counter", "Total bytes received (produced)"),
    "bytes_out_total": ("counter", "Total bytes sent (fetched)"),
    "active_connections": ("gauge", "Current number of active TCP connections"),
    "throttled_consumers_total": ("counter", "Total number of consumer throttle events"),
    "slow_consumers_total": ("counter", "Total number of slow consumer detections"),
    "segments_deleted_total": ("counter", "Total number of segments deleted by retention"),
    "bytes_reclaimed_total": ("counter", "Total bytes reclaimed by retention and compaction"),
    "compaction_runs_total": ("counter", "Total number of log compaction runs"),
    "compaction_skipped_segments_total": ("counter", "Total number of segments skipped during compaction"),
    "retention_noop_runs_total": ("counter", "Total number of retention runs that deleted no segments"),
    "checkpoint_corruption_total": ("counter", "Total number of corrupted checkpoint files recovered"),
    "compaction_segments_rewritten_total": ("counter", "Total number of segments rewritten during compaction"),
    "compaction_records_dropped_total": ("counter", "Total number of records dropped during compaction"),
    "compaction_bytes_rewritten_total": ("counter", "Total bytes rewritten during compaction"),
    "fetch_latency_ns_p50": ("gauge", "Fetch latency 50th percentile (ns)"),
    "fetch_latency_ns_p95": ("gauge", "Fetch latency 95th percentile (ns)"),
    "fetch_latency_ns_p99": ("gauge", "Fetch latency 99th percentile (ns)"),
    "produce_latency_ns_p50": ("gauge", "Produce latency 50th percentile (ns)"),
    "produce_latency_ns_p95": ("gauge", "Produce latency 95th percentile (ns)"),
    "produce_latency_ns_p99": ("gauge", "Produce latency 99th percentile (ns)"),
}
"""Those of the original, in its order."""
LAG = "# HELP consumer_lag Consumer lag per partition and group\n# TYPE consumer_lag gauge\n"


def values_of(answer: bytes) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in answer[9:].decode().splitlines() if not line.startswith("#"))


def test_metrics_have_the_names_and_help_lines_of_the_original(peer: Peer) -> None:
    printed = peer.send(frame(b"\x09"))[9:].decode()
    rows = values_of(b"." * 9 + printed.encode())
    assert printed == LAG.join(
        [
            "".join(
                f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{name} {rows[name]}\n"
                for name, (kind, meaning) in METRICS.items()
            ),
            "",
        ]
    )


def test_the_lag_of_a_group_is_measured_when_it_fetches(peer: Peer) -> None:
    peer.send(produce(b"a", b"b", b"c") + commit("g", 1))
    peer.send(fetch(group="g"))
    assert values_of(peer.send(frame(b"\x09")))['consumer_lag{topic="orders",partition="0",group="g"}'] == "2"
    peer.send(commit("g", 3) + fetch(group="g"))
    assert values_of(peer.send(frame(b"\x09")))['consumer_lag{topic="orders",partition="0",group="g"}'] == "0"
    peer.send(commit('a"\\', 0) + fetch(group='a"\\'))
    assert 'consumer_lag{topic="orders",partition="0",group="a\\"\\\\"} 3' in peer.send(frame(b"\x09"))[9:].decode()


def test_the_lags_that_are_kept_are_bounded(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "RUSTLOG_LAGS_MAX", 2)
    for group in ("a", "b", "a", "c"):
        peer.send(commit(group, 0) + fetch(group=group))
    rows = [name for name in values_of(peer.send(frame(b"\x09"))) if name.startswith("consumer_lag")]
    assert [name.rsplit("=", 1)[1] for name in rows] == ['"a"}', '"c"}'], "the group that fetched last stays"


def test_metrics_count_what_retention_and_compaction_did(peer: Peer, broker: Broker) -> None:
    engine = broker.engine
    engine.housekeeping.totals = RetentionTotals(segments_deleted=2, bytes_deleted=300, idle_runs=7)
    engine.cleaning.totals = CleaningTotals(
        1, segments_rewritten=3, records_dropped=40, bytes_rewritten=500, bytes_freed=60
    )
    rows = values_of(peer.send(frame(b"\x09")))
    wanted = {
        "segments_deleted_total": "2",
        "bytes_reclaimed_total": "360",
        "compaction_runs_total": "1",
        "retention_noop_runs_total": "7",
        "compaction_segments_rewritten_total": "3",
        "compaction_records_dropped_total": "40",
        "compaction_bytes_rewritten_total": "500",
    }
    assert {name: rows[name] for name in wanted} == wanted


def test_ping_is_answered_with_pong(peer: Peer) -> None:
    assert peer.send(frame(b"\xff")).hex() == "00000001ff"


# ---- what is no request ------------------------------------------------------------------------------------------------

_PRODUCE = (
    b"\x01" + text("orders") + struct.pack(">II", 0, 2) + struct.pack(">I", 1) + b"a" + struct.pack(">I", 2) + b"bc"
)
_FETCH = b"\x02" + text("gr") + text("orders") + struct.pack(">IQI", 0, 0, 100)
_COMMIT = b"\x03" + text("gr") + text("orders") + struct.pack(">IQ", 0, 0)
_OFFSET = b"\x04" + text("gr") + text("orders") + struct.pack(">I", 0)
_CREATE = b"\x05" + text("orders") + struct.pack(">I", 1)
_TOPIC = b"\x07" + text("orders")
_PARTITION = b"\x08" + text("orders") + struct.pack(">I", 0)

_TOPIC_TEXTS = ["missing topic length"] * 2 + ["truncated topic"] * 6
_GROUP_TEXTS = ["missing group length"] * 2 + ["truncated group"] * 2
_GROUP_ID_TEXTS = ["missing group_id length"] * 2 + ["truncated group_id"] * 2

CUT_OFF = [
    (
        _PRODUCE,
        [*_TOPIC_TEXTS, *["missing partition"] * 4, *["missing record count"] * 4, *["truncated record length"] * 4]
        + ["truncated record"]
        + ["truncated record length"] * 4
        + ["truncated record"] * 2,
    ),
    (
        _FETCH,
        [*_GROUP_ID_TEXTS, *_TOPIC_TEXTS, *["missing partition"] * 4, *["missing offset"] * 8]
        + ["missing max_bytes"] * 4,
    ),
    (_COMMIT, [*_GROUP_TEXTS, *_TOPIC_TEXTS, *["missing partition"] * 4, *["missing offset"] * 8]),
    (_OFFSET, [*_GROUP_TEXTS, *_TOPIC_TEXTS, *["missing partition"] * 4]),
    (_CREATE, [*_TOPIC_TEXTS, *["missing partition count"] * 4]),
    (_TOPIC, _TOPIC_TEXTS),
    (_PARTITION, [*_TOPIC_TEXTS, *["missing partition"] * 4]),
]


@pytest.mark.parametrize(("payload", "texts"), CUT_OFF, ids=["01", "02", "03", "04", "05", "07", "08"])
def test_a_payload_cut_off_at_any_byte_names_the_field_and_the_connection_stays(
    peer: Peer, payload: bytes, texts: list[str]
) -> None:
    assert len(texts) == len(payload) - 1
    for size, message in enumerate(texts, start=1):
        answer = peer.send(frame(payload[:size]))
        assert answer == error(2, f"Decode error: decode error: {message}"), size
        assert peer.fatal is None


def test_bytes_after_the_last_field_are_ignored(peer: Peer) -> None:
    assert peer.send(frame(produce(b"a")[4:] + b"rest")) == produced(0)
    assert peer.send(frame(produce(b"a")[4:] + b"rest") + produce(b"b")) == produced(1) + produced(2)
    assert peer.send(frame(fetch(0)[4:] + b"rest")) == fetched([b"a", b"a", b"b"], 3)
    assert peer.send(frame(commit("g", 1)[4:] + b"rest")) == COMMITTED
    assert peer.send(frame(offset_fetch("g")[4:] + b"rest")) == offset_is(1)
    assert peer.send(frame(b"\xffrest")) == frame(b"\xff")


@pytest.mark.parametrize("kind", [0, 0x0A, 0x22, 85, 0x81, 0xFD, 0xFE])
def test_unknown_request_types_are_code_2_and_the_connection_stays(peer: Peer, kind: int) -> None:
    assert peer.send(frame(bytes([kind]) + b"xx")) == error(2, f"Decode error: unknown request type: {kind}")
    assert peer.send(frame(b"\xff")) == frame(b"\xff")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (b"ab\xff\xfe", "invalid utf-8 sequence of 1 bytes from index 2"),
        (b"\xc3", "incomplete utf-8 byte sequence from index 0"),
        (b"\xed\xa0\x80", "invalid utf-8 sequence of 1 bytes from index 0"),
    ],
)
def test_names_are_strict_utf8(peer: Peer, name: bytes, said: str) -> None:
    for payload, field in (
        (b"\x01" + text(name) + b"\0" * 8, "topic"),
        (b"\x02" + text(name) + text("orders") + b"\0" * 16, "group_id"),
        (b"\x03" + text(name) + text("orders") + b"\0" * 12, "group"),
        (b"\x04" + text("g") + text(name) + b"\0" * 4, "topic"),
        (b"\x05" + text(name) + b"\0\0\0\1", "topic"),
    ):
        expected = error(2, f"Decode error: decode error: invalid utf8 {field}: {said}")
        assert peer.send(frame(payload)) == expected


def test_a_name_of_the_greatest_length_is_repeated_shortened(peer: Peer) -> None:
    answer = peer.send(produce(b"a", topic="é" * 30_000))
    assert answer[4:7] == b"\xfe\x00\x0a"
    assert len(answer) < 1_000


def test_a_count_that_lies_takes_no_memory(peer: Peer) -> None:
    payload = b"\x01" + text("orders") + struct.pack(">II", 0, 2**32 - 1)
    assert peer.send(frame(payload)) == error(2, "Decode error: decode error: truncated record length")


def test_a_list_of_topics_that_fits_no_frame_is_an_error(broker: Broker) -> None:
    small = DEFAULTS["rustlog"].__class__(creates_topics=False, frame_bytes_max=64)
    broker.service = RustLogService(broker.engine, small)
    broker.make_topic("x" * 60)
    assert Peer(broker).send(frame(b"\x06")) == error(1, "Internal error: 2 topics do not fit a frame of 64")
