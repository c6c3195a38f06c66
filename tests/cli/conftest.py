from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli.main import main

Run = Callable[..., "Ended"]


class Ended(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would configure a broker or a command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**clean, **more}


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command as its process would, in a folder of its own, with pipes for a terminal.

    Whatever leaves `main` other than an exit is a traceback for the user, and fails the test.
    """
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)

    def run(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ended:
        with monkeypatch.context() as patched:
            for name, value in (env or {}).items():
                patched.setenv(name, value)
            patched.setattr(sys, "argv", ["penstock", *arguments])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            with pytest.raises(SystemExit) as ended:
                main()
        out, err = capsysbinary.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err.decode())

    return run


@pytest.fixture(scope="session")
def broker_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of that broker."""
    return tmp_path_factory.mktemp("broker") / "penstock-data"


@pytest.fixture(scope="session")
def broker_address(broker_directory: Path) -> Iterator[str]:
    """HOST:PORT of a broker in a process of its own, started with `penstock serve`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "serve", "--listen", "kafka=127.0.0.1:0"],
        cwd=broker_directory.parent,
        env=environment(PENSTOCK_STORAGE__FLUSH="os"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        word, dialect, address = process.stdout.readline().split()
        assert (word, dialect) == ("listening", "kafka")
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
