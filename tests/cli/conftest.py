from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

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
def penstock(tmp_path: Path) -> Run:
    """Run the command as a user does, in a folder of its own: a process with pipes for a terminal."""

    def run(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env=environment(**(env or {})),
            timeout=60,
            check=False,
        )
        err = done.stderr.decode()
        assert "Traceback" not in err
        return Ended(done.returncode, done.stdout, err)

    return run


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a broker in a process of its own, started with `penstock serve`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "serve", "--listen", "kafka=127.0.0.1:0"],
        cwd=tmp_path_factory.mktemp("broker"),
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
