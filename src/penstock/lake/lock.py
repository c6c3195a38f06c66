"""One writer per table; a second one is told who holds it.

On a local path it is a lock of the operating system: gone with the process that held it, however that ended. Anywhere else
it is a lease in a file, renewed while its holder lives and free a minute after he died. The lease keeps people from
getting in each other's way; that nothing is written twice is for the commit to say, which knows what it was planned on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator

import msgspec

from penstock.lake.errors import ArchiveError, Held
from penstock.lake.places import Place

FOLDER = "_penstock"
LOCK = f"{FOLDER}/lock"
LEASE_S = 60.0
RENEWED_EVERY_S = 15.0


class Holder(msgspec.Struct, frozen=True):
    host: str
    process: int
    what: str
    nonce: str
    until_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.what} (process {self.process} on {self.host})"


@contextlib.contextmanager
def locked(place: Place, what: str) -> Iterator[None]:
    """Raises Held with a sentence when the table is somebody else's now."""
    me = Holder(socket.gethostname(), os.getpid(), what, uuid.uuid4().hex)
    with _os_lock(place, me) if place.is_local else _lease(place, me):
        yield


@contextlib.contextmanager
def _os_lock(place: Place, me: Holder) -> Iterator[None]:
    path = place.path(LOCK)
    folder = os.path.dirname(path)
    is_new = not os.path.exists(place.path())
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ArchiveError(f"cannot write {place.url}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(place, os.pread(descriptor, 4096, 0)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(me), 0)
        yield
        is_new = False
    finally:
        if is_new:
            _remove_if_alone(path, place.path())
        os.close(descriptor)


def _remove_if_alone(path: str, table: str) -> None:
    """No table was made: nothing stays of the try."""
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [os.path.basename(path)]:
            os.unlink(path)
            os.rmdir(folder)
            os.rmdir(table)


@contextlib.contextmanager
def _lease(place: Place, me: Holder) -> Iterator[None]:
    _take(place, me)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEWED_EVERY_S):
            with contextlib.suppress(ArchiveError):
                place.write(LOCK, _until(me))

    renewing = threading.Thread(target=renew, name="archive-lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        place.delete([LOCK])


def _take(place: Place, me: Holder) -> None:
    if place.create(LOCK, _until(me)):
        return
    there = place.read(LOCK) or b""
    holder = _holder(there)
    if holder is not None and holder.until_s > time.time():
        raise _held(place, there)
    place.delete([LOCK])
    if not place.create(LOCK, _until(me)):
        raise _held(place, place.read(LOCK) or b"")


def _until(me: Holder) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(me, until_s=time.time() + LEASE_S))


def _holder(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.DecodeError:
        return None


def _held(place: Place, data: bytes) -> Held:
    holder = _holder(data)
    who = "another process" if holder is None else str(holder)
    until = "" if holder is None or not holder.until_s else "; if it has ended, its lease expires within a minute"
    return Held(f"{place.url} is in use by {who}: a table can have only one writer; stop it first{until}")
