"""Penstock: a log broker that speaks Kafka's protocol, pip-installable and embeddable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.model.version import __version__

__all__ = ["Broker", "__version__"]

if TYPE_CHECKING:
    from penstock.server.embedding import Broker


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from penstock.server.embedding import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
