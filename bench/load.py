"""The load: frames encoded ahead, sent as fast as a window allows, answers counted.

Counting is by size, so that this side is never the slower one; the first answer and every `CHECK_EVERY`-th after it are
parsed and must say success, so a broker that answers rubbish quickly is an error, not a record.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle

from bench import wire
from bench.method import Latencies, Work
from bench.processes import Address

ANSWER_DEADLINE_S = 60.0
CHECK_EVERY = 64
FETCH_BYTES = 1024 * 1024

Check = Callable[[memoryview, int], object]
Receive = Callable[[socket.socket], memoryview]

_LENGTH = struct.Struct(">i")


def connect(address: Address) -> socket.socket:
    """A blocking connection whose deadline the kernel keeps: Python's own would poll before every call."""
    connection = socket.create_connection(address)
    deadline = struct.pack("ll", int(ANSWER_DEADLINE_S), 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def unchecked(frame: memoryview, correlation_id: int) -> None:
    """For the references, whose answers never change: the length alone must be right."""
    if _LENGTH.unpack_from(frame)[0] + 4 != len(frame):
        raise wire.WireError(f"answer {correlation_id} lost its frame")


def receive_frame(connection: socket.socket, head_bytes: int = 4) -> memoryview:
    """One whole answer; its head ends with the length of what follows."""
    data = bytearray()
    size = head_bytes
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
        if len(data) == head_bytes:
            size = head_bytes + _LENGTH.unpack_from(data, head_bytes - 4)[0]
    return memoryview(data)


def receive_line(connection: socket.socket) -> memoryview:
    """One answer that is a line."""
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = connection.recv(1024)
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return memoryview(data)


class Control:
    """One request at a time for what is not measured: topics and offsets."""

    def __init__(self, address: Address) -> None:
        self._connection = connect(address)
        self._correlation_id = 0

    def ask(self, encode: Callable[[int], bytes]) -> tuple[memoryview, int]:
        self._correlation_id += 1
        self._connection.sendall(encode(self._correlation_id))
        return receive_frame(self._connection), self._correlation_id

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        frame, asked = self.ask(lambda n: wire.create_topic(n, topic, partitions, configs or {}))
        error = wire.topic_error(frame, asked, throttle=True, message=True)
        if error:
            raise wire.WireError(f"topic {topic} with {dict(configs or {})} was not created: error {error}")

    def delete_topic(self, topic: str) -> None:
        frame, asked = self.ask(lambda n: wire.delete_topic(n, topic))
        error = wire.topic_error(frame, asked, throttle=True, message=False)
        if error:
            raise wire.WireError(f"topic {topic} was not deleted: error {error}")

    def partition_count(self, topic: str) -> int:
        frame, asked = self.ask(lambda n: wire.metadata(n, topic))
        return wire.check_metadata(frame, asked)

    def latest_offsets(self, topic: str, partitions: int) -> dict[int, int]:
        frame, asked = self.ask(lambda n: wire.latest_offsets(n, topic, range(partitions)))
        return wire.offsets(frame, asked)

    def produce(self, topic: str, batch: bytes, acks: int = 1) -> None:
        """One batch for partition 0."""
        frame, asked = self.ask(lambda n: wire.produce(n, topic, {0: batch}, acks))
        wire.check_produce(frame, asked)

    def expect_records(self, topic: str, partitions: int, count: int) -> None:
        """Raises unless the topic holds exactly what was acknowledged."""
        found = sum(self.latest_offsets(topic, partitions).values())
        if found != count:
            raise wire.WireError(f"{count} records were acknowledged, {topic} holds {found}")

    def api_versions(self) -> None:
        frame, asked = self.ask(wire.api_versions)
        wire.check_api_versions(frame, asked)

    def close(self) -> None:
        self._connection.close()


class Pipeline:
    """One connection with a window of equal-sized requests whose answers are equal-sized too.

    `frames` are the requests of one window; frame i carries correlation id i. They are sent round and round.
    """

    def __init__(
        self,
        address: Address,
        frames: Sequence[bytes],
        work: Work,
        check: Check = wire.check_produce,
        receive: Receive = receive_frame,
    ) -> None:
        self._connection = connect(address)
        self._window = len(frames)
        self._frame_bytes = len(frames[0])
        assert all(len(frame) == self._frame_bytes for frame in frames), "frames of one size are counted by size"
        self._ring = memoryview(b"".join(frames))
        self._work = work
        """What one request carries."""
        self._check = check
        self._buffer = memoryview(bytearray(256 * 1024))
        self.latencies = Latencies()
        self.answered = 0
        """Since the start, over all runs."""
        self._connection.sendall(self._ring[: self._frame_bytes])
        first = receive(self._connection)
        self._check(first, 0)
        self._answer_bytes = len(first)
        self._next = 1 % self._window
        self.answered = 1

    def _send(self, count: int) -> None:
        size = self._frame_bytes
        start = self._next
        straight = min(count, self._window - start)
        self._connection.sendall(self._ring[start * size : (start + straight) * size])
        if count > straight:
            self._connection.sendall(self._ring[: (count - straight) * size])
        self._next = (start + count) % self._window

    def run(self, seconds: float, requests: int | None = None) -> Work:
        """Send for so long, or so many; wait for every answer."""
        clock = time.perf_counter_ns
        end = clock() + int(seconds * 1e9)
        left = requests if requests is not None else 1 << 62
        window, size, buffer = self._window, self._answer_bytes, self._buffer
        receive = self._connection.recv_into
        sent: deque[tuple[int, int]] = deque()
        add = self.latencies.add
        outstanding = have = done = 0
        now = clock()
        while True:
            room = min(window - outstanding, left) if now < end else 0
            if room:
                sent.append((now, room))
                self._send(room)
                outstanding += room
                left -= room
            elif outstanding == 0:
                break
            got = receive(buffer[have:])
            now = clock()
            if got == 0:
                raise ConnectionError("the server closed the connection under load")
            have += got
            answers, rest = divmod(have, size)
            if answers == 0:
                continue
            if answers > outstanding:
                raise wire.WireError(f"{answers} answers to {outstanding} requests")
            due = -self.answered % CHECK_EVERY
            if due < answers:
                place = self.answered + due
                self._check(buffer[due * size : (due + 1) * size], place % window)
            self.answered += answers
            done += answers
            outstanding -= answers
            if rest:
                buffer[:rest] = bytes(buffer[answers * size : have])
            have = rest
            while answers:
                start, count = sent[0]
                if count <= answers:
                    sent.popleft()
                    add(now - start, count)
                    answers -= count
                else:
                    sent[0] = (start, count - answers)
                    add(now - start, answers)
                    answers = 0
        return Work(done, done * self._work.records, done * self._work.bytes)

    def close(self) -> None:
        self._connection.close()


class Swarm:
    """Many connections with one request in flight each; connection i sends frame i again and again, or frames i in turn."""

    def __init__(
        self,
        address: Address,
        frames: Sequence[bytes | Sequence[bytes]],
        work: Work,
        check: Check = wire.check_produce,
        receive: Receive = receive_frame,
    ) -> None:
        self._work = work
        self._check = check
        self._poll = select.epoll()
        self._connections: dict[int, tuple[socket.socket, Iterator[bytes], int]] = {}
        self.latencies = Latencies()
        self.answered = 0
        self._answer_bytes = 0
        for index, turn in enumerate(frames):
            ring = cycle((turn,) if isinstance(turn, bytes) else turn)
            connection = connect(address)
            connection.sendall(next(ring))
            first = receive(connection)
            self._check(first, index)
            self.answered += 1
            if self._answer_bytes not in (0, len(first)):
                raise wire.WireError(f"answers of {self._answer_bytes} and of {len(first)} bytes")
            self._answer_bytes = len(first)
            self._connections[connection.fileno()] = (connection, ring, index)
            self._poll.register(connection, select.EPOLLIN)

    def run(self, seconds: float) -> Work:
        clock = time.perf_counter_ns
        size = self._answer_bytes
        buffer = memoryview(bytearray(size))
        connections, poll = self._connections, self._poll.poll
        sent: dict[int, int] = {}
        values = self.latencies.values_ns
        before = len(values)
        for descriptor, (connection, ring, _) in connections.items():
            sent[descriptor] = clock()
            connection.send(next(ring))
        end = clock() + int(seconds * 1e9)
        now = 0
        while sent:
            events = poll(ANSWER_DEADLINE_S)
            if not events:
                raise TimeoutError(f"{len(sent)} requests without an answer for {ANSWER_DEADLINE_S:.0f} s")
            for descriptor, _ in events:
                connection, ring, index = connections[descriptor]
                got = connection.recv_into(buffer)
                now = clock()
                if got != size:
                    self._complete(connection, buffer, got)
                self.answered += 1
                if self.answered % CHECK_EVERY == 0:
                    self._check(buffer, index)
                values.append(now - sent[descriptor])
                if now < end:
                    sent[descriptor] = now
                    connection.send(next(ring))
                else:
                    del sent[descriptor]
        done = len(values) - before
        self.latencies.counts.extend([1] * done)
        return Work(done, done * self._work.records, done * self._work.bytes)

    @staticmethod
    def _complete(connection: socket.socket, buffer: memoryview, have: int) -> None:
        """The rest of an answer that came in pieces."""
        while have < len(buffer):
            got = connection.recv_into(buffer[have:])
            if got == 0:
                raise ConnectionError("the server closed the connection under load")
            have += got

    def close(self) -> None:
        self._poll.close()
        for connection, _, _ in self._connections.values():
            connection.close()


class Fetches:
    """One connection that reads a log in pieces of about 1 MiB, at the given offsets, round and round."""

    def __init__(
        self,
        address: Address,
        topic: str,
        fetch_offsets: Sequence[int],
        records_per_answer: int,
        *,
        window: int = 2,
        smallest: int = FETCH_BYTES // 2,
        isolation: int = 0,
        check: Callable[[memoryview, int, int], object] = wire.check_fetch,
    ) -> None:
        self._connection = connect(address)
        self._offsets = list(fetch_offsets)
        self._frames = [
            wire.fetch(i, topic, 0, offset, FETCH_BYTES, isolation=isolation) for i, offset in enumerate(self._offsets)
        ]
        self._window = window
        self._smallest = smallest
        self._records = records_per_answer
        self._check = check
        self._buffer = memoryview(bytearray(FETCH_BYTES + 64 * 1024))
        self.latencies = Latencies()
        self._next = 0
        self.answered = 0

    def run(self, seconds: float, requests: int | None = None) -> Work:
        """Ask for so long, or so many; wait for every answer."""
        clock = time.perf_counter_ns
        end = clock() + int(seconds * 1e9)
        left = requests if requests is not None else 1 << 62
        sent: deque[int] = deque()
        done = total = 0
        while True:
            now = clock()
            while len(sent) < self._window and left and now < end:
                self._connection.sendall(self._frames[self._next])
                self._next = (self._next + 1) % len(self._frames)
                sent.append(now)
                left -= 1
            if not sent:
                break
            size = self._receive()
            self.latencies.add(clock() - sent.popleft())
            if self.answered % CHECK_EVERY == 0:
                place = self.answered % len(self._frames)
                self._check(self._buffer[:size], place, self._offsets[place])
            elif size < self._smallest:
                raise wire.WireError(f"an answer of {size} bytes to a fetch of {FETCH_BYTES}")
            self.answered += 1
            done += 1
            total += size
        return Work(done, done * self._records, total)

    def _receive(self) -> int:
        buffer, receive = self._buffer, self._connection.recv_into
        have = 0
        size = 4
        while have < size:
            got = receive(buffer[have:size])
            if got == 0:
                raise ConnectionError("the server closed the connection under load")
            have += got
            if size == 4 and have == 4:
                size = 4 + _LENGTH.unpack_from(buffer)[0]
                if size > len(buffer):
                    raise wire.WireError(f"an answer of {size} bytes to a fetch of {FETCH_BYTES}")
        return size

    def close(self) -> None:
        self._connection.close()
