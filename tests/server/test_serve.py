"""`penstock serve` as a process: what it prints, how it stops, and how it refuses to start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Broker
from tests.clients.drivers import Confluent, Sent
from tests.raw_peer import METADATA, RawPeer, fetch, metadata

COMMANDS = {
    "penstock serve": (sys.executable, "-m", "penstock.cli.main", "serve"),
    "python -m penstock.server": (sys.executable, "-m", "penstock.server"),
}
SERVER = COMMANDS["python -m penstock.server"]
WAIT_S = 60


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**clean, **more}


def refused(*arguments: str, command: tuple[str, ...] = SERVER, **env: str) -> str:
    """The one line on stderr of a broker that does not start, with exit code 2 and silence on stdout."""
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment(**env), timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("20")]  # messages of a start under way
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("penstock: "), done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@contextmanager
def serving(*arguments: str, command: tuple[str, ...] = SERVER) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker and its address; what it is left running is killed."""
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout is not None
        word, dialect, address = process.stdout.readline().split()
        assert (word, dialect) == ("listening", "kafka")
        yield process, address
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals, command: tuple[str, ...]) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--listen", "kafka=127.0.0.1:0")
    with serving(*arguments, command=command) as (process, address):
        Confluent().write(address, "t", [Sent(b"v")])
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert (tmp_path / "data" / "clean-stop").exists()


def test_a_stop_does_not_wait_for_long_polls_and_idle_peers(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        Confluent().write(broker.bootstrap, "t", [Sent(b"v")])
        with RawPeer(broker) as idle, RawPeer(broker) as polling:
            idle.ask(METADATA, 9, metadata("t"))
            polling.send(metadata("t") + fetch("t", 1, max_wait_ms=300_000))
            assert polling.read_frame() is not None
            assert broker.stop() == 0
            assert idle.read(1) == b""
        assert "Traceback" not in broker.log


def test_each_listener_is_told_on_stdout(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--listen", "kafka=127.0.0.1:0", "--listen", "kafka=127.0.0.1:0")
    with serving(*arguments) as (process, first):
        assert process.stdout is not None
        word, dialect, second = process.stdout.readline().split()
        assert (word, dialect) == ("listening", "kafka")
        assert first != second
        Confluent().write(first, "t", [Sent(b"v")])
        assert [seen.value for seen in Confluent().read(second, "t", 1)] == [b"v"]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_two_brokers_do_not_share_a_data_directory(tmp_path: Path, command: tuple[str, ...]) -> None:
    with Broker(tmp_path / "data") as broker:
        Confluent().write(broker.bootstrap, "t", [Sent(b"v")])
        line = refused("--data-dir", str(tmp_path / "data"), "--listen", "kafka=127.0.0.1:0", command=command)
        assert "in use" in line
        assert str(broker.pid) in line
        assert [seen.value for seen in Confluent().read(broker.bootstrap, "t", 1)] == [b"v"]


def test_a_data_directory_of_a_killed_broker_is_free_again(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        broker.kill()
        broker.restart()


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--data-dir", str(tmp_path), "--listen", f"kafka=127.0.0.1:{port}")
        assert str(port) in line
        assert "in use" in line


@pytest.mark.parametrize("listen", ["kafka", "kafka=nowhere", "kafka=127.0.0.1:99999", "smtp=127.0.0.1:25"])
def test_a_listener_that_makes_no_sense_is_told_in_one_line(tmp_path: Path, listen: str) -> None:
    assert listen.partition("=")[0] in refused("--data-dir", str(tmp_path), "--listen", listen)


def test_a_host_that_is_not_ours_is_told_in_one_line(tmp_path: Path) -> None:
    assert "203.0.113.1" in refused("--data-dir", str(tmp_path), "--listen", "kafka=203.0.113.1:0")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("storage:\n  flushh: os\n", "flushh"),
        ("storage:\n  flush: sometimes\n", "storage.flush"),
        ("net: 5\n", "net"),
        ("a: [\n", "config.yaml"),
        ("topic_defaults:\n  retention.ms: soon\n", "retention.ms"),
    ],
)
def test_a_bad_config_file_is_told_in_one_line(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert word in refused("--config", str(file), "--data-dir", str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_a_config_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    assert "missing.yaml" in refused("--config", str(tmp_path / "missing.yaml"))


def test_a_bad_environment_is_told_in_one_line(tmp_path: Path) -> None:
    assert "PENSTOCK_STORAGE__FLUSH" in refused("--data-dir", str(tmp_path), PENSTOCK_STORAGE__FLUSH="never")


def test_a_data_directory_that_cannot_be_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for path in (file, file / "below", Path("/proc/penstock")):
        assert str(path) in refused("--data-dir", str(path), "--listen", "kafka=127.0.0.1:0")


def test_a_damaged_file_of_the_data_directory_is_told_in_one_line(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", settings={"storage.flush": "os"}) as broker:
        Confluent().write(broker.bootstrap, "t", [Sent(b"v")])
    for name in ("identity", "leader-epoch", "topics"):
        path = tmp_path / "data" / name
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        line = refused("--data-dir", str(tmp_path / "data"), "--listen", "kafka=127.0.0.1:0")
        assert name in line
        assert "damaged" in line
        path.write_bytes(content)
    (tmp_path / "data" / "topics").rename(tmp_path / "topics")
    line = refused("--data-dir", str(tmp_path / "data"), "--listen", "kafka=127.0.0.1:0")
    assert "topics is missing, but there are records (t-0, 1 in all): restore it from a backup" in line
    (tmp_path / "topics").rename(tmp_path / "data" / "topics")
    with Broker(tmp_path / "data") as broker:
        assert [seen.value for seen in Confluent().read(broker.bootstrap, "t", 1)] == [b"v"]
