"""Many quiet consumers, from a process of their own: members of groups that poll, send heartbeats and commit.

`python -m bench.consumers HOST PORT TOPIC GROUPS MEMBERS` joins them, says `consuming`, and goes on until SIGTERM. Each
member has two connections, as Java's has: one waits for records of its partition, one is for its coordinator. Once a
second a record comes in every partition. The rhythm is that of a Java consumer with default settings.
"""

from __future__ import annotations

import heapq
import json
import select
import signal
import socket
import subprocess
import sys
import time
from types import FrameType, TracebackType
from typing import Self

from bench import group_wire, wire
from bench.group_wire import Member
from bench.load import Control, connect, receive_frame
from bench.method import raise_open_files
from bench.processes import ROOT, Address

HEARTBEAT_S = 3.0
COMMIT_S = 5.0
RECORDS_S = 1.0
FETCH_WAIT_MS = 500
FETCH_BYTES = 1024 * 1024


class Consumers:
    """The process, as a context manager; `counts` is there when the block has ended."""

    def __init__(self, address: Address, topic: str, groups: int, members: int) -> None:
        self._command = [sys.executable, "-m", "bench.consumers", address[0], str(address[1]), topic]
        self._command += [str(groups), str(members)]
        self.counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "consuming\n":
            raise RuntimeError("the consumers did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=60)
        if kind is None:
            if self._process.returncode != 0:
                raise RuntimeError("the consumers failed")
            self.counts = json.loads(out)


class Consumer:
    """One member and its partition."""

    def __init__(
        self, address: Address, topic: str, partition: int, member: Member, coordinator: socket.socket
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.member = member
        self.coordinator = coordinator
        self.fetching = connect(address)
        self.offset = 0
        self.records = 0

    def fetch(self) -> None:
        self.fetching.sendall(wire.fetch(1, self.topic, self.partition, self.offset, FETCH_BYTES, FETCH_WAIT_MS))

    def fetched(self) -> None:
        found = wire.fetched(receive_frame(self.fetching), 1, self.offset)
        if len(found.records):
            self.records += found.high_watermark - self.offset
            self.offset = found.high_watermark
        self.fetch()

    def heartbeat(self) -> None:
        self.coordinator.sendall(group_wire.heartbeat(2, self.member))
        group_wire.check_plain(receive_frame(self.coordinator), 2)

    def commit(self) -> None:
        group, generation, member_id = self.member
        offsets = {self.partition: self.offset}
        self.coordinator.sendall(group_wire.offset_commit(3, group, self.topic, offsets, generation, member_id))
        group_wire.check_commit(receive_frame(self.coordinator), 3)


def join(address: Address, topic: str, groups: int, members: int) -> list[Consumer]:
    """All members of all groups; they join at the same time, so that the broker's pause for more is made once."""
    names = [f"group-{number:03d}" for number in range(groups)]
    coordinators = [(name, connect(address)) for name in names for _ in range(members)]
    for name, connection in coordinators:
        connection.sendall(group_wire.join_group(0, name))
    joined = [group_wire.joined(receive_frame(connection), 0, name) for name, connection in coordinators]
    for (_, connection), (member, everybody) in zip(coordinators, joined, strict=True):
        connection.sendall(group_wire.sync_group(0, member, everybody))
    found = []
    for at, ((_, connection), (member, _)) in enumerate(zip(coordinators, joined, strict=True)):
        group_wire.check_plain(receive_frame(connection), 0)
        found.append(Consumer(address, topic, at % members, member, connection))
    return found


def main(host: str, port: int, topic: str, groups: int, members: int) -> None:
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    raise_open_files(4 * groups * members)
    address = (host, port)
    consumers = join(address, topic, groups, members)
    control = Control(address)
    batch = wire.batch(1, 100)
    poll = select.epoll()
    by_descriptor = {consumer.fetching.fileno(): consumer for consumer in consumers}
    for consumer in consumers:
        consumer.fetch()
        poll.register(consumer.fetching, select.EPOLLIN)
    now = time.monotonic()
    count = len(consumers)
    due = [(now + HEARTBEAT_S * at / count, at, "heartbeats") for at in range(count)]
    due += [(now + COMMIT_S * at / count, at, "commits") for at in range(count)]
    due.append((now, -1, "produces"))
    heapq.heapify(due)
    counts = {"fetches": 0, "heartbeats": 0, "commits": 0, "produces": 0}
    print("consuming", flush=True)
    while not stopped:
        now = time.monotonic()
        while due[0][0] <= now:
            _, at, what = due[0]
            counts[what] += 1
            if what == "heartbeats":
                consumers[at].heartbeat()
                heapq.heapreplace(due, (now + HEARTBEAT_S, at, what))
            elif what == "commits":
                consumers[at].commit()
                heapq.heapreplace(due, (now + COMMIT_S, at, what))
            else:
                control.ask(lambda n: wire.produce(n, topic, dict.fromkeys(range(members), batch), 1))
                heapq.heapreplace(due, (now + RECORDS_S, at, what))
        for descriptor, _ in poll.poll(max(due[0][0] - now, 0)):
            by_descriptor[descriptor].fetched()
            counts["fetches"] += 1
    print(json.dumps({**counts, "records": sum(consumer.records for consumer in consumers)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
