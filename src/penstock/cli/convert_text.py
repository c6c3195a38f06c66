"""The keys and values of another broker's config as text of one line.

Nothing in them can end the line that they are written on, and nothing that looks like a secret is repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SECRET = re.compile(r"pass|secret|token|credential|private|key", re.IGNORECASE)
_WHERE = re.compile(r"(file|path|dir)$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_INT_BITS_MAX = 256
"""Python refuses to write numbers of more than some thousand digits."""
HIDDEN = "hidden"


def one_line(text: str) -> str:
    """Line ends of every kind, and all else that cannot be printed, as escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def key_text(path: Sequence[Any]) -> str:
    """Dotted; a part that is no plain name is in quotes."""
    return ".".join(part if isinstance(part, str) and _BARE_KEY.fullmatch(part) else value_text(part) for part in path)


def value_text(value: Any) -> str:
    """As JSON, without the secrets in it."""
    return one_line(json.dumps(_told(value), ensure_ascii=False, separators=(",", ":")))


def is_secret(path: Sequence[Any]) -> bool:
    """Whether the value under this key must not be repeated. The name of a file that holds a secret is none."""
    return any(isinstance(part, str) and _SECRET.search(part) and not _WHERE.search(part) for part in path)


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else value_text(key): HIDDEN if is_secret([key]) else _told(part)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple, set)):
        return [_told(part) for part in value]
    if isinstance(value, str):
        return _USER_INFO.sub(HIDDEN, value)
    if isinstance(value, int) and value.bit_length() > _INT_BITS_MAX:
        return f"a number of {value.bit_length()} bits"
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
