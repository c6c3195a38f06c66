"""The servers that are measured, each a process of its own: the broker, and the references that say what is possible.

A server prints `listening NAME HOST:PORT` on stdout for each of its listeners when it is ready; those lines are the only
thing waited for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.method import cpu_ns, rss_bytes

ROOT = Path(__file__).resolve().parent.parent

Address = tuple[str, int]


class ServerError(Exception):
    """A server that did not start, or did not stop."""


class Server:
    """A child process with listening sockets; a context manager that ends it."""

    def __init__(
        self, command: Sequence[str], log: Path, settings: Mapping[str, str] | None = None, listeners: int = 1
    ) -> None:
        self.command = list(command)
        self.log = log
        self.settings = dict(settings or {})
        self.addresses: dict[str, Address] = {}
        """By the listener's name."""
        self.start_s = 0.0
        self._listeners = listeners
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def address(self) -> Address:
        """Of the first listener."""
        return next(iter(self.addresses.values()), ("", 0))

    def start(self, deadline_s: float = 60.0) -> float:
        """Seconds from the exec to the last line that says it listens."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        environment.update(self.settings)
        begin = time.perf_counter()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT
            )
        lines = self._first_lines(begin + deadline_s)
        self.start_s = time.perf_counter() - begin
        self.addresses.clear()
        for line in lines:
            words = line.split()
            if len(words) != 3 or words[0] != "listening":
                self.kill()
                raise ServerError(
                    f"{self._name()} said {line!r} instead of its address; its log ends with:\n{self._tail()}"
                )
            host, _, port = words[2].rpartition(":")
            self.addresses[words[1]] = (host, int(port))
        return self.start_s

    def _first_lines(self, deadline: float) -> list[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        data = b""
        while data.count(b"\n") < self._listeners:
            left = deadline - time.perf_counter()
            ready = select.select([out], [], [], max(left, 0))[0]
            piece = os.read(out, 4096) if ready else b""
            if not piece:
                if ready:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(5)
                code = self._process.poll()
                self.kill()
                state = "was not ready in time" if code is None else f"ended with code {code}"
                raise ServerError(f"{self._name()} {state}; its log ends with:\n{self._tail()}")
            data += piece
        return data.decode().splitlines()[: self._listeners]

    def _name(self) -> str:
        return " ".join(self.command[1:4])

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def cpu_ns(self) -> int:
        return cpu_ns(self.pid)

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def stop(self, deadline_s: float = 300.0) -> float:
        """SIGTERM, and the seconds it took; raises when the server did not end well."""
        assert self._process is not None
        begin = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"{self._name()} did not stop in {deadline_s:.0f} s") from None
        self._closed()
        if code not in (0, -signal.SIGTERM):
            raise ServerError(f"{self._name()} stopped with code {code}; its log ends with:\n{self._tail()}")
        return time.perf_counter() - begin

    def kill(self) -> None:
        """SIGKILL; nothing when it has ended already."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(60)
        self._closed()

    def _closed(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tail = self._tail()
        if error is not None and tail:
            error.add_note(f"the log of {self._name()} ends with:\n{tail}")
        if self._process is None or self._process.poll() is not None:
            self._closed()
        elif kind is not None:
            self.kill()
        else:
            self.stop()


@contextlib.contextmanager
def apart(*servers: Server) -> Iterator[None]:
    """The servers' loops on one core, the load on another.

    Free to move, the scheduler puts load and server now on one core and now on two, and loopback charges the one for the
    other's packets accordingly: the CPU time of the same work then differs by a factor of three from slice to slice.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    for server in servers:
        os.sched_setaffinity(server.pid, {cores[0]})
    os.sched_setaffinity(0, {cores[-1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def broker(data_dir: Path, flush: str | None = None, **settings: str) -> Server:
    """The broker on `data_dir`; `flush` of None leaves the default. More settings as `section__key="value"`."""
    environment = {f"PENSTOCK_{key.upper()}": value for key, value in settings.items()}
    if flush is not None:
        environment["PENSTOCK_STORAGE__FLUSH"] = flush
    command = [sys.executable, "-m", "penstock.server", "--data-dir", str(data_dir), "--listen", "kafka=127.0.0.1:0"]
    return Server(command, data_dir.with_name(data_dir.name + ".log"), environment)


def dialect_broker(data_dir: Path, flush: str, acks: str, *dialects: str) -> Server:
    """The broker with a Kafka listener and one for each of `dialects`, which answer produces as `acks` says."""
    config = data_dir.with_name(data_dir.name + ".yaml")
    lines = ["listeners:", "  kafka: 127.0.0.1:0"]
    lines += [f"  {name}: {{host: 127.0.0.1, port: 0, acks: {acks}}}" for name in dialects]
    config.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "penstock.server", "--data-dir", str(data_dir), "--config", str(config)]
    log = data_dir.with_name(data_dir.name + ".log")
    return Server(command, log, {"PENSTOCK_STORAGE__FLUSH": flush}, 1 + len(dialects))


def reference(kind: str, workspace: Path, *arguments: str) -> Server:
    """One of `bench.references`, with its files in `workspace`."""
    command = [sys.executable, "-m", "bench.references", kind, str(workspace), *arguments]
    return Server(command, workspace / f"{kind}.log")
