from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from penstock.model.errors import StartError
from penstock.storage.data_directory import DataDirectory, Identity
from penstock.storage.files import Disk
from penstock.storage.log import PartitionLog
from tests.storage.logs import (
    NOW_MS,
    TOPIC_ID,
    append,
    batch,
    checkpoint,
    config,
    crash,
    flush,
    offline_reason,
    open_log,
    values_of,
)

SMALL = {"segment_bytes": 300, "index_interval_bytes": 100}
VALUES = [b"%03d" % n * 20 for n in range(12)]


def filled(path: Path, values: list[bytes] | None = None) -> tuple[DataDirectory, PartitionLog]:
    directory = DataDirectory(path)
    log = directory.create_log("t-0", TOPIC_ID, config(**SMALL))
    directory.sync()
    append(log, *[[value] for value in (VALUES if values is None else values)])
    assert values is not None or len(log.segments) >= 3
    return directory, log


def test_after_a_clean_stop_everything_is_as_it_was_and_nothing_is_scanned(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    log.advance_start(2)
    log.producerless_offset = 5
    directory.close([log], clean=True)
    again = DataDirectory(tmp_path)
    assert again.clean
    assert again.leader_epoch == 0
    found, report = again.open_log("t-0", TOPIC_ID, config(**SMALL), NOW_MS)
    assert found is not None
    assert (report.scanned_batches, report.notes) == (0, [])
    assert values_of(found, again.disk) == VALUES[2:]
    for name in (
        "log_start_offset",
        "log_end_offset",
        "leader_epoch",
        "flushed_offset",
        "producerless_offset",
        "topic_id",
    ):
        assert getattr(found, name) == getattr(log, name), name
    for name in ("size", "max_timestamp", "max_timestamp_offset", "created_ms"):
        assert getattr(found.active, name) == getattr(log.active, name), name
    append(found, [b"more"])
    assert values_of(found, again.disk) == [*VALUES[2:], b"more"]
    crash(again)


def test_the_marker_of_a_clean_stop_serves_one_start(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    directory.close([log], clean=True)
    crash(DataDirectory(tmp_path))
    again = DataDirectory(tmp_path)
    assert not again.clean
    assert again.leader_epoch == 1
    assert values_of(open_log(again, **SMALL), again.disk) == VALUES
    crash(again)


def test_the_leader_epoch_rises_at_every_unclean_start_alone(tmp_path: Path) -> None:
    epochs = []
    for clean in (False, False, True, True, False, True):
        directory = DataDirectory(tmp_path)
        epochs.append(directory.leader_epoch)
        directory.close([], clean=clean)
    assert epochs == [0, 1, 2, 2, 2, 3]


def test_after_a_crash_the_scan_begins_at_the_recovery_point(tmp_path: Path) -> None:
    directory, log = filled(tmp_path, [b"x" * 50] * 40)
    flush(log, directory.disk)
    checkpoint(directory, log)
    append(log, [b"late"], [b"later"])
    crash(directory)
    again = DataDirectory(tmp_path)
    found, report = again.open_log("t-0", TOPIC_ID, config(**SMALL), NOW_MS)
    assert found is not None
    assert report.scanned_batches < 8
    assert found.dirty, "what lies past the recovery point may be in the page cache alone"
    again.flush([found])
    assert (found.flushed_offset, found.log_end_offset) == (42, 42)
    assert values_of(found, again.disk) == [*[b"x" * 50] * 40, b"late", b"later"]
    crash(again)


def test_a_log_that_was_flushed_to_its_end_is_not_flushed_again(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    crash(directory)
    again = DataDirectory(tmp_path)
    found, _ = again.open_log("t-0", TOPIC_ID, config(**SMALL), NOW_MS)
    assert found is not None
    assert not found.dirty
    crash(again)


def test_the_log_start_of_the_checkpoint_holds_after_a_crash(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    log.advance_start(3)
    checkpoint(directory, log)
    crash(directory)
    again = DataDirectory(tmp_path)
    assert open_log(again, **SMALL).log_start_offset == 3
    crash(again)


def test_the_largest_timestamp_survives_a_crash_though_it_is_old(tmp_path: Path) -> None:
    """Retention by time trusts it: without it a segment with one late record would go early."""
    for with_checkpoint in (False, True):
        path = tmp_path / str(with_checkpoint)
        directory, log = filled(path, [])
        log.config = config(index_interval_bytes=0)
        times = [NOW_MS + 10**6, *[NOW_MS + n for n in range(30)]]
        for n, time in enumerate(times):
            log.append([batch([b"x"], [time], offset=n)], NOW_MS)
        flush(log, directory.disk)
        checkpoint(directory, log)
        log.append([batch([b"x"], [NOW_MS], offset=31)], NOW_MS)
        if not with_checkpoint:
            directory.write_checkpoint(b'{"t-0":[31,0,"%s"]}' % str(TOPIC_ID).encode())
        log.active.times.path.unlink(missing_ok=True)
        crash(directory)
        again = DataDirectory(path)
        found = open_log(again, index_interval_bytes=0)
        assert (found.active.max_timestamp, found.active.max_timestamp_offset) == (NOW_MS + 10**6, 0)
        crash(again)


# ------------------------------------------------------------------------------ the marker against the files


def test_an_active_segment_that_lost_its_tail_after_a_clean_stop_is_offline(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    directory.close([log], clean=True)
    with log.active.path.open("r+b") as file:
        file.truncate(log.active.size - 1)
    for _ in range(3):
        again = DataDirectory(tmp_path)
        assert "before the recovery point" in offline_reason(again, **SMALL)
        checkpoint(again)
        crash(again)


def test_garbage_behind_the_end_after_a_clean_stop_is_cut(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    directory.close([log], clean=True)
    with log.active.path.open("ab") as file:
        file.write(b"garbage" * 20)
    again = DataDirectory(tmp_path)
    assert values_of(open_log(again, **SMALL), again.disk) == VALUES
    crash(again)


@pytest.mark.parametrize("damage", ["gone", "cut at a batch", "cut in a batch"])
@pytest.mark.parametrize("which", [0, 1])
def test_full_segments_that_changed_after_a_clean_stop_keep_the_log_offline(
    tmp_path: Path, damage: str, which: int
) -> None:
    """And it stays so at the starts that follow, until the files are back."""
    directory, log = filled(tmp_path)
    directory.close([log], clean=True)
    path = log.segments[which].path
    good = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        last = list(log.segments[which].walk_slowly(0, len(good)))[-1]
        path.write_bytes(good[: last.position if damage == "cut at a batch" else last.position + 30])
    for _ in range(2):
        again = DataDirectory(tmp_path)
        assert "were left at the last stop" in offline_reason(again, **SMALL)
        checkpoint(again)
        crash(again)
    path.write_bytes(good)
    again = DataDirectory(tmp_path)
    assert values_of(open_log(again, **SMALL), again.disk) == VALUES
    crash(again)


def test_a_log_that_lost_its_first_segment_before_a_crash_is_offline(tmp_path: Path) -> None:
    """Segments are deleted only below a log start offset that is safe, so that nobody has to guess."""
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    crash(directory)
    log.segments[0].path.unlink()
    again = DataDirectory(tmp_path)
    assert "but offsets from 0 on were safely written" in offline_reason(again, **SMALL)
    crash(again)


def test_a_missing_folder_is_offline(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert offline_reason(directory, "other-0") == "its folder is missing"
    crash(directory)


def test_a_log_that_stays_offline_is_not_cut_at_a_later_start(tmp_path: Path) -> None:
    """The recovery point of a log that is not served must outlive the checkpoints that others write."""
    directory, log = filled(tmp_path)
    other = directory.create_log("other-0", TOPIC_ID, config())
    flush(log, directory.disk)
    checkpoint(directory, log, other)
    crash(directory)
    path = log.active.path
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for _ in range(3):
        again = DataDirectory(tmp_path)
        other = open_log(again, "other-0")
        assert "before the recovery point" in offline_reason(again, **SMALL)
        append(other, [b"x"])
        flush(other, again.disk)
        checkpoint(again, other)
        crash(again)
    path.write_bytes(good)
    again = DataDirectory(tmp_path)
    assert values_of(open_log(again, **SMALL), again.disk) == VALUES
    crash(again)


def test_recovery_points_of_a_deleted_topic_do_not_count_for_a_new_one_of_that_name(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    new_id = uuid.uuid4()
    new = directory.create_log("t-0", new_id, config(**SMALL))
    directory.adopt(new)
    append(new, [b"new"])
    crash(directory)
    again = DataDirectory(tmp_path)
    found, report = again.open_log("t-0", new_id, config(**SMALL), NOW_MS)
    assert found is not None, report.offline
    assert values_of(found, again.disk) == [b"new"]
    crash(again)


# ------------------------------------------------------------------------------ damaged small files


def test_with_a_damaged_checkpoint_everything_is_scanned_and_nothing_lost(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    crash(directory)
    (tmp_path / "checkpoint").write_bytes(b"nonsense")
    again = DataDirectory(tmp_path)
    found, report = again.open_log("t-0", TOPIC_ID, config(**SMALL), NOW_MS)
    assert found is not None
    assert report.scanned_batches == len(VALUES)
    assert values_of(found, again.disk) == VALUES
    crash(again)


@pytest.mark.parametrize("lost", ["damaged", "gone"])
def test_without_a_checkpoint_damage_in_the_middle_is_not_taken_for_a_torn_tail(tmp_path: Path, lost: str) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    crash(directory)
    if lost == "gone":
        (tmp_path / "checkpoint").unlink()
    else:
        (tmp_path / "checkpoint").write_bytes(b"nonsense")
    data = bytearray(log.segments[0].path.read_bytes())
    data[70] ^= 1
    log.segments[0].path.write_bytes(data)
    again = DataDirectory(tmp_path)
    assert "damaged at position 0" in offline_reason(again, **SMALL)
    crash(again)


def test_a_damaged_marker_is_an_unclean_stop(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    directory.close([log], clean=True)
    (tmp_path / "clean-stop").write_bytes(b"nonsense")
    again = DataDirectory(tmp_path)
    assert not again.clean
    assert again.leader_epoch == 1
    assert values_of(open_log(again, **SMALL), again.disk) == VALUES
    crash(again)


def test_a_damaged_identity_stops_the_start_with_a_clear_line(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert (
        directory.identity(Identity("a" * 22, 1)) == directory.identity(Identity("b" * 22, 2)) == Identity("a" * 22, 1)
    )
    (tmp_path / "identity").write_bytes(b"nonsense")
    with pytest.raises(StartError, match=r"identity is damaged: .* restore it from a backup"):
        directory.identity(Identity("a" * 22, 1))
    crash(directory)


def test_a_damaged_leader_epoch_stops_the_start_and_gives_the_directory_back(tmp_path: Path) -> None:
    crash(DataDirectory(tmp_path))
    good = (tmp_path / "leader-epoch").read_bytes()
    (tmp_path / "leader-epoch").write_bytes(b"nonsense")
    with pytest.raises(StartError, match="leader-epoch is damaged"):
        DataDirectory(tmp_path)
    (tmp_path / "leader-epoch").write_bytes(good)
    crash(DataDirectory(tmp_path))


def test_two_brokers_cannot_have_one_directory(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with pytest.raises(StartError, match="in use by another broker"):
        DataDirectory(tmp_path)
    crash(directory)
    crash(DataDirectory(tmp_path))


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartError, match="cannot use data directory"):
        DataDirectory(tmp_path / "file" / "data")


# ------------------------------------------------------------------------------ the rest


def test_no_marker_is_left_when_a_log_could_not_be_flushed(tmp_path: Path) -> None:
    class NoSync(Disk):
        def sync(self, file: object) -> None:
            raise OSError(5, "Input/output error")

    directory = DataDirectory(tmp_path, disk=NoSync())
    log = directory.create_log("t-0", TOPIC_ID, config())
    append(log, [b"a"])
    directory.close([log], clean=True)
    assert not (tmp_path / "clean-stop").exists()
    crash(DataDirectory(tmp_path))


def test_an_unchanged_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    (tmp_path / "checkpoint").unlink()
    checkpoint(directory, log)
    assert not (tmp_path / "checkpoint").exists()
    append(log, [b"x"])
    flush(log, directory.disk)
    checkpoint(directory, log)
    assert (tmp_path / "checkpoint").exists()
    crash(directory)


def test_left_overs_go_and_foreign_files_stay(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    crash(directory)
    folder = log.directory
    gone = ["00000000000000000099.index", "00000000000000000099.timeindex", "00000000000000000000.log.deleted", "x.tmp"]
    for name in [*gone, "notes.txt"]:
        (folder / name).write_bytes(b"left over")
    again = DataDirectory(tmp_path)
    open_log(again, **SMALL)
    names = {path.name for path in folder.iterdir()}
    assert not names & set(gone)
    assert "notes.txt" in names
    crash(again)


def test_deleted_folders_go_to_the_trash_and_then_go(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    directory.trash("t-0")
    assert not log.directory.exists()
    assert len(list((tmp_path / ".trash").iterdir())) == 1
    directory.empty_trash()
    assert list((tmp_path / ".trash").iterdir()) == []
    assert directory.strays([]) == []
    crash(directory)


def test_records_of_no_topic_are_kept_when_a_new_log_takes_their_place(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    records = log.segments[0].path.read_bytes()
    assert records
    made = directory.create_log("t-0", uuid.uuid4(), log.config)
    assert made.log_end_offset == 0
    directory.empty_trash()
    [stray] = tmp_path.glob("t-0.*.stray")
    assert (stray / log.segments[0].path.name).read_bytes() == records
    assert directory.strays(["t-0"]) == [stray.name]
    crash(directory)


def test_the_rest_of_a_creation_that_was_broken_off_goes_to_the_trash(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    directory.create_log("u-0", uuid.uuid4(), log.config)
    directory.create_log("u-0", uuid.uuid4(), log.config)
    assert directory.strays(["t-0", "u-0"]) == []
    assert len(list((tmp_path / ".trash").iterdir())) == 1
    crash(directory)


def test_folders_that_the_catalogue_does_not_name_are_strays(tmp_path: Path) -> None:
    directory, _ = filled(tmp_path)
    (tmp_path / "stray-0").mkdir()
    assert directory.strays(["t-0"]) == ["stray-0"]
    crash(directory)


def test_epochs_are_made_again_from_the_log_when_their_file_is_lost_or_damaged(tmp_path: Path) -> None:
    directory, log = filled(tmp_path, [])
    for epoch in (0, 2, 5):
        append(log, [b"a" * 100], [b"b" * 100], epoch=epoch)
    expected = log.epochs.load()
    directory.close([log], clean=True)
    path = log.directory / "leader-epoch-checkpoint"
    for damage in (b"nonsense", None, b"0\n1\n0 0\n", b"0\n3\n0 0\n2 2\n9 4\n"):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        again = DataDirectory(tmp_path)
        found = open_log(again, **SMALL)
        assert (found.epochs.load(), found.leader_epoch, found.log_end_offset) == (expected, 5, 6)
        again.close([found], clean=True)


def test_a_log_that_was_emptied_and_rolled_stops_and_starts_cleanly(tmp_path: Path) -> None:
    """The segment before the new one is wholly below the log start, though nobody has dropped it yet."""
    directory, log = filled(tmp_path, [b"a" * 200])
    flush(log, directory.disk)
    log.advance_start(1)
    append(log, [b"b" * 200])
    assert len(log.segments) == 2
    directory.close([log], clean=True)
    again = DataDirectory(tmp_path)
    assert values_of(open_log(again, **SMALL), again.disk) == [b"b" * 200]
    crash(again)


def test_after_a_clean_stop_the_checkpoint_knows_as_much_as_the_marker(tmp_path: Path) -> None:
    directory, log = filled(tmp_path)
    flush(log, directory.disk)
    checkpoint(directory, log)
    log.drop_segments(2)
    start = log.log_start_offset
    directory.close([log], clean=True)
    for _ in range(2):  # the first start uses the marker, the second has the checkpoint alone
        again = DataDirectory(tmp_path)
        found = open_log(again, **SMALL)
        assert (found.log_start_offset, values_of(found, again.disk)) == (start, VALUES[start:])
        crash(again)


def test_trash_that_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path) -> None:
    class Stubborn(Disk):
        def remove_directory(self, path: Path) -> None:
            if path == stuck:
                raise OSError(errno.EIO, "on cue", str(path))
            super().remove_directory(path)

    directory = DataDirectory(tmp_path, disk=Stubborn())
    for name in ("a-0", "b-0", "c-0"):
        directory.create_log(name, TOPIC_ID, config())
        directory.trash(name)
    stuck, *_ = sorted((tmp_path / ".trash").iterdir())
    with pytest.raises(OSError, match="on cue"):
        directory.empty_trash()
    assert list((tmp_path / ".trash").iterdir()) == [stuck]
    crash(directory)


def test_deletion_by_a_mark_that_cannot_be_synced_has_not_happened(tmp_path: Path) -> None:
    """It is refused, so records may be acknowledged afterwards: the next start must not find the mark."""
    directory, log = filled(tmp_path)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "on cue")

    real, directory.disk.system_calls.sync_full = directory.disk.system_calls.sync_full, fail
    with pytest.raises(OSError, match="on cue"):
        directory.mark_deleted(TOPIC_ID, ["t-0"])
    assert directory.marked_deleted() == set()
    assert values_of(log, directory.disk) == VALUES
    directory.disk.system_calls.sync_full = real
    assert directory.mark_deleted(TOPIC_ID, ["t-1", "t-0"])
    assert directory.marked_deleted() == {TOPIC_ID}
    assert not (tmp_path / "t-0").exists()
