"""The deadlines of each listener: its own, else what `net` was told, else what the dialect's original has, else ours.

What an operator wrote goes before what nobody wrote: a deadline that is set in `net` holds for every listener that does not
say otherwise, and the patience of an original only where nothing is set at all. MiniKafka, RustLog and Day1 wait for ever; a
peer that is gone must not hold a connection for ever, so they have ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.net.settings import Deadlines
from penstock.server.config_schema import Config, Listener

FIELDS = ("frame_deadline_ms", "idle_deadline_ms", "write_deadline_ms")
"""The same names in a listener, in `net` and in `Deadlines`."""

ORIGINALS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "fluxgo": dict.fromkeys(FIELDS, 30_000),
        "flymq": {"frame_deadline_ms": 300_000, "idle_deadline_ms": 300_000},
    }
)
"""What the original brokers do when their config does not say. Either has one deadline for reading, set before each frame:
it ends idle connections too."""


def deadlines_of(dialect: str, at: Listener, config: Config) -> Deadlines:
    return Deadlines(**{field: _deadline_ms(field, dialect, at, config) for field in FIELDS})


def _deadline_ms(field: str, dialect: str, at: Listener, config: Config) -> int:
    own: int | None = getattr(at, field)
    if own is not None:
        return own
    of_all: int = getattr(config.net, field)
    if f"net.{field}" in config.origins:
        return of_all
    return ORIGINALS.get(dialect, {}).get(field, of_all)
