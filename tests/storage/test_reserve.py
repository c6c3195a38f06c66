from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import BrokerError
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, DiskFull, write_checked
from penstock.storage.log import PartitionLog
from penstock.storage.reserve import BYTES_MIN, CRITICAL_SHARE, FILE_NAME, FILE_SYSTEM_SHARE, Reserve
from penstock.storage.room import Room
from tests.storage.logs import NOW_MS, append, batch, new_log, values_of
from tests.storage.small_disk import Quota

WHOLE = 1024 * 1024
SMALL = WHOLE // CRITICAL_SHARE


class Place:
    def __init__(self, root: Path, **quota: int) -> None:
        self.root = root
        self.disk = Disk()
        self.quota = Quota(self.disk, root, **quota)
        self.reserve = Reserve(self.disk, root, WHOLE)

    @property
    def reserved(self) -> int:
        return (self.root / FILE_NAME).stat().st_blocks * 512

    def full(self) -> None:
        """Leave no room besides the reserve."""
        self.quota.free = (self.root / FILE_NAME).stat().st_size

    def log(self, name: str = "t-0") -> PartitionLog:
        return new_log(self.root / name, self.disk)


def own(log: PartitionLog, value: bytes) -> None:
    log.append_own(batch([value], offset=log.log_end_offset), NOW_MS)


# ---------------------------------------------------------------------------------------------------------- start


def test_new_directory_gets_a_whole_reserve(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.disk.room is Room.AMPLE
    assert place.reserved == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_reserve_takes_a_small_share_of_a_small_file_system(tmp_path: Path) -> None:
    place = Place(tmp_path, total=FILE_SYSTEM_SHARE * 3 * BYTES_MIN)
    assert place.reserved == 3 * BYTES_MIN


@pytest.mark.parametrize(
    ("free", "room", "reserved"),
    [(WHOLE, Room.AMPLE, WHOLE), (WHOLE - 1, Room.TIGHT, SMALL), (SMALL, Room.TIGHT, SMALL)],
)
def test_start_allocates_as_much_as_fits(tmp_path: Path, free: int, room: Room, reserved: int) -> None:
    place = Place(tmp_path, free=free)
    assert place.disk.room is room
    assert place.reserved == reserved


def test_start_without_room_for_any_reserve_is_critical(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path, free=SMALL - 1)
    assert place.disk.room is Room.CRITICAL
    assert not list(tmp_path.iterdir())
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"no room on the disk of {tmp_path}, {SMALL - 1:,} bytes are free")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_next_start_is_in_the_state_that_the_last_broker_left(tmp_path: Path, steps: int) -> None:
    place = Place(tmp_path)
    place.full()
    for room in list(Room)[:steps]:
        place.reserve.release(room)
    (tmp_path / f"{FILE_NAME}.tmp").touch()
    left = (tmp_path / FILE_NAME).stat().st_size
    again = Place(tmp_path, free=left + (2 * WHOLE - 1 if steps == 1 else 2 * SMALL - 1))
    assert again.disk.room is Room(steps)
    assert again.reserved == left
    assert not (tmp_path / f"{FILE_NAME}.tmp").exists()


def test_reserve_with_holes_is_allocated_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    os.truncate(tmp_path / FILE_NAME, WHOLE)
    place = Place(tmp_path)
    assert place.reserved == WHOLE


def test_reserve_shrinks_to_a_smaller_setting(tmp_path: Path) -> None:
    Place(tmp_path)
    Reserve(Disk(), tmp_path, 2 * BYTES_MIN)
    assert (tmp_path / FILE_NAME).stat().st_size == 2 * BYTES_MIN


# ---------------------------------------------------------------------------------------------------------- down


def test_write_without_room_moves_the_state_down_and_frees_that_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    assert place.reserve.release(Room.AMPLE)
    assert (place.disk.room, place.reserved) == (Room.TIGHT, SMALL)
    assert place.reserve.release(Room.TIGHT)
    assert (place.disk.room, place.reserved) == (Room.CRITICAL, 0)
    assert not place.reserve.release(Room.CRITICAL)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_many_writes_that_fail_together_move_the_state_by_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    ready = threading.Barrier(16)

    def fail() -> None:
        ready.wait()
        assert place.reserve.release(Room.AMPLE)

    threads = [threading.Thread(target=fail) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.disk.room is Room.TIGHT


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_refuses_clients_and_writes_own_batches_from_the_reserve(tmp_path: Path, code: int) -> None:
    place = Place(tmp_path)
    place.quota.code = code
    clients, internal = place.log("t-0"), place.log("__consumer_offsets-0")
    append(clients, [b"before"])
    place.full()
    for _ in range(2):
        with pytest.raises(BrokerError, match="no room on the disk"):
            append(clients, [b"x" * 100])
        assert place.disk.room is Room.TIGHT
    own(internal, b"commit")
    own(clients, b"marker")
    assert values_of(internal, place.disk) == [b"commit"]
    assert values_of(clients, place.disk) == [b"before", b"marker"]


def test_own_batch_is_retried_with_the_reserve_on_a_full_disk(tmp_path: Path) -> None:
    place = Place(tmp_path)
    internal = place.log()
    place.full()
    own(internal, b"commit")
    assert place.disk.room is Room.TIGHT
    assert values_of(internal, place.disk) == [b"commit"]


def test_without_the_large_part_only_small_files_are_written(tmp_path: Path) -> None:
    place = Place(tmp_path)
    internal = place.log()
    own(internal, b"before")
    place.full()
    place.reserve.release(Room.AMPLE)
    place.full()
    with pytest.raises(BrokerError, match="no room on the disk"):
        own(internal, b"commit")
    assert place.disk.room is Room.CRITICAL
    with pytest.raises(BrokerError, match="no room on the disk"):
        internal.append_aborted(b"entry")
    write_checked(place.disk, tmp_path / "topics", b"catalogue")
    assert values_of(internal, place.disk) == [b"before"]


@pytest.mark.parametrize(
    "write",
    [
        lambda disk, root: disk.replace_whole(root / "file", b"x"),
        lambda disk, root: disk.append_to(root / "file", b"x"),
        lambda disk, root: disk.open(root / "file", create=True),
        lambda disk, root: disk.make_directory(root / "folder"),
        lambda disk, root: disk.rename(root / "old", root / "new"),
    ],
)
@pytest.mark.parametrize("fail_at", range(3))
def test_small_write_is_retried_with_the_reserve_on_a_full_disk(
    tmp_path: Path, write: Callable[[Disk, Path], object], fail_at: int
) -> None:
    (tmp_path / "old").write_bytes(b"x")
    disk = Disk()
    Reserve(disk, tmp_path, WHOLE)
    count = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count == fail_at + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        return call

    calls = disk.system_calls
    for name in ("open", "write", "make_directory", "rename"):
        setattr(calls, name, failing(getattr(calls, name)))
    write(disk, tmp_path)
    assert disk.room is (Room.TIGHT if count > fail_at else Room.AMPLE)
    assert not list(tmp_path.glob("file.tmp"))


def test_file_size_limit_is_not_a_full_disk(tmp_path: Path) -> None:
    place = Place(tmp_path)
    log = place.log()
    append(log, [b"before"])

    def short(fd: int, data: bytes, position: int) -> int:
        if len(data) > 1:
            return os.pwrite(fd, data[:5], position)
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    place.disk.system_calls.write = short
    with pytest.raises(BrokerError, match="File too large"):
        append(log, [b"x" * 100])
    assert place.disk.room is Room.AMPLE
    with pytest.raises(DiskFull) as caught:
        place.disk.write_at(log.active.file, log.active.size, (b"x" * 100,), 100)
    assert caught.value.errno == errno.EFBIG


def test_append_over_several_segments_stops_at_the_reserve(tmp_path: Path) -> None:
    """Indexes of a closed segment may still be written then; records of clients not."""
    place = Place(tmp_path)
    log = new_log(tmp_path / "t-0", place.disk, segment_bytes=300, index_interval_bytes=0)
    append(log, [b"a" * 100], [b"b" * 100])
    real = place.disk.system_calls.write

    def no_room_for_indexes(fd: int, data: Any, position: int) -> int:
        place.disk.system_calls.write = real
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place.disk.system_calls.write = no_room_for_indexes
    with pytest.raises(BrokerError, match="no room on the disk"):
        append(log, [b"c" * 100])
    assert place.disk.room is Room.TIGHT
    assert values_of(log, place.disk) == [b"a" * 100, b"b" * 100]


# ---------------------------------------------------------------------------------------------------------- up


def test_state_moves_up_only_with_a_margin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path)
    for room in (Room.AMPLE, Room.TIGHT):
        place.reserve.release(room)
    caplog.clear()
    caplog.set_level("INFO")
    expected = [
        (2 * SMALL - 1, Room.CRITICAL, 0),
        (2 * SMALL, Room.TIGHT, SMALL),
        (SMALL + 2 * WHOLE - 1, Room.TIGHT, SMALL),
        (SMALL + 2 * WHOLE, Room.AMPLE, WHOLE),
    ]
    for free, room, reserved in expected:
        place.quota.free = free
        place.reserve.restore()
        assert (place.disk.room, place.reserved) == (room, reserved)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    log = place.log()
    append(log, [b"goes on"])


def test_quota_unknown_to_the_file_system_keeps_the_state(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.quota.code = errno.EDQUOT
    place.full()
    place.reserve.release(Room.AMPLE)
    place.disk.system_calls.room = lambda path: (1000 * WHOLE, 500 * WHOLE)
    place.reserve.restore()
    assert (place.disk.room, place.reserved) == (Room.TIGHT, SMALL)
    assert not (tmp_path / f"{FILE_NAME}.tmp").exists()


def test_reserve_that_cannot_be_allocated_for_another_reason_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    place.reserve.release(Room.AMPLE)
    caplog.clear()

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    real, place.disk.system_calls.open = place.disk.system_calls.open, refuse
    for _ in range(3):
        place.reserve.restore()
    assert place.disk.room is Room.TIGHT
    assert len(caplog.records) == 1
    place.disk.system_calls.open = real
    place.reserve.restore()
    assert place.disk.room is Room.AMPLE


def test_writes_during_a_restore_keep_the_space_of_the_old_reserve(tmp_path: Path) -> None:
    """A write that finds no room while the new reserve is allocated moves the state down; the new reserve moves it up."""
    place = Place(tmp_path)
    place.reserve.release(Room.AMPLE)
    real = place.disk.system_calls.allocate

    def allocate(fd: int, size: int) -> None:
        assert place.reserve.release(Room.TIGHT)
        real(fd, size)

    place.disk.system_calls.allocate = allocate
    place.reserve.restore()
    assert (place.disk.room, place.reserved) == (Room.AMPLE, WHOLE)


def test_disk_without_a_reserve_stays_ample(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    real = disk.system_calls.write

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.system_calls.write = refuse
    with pytest.raises(BrokerError, match="no room on the disk"):
        append(log, [b"x"])
    disk.system_calls.write = real
    append(log, [b"x"])
    assert disk.room is Room.AMPLE


def test_closed_directory_closes_the_reserve(tmp_path: Path) -> None:
    """A file that is kept open takes its room even after somebody deleted it."""
    directory = DataDirectory(tmp_path, reserve_bytes=WHOLE)
    assert _is_open(tmp_path / FILE_NAME)
    directory.close((), clean=True)
    assert not _is_open(tmp_path / FILE_NAME)


def _is_open(path: Path) -> bool:
    found = path.stat()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(int(name)), found):
                return True
    return False
