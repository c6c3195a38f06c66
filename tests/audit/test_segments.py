from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from penstock.audit.facts import KINDS
from penstock.audit.report import partition_row
from penstock.imports.source import Findings
from penstock.records.batch import CRC, CRC_OFFSET, CRC_START
from penstock.records.control import Marker, MarkerKind, build_marker
from penstock.storage.segment_reader import DamageKind
from tests.audit.logs import HOUR_MS, TIME, audited, batch, counts, write
from tests.imports.directories import flip, tear


def test_a_sound_log_is_clean_and_its_numbers_are_right(tmp_path: Path) -> None:
    write(tmp_path, "t-0", 0, [batch(0), batch(10)])
    write(tmp_path, "t-0", 20, [batch(20, compression=4)])
    write(tmp_path, "u-3", 5, [batch(5, 5)])
    report = audited(tmp_path)
    assert report.is_clean
    assert counts(report) == {}
    first, second = map(partition_row, report.partitions)
    assert (first["topic"], first["partition"], first["files"], first["batches"], first["records"]) == (
        "t",
        0,
        2,
        3,
        30,
    )
    assert (first["log_start_offset"], first["log_end_offset"], first["keys"], first["hidden"]) == (0, 30, 7, 0)
    assert first["keys_are_exact"]
    assert first["timestamp_min"] == TIME
    assert first["timestamp_max"] == TIME + 29 * HOUR_MS // 4
    assert sum(records for records, _ in first["hours"].values()) == 30
    assert first["value_bytes"] == sum(len(b"value %d" % n) for n in range(30))
    assert (second["log_start_offset"], second["log_end_offset"], second["records"]) == (5, 10, 5)


def test_a_flipped_bit_is_found_and_what_follows_it_is_still_read(tmp_path: Path) -> None:
    path = write(tmp_path, "t-0", 0, [batch(0), batch(10), batch(20)])
    flip(path, len(batch(0)) + 80)
    report = audited(tmp_path)
    assert not report.is_clean
    assert counts(report) == {"crc": 1, "gap": 10}
    assert report.records == 20
    (crc, gap) = report.found().kept
    assert (crc.kind, crc.place) == ("crc", f"t-0 {path.name}")
    assert gap.text == "offsets 10 to 19 are missing"


def test_a_torn_tail_a_gap_and_a_repeated_offset_have_their_kinds(tmp_path: Path) -> None:
    tear(write(tmp_path, "torn-0", 0, [batch(0), batch(10)]), 7)
    write(tmp_path, "gap-0", 0, [batch(0), batch(15)])
    write(tmp_path, "twice-0", 0, [batch(0), batch(10)])
    write(tmp_path, "twice-0", 10, [batch(10), batch(20)])
    report = audited(tmp_path)
    by_topic = {merged.facts.topic: merged.facts.found.counts for merged in report.partitions}
    assert by_topic == {"torn": {"torn": 1}, "gap": {"gap": 5}, "twice": {"duplicate": 1}}
    assert {merged.facts.topic: merged.facts.records for merged in report.partitions} == {
        "torn": 10,
        "gap": 20,
        "twice": 30,
    }


def test_a_gap_between_segments_is_found_unless_the_topic_is_compacted(tmp_path: Path) -> None:
    write(tmp_path, "t-0", 0, [batch(0)])
    write(tmp_path, "t-0", 40, [batch(40)])
    assert counts(audited(tmp_path)) == {"gap": 30}
    (tmp_path / "topics").write_text('crc\n{"topics": [{"name": "t", "configs": {"cleanup.policy": "compact"}}]}')
    assert audited(tmp_path).is_clean


def test_a_batch_whose_crc_fits_and_whose_records_do_not_is_found(tmp_path: Path) -> None:
    from crc32c import crc32c

    broken = bytearray(batch(10))
    broken[61] ^= 0x10
    CRC.pack_into(broken, CRC_OFFSET, crc32c(memoryview(broken)[CRC_START:]))
    write(tmp_path, "t-0", 0, [batch(0), bytes(broken), batch(20)])
    report = audited(tmp_path)
    assert counts(report) == {"records": 1}
    assert "offset 10" in report.found().kept[0].text
    assert report.records == 20


def test_a_producers_batch_that_is_there_twice_is_found(tmp_path: Path) -> None:
    def of_producer(base: int, sequence: int) -> bytes:
        return batch(base, producer_id=9, producer_epoch=0, base_sequence=sequence)

    write(tmp_path, "t-0", 0, [of_producer(0, 0), of_producer(10, 10), of_producer(20, 10), of_producer(30, 20)])
    report = audited(tmp_path)
    assert counts(report) == {"duplicate": 1}
    assert "sequence 10 of producer 9" in report.found().kept[0].text


def test_markers_and_aborted_records_are_counted_as_hidden(tmp_path: Path) -> None:
    def marker(kind: MarkerKind, producer: int, base: int) -> bytes:
        return bytes(
            build_marker(Marker(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=TIME, base_offset=base)
        )

    def sold(base: int, producer: int) -> bytes:
        return batch(base, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)

    write(
        tmp_path,
        "t-0",
        0,
        [sold(0, 1), sold(10, 2), marker(MarkerKind.COMMIT, 1, 20), marker(MarkerKind.ABORT, 2, 21), sold(22, 3)],
    )
    report = audited(tmp_path)
    assert report.is_clean
    row = partition_row(report.partitions[0])
    assert (row["records"], row["hidden"], row["log_end_offset"]) == (10, 22, 32)


def test_an_index_that_does_not_fit_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, "t-0", 0, [batch(0), batch(10)])
    path.with_suffix(".index").write_bytes((3).to_bytes(4, "big") + (77).to_bytes(4, "big"))
    report = audited(tmp_path)
    assert counts(report) == {"index": 1}
    assert report.is_clean is False
    assert audited(tmp_path, allowed=["index"]).is_clean


def test_a_log_without_end_does_not_fill_the_report(tmp_path: Path) -> None:
    write(tmp_path, "t-0", 0, [batch(base, 1) for base in range(0, 200, 2)])
    report = audited(tmp_path)
    assert counts(report) == {"gap": 99}
    assert len(report.found().kept) == 20
    assert Findings().count == 0


def test_every_damaged_batch_of_a_file_is_counted(tmp_path: Path) -> None:
    batches = [batch(base, 1) for base in range(240)]
    path = write(tmp_path, "t-0", 0, batches)
    position = 0
    for base, one in enumerate(batches):
        if base % 2 and base < 120:
            flip(path, position + len(one) - 1)
        position += len(one)
    assert counts(audited(tmp_path)) == {"crc": 60, "gap": 60}


def test_every_kind_of_damage_is_a_kind_of_finding() -> None:
    assert {kind.value for kind in DamageKind} <= set(KINDS)
