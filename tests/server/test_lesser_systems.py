"""Without what only Linux has the broker says so, and keeps the same promises."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.kafka import KafkaClient
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import Record, read_records

WITHOUT = {
    "macOS": ["fdatasync", "sendfile"],
    "Windows": ["fdatasync", "sendfile", "pread", "pwrite", "preadv", "pwritev", "RWF_NOWAIT"],
}

SERVE = """
import importlib.util, os, subprocess, sys
system, place, *names = sys.argv[1:]
for name in names:
    delattr(os, name)
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "uvloop" else find_spec(name, package)
if system == "Windows":
    # its own way of locking is not to be had here: another lock stands for it
    import fcntl, types
    flock, how = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
    sys.modules["fcntl"] = None
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=0, locking=lambda fd, mode, count: flock(fd, how))
sys.argv = ["penstock", "serve", "--data-dir", place, "--listen", "kafka=127.0.0.1:0"]
from penstock.cli.main import main
main()
"""

VALUE = bytes(100_000)
"""Large enough for sendfile."""


@contextmanager
def serving(system: str, place: Path, log: Path) -> Iterator[str]:
    command = [sys.executable, "-c", SERVE, system, str(place), *WITHOUT[system]]
    with (
        log.open("a") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            assert said[:2] == ["listening", "kafka"], log.read_text()
            yield said[2]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()
        finally:
            process.kill()


def read(client: KafkaClient, count: int) -> list[Record]:
    found: list[Record] = []
    while len(found) < count:
        (fetched,) = client.fetch({("t", 0): len(found)}).values()
        for batch in whole_batches(memoryview(fetched.records)):
            assert batch.crc_is_right()
            found += read_records(batch)
    return found


@pytest.mark.parametrize("system", WITHOUT)
def test_records_are_kept_and_sent_without_the_calls_that_a_system_lacks(tmp_path: Path, system: str) -> None:
    log = tmp_path / "log"
    place = tmp_path / "data"
    for run in (1, 2):
        with serving(system, place, log) as address, KafkaClient(address) as client:
            if run == 1:
                client.create_topic("t", 1)
            batch = build_batch([NewRecord(1, b"%d" % run, VALUE), NewRecord(2, None, b"small")])
            client.produce({("t", 0): bytes(batch)})
            found = read(client, 2 * run)
            assert [(record.offset, record.value == VALUE) for record in found] == [
                (offset, offset % 2 == 0) for offset in range(2 * run)
            ]
            second = subprocess.run(
                [sys.executable, "-c", SERVE, system, str(place), *WITHOUT[system]], capture_output=True, text=True
            )
            assert second.returncode == 2
            assert "is in use by another broker" in second.stderr
    said = log.read_text()
    assert "uvloop is not installed" in said
    assert "no sendfile" in said
    assert "no fdatasync" in said
    assert ("no positional reads" in said) == (system == "Windows")
    assert "Traceback" not in said
