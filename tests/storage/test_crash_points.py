"""A broker is killed at every system call that changes its disk; every time it starts again with all it acknowledged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker import catalogue
from penstock.broker.opening import open_partitions
from penstock.coordination.producers import Duplicate
from penstock.model import topic_config
from penstock.model.ids import TopicName
from penstock.records.batch import Batch
from penstock.records.builder import NewRecord, build_batch
from penstock.storage.data_directory import DataDirectory, Identity
from tests.storage.crash_script import NOW_MS, PRODUCER_ID, value_at
from tests.storage.logs import append, crash, flush, read_all

ROOT = Path(__file__).parents[2]
CALLS = (
    "pwrite64",
    "/^pwritev",
    "write",
    "fdatasync",
    "fsync",
    "/^rename",
    "ftruncate",
    "/^unlink",
    "/^mkdir",
    "rmdir",
)
"""Calls that are killed one after the other, each kind on its own: strace counts every call by itself."""

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


class Nursery:
    """Children that run the script; see tests/storage/crash_script.py."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.storage.crash_script"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def run(self, folder: Path, ledger: Path, *strace_options: str) -> tuple[bool, str]:
        """Run the script under strace; whether it was killed, and what strace saw."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder} {ledger}\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        seen = ledger.with_suffix(".strace")
        strace = subprocess.Popen(
            ["strace", "-o", str(seen), "-p", str(child), *strace_options], stderr=subprocess.PIPE, text=True
        )
        try:
            wait_for_tracer(child, strace)
            os.kill(child, signal.SIGCONT)
            status = self._process.stdout.readline().split()
        finally:
            _, said = strace.communicate(timeout=60)
        assert status in (["9", "0"], ["0", "0"]), f"the script failed: {status} {said}"
        return status[0] == "9", seen.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def wait_for_tracer(child: int, strace: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
        if strace.poll() is not None:
            os.kill(child, signal.SIGKILL)
            assert strace.stderr is not None
            said = strace.stderr.read()
            if "not permitted" in said:
                pytest.skip(f"strace may not trace here: {said.strip()}")
            pytest.fail(said)
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


class Ledger:
    """What was acknowledged, and what was under way."""

    def __init__(self, path: Path) -> None:
        self.topics: dict[str, str] = {}
        """Name to incarnation."""
        self.unsure: set[str] = set()
        """Topics that may be there or not."""
        self.safe: dict[tuple[str, str], int] = {}
        self.starts: dict[tuple[str, str], int] = {}
        self.start_asked: dict[tuple[str, str], int] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            match line.split():
                case ["making" | "made" as state, name, incarnation]:
                    self.topics[name] = incarnation
                    (self.unsure.add if state == "making" else self.unsure.discard)(name)
                case ["deleting", name]:
                    self.unsure.add(name)
                case ["deleted", name]:
                    self.unsure.discard(name)
                    del self.topics[name]
                case ["safe", folder, incarnation, offset]:
                    self.safe[folder, incarnation] = int(offset)
                case ["moving", folder, incarnation, offset]:
                    self.start_asked[folder, incarnation] = int(offset)
                case ["starts", folder, incarnation, offset]:
                    self.starts[folder, incarnation] = int(offset)
                case other:
                    pytest.fail(f"what is {other}?")


def verify(folder: Path, ledger: Ledger) -> int:
    """Start on what the crash left; how many acknowledged records were read back."""
    directory = DataDirectory(folder)
    directory.identity(Identity("c" * 22, 0))
    entries = catalogue.decode(directory.read_state(catalogue.FILE_NAME))
    found_names = set(map(str, entries))
    assert ledger.topics.keys() - ledger.unsure <= found_names <= ledger.topics.keys()
    opened = open_partitions(
        directory,
        entries.values(),
        lambda name: topic_config.parse(entries[TopicName(name)].configs, {}),
        "acks",
        directory.leader_epoch,
        lambda _: None,
        NOW_MS,
    )
    count = 0
    for partition in opened.partitions:
        log = partition.log
        assert log is not None, partition.reason
        incarnation = ledger.topics[partition.id.topic]
        key = (str(partition.id), incarnation)
        safe = ledger.safe.get(key, 0)
        assert log.log_end_offset >= safe, f"{key}: acknowledged records are lost"
        assert ledger.starts.get(key, 0) <= log.log_start_offset <= ledger.start_asked.get(key, 0)
        rows = read_all(log, directory.disk)
        assert [offset for offset, _, _ in rows] == list(range(log.log_start_offset, log.log_end_offset))
        for offset, timestamp, value in rows:
            assert value == value_at(incarnation, partition.id.partition, offset)
            assert timestamp == NOW_MS + offset // 2 * 2
        count += max(0, safe - log.log_start_offset)
        if log.log_end_offset:
            last = log.log_end_offset - 2
            data = build_batch(
                [NewRecord(0, None, b"x")] * 2, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=last
            )
            verdict = partition.producers.check(Batch(memoryview(data)))
            assert isinstance(verdict, Duplicate), f"{key}: the producer's window is not that of the log: {verdict}"
            assert verdict.base_offset == last
        append(log, [b"goes on"], epoch=directory.leader_epoch)
        flush(log, directory.disk)
        assert log.failure is None
    crash(directory)
    return count


def crash_at(nursery: Nursery, folder: Path, call: str, number: int) -> bool:
    """Kill at the so-many-th call of a kind and verify; whether there was such a call."""
    place = folder / f"data-{number}"
    killed, _ = nursery.run(
        place, folder / "ledger", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"
    )
    verify(place, Ledger(folder / "ledger"))
    shutil.rmtree(place)
    (folder / "ledger").unlink(missing_ok=True)
    return killed


def count_calls(nursery: Nursery, folder: Path) -> dict[str, int]:
    """How often the script makes each call, when nobody kills it."""
    counts = {}
    for call in CALLS:
        killed, seen = nursery.run(folder / "whole", folder / "ledger", "-e", f"trace={call}")
        assert not killed
        assert verify(folder / "whole", Ledger(folder / "ledger")) > 20
        (folder / "ledger").unlink()
        shutil.rmtree(folder / "whole")
        counts[call] = sum(line[:1].isalpha() for line in seen.splitlines())
    return counts


def test_killed_at_a_tenth_of_its_system_calls_a_broker_keeps_what_it_acknowledged(
    nursery: Nursery, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    counts = count_calls(nursery, tmp_path)
    points = [(call, number) for call, count in counts.items() for number in range(1, count + 1)]
    assert len(points) > 180, counts
    seed = request.config.getoption("randomly_seed", 0)
    chosen = points[(seed if isinstance(seed, int) else 0) % 10 :: 10]
    for call, number in chosen:
        assert crash_at(nursery, tmp_path, call, number), f"{call} {number} was not reached"
    print(f"{len(chosen)} of {len(points)} crash points, all recovered, 0 acknowledged lost")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_every_system_call_a_broker_keeps_what_it_acknowledged(nursery: Nursery, tmp_path: Path) -> None:
    points = 0
    for call in CALLS:
        number = 1
        while crash_at(nursery, tmp_path, call, number):
            number += 1
        points += number - 1
    print(f"{points} crash points, all recovered, 0 acknowledged lost")
    assert points > 180
