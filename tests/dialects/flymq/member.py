"""A member of a FlyMQ group, in a process of its own so that it can be killed and paused: `member.py PORT GROUP TOPIC FILE`.

It joins, asks for its share, writes a line `generation member partition...` to FILE, and goes on with heartbeats until it is
told to join again. It does so until it is killed, or the broker is gone.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

SESSION_MS = 800
REBALANCE_MS = 800
HEARTBEAT_S = 0.1
JOIN, HEARTBEAT, SYNC = 11, 12, 14
UNKNOWN_MEMBER = 25


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def ask(peer: socket.socket, key: int, payload: bytes) -> tuple[int, bytes]:
    """Error and payload of the answer."""
    peer.sendall(struct.pack(">Ihh", 4 + len(payload), key, 0) + payload)
    (length,) = struct.unpack(">I", exactly(peer, 4))
    answer = exactly(peer, length)
    return struct.unpack_from(">h", answer, 4)[0], answer[6:]


def exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = peer.recv(count - len(data))
        if not got:
            raise ConnectionError("the broker is gone")
        data += got
    return data


def take_text(data: bytes, at: int) -> tuple[str, int]:
    stop = at + 2 + struct.unpack_from(">H", data, at)[0]
    return data[at + 2 : stop].decode(), stop


def partitions_in(payload: bytes) -> list[int]:
    (topics,) = struct.unpack_from(">I", payload)
    at = 4
    found: list[int] = []
    for _ in range(topics):
        _, at = take_text(payload, at)
        (count,) = struct.unpack_from(">I", payload, at)
        found += struct.unpack_from(f">{count}i", payload, at + 4)
        at += 4 + 4 * count
    return found


def main() -> None:
    port, group, topic, path = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    peer = socket.create_connection(("127.0.0.1", int(port)), 30)
    member = ""
    while True:
        topics = struct.pack(">I", 1) + text(topic)
        times = struct.pack(">ii", SESSION_MS, REBALANCE_MS)
        error, payload = ask(peer, JOIN, text(group) + text(member) + times + text("range") + topics)
        if error:
            member = "" if error == UNKNOWN_MEMBER else member
            time.sleep(0.01)  # its coordinator loads, or another rebalance is under way
            continue
        (generation,) = struct.unpack_from(">i", payload)
        member, _ = take_text(payload, 4)
        me = text(group) + struct.pack(">i", generation) + text(member)
        error, payload = ask(peer, SYNC, me)
        if error:
            member = "" if error == UNKNOWN_MEMBER else member
            continue
        os.write(log, f"{generation} {member} {' '.join(map(str, partitions_in(payload)))}\n".encode())
        while not error:
            time.sleep(HEARTBEAT_S)
            error, _ = ask(peer, HEARTBEAT, me)
        member = "" if error == UNKNOWN_MEMBER else member


if __name__ == "__main__":
    main()
