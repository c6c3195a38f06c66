"""The flags of `penstock serve`, without typer: it takes pydantic with it, 0.3 s and 16 MB that a broker would keep.

`parse_plain` knows the flags as they are nearly always written. Everything else, and every mistake, is left to the full
command line in `app`, which knows the same flags, prints help and finds the words for errors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.server.config import Config

_FLAGS = {"--config": "config", "-c": "config", "--data-dir": "data_dir", "--listen": "listen"}


class ServeFlags(NamedTuple):
    config: Path | None = None
    data_dir: str | None = None
    listen: list[str] | None = None

    def load(self) -> Config:
        """The effective configuration of these flags, this environment and that file."""
        from penstock.server.config import load

        flags: dict[str, object] = {}
        if self.data_dir is not None:
            flags["data_dir"] = self.data_dir
        if self.listen:
            flags["listeners"] = self.listen
        return load(self.config, os.environ, flags)


def parse_plain(arguments: Sequence[str]) -> ServeFlags | None:
    """The flags, or None when there is anything that is not plainly one of them with its value."""
    values: dict[str, list[str]] = {"config": [], "data_dir": [], "listen": []}
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        name = _FLAGS.get(flag)
        if name is None:
            return None
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        values[name].append(value)
    config, data_dir = values["config"], values["data_dir"]
    return ServeFlags(
        Path(config[-1]) if config else None, data_dir[-1] if data_dir else None, values["listen"] or None
    )
