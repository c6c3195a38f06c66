"""Deadlines of a listener's own: listeners of one broker, each strict in one of them, and where the values come from."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from penstock.client.fluxgo import FluxGoClient
from penstock.net.settings import Deadlines
from penstock.server.config import Config, load, sources
from penstock.server.config_schema import DIALECTS
from penstock.server.deadlines import FIELDS, deadlines_of
from penstock.server.main import Server

STRICT_MS = 400
PATIENT_MS = 60_000
RECORD_BYTES = 1024 * 1024
CONSUMES = 64
"""Of records of a megabyte: more than all socket buffers between two processes hold."""
WAIT_S = 30


def listener(strict: str | None = None) -> dict[str, object]:
    """Strict in one deadline alone: whoever is slow to begin must not run into another."""
    deadlines = dict.fromkeys(FIELDS, PATIENT_MS) | ({} if strict is None else {strict: STRICT_MS})
    return {"host": "127.0.0.1", "port": 0, **deadlines}


CONFIG = {
    "listeners": {"fluxgo": [*map(listener, FIELDS), listener()]},
    "net": {"idle_deadline_ms": 1},
    "storage": {"flush": "os"},
}
"""The deadline in net would close everybody: it must not hold where a listener has its own."""


class Running(NamedTuple):
    strict: dict[str, tuple[str, int]]
    patient: tuple[str, int]
    log: Callable[[], str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("deadlines")
    config, log = directory / "penstock.yaml", directory / "log"
    config.write_text(yaml.safe_dump(CONFIG))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock.server", "--config", str(config), "--data-dir", str(directory / "data")]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    assert process.stdout is not None
    try:
        addresses = []
        for _ in (*FIELDS, "patient"):
            _, dialect, address = process.stdout.readline().split()
            assert dialect == "fluxgo"
            host, _, port = address.rpartition(":")
            addresses.append((host, int(port)))
        *strict, patient = addresses
        with FluxGoClient(*patient) as client:
            client.produce("t", 0, bytes(RECORD_BYTES))
        yield Running(dict(zip(FIELDS, strict, strict=True)), patient, log.read_text)
        assert process.poll() is None
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.communicate()


def consume(offset: int = 0) -> bytes:
    payload = b"\x02" + struct.pack(">H", 1) + b"t" + struct.pack(">QQ", 0, offset)
    return struct.pack(">I", len(payload)) + payload


def exactly(peer: socket.socket, count: int) -> int:
    left = count
    while left and (data := peer.recv(min(left, 1 << 20))):
        left -= len(data)
    return count - left


def why_closed(running: Running, peer: socket.socket) -> str:
    """Waits for the log to say it, and does not read: that would be taking an answer."""
    port = peer.getsockname()[1]
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for line in running.log().splitlines():
            if f"from 127.0.0.1:{port} closed: " in line:
                return line.partition(" closed: ")[2]
        time.sleep(0.02)
    raise AssertionError(running.log())


def is_closed(running: Running, peer: socket.socket) -> bool:
    return f"from 127.0.0.1:{peer.getsockname()[1]} closed" in running.log()


@pytest.fixture
def peers(running: Running, request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of the listener that is strict in the named deadline, and of the patient one."""
    with socket.socket() as strict, socket.socket() as patient:
        for peer, address in ((patient, running.patient), (strict, running.strict[request.param])):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            peer.settimeout(WAIT_S)
            peer.connect(address)
        yield strict, patient


Peers = tuple[socket.socket, socket.socket]
ANSWER_BYTES = 4 + 1 + RECORD_BYTES


@pytest.mark.parametrize("peers", ["frame_deadline_ms"], indirect=True)
def test_a_half_frame_is_given_up_by_the_strict_listener_and_awaited_by_the_patient_one(
    running: Running, peers: Peers
) -> None:
    strict, patient = peers
    request = consume()
    for peer in (patient, strict):
        peer.sendall(request[:7])
    said = f"incomplete frame after {STRICT_MS} ms: 7 of {len(request)} bytes received"
    assert why_closed(running, strict) == said
    assert not is_closed(running, patient)
    patient.sendall(request[7:])
    assert exactly(patient, ANSWER_BYTES) == ANSWER_BYTES


@pytest.mark.parametrize("peers", ["idle_deadline_ms"], indirect=True)
def test_an_idle_peer_is_closed_by_the_strict_listener_and_kept_by_the_patient_one(
    running: Running, peers: Peers
) -> None:
    strict, patient = peers
    assert why_closed(running, strict) == f"idle for {STRICT_MS} ms"
    assert strict.recv(1) == b""
    assert not is_closed(running, patient)
    patient.sendall(consume())
    assert exactly(patient, ANSWER_BYTES) == ANSWER_BYTES


@pytest.mark.parametrize("peers", ["write_deadline_ms"], indirect=True)
def test_a_slow_reader_is_cut_off_by_the_strict_listener_and_awaited_by_the_patient_one(
    running: Running, peers: Peers
) -> None:
    strict, patient = peers
    for peer in (patient, strict):
        peer.sendall(consume() * CONSUMES)
    said = why_closed(running, strict)
    assert said.startswith("the peer read none of ")
    assert said.endswith(f" pending bytes for {STRICT_MS} ms")
    assert not is_closed(running, patient)
    assert exactly(patient, ANSWER_BYTES * CONSUMES) == ANSWER_BYTES * CONSUMES


# ---- where the values come from ----------------------------------------------------------------------------------------


def from_yaml(tmp_path: Path, text: str, **env: str) -> Config:
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    return load(file, env, {})


def served(config: Config) -> dict[str, list[Deadlines]]:
    """What the listeners of a started broker have."""

    async def look() -> dict[str, list[Deadlines]]:
        server = Server(config)
        await server.start()
        found: dict[str, list[Deadlines]] = {}
        for listener in server.listeners:
            found.setdefault(listener.name, []).append(listener.deadlines)
        await server.stop()
        return found

    return asyncio.run(look())


def everywhere(**net: int) -> str:
    lines = [f"  {dialect}: {{host: 127.0.0.1, port: 0}}" for dialect in DIALECTS]
    return "\n".join(["listeners:", *lines, f"net: {net or '{}'}"])


def test_unset_the_originals_patience_holds_where_it_is_known_and_ours_elsewhere(tmp_path: Path) -> None:
    config = from_yaml(tmp_path, f"data_dir: {tmp_path / 'data'}\n" + everywhere())
    ours = Deadlines(30_000, 600_000, 60_000)
    assert served(config) == {
        "kafka": [ours],
        "fluxgo": [Deadlines(30_000, 30_000, 30_000)],
        "minikafka": [ours],
        "rustlog": [ours],
        "flymq": [Deadlines(300_000, 300_000, 60_000)],
        "day1": [ours],
    }


def test_what_is_set_in_net_holds_for_every_listener_that_does_not_say(tmp_path: Path) -> None:
    text = everywhere(frame_deadline_ms=11, idle_deadline_ms=12, write_deadline_ms=13)
    config = from_yaml(tmp_path, text)
    for dialect, [listener] in config.listeners.items():
        assert deadlines_of(dialect, listener, config) == Deadlines(11, 12, 13)


def test_a_value_in_net_counts_even_when_it_is_the_default_one(tmp_path: Path) -> None:
    config = from_yaml(tmp_path, everywhere(), PENSTOCK_NET__IDLE_DEADLINE_MS="600000")
    [fluxgo] = config.listeners["fluxgo"]
    assert deadlines_of("fluxgo", fluxgo, config) == Deadlines(30_000, 600_000, 30_000)


def test_listeners_of_one_dialect_may_differ_in_each_deadline(tmp_path: Path) -> None:
    text = f"""
data_dir: {tmp_path / "data"}
listeners:
  flymq:
  - {{host: 127.0.0.1, port: 0, frame_deadline_ms: 1}}
  - {{host: 127.0.0.1, port: 0, idle_deadline_ms: 9223372036854775807, write_deadline_ms: 5}}
  - 127.0.0.1:0
  kafka: {{host: 127.0.0.1, port: 0, idle_deadline_ms: 7}}
net: {{write_deadline_ms: 6}}
"""
    assert served(from_yaml(tmp_path, text)) == {
        "kafka": [Deadlines(30_000, 7, 6)],
        "flymq": [
            Deadlines(1, 300_000, 6),
            Deadlines(300_000, 2**63 - 1, 5),
            Deadlines(300_000, 300_000, 6),
        ],
    }


@pytest.mark.parametrize("field", FIELDS)
def test_the_effective_deadlines_are_shown_with_their_origin_where_they_are_not_those_of_net(
    tmp_path: Path, field: str
) -> None:
    text = f"listeners:\n  fluxgo: {{host: h, port: 1, acks: all, {field}: 5}}\n  kafka: {{host: h, port: 2}}\n"
    rows = {source.key: source for source in sources(from_yaml(tmp_path, text))}
    assert rows[f"listeners.fluxgo.{field}"][1:] == (5, f"file {tmp_path / 'penstock.yaml'}")
    assert rows["listeners.fluxgo.acks"].value == "all"
    for other in {"idle_deadline_ms", "write_deadline_ms"} - {field}:
        assert rows[f"listeners.fluxgo.{other}"][1:] == (30_000, "default")
    assert not [key for key in rows if key.startswith("listeners.kafka.")]
