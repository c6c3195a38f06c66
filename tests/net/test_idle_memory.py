"""A promise of the project: 1,500 idle connections cost the server less than 10 MB."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.net.fakes import Client, frame

CONNECTIONS = 1_500
GROWTH_KB_MAX = 10 * 1024

SERVER = """
import asyncio, sys
from tests.net.fakes import FakeSession
from penstock.net.listener import Listener
from penstock.net.loop import loop_factory
from penstock.net.network import Network
from penstock.net.settings import NetSettings

async def main():
    network = Network(NetSettings())
    listener = Listener("fake", "127.0.0.1", 0, FakeSession, network)
    await listener.start()
    print(listener.port, flush=True)
    await asyncio.Event().wait()

with asyncio.Runner(loop_factory=loop_factory(sys.argv[1] == "uvloop")) as runner:
    runner.run(main())
"""


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError


@pytest.fixture
def many_files():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("this user may not open so many files")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_1500_idle_connections_cost_less_than_10_mb(uvloop, many_files):
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, "uvloop" if uvloop else "asyncio"],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": f"{root / 'src'}:{root}"},
    )
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.terminate)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with Client("127.0.0.1", port) as first:
            first.send(frame(b"e" * 100_000))
            first.read()
        before_kb = resident_kb(process.pid)
        for _ in range(CONNECTIONS):
            client = stack.enter_context(Client("127.0.0.1", port))
            client.send(frame(b"e used once and quiet since" * 20)[:50])
            client.send(frame(b"e used once and quiet since" * 20)[50:])
            client.read()
        growth_kb = resident_kb(process.pid) - before_kb
        assert growth_kb < GROWTH_KB_MAX
