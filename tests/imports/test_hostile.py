"""Directories made to do harm, or just odd: what leads out of them, waits for ever, claims too much or drives terminals."""

from __future__ import annotations

import json
import os
import socket
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.imports import entries, fluxgo, flymq, frames, kafka_scan, kafka_search, source
from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.run import Import, ImportRequest
from penstock.imports.source import Findings
from penstock.records.batch import Batch
from penstock.records.builder import NewRecord, build_batch
from tests.cli.conftest import Run
from tests.imports.directories import (
    day1_log,
    day1_record,
    fluxgo_commit,
    fluxgo_log,
    flymq_commit,
    flymq_message,
    flymq_store,
    minikafka_log,
    minikafka_record,
    rustlog_log,
    rustlog_record,
)
from tests.imports.test_batch_checks import with_fields
from tests.imports.test_into_directory import opener

TERABYTE = 1 << 40


def _kafka_log(root: Path, records: int = 3) -> Path:
    folder = root / "t-0"
    folder.mkdir(parents=True)
    path = folder / f"{0:020d}.log"
    path.write_bytes(build_batch([NewRecord(n, b"", b"v%d" % n) for n in range(records)], leader_epoch=0))
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "fluxgo": lambda root: fluxgo_log(root / "t_0", 0, [b"v0", b"v1", b"v2"]),
    "minikafka": lambda root: minikafka_log(
        root, "t", 0, 0, [minikafka_record(n, 9, b"", b"v%d" % n) for n in range(3)]
    ),
    "rustlog": lambda root: rustlog_log(root / "t-0", 0, [rustlog_record(n, b"v%d" % n) for n in range(3)]),
    "flymq": lambda root: flymq_store(
        root / "t" / "0" / "0.store", [flymq_message(b"", b"v%d" % n) for n in range(3)], ">Q"
    ),
    "day1": lambda root: day1_log(root, "t", 0, [day1_record(n, b"", b"v%d" % n) for n in range(3)]),
    "kafka": _kafka_log,
}
"""A log of three records, as each broker has it."""

every_reader = pytest.mark.parametrize("reader", MAKERS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def _sibling(log: Path, reader: str) -> Path:
    """Where a second partition's log, or its folder, would be."""
    return log.with_name("t-1.log") if reader == "day1" else log.parent.with_name(log.parent.name[:-1] + "1")


@every_reader
def test_links_that_lead_out_of_the_directory_are_refused(
    penstock: Run, tmp_path: Path, root: Path, reader: str
) -> None:
    log = MAKERS[reader](root)
    outside = MAKERS[reader](tmp_path / "outside")
    _sibling(log, reader).symlink_to(outside if reader == "day1" else outside.parent)
    (log.with_name(log.name.replace("0", "9", 1)) if reader != "day1" else log.with_name("u-0.log")).symlink_to(outside)
    ended = penstock("import", "--from", reader, str(root), "--dry-run", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"]) == (1, 3)
    assert len(found["skipped"]) == 2
    assert all("a symbolic link to /" in one["why"] for one in found["skipped"])


@every_reader
def test_special_files_are_reported_and_not_opened(penstock: Run, root: Path, reader: str) -> None:
    log = MAKERS[reader](root)
    os.mkfifo(_sibling(log, reader))
    (root / "zero").symlink_to("/dev/zero")
    os.chdir(root)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    ended = penstock("import", "--from", reader, str(root), "--dry-run", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"]) == (1, 3)
    reasons = sorted(one["why"] for one in found["skipped"])
    assert [reason.partition(":")[0] for reason in reasons] == [
        "a named pipe",
        "a socket",
        "a symbolic link to /dev/zero",
    ]


@every_reader
def test_pipes_in_place_of_small_files_are_not_waited_for(penstock: Run, root: Path, reader: str) -> None:
    log = MAKERS[reader](root)
    for path in (
        log.with_suffix(".index"),
        log.with_suffix(".timeindex"),
        root / ".lock",
        root / "log-start-offset-checkpoint",
        root / "__consumer_offsets" / "g" / "t_0.offset",
        root / "__consumer_offsets" / "t_g.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    where = ["--data-dir", str(root.parent / "data")] if reader == "kafka" else ["--dry-run"]
    ended = penstock("import", "--from", reader, str(root), *where, "--json")
    assert (ended.code, json.loads(ended.out)["records"]) == (1, 3)


@every_reader
def test_names_do_not_reach_the_terminal_as_they_are(penstock: Run, root: Path, reader: str) -> None:
    MAKERS[reader](root)
    evil = "\x1b[31m\x9b2Jred\r\nskipped: nothing\u202e"
    (root / evil).write_bytes(b"x")
    MAKERS[reader](root / f"{evil}_0" / "1" / f"{evil}-0")
    day1_log(root, evil, 0, [day1_record(0, b"", b"v")[:-1]])
    fluxgo_commit(root, evil, "t", 0, 1)
    flymq_commit(root, evil, "t", {"0": 1})
    for more in ((), ("--json",)):
        ended = penstock("import", "--from", reader, str(root), "--dry-run", *more)
        assert ended.code == 1
        text = ended.text + ended.err
        assert not {char for char in text if not char.isprintable()} - {"\n"}
        assert not any(line.startswith("skipped: nothing") for line in text.splitlines())
    assert "\\x1b[31m" in text.replace("\\\\", "\\")


@every_reader
def test_sparse_file_of_a_terabyte_needs_little_memory(
    root: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "SEARCH_BYTES_MAX", 1024 * 1024)
    log = MAKERS[reader](root)
    size = log.stat().st_size
    os.truncate(log, TERABYTE)
    tracemalloc.start()
    try:
        report = Import(ImportRequest(reader, root)).dry_run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.records, report.damaged_bytes) == (3, TERABYTE - size)
    assert not report.is_complete
    assert peak < 64 * 1024 * 1024


@pytest.mark.parametrize("reader", ["fluxgo", "flymq", "kafka"])
def test_an_index_of_a_terabyte_is_not_read(root: Path, reader: str) -> None:
    log = MAKERS[reader](root)
    log.with_suffix(".index").touch()
    os.truncate(log.with_suffix(".index"), TERABYTE)
    task = Import(ImportRequest(reader, root))
    if reader == "kafka":
        report = task.into_directory(root.parent / "data", opener(root.parent / "data"))
        assert (root.parent / "data" / "t-0" / log.with_suffix(".index").name).stat().st_size < 1_000
    else:
        report = task.dry_run()
    assert (report.records, report.is_complete) == (3, True)


@pytest.mark.parametrize("too_large", [0, 1])
@pytest.mark.parametrize("reader", [fluxgo, flymq])
def test_committed_offsets_of_more_bytes_than_the_limit_are_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, reader: ModuleType, too_large: int
) -> None:
    fluxgo_commit(root, "g", "t", 0, 5)
    flymq_commit(root, "g", "t", {"0": 5})
    (file,) = root.rglob("*.offset" if reader is fluxgo else "*.json")
    monkeypatch.setattr(reader, "IMPORT_SMALL_FILE_BYTES_MAX", file.stat().st_size - too_large)
    findings = Findings()
    found = reader.commits(root, findings)
    assert [commit.offset for commit in found] == ([] if too_large else [5])
    assert findings.count == too_large


@pytest.mark.parametrize("too_large", [0, 1])
def test_an_index_of_more_bytes_than_the_limit_is_not_used(
    root: Path, monkeypatch: pytest.MonkeyPatch, too_large: int
) -> None:
    log = MAKERS["fluxgo"](root)
    size = log.with_suffix(".index").stat().st_size
    monkeypatch.setattr(fluxgo, "IMPORT_SMALL_FILE_BYTES_MAX", size - too_large)
    assert len(fluxgo._anchors(log)) == (0 if too_large else 3)


@pytest.mark.parametrize(("name", "enough"), [("SEARCH_BYTES_MAX", 19), ("SEARCH_TRIES_MAX", 5)])
@pytest.mark.parametrize("too_few", [0, 1])
def test_a_search_for_the_next_record_ends_at_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, enough: int, too_few: int
) -> None:
    """Five places look like a record, and the last of them is byte 19."""
    path = tmp_path / "file"
    path.write_bytes(b"..ab" * 5 + b"." * 100)
    monkeypatch.setattr(frames, name, enough - too_few)
    with FileBytes(path) as file:
        found = list(frames.Head.of(b"ab", 2).places(file, 0))
    assert found == [2, 6, 10, 14, 18][: 5 - too_few]


@pytest.mark.parametrize("name", ["_SEARCH_BYTES_MAX", "_CHECKED_BYTES_MAX"])
@pytest.mark.parametrize("too_few", [0, 1])
def test_a_search_in_a_kafka_segment_ends_at_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, too_few: int
) -> None:
    """A header whose batch has a wrong CRC, and the sound batch after it."""
    path = tmp_path / "file"
    sound = build_batch([NewRecord(1, None, b"v")], base_offset=3, leader_epoch=0)
    damaged = bytearray(sound)
    damaged[-1] ^= 1
    path.write_bytes(b"\xff" * 61 + damaged + sound)
    position = 61 + len(damaged)
    enough = {"_SEARCH_BYTES_MAX": position + 17, "_CHECKED_BYTES_MAX": len(damaged) + 1}[name]
    monkeypatch.setattr(kafka_search, name, enough - too_few)
    assert kafka_search.next_sound(path, 0, 0) == (None if too_few else position)


@every_reader
def test_more_files_than_the_limit_are_refused(
    penstock: Run, root: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "IMPORT_ENTRIES_MAX", 50)
    MAKERS[reader](root)
    for number in range(60):
        (root / f"{number}").touch()
    ended = penstock("import", "--from", reader, str(root), "--dry-run", "--accept-loss")
    assert (ended.code, "has more than 50 files and folders" in ended.err) == (1, True)


@pytest.mark.parametrize("name", ["99999999999999999999", "9" * 200, "\u0660" * 20])
@every_reader
def test_file_named_by_an_impossible_offset_is_skipped(root: Path, reader: str, name: str) -> None:
    log = MAKERS[reader](root)
    other = log.with_name(f"{name}{log.suffix}")
    other.write_bytes(log.read_bytes())
    report = Import(ImportRequest(reader, root)).dry_run()
    assert report.records == 3
    assert [one.what for one in report.skipped] == [str(other.relative_to(root))]


@pytest.mark.parametrize("number", ["10000", "9" * 100])
@every_reader
def test_impossible_partition_number_is_skipped(root: Path, reader: str, number: str) -> None:
    log = MAKERS[reader](root)
    if reader == "day1":
        log.with_name(f"t-{number}.log").write_bytes(log.read_bytes())
    else:
        folder = log.parent.with_name(log.parent.name[:-1] + number)
        folder.mkdir()
        (folder / log.name).write_bytes(log.read_bytes())
    report = Import(ImportRequest(reader, root)).dry_run()
    assert (report.records, len(report.skipped), report.is_complete) == (3, 1, False)


@pytest.mark.parametrize("target", ["dry run", "broker", "directory"])
def test_records_that_a_header_claims_are_not_counted(
    penstock: Run, broker: Broker, tmp_path: Path, root: Path, target: str
) -> None:
    log = _kafka_log(root)
    honest = Batch(memoryview(log.read_bytes()))
    liar = with_fields(honest, offset=3, count=(1 << 31) - 1, delta=(1 << 31) - 2)
    last = with_fields(honest, offset=1 << 32)
    log.write_bytes(bytes(honest.view) + bytes(liar.view) + bytes(last.view))
    where: tuple[str, ...] = ("--dry-run",)
    if target == "broker":
        where = ("--to", broker.bootstrap, "--map", "t=lied")
    elif target == "directory":
        where = ("--data-dir", str(tmp_path / "data"))
    ended = penstock("import", "--from", "kafka", str(root), *where, "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"], found["damaged_bytes"]) == (1, 6, liar.size)
    assert "2147483647 records" in found["partitions"][0]["damage"][0]["reason"]


@pytest.mark.parametrize("fields", [{"producer_id": (1 << 63) - 1}, {"epoch": (1 << 31) - 1}], ids=str)
def test_offsets_ids_and_epochs_out_of_range_are_not_imported(
    tmp_path: Path, root: Path, fields: dict[str, int]
) -> None:
    """The broker goes on above all producer ids and epochs that came over."""
    log = _kafka_log(root)
    honest = Batch(memoryview(log.read_bytes()))
    log.write_bytes(bytes(honest.view) + bytes(with_fields(honest, offset=3, **fields).view))
    data_dir = tmp_path / "data"
    report = Import(ImportRequest("kafka", root)).into_directory(data_dir, opener(data_dir))
    assert (report.records, report.is_complete) == (3, False)
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        assert client.init_producer_id().producer_id < 1 << 40


def test_batch_of_two_gigabytes_is_not_read_into_memory(root: Path) -> None:
    log = _kafka_log(root)
    size = log.stat().st_size
    header = bytearray(log.read_bytes()[:61])
    struct.pack_into(">qi", header, 0, 3, (1 << 31) - 20)
    with log.open("ab") as file:
        file.write(header)
    os.truncate(log, 3 << 30)
    tracemalloc.start()
    try:
        report = Import(ImportRequest("kafka", root)).dry_run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.records, report.damaged_bytes) == (3, (3 << 30) - size)
    assert peak < 64 * 1024 * 1024


def test_a_batch_larger_than_the_limit_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_scan, "IMPORT_BATCH_BYTES_MAX", 2_000_000)
    log = _kafka_log(root)
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(build_batch([NewRecord(1, None, bytes(3_000_000))], base_offset=3, leader_epoch=0))
    report = Import(ImportRequest("kafka", root)).dry_run()
    assert report.records == 3
    assert [one.position for one in report.partitions[0].damage] == [size]
    assert "the limit of 2000000" in report.partitions[0].damage[0].reason


@pytest.mark.parametrize("text", ["plain", "with blank", "ümlaut", "日本"])
def test_names_that_can_be_printed_stay_as_they_are(text: str) -> None:
    assert source.shown(text) == text
