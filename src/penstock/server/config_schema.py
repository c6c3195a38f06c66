"""What can be configured: every section and key with its type, bounds, default and a line that says what it does.

docs/config.md is written from here. How values are found (file, environment, flags) is in `config`; the configs of topics
are in `model.topic_config`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.model import limits
from penstock.model.listeners import PORTS

ENV_PREFIX = "PENSTOCK_"
DATA_DIR_DEFAULT = "./penstock-data"
DATA_DIR_DOC = "Data directory; created if missing. Used by one broker at a time."

_Ms = Annotated[int, Meta(ge=1)]


class Listener(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An address to listen on, and the one that clients are told when it is another."""

    host: Annotated[
        str, Meta(min_length=1, description="Name or address to listen on; 0.0.0.0 or :: for all interfaces.")
    ]
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 selects a free port.")]
    advertised_host: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Host announced to clients; unset: host, or this machine's name for 0.0.0.0 and ::."),
    ] = None
    advertised_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, Meta(description="Port announced to clients; unset: port.")
    ] = None
    acks: Annotated[
        Literal["all", "leader"] | None,
        Meta(
            description="When a produce or an offset commit is acknowledged, in dialects without such a field: all, after "
            "the flush; leader, after the write. Not for kafka."
        ),
    ] = None
    creates_topics: Annotated[
        bool | None, Meta(description="Whether a produce to an unknown topic creates it. Not for kafka.")
    ] = None
    partitions: Annotated[
        Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_TOPIC_MAX)] | None,
        Meta(
            description="Partitions of a topic created by a produce; 0: as many as the requested partition needs. Not for "
            "kafka."
        ),
    ] = None
    frame_deadline_ms: Annotated[_Ms | None, Meta(description="Overrides net.frame_deadline_ms for this listener.")] = (
        None
    )
    idle_deadline_ms: Annotated[_Ms | None, Meta(description="Overrides net.idle_deadline_ms for this listener.")] = (
        None
    )
    write_deadline_ms: Annotated[_Ms | None, Meta(description="Overrides net.write_deadline_ms for this listener.")] = (
        None
    )

    def __str__(self) -> str:
        text = address(self.host, self.port)
        if self.advertised_host is None and self.advertised_port is None:
            return text
        told = address(self.advertised_host or self.host, self.advertised_port or self.port)
        return f"{text} advertised as {told}"


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


DIALECTS: Mapping[str, Listener] = {dialect: Listener("127.0.0.1", port) for dialect, port in PORTS.items()}
"""The dialects that are served, each with where it listens unless told."""


class BrokerSection(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of the broker, and defaults for topics and transactions."""

    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Broker id in Kafka's metadata.")] = 0
    cluster_id: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None,
        Meta(
            description="Cluster id in Kafka's metadata; unset: generated at the first start and stored with the data."
        ),
    ] = None
    auto_create_topics: Annotated[
        bool, Meta(description="Create an unknown topic when a client requests it and allows its creation.")
    ] = True
    num_partitions: Annotated[
        int,
        Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description="Default number of partitions."),
    ] = 1
    delete_topics: Annotated[bool, Meta(description="Whether clients may delete topics.")] = True
    transaction_max_timeout_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="Maximum transaction timeout that a producer may request.")
    ] = 900_000


class GroupsSection(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of consumer group members, and retention of committed offsets."""

    initial_rebalance_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=2**31 - 1,
            description="Time that the first rebalance of an empty classic group waits for more members; 0 for tests.",
        ),
    ] = 3_000
    session_timeout_min_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="Minimum session timeout that a classic member may request.")
    ] = 6_000
    session_timeout_max_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="Maximum session timeout that a classic member may request.")
    ] = 1_800_000
    consumer_session_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=2**31 - 1,
            description="Session timeout of the consumer protocol (KIP-848): a member that sends no heartbeat for this "
            "long is removed.",
        ),
    ] = 45_000
    consumer_heartbeat_interval_ms: Annotated[
        int,
        Meta(
            ge=1, le=2**31 - 1, description="Heartbeat interval that members of the consumer protocol are told to keep."
        ),
    ] = 5_000
    offsets_retention_ms: Annotated[
        int, Meta(ge=1, description="Time that the offsets of a group are kept after its last member has left.")
    ] = 604_800_000
    offsets_retention_check_interval_ms: Annotated[
        int, Meta(ge=1, description="Time between checks for expired offsets.")
    ] = 600_000


class StorageSection(msgspec.Struct, frozen=True, kw_only=True):
    """Flushing, recovery and retention of logs."""

    flush: Annotated[
        Literal["acks", "always", "interval", "os"],
        Meta(
            description="When appends are flushed. acks and always: at once, and consumers only see records that are on "
            "disk. With acks, a produce with acks=all waits for its flush; with always, every produce does. interval: every "
            "flush_interval_ms. os: left to the operating system. interval and os also flush a segment when it is closed. "
            "Topics can override it (penstock.flush)."
        ),
    ] = "acks"
    flush_interval_ms: Annotated[int, Meta(ge=1, description="Time between flushes with flush: interval.")] = 1_000
    checkpoint_interval_ms: Annotated[
        int,
        Meta(
            ge=100, description="Time between recovery points; a start after a crash scans the log from the last one."
        ),
    ] = 5_000
    retention_check_interval_ms: Annotated[
        int, Meta(ge=100, description="Time between checks for segments past their retention.")
    ] = 300_000
    open_files_max: Annotated[
        int,
        Meta(
            ge=16, description="Maximum number of open log and index files; the least recently used are closed first."
        ),
    ] = limits.OPEN_FILES_MAX
    reserve_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            description="Disk space reserved for the broker's own writes when the disk is full; at most a sixteenth of the "
            "file system.",
        ),
    ] = limits.RESERVE_BYTES
    flush_threads: Annotated[int, Meta(ge=1, le=64, description="Number of logs flushed at the same time.")] = 4


class NetSection(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and deadlines of connections."""

    connections_max: Annotated[int, Meta(ge=1, description="Maximum number of connections over all listeners.")] = (
        limits.CONNECTIONS_MAX
    )
    connections_per_ip_max: Annotated[
        int, Meta(ge=1, description="Maximum number of connections from one address.")
    ] = limits.CONNECTIONS_PER_IP_MAX
    frame_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**31 - 1, description="Maximum request size; a larger request closes its connection.")
    ] = limits.FRAME_BYTES_MAX
    in_flight_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            description="Maximum bytes of incomplete and waiting requests and unsent responses over all connections; "
            "beyond it, reading pauses.",
        ),
    ] = limits.IN_FLIGHT_BYTES_MAX
    frame_deadline_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="A request must arrive completely within this time after its first byte. Listeners can override it.",
        ),
    ] = limits.FRAME_DEADLINE_MS
    idle_deadline_ms: Annotated[
        int, Meta(ge=1, description="A connection that is idle for this long is closed. Listeners can override it.")
    ] = limits.IDLE_DEADLINE_MS
    write_deadline_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="A connection whose peer reads nothing of a pending response for this long is closed. "
            "Listeners can override it.",
        ),
    ] = limits.WRITE_DEADLINE_MS
    uvloop: Annotated[bool, Meta(description="Use uvloop if it is installed, otherwise asyncio's own event loop.")] = (
        True
    )
    sendfile: Annotated[
        bool,
        Meta(
            description="Send large ranges of a log from the page cache without copying, where the system supports it."
        ),
    ] = True


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's log messages on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of messages.")] = (
        "info"
    )
    format: Annotated[Literal["text", "json"], Meta(description="Plain text lines, or one JSON object per line.")] = (
        "text"
    )


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The effective configuration. `origins` says of each key that is not the default where it came from."""

    data_dir: Path = Path(DATA_DIR_DEFAULT)
    listeners: dict[str, tuple[Listener, ...]] = msgspec.field(
        default_factory=lambda: {dialect: (listener,) for dialect, listener in DIALECTS.items()}
    )
    broker: BrokerSection = BrokerSection()
    groups: GroupsSection = GroupsSection()
    storage: StorageSection = StorageSection()
    net: NetSection = NetSection()
    topic_defaults: dict[str, str] = {}
    log: LogSection = LogSection()
    origins: dict[str, str] = {}


SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    "broker": BrokerSection,
    "groups": GroupsSection,
    "storage": StorageSection,
    "net": NetSection,
    "log": LogSection,
}
"""The sections with fixed keys. `listeners` and `topic_defaults` are mappings of their own kind."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of a section with fixed keys."""

    section: str
    field: str
    type: Any
    default: Any
    doc: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.field}"

    @property
    def env(self) -> str:
        return env_name(self.section, self.field)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, if they are counted."""
        kind = typing.get_args(self.type)[0]
        return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        if self.choices:
            return ", ".join(self.choices)
        kind, meta = typing.get_args(self.type)[:2]
        if kind is bool:
            return "true, false"
        if kind is not int:
            return "letters, digits, - and _"
        if meta.le is not None:
            return f"{meta.ge} to {meta.le}"
        return f"{meta.ge} or more"


def env_name(section: str, field: str) -> str:
    """The environment variable of a key; the dots of a topic config's name become underscores."""
    return f"{ENV_PREFIX}{section.upper()}__{field.upper().replace('.', '_')}"


def _keys() -> dict[str, ConfigKey]:
    keys: dict[str, ConfigKey] = {}
    for section, struct in SECTIONS.items():
        for field in msgspec.structs.fields(struct):
            doc = typing.get_args(field.type)[1].description
            key = ConfigKey(section, field.name, field.type, field.default, doc)
            keys[key.name] = key
    return keys


KEYS: Mapping[str, ConfigKey] = _keys()
