"""Lines for the log that hold what strangers sent: made printable, kept short, and not too many."""

from __future__ import annotations

import logging

TEXT_CHARS_MAX = 300


def printable(text: str) -> str:
    """The text on one line: control characters escaped, so that a peer cannot forge lines or drive a terminal."""
    if len(text) > TEXT_CHARS_MAX:
        text = text[: TEXT_CHARS_MAX - 3] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class RareLine:
    """A warning that is written at most once in an interval, with the number of those left out since."""

    __slots__ = ("_interval_ms", "_left_out", "_logger", "_next_ms")

    def __init__(self, logger: logging.Logger, interval_ms: int = 1_000) -> None:
        self._logger = logger
        self._interval_ms = interval_ms
        self._next_ms = 0
        self._left_out = 0

    def write(self, now_ms: int, text: str) -> None:
        if now_ms < self._next_ms:
            self._left_out += 1
            return
        more = f" ({self._left_out} earlier messages suppressed)" if self._left_out else ""
        self._logger.warning("%s%s", printable(text), more)
        self._next_ms = now_ms + self._interval_ms
        self._left_out = 0
