from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.model.errors import StartError
from penstock.storage.files import (
    BUFFERS_PER_WRITE_MAX,
    ChecksumMismatch,
    Cold,
    DirectoryLock,
    Disk,
    DiskFailed,
    DiskFull,
    FileCache,
    ReadFailed,
    read_checked,
    write_checked,
)
from penstock.storage.system import Buffer


@pytest.fixture
def size_limit() -> Iterator[int]:
    """No file of this process may grow past so many bytes: a disk that is full there, from the kernel itself."""
    limit = 10_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("buffers", [1, 2, 5])
def test_a_write_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path, size_limit: int, buffers: int) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    disk.write_at(file, 0, (b"a" * 9_000,), 9_000)
    parts = [b"b" * 1_000] * buffers if buffers > 1 else [b"b" * 2_000]
    with pytest.raises(DiskFull):
        disk.write_at(file, 9_000, parts, sum(map(len, parts)))
    assert (tmp_path / "log").read_bytes() == b"a" * 9_000
    disk.write_at(file, 9_000, (b"d" * 500, b"e" * 500), 1_000)
    with pytest.raises(DiskFull):
        disk.write_at(file, size_limit, (b"c",), 1)
    assert (tmp_path / "log").read_bytes() == b"a" * 9_000 + b"d" * 500 + b"e" * 500


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk.system_calls, "write", refuse)
    with pytest.raises(DiskFull) as caught:
        disk.write_at(file, 0, (b"x",), 1)
    assert caught.value.errno == code


def test_a_write_error_is_final_and_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    real = os.pwritev

    def half_then_error(fd: int, buffers: list[bytes], position: int) -> int:
        real(fd, buffers[:1], position)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk.system_calls, "write_many", half_then_error)
    with pytest.raises(DiskFailed):
        disk.write_at(file, 0, (b"x" * 10, b"y" * 10), 20)
    assert (tmp_path / "log").read_bytes() == b""


def test_a_cut_back_that_fails_is_a_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    monkeypatch.setattr(disk.system_calls, "write", lambda *_: 3)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk.system_calls, "truncate", refuse)
    with pytest.raises(DiskFailed, match="cannot cut back"):
        disk.write_at(file, 0, (b"12345",), 5)


def test_more_buffers_than_one_call_takes_are_written_in_order(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    buffers = [b"%06d" % n for n in range(2 * BUFFERS_PER_WRITE_MAX + 7)]
    disk.write_at(file, 0, buffers, 6 * len(buffers))
    assert (tmp_path / "log").read_bytes() == b"".join(buffers)


def test_a_failed_sync_is_a_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk = Disk()
    monkeypatch.setattr(disk.system_calls, "sync", refuse)
    monkeypatch.setattr(disk.system_calls, "sync_full", refuse)  # of directories
    with pytest.raises(DiskFailed, match="sync failed"):
        disk.sync(disk.open(tmp_path / "log", create=True))
    with pytest.raises(DiskFailed, match="sync failed"):
        disk.sync_directory(tmp_path)


def test_a_directory_that_may_not_be_opened_is_not_taken_for_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    disk = Disk()
    monkeypatch.setattr(disk.system_calls, "open", refuse)
    with pytest.raises(PermissionError):
        disk.sync_directory(tmp_path)


def test_replace_whole_keeps_the_old_content_when_there_is_no_room(tmp_path: Path, size_limit: int) -> None:
    disk = Disk()
    disk.replace_whole(tmp_path / "state", b"old")
    with pytest.raises(OSError, match="File too large"):
        disk.replace_whole(tmp_path / "state", b"n" * (size_limit + 1))
    assert (tmp_path / "state").read_bytes() == b"old"
    disk.replace_whole(tmp_path / "state", b"new")
    assert (tmp_path / "state").read_bytes() == b"new"


def test_replace_whole_syncs_the_file_before_its_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        calls.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real_fsync(fd)

    def replace(old: Path, new: Path) -> None:
        calls.append("rename")
        real_replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    Disk().replace_whole(tmp_path / "state", b"x")
    assert calls == ["sync state.tmp", "rename", f"sync {tmp_path.name}"]
    calls.clear()
    Disk().replace_whole(tmp_path / "state", b"x", durable=False)
    assert calls == ["rename"]


def test_a_checked_file_with_any_byte_changed_or_any_tail_lost_is_refused(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "state"
    write_checked(disk, path, b"payload\nof two lines\n")
    good = path.read_bytes()
    assert read_checked(disk, path) == b"payload\nof two lines\n"
    for at in range(len(good)):
        for bit in (0, 3, 5, 7):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
            with pytest.raises(ChecksumMismatch):
                read_checked(disk, path)
        path.write_bytes(good[:at])
        with pytest.raises(ChecksumMismatch):
            read_checked(disk, path)


def test_the_file_cache_keeps_to_its_bound_and_held_files_stay_open(tmp_path: Path) -> None:
    disk = Disk()
    cache = FileCache(disk, 3)
    held = cache.create(tmp_path / "0")
    disk.write_at(held, 0, (b"held",), 4)
    for n in range(1, 10):
        cache.create(tmp_path / str(n))
    assert len(cache) == 3
    assert disk.read_at(held, 0, 4) == b"held"
    assert cache.open(tmp_path / "9") is cache.open(tmp_path / "9")
    fd = held.fd
    del held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_file_cache_refuses_a_second_thread(tmp_path: Path) -> None:
    cache = FileCache(Disk(), 3)
    path = tmp_path / "0"
    held = cache.create(path)
    with ThreadPoolExecutor(1) as threads:
        for use in (lambda: cache.open(path), lambda: cache.create(path), lambda: cache.forget([path])):
            with pytest.raises(AssertionError, match="belongs to another thread"):
                threads.submit(use).result()
    assert cache.open(path) is held


def test_read_of_an_exact_length_fails_where_the_file_ends(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    disk.write_at(file, 0, (b"0123456789",), 10)
    assert disk.read_exactly(file, 2, 8) == b"23456789"
    with pytest.raises(DiskFailed, match="7 of 8 bytes at 3"):
        disk.read_exactly(file, 3, 8)


def test_the_least_recently_used_file_goes_first(tmp_path: Path) -> None:
    cache = FileCache(Disk(), 2)
    first = cache.create(tmp_path / "first")
    cache.create(tmp_path / "second")
    assert cache.open(tmp_path / "first") is first
    cache.create(tmp_path / "third")
    assert cache.open(tmp_path / "first") is first


def test_read_now_gives_what_is_in_memory_and_nothing_past_the_end(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    disk.write_at(file, 0, (b"0123456789",), 10)
    assert bytes(disk.read_now(file, 2, 5)) == b"23456"
    assert bytes(disk.read_now(file, 8, 5)) == b"89"
    assert bytes(disk.read_now(file, 20, 5)) == b""


def test_read_now_raises_cold_instead_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    disk.nowait = True
    file = disk.open(tmp_path / "log", create=True)
    disk.write_at(file, 0, (b"0123456789",), 10)

    def not_there(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", not_there)
    with pytest.raises(Cold) as caught:
        disk.read_now(file, 2, 5)
    assert (caught.value.file, caught.value.position, caught.value.length) == (file, 2, 5)
    monkeypatch.setattr(os, "preadv", lambda *_: 3)  # a part is in memory, and the file goes on
    with pytest.raises(Cold):
        disk.read_now(file, 0, 5)


def test_a_file_system_that_cannot_tell_is_read_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    disk.nowait = True
    file = disk.open(tmp_path / "log", create=True)
    disk.write_at(file, 0, (b"0123456789",), 10)

    def unsupported(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", unsupported)
    assert bytes(disk.read_now(file, 2, 5)) == b"23456"
    assert not disk.nowait


def test_a_second_broker_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / ".lock")
    code = (
        "import sys; from pathlib import Path; from penstock.storage.files import DirectoryLock\n"
        "try: DirectoryLock(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    script = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert said == f"StartError data directory {tmp_path} is in use by another broker (process {os.getpid()})\n"
    lock.release()
    assert subprocess.run(script, capture_output=True, text=True, check=True).stdout == ""
    held = DirectoryLock(tmp_path / ".lock")
    with pytest.raises(StartError):
        DirectoryLock(tmp_path / ".lock")
    held.release()


def test_short_reads_are_continued_to_the_end_of_the_range_or_file(tmp_path: Path) -> None:
    disk = Disk()
    path = tmp_path / "log"
    path.write_bytes(bytes(range(200)))
    real = disk.system_calls.read
    disk.system_calls.read = lambda fd, length, position: real(fd, min(length, 7), position)
    file = disk.open(path)
    assert disk.read_at(file, 10, 100) == bytes(range(10, 110))
    assert disk.read_at(file, 150, 1000) == bytes(range(150, 200))
    assert disk.read_at(file, 200, 10) == b""
    assert disk.read_whole(path) == bytes(range(200))


def test_read_error_names_file_and_position(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    disk.system_calls.read = refuse
    with pytest.raises(ReadFailed, match=r"log: reading 512 bytes at position 4096 failed: Input/output error"):
        disk.read_at(file, 4096, 512)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR])
def test_temporary_write_error_is_cut_back_and_not_a_failed_disk(tmp_path: Path, code: int) -> None:
    disk = Disk()
    file = disk.open(tmp_path / "log", create=True)
    disk.write_at(file, 0, (b"old",), 3)
    real = disk.system_calls.write

    def half(fd: int, data: Buffer, position: int) -> int:
        real(fd, data[:2], position)
        raise OSError(code, os.strerror(code))

    disk.system_calls.write = half
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        disk.write_at(file, 3, (b"new",), 3)
    assert not isinstance(caught.value, DiskFailed | DiskFull)
    assert (tmp_path / "log").read_bytes() == b"old"


def test_failed_append_to_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    disk = Disk()
    path = tmp_path / "index"
    disk.append_to(path, b"first")
    real = disk.system_calls.write
    disk.system_calls.write = lambda fd, data, position: real(fd, data[:2], position)
    with pytest.raises(DiskFull):
        disk.append_to(path, b"second")
    assert path.read_bytes() == b"first"


def test_make_directory_creates_parents_and_rejects_a_file(tmp_path: Path) -> None:
    disk = Disk()
    disk.make_directory(tmp_path / "a" / "b" / "c")
    disk.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        disk.make_directory(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_gets_a_copy(tmp_path: Path, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    disk = Disk()
    disk.system_calls.link = refuse
    (tmp_path / "a").write_bytes(b"content")
    disk.link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"content"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_link_is_another_name_of_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    Disk().link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")
    with pytest.raises(FileExistsError):
        Disk().link(tmp_path / "a", tmp_path / "b")
