"""What a dialect's session made of the bytes it was fed: the value that passes between net and the dialects."""

from __future__ import annotations

from typing import Any, NamedTuple

CUT_AT_ONCE = 4_000
"""Most records of runs that one call of `feed` cuts: a few milliseconds with their append and their answers."""
REQUEST_COST = 16
"""Records that a request outside a run counts as."""


class Fed(NamedTuple):
    consumed: int
    """Bytes of the view that whole requests took; the rest is the start of the next frame."""
    needed: int
    """Size of the frame that begins at `consumed`, counted from there, when it is known; else 0."""
    requests: list[Any]
    """In arrival order; opaque to net. A run of produces is one request."""
    fatal: str | None = None
    """The peer broke the protocol after these requests: answer them, then close with this line in the log."""
