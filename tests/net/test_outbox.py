"""Ranges of log files: whole and in order by every way, warm and cold, and one connection's misfortune is its own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from pathlib import Path

import pytest

from penstock.net import outbox
from tests.net.fakes import FakeSession, file_request, frame, until

MB = 1024 * 1024
DATA = random.Random(1).randbytes(9 * MB + 12_345)


class LogFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "00000000000000000000.log"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def log(log_path):
    file = LogFile(log_path)
    yield file
    file.close()


@pytest.fixture
def serve_file(serve, log, sendfile):
    def start(**settings):
        return serve(type("FileSession", (FakeSession,), {"file": log}), sendfile=sendfile, **settings)

    return start


def descriptors() -> set[tuple[str, str]]:
    """What this process has open, each with its number. Others in it may close theirs at any time."""
    found = set()
    for path in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, os.readlink(path)))
    return found


def make_cold(file: LogFile) -> None:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("length", [1, 1_000, 65_535, 65_536, 200_000, MB, MB + 1, 9 * MB])
def test_a_range_arrives_whole_between_its_header_and_its_trailer(serve_file, length):
    server = serve_file()
    with server.connect() as client:
        for position in (0, 12_345):
            client.send(file_request(position, length) + frame(b"e after"))
            assert client.read() == b"<" + DATA[position : position + length] + b"done"
            assert client.read() == b"e after"


def test_an_empty_range_is_no_bytes(serve_file):
    server = serve_file()
    with server.connect() as client:
        client.send(file_request(5, 0))
        assert client.read() == b"<done"


def test_ranges_and_bytes_mixed_at_random_keep_their_order(serve_file):
    dice = random.Random(7)
    server = serve_file()
    requests, answers = [], []
    for number in range(300):
        if dice.random() < 0.5:
            payload = b"e%d" % number * dice.choice([1, 50, 3_000])
            requests.append(frame(payload))
            answers.append(payload)
        else:
            length = dice.choice([10, 5_000, 64 * 1024, 150_000, 2 * MB])
            position = dice.randrange(len(DATA) - length)
            requests.append(file_request(position, length))
            answers.append(b"<" + DATA[position : position + length] + b"done")
    with server.connect() as client:
        sender = threading.Thread(target=client.send, args=(b"".join(requests),))
        sender.start()
        for answer in answers:
            assert client.read() == answer
        sender.join()


def test_a_slow_reader_of_a_large_range_gets_it_whole(serve_file):
    server = serve_file()
    with server.connect(receive_bytes=4_096) as slow, server.connect() as other:
        slow.send(file_request(0, 9 * MB) + frame(b"e after"))
        server.until(lambda: any(connection._bytes_unsent() for connection in server.listener.connections))
        other.send(frame(b"e meanwhile"))
        assert other.read() == b"e meanwhile"
        assert slow.read() == b"<" + DATA[: 9 * MB] + b"done"
        assert slow.read() == b"e after"


class StingySocket:
    """Takes a byte of the bytes before a range every other time, and nothing in between."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self._takes = False

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._real.setsockopt(level, option, value)

    def send(self, data: bytes, flags: int) -> int:
        self._takes = not self._takes
        if not self._takes:
            raise BlockingIOError
        return self._real.send(data[:1], flags)

    def fileno(self) -> int:
        return self._real.fileno()

    def close(self) -> None:
        self._real.close()


def test_a_socket_that_takes_little_at_a_time_gets_everything_in_order(serve_file, monkeypatch):
    descriptor = outbox.Outbox._descriptor

    def stingy(self):
        if self._socket is None:
            self._socket = StingySocket(descriptor(self))
        return self._socket

    monkeypatch.setattr(outbox.Outbox, "_descriptor", stingy)
    server = serve_file()
    if server.network.sendfile is not None:
        server.network.sendfile = lambda to, file, offset, count: os.sendfile(to, file, offset, min(count, 20_000))
    with server.connect() as client:
        client.send(frame(b"e before") + file_request(0, 300_000) * 3 + frame(b"e after"))
        assert client.read() == b"e before"
        for _ in range(3):
            assert client.read() == b"<" + DATA[:300_000] + b"done"
        assert client.read() == b"e after"


@pytest.mark.parametrize("together", [True, False])
def test_a_range_waits_for_bytes_that_the_socket_has_not_taken(serve_file, together):
    server = serve_file(write_buffer_bytes_high=64 * MB)
    large = struct.pack(">cQ", b"b", 12 * MB)
    with server.connect(receive_bytes=4_096) as client:
        client.send(frame(large) + file_request(0, 200_000) * together)
        server.until(lambda: any(connection.stalled for connection in server.listener.connections))
        client.send(file_request(0, 200_000) + frame(b"e after"))
        server.until(lambda: len(server.sessions[0].performed) == 3 + together)
        assert client.read() == bytes(12 * MB)
        for _ in range(1 + together):
            assert client.read() == b"<" + DATA[:200_000] + b"done"
        assert client.read() == b"e after"


def test_parked_answers_before_a_range_go_first(serve_file):
    server = serve_file()
    with server.connect() as client:
        client.send(frame(b"p") + file_request(0, 100_000))
        server.until(lambda: server.sessions and len(server.sessions[0].performed) == 2)
        server.call(server.sessions[0].release)
        assert client.read() == b"parked 0"
        assert client.read() == b"<" + DATA[:100_000] + b"done"


@pytest.mark.parametrize("length", [65_536, 3 * MB + 77])
def test_a_cold_range_is_read_by_a_thread_and_arrives_whole(serve_file, log, monkeypatch, length):
    readers = set()
    read_range = outbox.read_range

    def noted(*args):
        readers.add(threading.current_thread().name)
        return read_range(*args)

    monkeypatch.setattr(outbox, "read_range", noted)
    server = serve_file()
    resident = server.network.resident
    answers = []

    def noted_resident(*args):
        answers.append(resident(*args))
        return answers[-1]

    server.network.resident = noted_resident
    with server.connect() as client:
        for _ in range(100):
            make_cold(log)
            client.send(file_request(0, length) + frame(b"e after"))
            assert client.read() == b"<" + DATA[:length] + b"done"
            assert client.read() == b"e after"
            if not all(answers):
                break
        else:
            pytest.skip("this file system does not let go of its page cache")
    assert any(name.startswith("penstock-cold-read") for name in readers)


def test_a_small_cold_range_arrives_whole(serve_file, log, monkeypatch):
    # The disk may be so fast that asking already brings the bytes: here it never is.
    monkeypatch.setattr(outbox, "read_resident", lambda *args: None)
    server = serve_file()
    with server.connect() as client:
        for position in range(0, 500_000, 50_000):
            make_cold(log)
            client.send(file_request(position, 20_000) + frame(b"e after"))
            assert client.read() == b"<" + DATA[position : position + 20_000] + b"done"
            assert client.read() == b"e after"


def test_the_loop_serves_others_while_a_cold_read_takes_its_time(serve_file, monkeypatch):
    gate = threading.Event()
    read_range = outbox.read_range

    def slow(*args):
        assert gate.wait(30)
        return read_range(*args)

    monkeypatch.setattr(outbox, "read_range", slow)
    server = serve_file(write_deadline_ms=50)
    server.stop_clock()
    server.network.resident = lambda fd, position, length: False
    with server.connect() as cold, server.connect() as other:
        cold.send(file_request(0, 100_000))
        server.until(lambda: any(session.performed for session in server.sessions))
        for _ in range(20):
            other.send(frame(b"e meanwhile"))
            assert other.read() == b"e meanwhile"
        # A slow disk is not the peer's fault: the write deadline does not run.
        for _ in range(4):
            server.pass_ms(60)
        gate.set()
        assert cold.read() == b"<" + DATA[:100_000] + b"done"


def test_a_peer_that_leaves_during_a_cold_read_harms_nobody(serve_file, monkeypatch):
    gate = threading.Event()
    read_range = outbox.read_range

    def slow(*args):
        assert gate.wait(30)
        return read_range(*args)

    monkeypatch.setattr(outbox, "read_range", slow)
    server = serve_file()
    server.network.resident = lambda fd, position, length: False
    with server.connect() as other:
        client = server.connect()
        client.send(file_request(0, MB // 2))
        server.until(lambda: len(server.sessions) == 2 and server.sessions[1].performed)
        client.reset()
        server.until(lambda: len(server.listener.connections) == 1)
        gate.set()
        other.send(file_request(0, 100_000))
        assert other.read() == b"<" + DATA[:100_000] + b"done"


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_a_file_that_is_shorter_than_promised_closes_that_connection_with_one_line(serve_file, lines, way):
    server = serve_file()
    if way == "cold":
        server.network.resident = lambda fd, position, length: False
    with server.connect() as other, server.connect() as client:
        client.send(file_request(len(DATA) - 100_000, 200_000))
        assert client.exactly(5) == struct.pack(">I", 200_005) + b"<"
        assert client.is_closed_by_peer()
        other.send(file_request(0, 100_000))
        assert other.read() == b"<" + DATA[:100_000] + b"done"
    (line,) = lines()
    assert "a log file ends" in line


def test_a_small_range_past_the_end_closes_that_connection_with_one_line(serve_file, lines):
    server = serve_file()
    with server.connect() as client:
        client.send(file_request(len(DATA) - 10, 20))
        assert client.is_closed_by_peer()
    (line,) = lines()
    assert "a log file ends 20 bytes before" in line


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_a_bad_sector_closes_that_connection_with_one_line(serve_file, lines, monkeypatch, way):
    def fail(*args):
        raise OSError(5, "Input/output error")

    server = serve_file()
    if way == "cold":
        server.network.resident = lambda fd, position, length: False
    if server.network.sendfile is not None:
        server.network.sendfile = fail
    monkeypatch.setattr(outbox, "read_range", fail)
    with server.connect() as other, server.connect() as client:
        client.send(file_request(0, 200_000))
        assert client.is_closed_by_peer()
        other.send(frame(b"e nobody else"))
        assert other.read() == b"e nobody else"
    (line,) = lines()
    assert "cannot read a log file: Input/output error" in line


def test_a_peer_that_vanishes_in_the_middle_of_a_range_leaves_one_line(serve_file, lines):
    server = serve_file()
    with server.connect() as other:
        other.send(frame(b"e here"))
        assert other.read() == b"e here"
        client = server.connect(receive_bytes=4_096)
        client.send(file_request(0, 9 * MB))
        server.until(lambda: len(server.sessions) == 2 and server.sessions[1].performed)
        server.until(lambda: any(connection._bytes_unsent() for connection in server.listener.connections))
        client.reset()
        server.until(lambda: len(server.listener.connections) == 1)
        other.send(file_request(0, 100_000))
        assert other.read() == b"<" + DATA[:100_000] + b"done"
    (line,) = lines()
    assert "vanished" in line or "lost" in line
    assert server.sessions[1].closings == 1


def test_a_peer_that_closes_in_the_middle_of_a_range_leaves_one_line(serve_file, lines):
    server = serve_file(stop_grace_ms=5_000)
    client = server.connect(receive_bytes=4_096)
    client.send(file_request(0, 9 * MB))
    client.exactly(100_000)
    server.until(lambda: any(connection._bytes_unsent() for connection in server.listener.connections))
    client.socket.close()
    server.until(lambda: not server.listener.connections)
    (line,) = lines()
    assert "vanished" in line or "lost" in line


def test_an_idle_connection_gives_its_duplicate_descriptor_back(serve_file):
    server = serve_file()
    with server.connect() as client:
        client.send(file_request(0, 200_000))
        assert client.read() == b"<" + DATA[:200_000] + b"done"
        server.until(lambda: all(connection._outbox is None for connection in server.listener.connections))
        before = descriptors()
        client.send(file_request(0, 200_000))
        assert client.read() == b"<" + DATA[:200_000] + b"done"
        server.until(lambda: all(connection._outbox is None for connection in server.listener.connections))
        until(lambda: descriptors() <= before)


def test_no_descriptor_is_left_of_connections_that_vanish(serve_file):
    server = serve_file()
    with server.connect() as client:
        client.send(frame(b"e"))
        client.read()
    server.until(lambda: not server.listener.connections)
    before = descriptors()
    for _ in range(10):
        client = server.connect(receive_bytes=4_096)
        client.send(file_request(0, 9 * MB))
        server.until(lambda: any(connection._bytes_unsent() for connection in server.listener.connections))
        client.reset()
        server.until(lambda: not server.listener.connections)
    until(lambda: descriptors() <= before)
