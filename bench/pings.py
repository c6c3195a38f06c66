"""How long others wait: ApiVersions, one at a time, from a process of its own, while the broker does something else.

`python -m bench.pings HOST PORT SECONDS` prints its percentiles as JSON when the time is over or SIGTERM comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType, TracebackType
from typing import Self

from bench.load import Control
from bench.method import Latencies
from bench.processes import ROOT, Address

PAUSE_S = 0.0005
SHARES = (0.5, 0.99, 0.999, 1.0)


class Pings:
    """The process, as a context manager; `percentiles_ms` is there when the block has ended."""

    def __init__(self, address: Address, seconds_max: float = 120.0) -> None:
        self._command = [sys.executable, "-m", "bench.pings", address[0], str(address[1]), str(seconds_max)]
        self.count = 0
        self.percentiles_ms: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "pinging\n":
            raise RuntimeError("the pings did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=60)
        if kind is None:
            found = json.loads(out)
            self.count = found.pop("count")
            self.percentiles_ms = found


def main(host: str, port: int, seconds: float) -> None:
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(PermissionError):
        os.nice(-5)  # on two cores the load must not keep the clock waiting
    control = Control((host, port))
    latencies = Latencies()
    control.api_versions()
    print("pinging", flush=True)
    end = time.monotonic() + seconds
    while not stopped and time.monotonic() < end:
        start = time.perf_counter_ns()
        control.api_versions()
        latencies.add(time.perf_counter_ns() - start)
        time.sleep(PAUSE_S)
    values = latencies.percentiles_ms(*SHARES)
    print(
        json.dumps({"count": len(latencies.values_ns), **dict(zip(("p50", "p99", "p999", "max"), values, strict=True))})
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
