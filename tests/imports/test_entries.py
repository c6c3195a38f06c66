from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.imports.entries import open_regular, read_small, walk
from penstock.imports.run import Import, ImportRequest
from penstock.imports.source import Skips, SourceError
from tests.imports.directories import (
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
from tests.imports.test_hostile import MAKERS, every_reader


def test_a_walk_gives_folders_in_order_and_only_those_that_are_wanted(tmp_path: Path) -> None:
    for name in ("b/x", "a/y", "a/z", "lost+found"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"12")
    seen = []
    for folder in walk(tmp_path, Skips()):
        seen.append((folder.name, dict(folder.files), list(folder.folders)))
        if folder.name == "a":
            folder.folders.remove("y")
    assert seen == [
        ("", {}, ["a", "b"]),
        ("a", {}, ["y", "z"]),
        ("a/z", {"file": 2}, []),
        ("b", {}, ["x"]),
        ("b/x", {"file": 2}, []),
    ]


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "gone", "open"):
        (tmp_path / name).mkdir()
    scan = os.scandir

    def scan_or_fail(path: Path) -> object:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        if path.name == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_or_fail)
    skips = Skips()
    assert [folder.name for folder in walk(tmp_path, skips)] == ["", "open"]
    assert [(one.what, one.why) for one in skips] == [("closed", "cannot be read: Permission denied")]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    os.close(open_regular(tmp_path / "file"))
    for name in ("pipe", "link", "missing", "."):
        with pytest.raises(OSError):  # noqa: PT011 - each has another reason
            open_regular(tmp_path / name)
    assert read_small(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_small(tmp_path / "file", 4)


@every_reader
def test_unknown_files_are_a_loss_unless_they_are_empty(tmp_path: Path, reader: str) -> None:
    log = MAKERS[reader](tmp_path)
    assert Import(ImportRequest(reader, tmp_path)).dry_run().is_complete
    (tmp_path / "empty.bin").touch()
    assert Import(ImportRequest(reader, tmp_path)).dry_run().is_complete
    for place in {tmp_path, log.parent}:
        (place / "mystery.bin").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mystery.bin").write_bytes(b"data")
    report = Import(ImportRequest(reader, tmp_path)).dry_run()
    assert (report.records, report.is_complete) == (3, False)
    assert report.skipped.losses == len({tmp_path, log.parent}) + 1


def test_an_empty_directory_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no data of day1"):
        Import(ImportRequest("day1", tmp_path)).dry_run()


def test_other_files_of_fluxgo_are_not_a_loss(tmp_path: Path) -> None:
    fluxgo_log(tmp_path / "t_0", 0, [b"v"])
    fluxgo_commit(tmp_path, "g", "t", 0, 1)
    (tmp_path / "__consumer_offsets" / "g" / "t_0.offset.tmp").write_bytes(b"12345678")
    fluxgo_log(tmp_path / "__consumer_offsets", 0, [b"its own broker takes this folder for a log"])
    report = Import(ImportRequest("fluxgo", tmp_path)).dry_run()
    assert (report.is_complete, len(report.skipped), report.committed_offsets) == (True, 0, 1)


def test_an_index_without_its_log_is_a_loss(tmp_path: Path) -> None:
    fluxgo_log(tmp_path / "t_0", 0, [b"v"])
    fluxgo_log(tmp_path / "t_1", 0, [b"v"]).unlink()
    report = Import(ImportRequest("fluxgo", tmp_path)).dry_run()
    assert [(one.what, one.is_loss) for one in report.skipped] == [("t_1", True)]


def test_other_files_of_flymq_are_not_a_loss_except_schemas(tmp_path: Path) -> None:
    flymq_store(tmp_path / "t" / "0" / "0.store", [flymq_message(b"", b"v")], ">Q")
    flymq_store(tmp_path / "audit" / "0" / "0.store", [flymq_message(b"", b"a topic of that name")], ">Q")
    flymq_commit(tmp_path, "g", "t", {"0": 1})
    for name in ("audit/audit-2026-01-16.log", "raft/state", "membership.json", ".encryption_marker"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    report = Import(ImportRequest("flymq", tmp_path)).dry_run()
    assert (report.is_complete, len(report.skipped), report.records) == (True, 0, 2)
    (tmp_path / "schemas").mkdir()
    assert Import(ImportRequest("flymq", tmp_path)).dry_run().is_complete
    (tmp_path / "schemas" / "user-v1.json").write_text("{}")
    report = Import(ImportRequest("flymq", tmp_path)).dry_run()
    assert [(one.what, one.is_loss) for one in report.skipped] == [("schemas/user-v1.json", True)]


def test_a_minikafka_topic_with_a_slash_is_found_in_its_nested_folders(tmp_path: Path) -> None:
    minikafka_log(tmp_path, "a/b", 3, 0, [minikafka_record(0, 9, b"", b"v")])
    report = Import(ImportRequest("minikafka", tmp_path, {"a/b": "ab"})).dry_run()
    assert [(row.source_topic, row.topic, row.partition) for row in report.partitions] == [("a/b", "ab", 3)]


def test_other_files_of_rustlog_are_not_a_loss(tmp_path: Path) -> None:
    folder = rustlog_log(tmp_path / ".tmpAb3dE9", 0, [rustlog_record(0, b"v")]).parent
    (folder / ".cleaner_checkpoint").write_bytes(b"12345678")
    assert Import(ImportRequest("rustlog", tmp_path)).dry_run().is_complete


def test_folders_that_kafka_was_deleting_are_listed_and_not_a_loss(tmp_path: Path) -> None:
    log = MAKERS["kafka"](tmp_path)
    for name in ("t-1.0123-delete", "t-2.0123-future", "t-3.0123-stray"):
        (tmp_path / name).mkdir()
        (tmp_path / name / log.name).write_bytes(log.read_bytes())
    (log.parent / f"{5:020d}.log.deleted").write_bytes(b"x")
    report = Import(ImportRequest("kafka", tmp_path)).dry_run()
    assert (report.is_complete, len(report.skipped), report.records) == (True, 3, 3)


@pytest.mark.parametrize("name", [f"{5:020d}.log.swap", "swap"])
def test_interrupted_compaction_of_kafka_is_a_loss(tmp_path: Path, name: str) -> None:
    log = MAKERS["kafka"](tmp_path)
    log.with_name(name).write_bytes(b"x")
    report = Import(ImportRequest("kafka", tmp_path)).dry_run()
    assert not report.is_complete
    assert "start the broker once" in next(iter(report.skipped)).why


def test_misnamed_kafka_file_loses_only_that_file(tmp_path: Path) -> None:
    log = MAKERS["kafka"](tmp_path)
    log.with_name("5.log").write_bytes(log.read_bytes())
    report = Import(ImportRequest("kafka", tmp_path)).dry_run()
    assert [one.what for one in report.skipped] == ["t-0/5.log"]
    assert (report.records, report.is_complete) == (3, False)


@pytest.mark.parametrize("reader", ["minikafka", "kafka"])
def test_committed_offsets_that_cannot_be_read_are_a_loss(
    tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MAKERS[reader](tmp_path)
    name = "__consumer_offsets-0" if reader == "kafka" else "logs/__consumer_offsets/0"
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / log.name).write_bytes(log.read_bytes())
    opened = os.open

    def open_or_fail(path: str | Path, flags: int, *more: int) -> int:
        if "__consumer_offsets" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", open_or_fail)
    report = Import(ImportRequest(reader, tmp_path)).dry_run()
    assert (report.records, report.is_complete) == (3, False)
    assert "Permission denied" in report.commit_damage.kept[0].reason
