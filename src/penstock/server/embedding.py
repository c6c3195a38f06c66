"""`with penstock.Broker() as broker:` - a real broker in a child process, for tests, notebooks and scripts.

It listens on a free port of the loopback address, keeps its data in a temporary directory unless told where, and goes when
its owner goes: the child holds the other end of a pipe and stops when that closes, even if the owner was killed.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

START_S_MAX = 60.0
STOP_S_MAX = 30.0
_CAN_SHARE_PORTS = hasattr(socket, "SO_REUSEPORT")


class BrokerStartFailed(RuntimeError):
    """The child process ended or said nothing; the text is what it wrote."""


class Broker:
    """A broker process. `bootstrap` is the address for Kafka clients once it is started."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        listen: tuple[str, ...] = ("kafka=127.0.0.1:0",),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`settings` are config keys by their dotted names, e.g. {"storage.flush": "os"}."""
        self._owns_directory = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="penstock-") if data_dir is None else data_dir)
        self._listen = listen
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        descriptor, path = tempfile.mkstemp(prefix="penstock-", suffix=".log")
        os.close(descriptor)
        self._stderr_path = Path(path)
        self._listening: list[tuple[str, str]] = []
        self._held: list[socket.socket] = []
        self.addresses: dict[str, str] = {}
        """Where each dialect is served; the first of its addresses when there are several (`addresses_of`)."""

    # ------------------------------------------------------------------------------------------------ life

    def start(self) -> Self:
        assert self._process is None, "the broker is already running"
        command = [sys.executable, "-m", "penstock.server", "--stop-on-eof", "--data-dir", str(self.data_dir)]
        if _CAN_SHARE_PORTS:
            command.append("--share-ports")
        for listen in self._listen:
            command += ["--listen", listen]
        with open(self._stderr_path, "ab") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **_environment(self._settings)},
            )
        try:
            self._wait_until_ready(self._process)
        except BrokerStartFailed:
            self._forget(self._process)
            raise
        # A restarted broker keeps its ports, so that clients find it again.
        self._listen = tuple(f"{dialect}={address}" for dialect, address in self._listening)
        self._hold_ports()
        return self

    def _hold_ports(self) -> None:
        """Keep other processes from taking the ports while the broker is down. A socket that is bound but not listening
        receives no connections."""
        if self._held or not _CAN_SHARE_PORTS:
            return
        for _, address in self._listening:
            host, _, port = address.rpartition(":")
            family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
            held = socket.socket(family, socket.SOCK_STREAM)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                held.bind((host.strip("[]"), int(port)))
            except OSError:  # the broker can still restart if no other process takes the port
                held.close()
            else:
                self._held.append(held)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        deadline = time.monotonic() + START_S_MAX
        self._listening = []
        seen = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(self._listening) < len(self._listen):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    process.kill()
                    raise self._failed(f"not ready after {START_S_MAX:g} s")
                data = os.read(process.stdout.fileno(), 4096)
                if not data:
                    process.wait()
                    raise self._failed(f"exit code {process.returncode}")
                seen += data
                *lines, seen = seen.split(b"\n")
                for line in lines:
                    word, _, rest = line.decode().partition(" ")
                    dialect, _, address = rest.partition(" ")
                    if word == "listening":
                        self._listening.append((dialect, address))
        self.addresses = {dialect: self.addresses_of(dialect)[0] for dialect, _ in self._listening}

    def _failed(self, what: str) -> BrokerStartFailed:
        return BrokerStartFailed(f"the broker did not start: {what}; its output:\n{self.log}")

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        """The process has ended, or is about to: its pipes go."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.wait()
        process.stdin.close()
        process.stdout.close()
        self._process = None

    def stop(self) -> int:
        """Stop cleanly; the exit code."""
        process = self._process
        if process is None:
            return 0
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
        self._forget(process)
        return process.returncode

    def kill(self) -> None:
        """kill -9: what a crash looks like."""
        process = self._process
        assert process is not None, "the broker is not running"
        process.kill()
        self._forget(process)

    def restart(self) -> Self:
        """Start again on the same ports and data, after `stop` or `kill`; stops first if it still runs."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop and remove what was temporary."""
        self.stop()
        if self._owns_directory:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        self._stderr_path.unlink(missing_ok=True)
        while self._held:
            self._held.pop().close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BrokerStartFailed:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ asking

    @property
    def bootstrap(self) -> str:
        """`host:port` for Kafka clients."""
        if "kafka" not in self.addresses:
            raise RuntimeError("the broker has no Kafka listener" if self.addresses else "the broker is not running")
        return self.addresses["kafka"]

    def addresses_of(self, dialect: str) -> list[str]:
        """Every `host:port` where a dialect is served, in the order of `listen`; none for one that is not."""
        return [address for served, address in self._listening if served == dialect]

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the broker wrote to stderr so far."""
        return self._stderr_path.read_text(errors="replace")


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    names = {}
    for key, value in settings.items():
        section, _, field = key.partition(".")
        name = f"PENSTOCK_{section}__{field.replace('.', '_')}" if field else f"PENSTOCK_{section}"
        names[name.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
    return names
