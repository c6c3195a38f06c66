"""Which session serves which dialect: the one place that knows them all. A dialect is imported when it listens."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any

from penstock.broker.embedded import EmbeddedEngine
from penstock.model import listeners
from penstock.net.session import Peer, Session
from penstock.server.config_schema import Config
from penstock.server.config_schema import Listener as Address

MakeSession = Callable[[Peer], Session]


SERVICES = {
    "fluxgo": "FluxGo",
    "minikafka": "MiniKafka",
    "rustlog": "RustLog",
    "flymq": "FlyMQ",
    "day1": "Day1",
}
"""Dialects whose service takes `ListenerSettings`; the name is what their classes begin with."""


def session_maker(dialect: str, engine: EmbeddedEngine, config: Config, at: Address, port: int) -> MakeSession:
    """Makes the sessions of a listener that is bound to `port`."""
    host = at.advertised_host or _reachable(at.host)
    advertised_port = at.advertised_port or port
    if dialect == "kafka":
        return _kafka(engine, config, host, advertised_port)
    settings = settings_of(dialect, at, host, advertised_port)
    name = SERVICES[dialect]
    service: Any = getattr(import_module(f"penstock.dialects.{dialect}.service"), f"{name}Service")(engine, settings)
    make: Any = getattr(import_module(f"penstock.dialects.{dialect}.session"), f"{name}Session")
    return lambda peer: make(service, peer.host)


def _kafka(engine: EmbeddedEngine, config: Config, host: str, port: int) -> MakeSession:
    from penstock.dialects.kafka.service import KafkaService
    from penstock.dialects.kafka.session import KafkaSession

    service = KafkaService(engine, host, port, config.net.frame_bytes_max)
    return lambda peer: KafkaSession(service, peer.host)


def settings_of(dialect: str, at: Address, host: str, port: int) -> listeners.ListenerSettings:
    settings = dataclasses.replace(listeners.DEFAULTS[dialect], advertised_host=host, advertised_port=port)
    if at.acks is not None:
        settings = dataclasses.replace(settings, acks=listeners.ACKS[at.acks])
    if at.creates_topics is not None:
        settings = dataclasses.replace(settings, creates_topics=at.creates_topics)
    if at.partitions is not None:
        settings = dataclasses.replace(settings, partitions=at.partitions)
    return settings


def _reachable(host: str) -> str:
    """What to tell clients when nothing is advertised: an address that means "all" is none that they can call."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host
