from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.model.errors import BrokerError, Fault
from penstock.storage import log as subject
from penstock.storage.files import Buffer, Disk, DiskFailed, DiskFull, LogFile
from penstock.storage.log import PLACES_REMEMBERED, PartitionLog
from penstock.storage.segment import Segment
from tests.storage.logs import NOW_MS, append, batch, flush, new_log, read, read_all, records_of, values_of


class FaultyDisk(Disk):
    """Does what it is told: how many more writes succeed, and what comes then."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1_000_000
        self.write_error: OSError | None = None
        self.sync_error: DiskFailed | None = None
        self.synced: list[str] = []

    def write_at(self, file: LogFile, position: int, buffers: Sequence[Buffer], total: int) -> None:
        self.writes_left -= 1
        if self.writes_left < 0 and self.write_error is not None:
            raise self.write_error
        super().write_at(file, position, buffers, total)

    def sync(self, file: LogFile) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        self.synced.append(file.path.name)

    def sync_directory(self, path: Path) -> None:
        self.synced.append(path.name)


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_a_run_over_several_segments_is_one_run(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=400)
    append(log, *[[b"%d" % n * 50] for n in range(10)])
    assert len(log.segments) > 3
    assert all(segment.size <= 400 for segment in log.segments)
    assert values_of(log, disk) == [b"%d" % n * 50 for n in range(10)]


def test_a_batch_larger_than_a_segment_has_one_to_itself(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=400)
    append(log, [b"a"], [b"b" * 1000], [b"c"])
    assert bases(log) == [0, 1, 2]
    assert values_of(log, disk) == [b"a", b"b" * 1000, b"c"]


def test_a_segment_older_than_segment_ms_is_closed_by_the_next_append(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0", segment_ms=1000)
    append(log, [b"a"], now_ms=NOW_MS)
    append(log, [b"b"], now_ms=NOW_MS + 999)
    assert bases(log) == [0]
    append(log, [b"c"], now_ms=NOW_MS + 1000)
    append(log, [b"d"], now_ms=NOW_MS + 1999)
    assert bases(log) == [0, 2]


def test_segment_jitter_takes_off_at_most_what_it_says(tmp_path: Path) -> None:
    ages = []
    for n in range(30):
        log = new_log(tmp_path / f"t-{n}", segment_ms=10_000, segment_jitter_ms=5_000)
        append(log, [b"a"], now_ms=NOW_MS)
        ages.append(NOW_MS - log.active.created_ms)
    assert all(0 <= age < 5_000 for age in ages)
    assert len(set(ages)) > 10


def test_a_segment_whose_index_is_full_is_closed(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0", index_interval_bytes=0, segment_index_bytes=80)
    for _ in range(40):
        append(log, [b"x"])
    assert len(log.segments) >= 3
    assert all(len(segment.offsets.path.read_bytes()) <= 80 for segment in log.segments[:-1])


def test_offsets_that_do_not_fit_a_segment_begin_a_new_one(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0")
    append(log, [b"a"])
    log.active.base_offset -= 2**31 - 1
    append(log, [b"b"])
    assert [segment.base_offset for segment in log.segments[1:]] == [1]


def test_no_room_is_answered_and_the_next_append_goes_on(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    disk.writes_left, disk.write_error = 0, DiskFull(errno.ENOSPC, "No space left on device")
    with pytest.raises(BrokerError, match="no room on the disk") as caught:
        append(log, [b"b"])
    assert caught.value.fault is Fault.STORAGE_ERROR
    assert (log.log_end_offset, log.failure) == (1, None)
    disk.writes_left = 100
    append(log, [b"c"])
    assert values_of(log, disk) == [b"a", b"c"]


def test_what_fitted_before_the_disk_was_full_counts(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=200)
    disk.writes_left, disk.write_error = 2, DiskFull(errno.ENOSPC, "No space left on device")
    batches = [batch([b"x" * 80], offset=n) for n in range(5)]
    assert log.append(batches, NOW_MS) == 2
    assert log.log_end_offset == 2


def test_a_disk_error_makes_the_log_read_only(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    flush(log, disk)
    disk.writes_left, disk.write_error = 0, DiskFailed(errno.EIO, "Input/output error")
    for _ in range(2):
        with pytest.raises(BrokerError, match="Input/output error"):
            append(log, [b"b"])
        disk.writes_left = 100
    assert log.begin_flush() is None
    assert values_of(log, disk) == [b"a"]


def test_a_failed_flush_is_never_retried(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    disk.sync_error = DiskFailed(errno.EIO, "sync failed")
    flush(log, disk)
    disk.sync_error = None
    assert log.flushed_offset == 0
    assert log.begin_flush() is None
    with pytest.raises(BrokerError, match="read-only"):
        append(log, [b"b"])


def test_a_folder_that_is_gone_fails_the_flush_and_nothing_else(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100)
    append(log, [b"a" * 50], [b"b" * 50])
    job = log.begin_flush()
    assert job is not None
    log.directory.rename(tmp_path / "elsewhere")
    job.run(disk)
    log.end_flush(job)
    assert log.failure is not None


def test_a_flush_covers_closed_segments_their_indexes_and_the_folder(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=200, index_interval_bytes=0)
    append(log, [b"a" * 60], [b"b" * 60], [b"c" * 60])
    flush(log, disk)
    first, active = log.segments[0], log.active
    assert disk.synced[0] == "t-0", "the entry of the new file first"
    assert {first.path.name, first.offsets.path.name, first.times.path.name, active.path.name} <= set(disk.synced)
    disk.synced.clear()
    append(log, [b"d"])
    flush(log, disk)
    assert disk.synced == [active.path.name]


def test_what_is_appended_during_a_flush_is_not_flushed_by_it(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    job = log.begin_flush()
    assert job is not None
    append(log, [b"b"])
    assert log.begin_flush() is None, "one flush of a log at a time"
    job.run(disk)
    log.end_flush(job)
    assert (log.flushed_offset, log.dirty) == (1, True)
    assert records_of(read(log, disk, 0, 10_000, log.flushed_offset)) == [(0, NOW_MS, b"a")]
    flush(log, disk)
    assert (log.flushed_offset, log.dirty) == (2, False)


def test_leader_epochs_begin_with_their_first_append(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0")
    append(log, [b"a"], epoch=2)
    append(log, [b"b"], epoch=2)
    append(log, [b"c"], epoch=5)
    assert [tuple(entry) for entry in log.epochs.load()] == [(2, 0), (5, 2)]


def test_dropped_segments_are_renamed_once_the_log_start_is_safe_and_unlinked_later(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100, file_delete_delay_ms=1000)
    append(log, *[[b"%d" % n * 50] for n in range(5)])
    flush(log, disk)
    held = log.read(0, 10_000, 5, one_batch=True)
    assert held is not None
    freed = log.drop_segments(2)
    assert freed > 0
    assert (log.log_start_offset, bases(log)) == (2, [2, 3, 4])
    log.delete_dropped(1, NOW_MS)
    assert (log.directory / "00000000000000000001.log").exists(), "its deletion could outlive that of the first"
    log.delete_dropped(2, NOW_MS)
    assert not (log.directory / "00000000000000000000.log").exists()
    assert not (log.directory / "00000000000000000001.log").exists()
    log.sweep_doomed(NOW_MS + 999)
    assert (log.directory / "00000000000000000000.log.deleted").exists()
    log.sweep_doomed(NOW_MS + 1000)
    assert not list(log.directory.glob("*.deleted"))
    assert records_of(disk.read_at(held.file, held.position, held.length)) == [(0, NOW_MS, b"0" * 50)]  # type: ignore[arg-type]


def test_the_active_segment_is_never_dropped(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0", segment_bytes=100)
    append(log, *[[b"%d" % n * 50] for n in range(3)])
    flush(log, Disk())
    log.drop_segments(99)
    assert bases(log) == [2]
    log.advance_start(3)
    assert (bases(log), log.log_start_offset) == ([2], 3)


def test_retention_on_a_full_disk_frees_room_though_no_file_can_be_written(tmp_path: Path) -> None:
    class FullDisk(Disk):
        full = False

        def replace_whole(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().replace_whole(path, data, durable=durable)

    disk = FullDisk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100)
    append(log, *[[b"%d" % n * 50] for n in range(3)])
    flush(log, disk)
    disk.full = True
    assert log.drop_segments(1) > 0
    assert bases(log) == [1, 2]


def test_reading_follows_the_answer_sizes_of_kafka(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a" * 100, b"b" * 100], [b"c" * 100])
    first = batch([b"a" * 100, b"b" * 100]).size
    assert len(read(log, disk, 1, 10, 3)) == first, "at least one whole batch, the one that holds the offset"
    assert log.read(0, 10, 3, one_batch=False) is None, "unless others have given something"
    assert len(read(log, disk, 0, first + 5, 3)) == first + 5, "the end may be inside a batch"
    assert log.read(3, 10_000, 3, one_batch=True) is None
    assert [offset for offset, _, _ in records_of(read(log, disk, 0, 10_000, 2))] == [0, 1], "nothing past upper"


def test_a_log_of_more_segments_than_open_files_is_read_whole(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, open_files_max=4, segment_bytes=100)
    for n in range(50):
        append(log, [b"%d" % n * 30])
        flush(log, disk)
    assert len(log.segments) > 20
    assert [value for _, _, value in read_all(log, disk)] == [b"%d" % n * 30 for n in range(50)]


def test_roll_that_finds_no_room_keeps_the_index_and_leaves_no_file(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=1000, index_interval_bytes=100)
    append(log, *[[b"%d" % n * 60] for n in range(6)])
    last = log.active.offsets.last()
    real = disk.system_calls.open

    def full(path: Path, flags: int, mode: int) -> int:
        if path.name == "00000000000000000006.log":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, mode)

    disk.system_calls.open = full
    for _ in range(3):
        with pytest.raises(BrokerError, match="No space left"):
            append(log, [b"x" * 900])
    assert len(log._unsynced) == 0
    append(log, [b"y" * 60])  # fits the segment, so the log goes on past the offset where a new one should have begun
    disk.system_calls.open = real
    append(log, [b"x" * 900])
    flush(log, disk)
    assert bases(log) == [0, 7]
    assert log.segments[0].offsets.last() == (6, log.segments[0].size - batch([b"y" * 60]).size)
    assert last is not None
    assert values_of(log, disk) == [*(b"%d" % n * 60 for n in range(6)), b"y" * 60, b"x" * 900]


def test_files_that_cannot_be_unlinked_are_tried_again(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100, file_delete_delay_ms=0)
    append(log, *[[b"%d" % n * 50] for n in range(4)])
    flush(log, disk)
    log.drop_segments(3)
    log.delete_dropped(3, NOW_MS)
    real = disk.system_calls.unlink
    disk.system_calls.unlink = _refuse
    with pytest.raises(OSError, match="Input/output error"):
        log.sweep_doomed(NOW_MS)
    disk.system_calls.unlink = real
    assert list(log.directory.glob("*.deleted"))
    log.sweep_doomed(NOW_MS)
    assert not list(log.directory.glob("*.deleted"))


def _refuse(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def deleted_folder(log: PartitionLog) -> None:
    shutil.rmtree(log.directory)


def deleted_file(log: PartitionLog) -> None:
    log.active.path.unlink()


def replaced_file(log: PartitionLog) -> None:
    data = log.active.path.read_bytes()
    log.active.path.unlink()
    log.active.path.write_bytes(data)


@pytest.mark.parametrize("delete", [deleted_folder, deleted_file, replaced_file])
def test_flush_of_a_deleted_file_fails_the_log(tmp_path: Path, delete: Callable[[PartitionLog], None]) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    flush(log, disk)
    delete(log)
    append(log, [b"b"])
    flush(log, disk)
    assert log.flushed_offset == 1
    assert "was deleted while the broker was using it" in str(log.failure)


def test_flush_of_a_closed_segment_whose_file_was_deleted_fails_the_log(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100)
    append(log, [b"a" * 50], [b"b" * 50])
    log.segments[0].path.unlink()
    flush(log, disk)
    assert log.flushed_offset == 0
    assert "00000000000000000000.log: the file was deleted" in str(log.failure)


def test_files_that_retention_deletes_during_a_flush_do_not_fail_the_log(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100, file_delete_delay_ms=0)
    append(log, *[[b"%d" % n * 50] for n in range(3)])
    job = log.begin_flush()
    assert job is not None
    assert len(job.files) > 2
    log.drop_segments(2)
    log.delete_dropped(2, NOW_MS)
    log.sweep_doomed(NOW_MS)
    job.run(disk)
    log.end_flush(job)
    assert job.deleted
    assert (log.failure, log.flushed_offset) == (None, 3)


def test_closed_file_that_cleaning_replaced_before_its_flush_does_not_fail_the_log(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100)
    append(log, [b"a" * 50], [b"b" * 50])
    old = log.segments[0]
    cleaned = old.path.with_suffix(".cleaned")
    cleaned.write_bytes(old.path.read_bytes())
    cleaned.rename(old.path)
    log.replace_segments(1, [Segment(disk, log._files, log.directory, 0, old.size)])
    flush(log, disk)
    assert (log.failure, log.flushed_offset) == (None, 2)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_flush_without_a_free_descriptor_is_refused_and_can_be_retried(tmp_path: Path, code: int, what: str) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100, index_interval_bytes=0)
    append(log, *[[b"%d" % n * 50] for n in range(3)])
    log._files.forget([log.active.path])
    real = disk.system_calls.open
    refused = log.directory if what == "folder" else log.active.path

    def no_descriptor(path: Path, flags: int, mode: int) -> int:
        if path == refused:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, mode)

    disk.system_calls.open = no_descriptor
    synced: list[str] = []
    real_sync = disk.sync
    disk.sync = lambda file: (synced.append(file.path.name), real_sync(file))[1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(2):
        flush(log, disk)
        assert (log.failure, log.flushed_offset, log.flush_under_way) == (None, 0, False)
        assert log.flush_refused is not None
    disk.system_calls.open = real
    flush(log, disk)
    assert (log.failure, log.flushed_offset, log.flush_refused) == (None, 3, None)
    assert {segment.path.name for segment in log.segments} <= set(synced)
    assert len(synced) == len(set(synced))


def test_a_deleted_file_that_cannot_be_unlinked_is_tried_again(tmp_path: Path) -> None:
    class Stubborn(Disk):
        refuses = True

        def remove(self, path: Path) -> None:
            if self.refuses and path.name == "00000000000000000000.log.deleted":
                raise OSError(errno.EIO, "on cue", str(path))
            super().remove(path)

    disk = Stubborn()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=100, index_interval_bytes=10, file_delete_delay_ms=0)
    append(log, *[[b"%d" % n * 20] for n in range(5)])
    flush(log, disk)
    log.drop_segments(2)
    log.delete_dropped(log.log_start_offset, NOW_MS)
    assert list(log.directory.glob("*.deleted"))
    with pytest.raises(OSError, match="on cue"):
        log.sweep_doomed(NOW_MS)
    assert [path.name for path in log.directory.glob("*.deleted")] == ["00000000000000000000.log.deleted"]
    disk.refuses = False
    log.sweep_doomed(NOW_MS)
    assert not list(log.directory.glob("*.deleted"))


def test_remembered_places_of_batches_are_bounded(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    for number in range(PLACES_REMEMBERED + 5):
        append(log, [b"%d" % number])
        assert len(log._places) <= PLACES_REMEMBERED
    assert values_of(log, disk) == [b"%d" % number for number in range(PLACES_REMEMBERED + 5)]


def open_files(folder: Path) -> int:
    """Descriptors of this process for files below `folder`."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the listing
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
    return found


def test_rolls_that_outrun_flushes_keep_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk, open_files_max=20, segment_bytes=100, index_interval_bytes=1)
    for round_ in range(1, 4):
        append(log, *[[b"%d" % n * 30] for n in range(50)])
        assert open_files(tmp_path) <= 20 + 3, "a roll adds three"
        assert len(log.segments) >= 4 * round_
        flush(log, disk)
        assert open_files(tmp_path) <= 20
    assert [value for _, _, value in read_all(log, disk)] == [b"%d" % n * 30 for n in range(50)] * 3


def test_a_segment_of_the_largest_size_is_closed_however_many_files_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path / "t-0", Disk(), open_files_max=4, segment_bytes=100)
    append(log, *[[b"v" * 60]] * 4)
    before = len(log.segments)
    append(log, [b"v" * 60])
    assert len(log.segments) == before, "the roll can wait"
    monkeypatch.setattr(subject, "SEGMENT_BYTES_MAX", log.active.size + 60)
    append(log, [b"v" * 60])
    assert len(log.segments) == before + 1


def test_entries_of_aborted_transactions_need_one_open_file(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    for n in range(10):
        log.append_aborted(b"%034d" % n)
        append(log, [b"marker"])
        assert open_files(tmp_path) == 2
    flush(log, disk)
    assert not log.keeps_files_open
    assert log.read_aborted(log.active) == b"".join(b"%034d" % n for n in range(10))
