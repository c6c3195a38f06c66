"""Files that the kernel does not open or does not read: what lies there is lost and reported, and nothing else."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from penstock.imports import bytes_of_file, kafka_scan
from penstock.imports.engine import ImportFailed
from penstock.imports.entries import open_regular
from penstock.imports.run import Import, ImportRequest
from tests.cli.conftest import Run
from tests.imports.directories import day1_log, day1_record, read, values
from tests.imports.test_hostile import MAKERS, every_reader


def _second_partition(log: Path, reader: str) -> Path:
    """A copy of the log as partition 1 of its topic."""
    if reader == "day1":
        return Path(shutil.copy(log, log.with_name("t-1.log")))
    folder = log.parent.with_name(log.parent.name[:-1] + "1")
    shutil.copytree(log.parent, folder)
    return folder / log.name


def _refuse(monkeypatch: pytest.MonkeyPatch, refused: Path, number: int) -> None:
    """Opening that file fails."""

    def open_or_fail(path: str | Path) -> int:
        if Path(path) == refused:
            raise OSError(number, os.strerror(number), str(path))
        return open_regular(path)

    for module in (bytes_of_file, kafka_scan):
        monkeypatch.setattr(module, "open_regular", open_or_fail)


@every_reader
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_is_a_loss_and_the_others_come_over(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, number: int
) -> None:
    lost = _second_partition(MAKERS[reader](tmp_path), reader)
    _refuse(monkeypatch, lost, number)
    ended = penstock("import", "--from", reader, str(tmp_path), "--dry-run", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"], found["complete"]) == (1, 3, False)
    rows = {row["partition"]: row for row in found["partitions"]}
    assert rows[0]["damage_count"] == 0
    assert [(one["file"], one["position"], one["length"]) for one in rows[1]["damage"]] == [
        (str(lost), 0, lost.stat().st_size)
    ]
    assert rows[1]["damage"][0]["reason"] == f"cannot be read: {os.strerror(number)}"


def test_records_before_a_bad_sector_come_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [day1_record(n, b"", b"%090d" % n) for n in range(100)]
    path = day1_log(tmp_path, "t", 0, written)
    bad = 5_120
    pread = os.pread

    def pread_or_fail(fd: int, count: int, position: int) -> bytes:
        if position <= bad < position + count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, count, position)

    monkeypatch.setattr(os, "pread", pread_or_fail)
    records, findings = read("day1", tmp_path)
    kept = values(records["t-0"])
    assert kept == [(n, b"%090d" % n) for n in range(len(kept))]
    assert len(kept) >= bad // len(written[0]) - 1
    (finding,) = findings["t-0"].kept
    assert finding.position + finding.length == path.stat().st_size


def test_too_many_open_files_end_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try may succeed: what is there must not count as lost."""
    _refuse(monkeypatch, MAKERS["day1"](tmp_path), errno.EMFILE)
    with pytest.raises(ImportFailed, match="Too many open files"):
        Import(ImportRequest("day1", tmp_path)).dry_run()
