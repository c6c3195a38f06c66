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
DATA_DIR_DOC = "Where the logs are kept; made when it is not there. One broker a directory."

_Ms = Annotated[int, Meta(ge=1)]


class Listener(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An address to listen on, and the one that clients are told when it is another."""

    host: Annotated[str, Meta(min_length=1, description="Name or address to listen on; 0.0.0.0 or :: for all.")]
    port: Annotated[int, Meta(ge=0, le=65535, description="0 takes any free port.")]
    advertised_host: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="What clients are told to connect to; unset: host, or this machine's name for 0.0.0.0 and ::."
        ),
    ] = None
    advertised_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, Meta(description="The port that goes with it.")
    ] = None
    acks: Annotated[
        Literal["all", "leader"] | None,
        Meta(
            description="When a produce or an offset commit is answered, in dialects that cannot say: all, after it is "
            "flushed; leader, after it is written. Not for kafka."
        ),
    ] = None
    creates_topics: Annotated[
        bool | None, Meta(description="Whether a produce to an unknown topic makes it. Not for kafka.")
    ] = None
    partitions: Annotated[
        Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_TOPIC_MAX)] | None,
        Meta(
            description="Partitions of a topic that a produce makes; 0: as many as the partition asked for needs. Not for "
            "kafka."
        ),
    ] = None
    frame_deadline_ms: Annotated[_Ms | None, Meta(description="As net.frame_deadline_ms, for this listener alone.")] = (
        None
    )
    idle_deadline_ms: Annotated[_Ms | None, Meta(description="As net.idle_deadline_ms, for this listener alone.")] = (
        None
    )
    write_deadline_ms: Annotated[_Ms | None, Meta(description="As net.write_deadline_ms, for this listener alone.")] = (
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
    """Who the broker is, and what it does about topics."""

    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="The broker's id in Kafka's metadata.")] = 0
    cluster_id: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None,
        Meta(
            description="The cluster's id in Kafka's metadata; unset: made at the first start and kept with the data."
        ),
    ] = None
    auto_create_topics: Annotated[
        bool, Meta(description="Make a topic when a client that allows it asks for one that is not there.")
    ] = True
    num_partitions: Annotated[
        int,
        Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description="Partitions of a topic whose creator does not say."),
    ] = 1
    delete_topics: Annotated[bool, Meta(description="Whether clients may delete topics.")] = True
    transaction_max_timeout_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="The longest transaction timeout that a producer may ask for.")
    ] = 900_000


class GroupsSection(msgspec.Struct, frozen=True, kw_only=True):
    """How long members of consumer groups may be silent, and how long what a group committed is kept."""

    initial_rebalance_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=2**31 - 1,
            description="How long the first rebalance of an empty classic group waits for more members; 0 in tests.",
        ),
    ] = 3_000
    session_timeout_min_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="The shortest session timeout that a classic member may ask for.")
    ] = 6_000
    session_timeout_max_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="The longest session timeout that a classic member may ask for.")
    ] = 1_800_000
    consumer_session_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=2**31 - 1,
            description="A member of the consumer protocol (KIP-848) that is silent for so long is out.",
        ),
    ] = 45_000
    consumer_heartbeat_interval_ms: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="How often members of the consumer protocol are told to be heard.")
    ] = 5_000
    offsets_retention_ms: Annotated[
        int, Meta(ge=1, description="How long the offsets of a group are kept once its members have left.")
    ] = 604_800_000
    offsets_retention_check_interval_ms: Annotated[
        int, Meta(ge=1, description="Time between two looks for offsets whose retention is over.")
    ] = 600_000


class StorageSection(msgspec.Struct, frozen=True, kw_only=True):
    """When bytes are safe, and how much of the disk's time that takes."""

    flush: Annotated[
        Literal["acks", "always", "interval", "os"],
        Meta(
            description="acks and always: every append is flushed at once, and nobody reads what a power cut could "
            "take; with acks an acks=all produce waits for its flush, with always every produce does. interval: flushed "
            "every flush_interval_ms. os: when the operating system sees fit. Topics may differ (penstock.flush)."
        ),
    ] = "acks"
    flush_interval_ms: Annotated[int, Meta(ge=1, description="Time between two flushes with flush: interval.")] = 1_000
    checkpoint_interval_ms: Annotated[
        int,
        Meta(ge=100, description="Time between two recovery points: what a start after a crash has to look through."),
    ] = 5_000
    retention_check_interval_ms: Annotated[
        int, Meta(ge=100, description="Time between two looks for segments that retention lets go.")
    ] = 300_000
    open_files_max: Annotated[
        int, Meta(ge=16, description="Log and index files kept open; the least recently used are closed beyond it.")
    ] = limits.OPEN_FILES_MAX
    reserve_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            description="Disk space kept for the broker's own writes when the disk is full; at most a sixteenth of the "
            "file system.",
        ),
    ] = limits.RESERVE_BYTES
    flush_threads: Annotated[int, Meta(ge=1, le=64, description="Logs that are flushed at the same time.")] = 4


class NetSection(msgspec.Struct, frozen=True, kw_only=True):
    """What peers may take, and how long they may take for it."""

    connections_max: Annotated[int, Meta(ge=1, description="Connections over all listeners.")] = limits.CONNECTIONS_MAX
    connections_per_ip_max: Annotated[int, Meta(ge=1, description="Connections from one address.")] = (
        limits.CONNECTIONS_PER_IP_MAX
    )
    frame_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**31 - 1, description="The largest request; a larger one closes its connection.")
    ] = limits.FRAME_BYTES_MAX
    in_flight_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            description="Requests half received or waiting, and unsent answers, of all connections; then reading waits.",
        ),
    ] = limits.IN_FLIGHT_BYTES_MAX
    frame_deadline_ms: Annotated[
        int,
        Meta(
            ge=1, description="A request that has begun to arrive must be there within this time. Listeners may differ."
        ),
    ] = limits.FRAME_DEADLINE_MS
    idle_deadline_ms: Annotated[
        int, Meta(ge=1, description="A connection that is quiet for so long is closed. Listeners may differ.")
    ] = limits.IDLE_DEADLINE_MS
    write_deadline_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="A peer that takes nothing of a waiting answer for so long is cut off. Listeners may differ.",
        ),
    ] = limits.WRITE_DEADLINE_MS
    uvloop: Annotated[bool, Meta(description="Use uvloop where it is installed; else asyncio's own loop.")] = True
    sendfile: Annotated[
        bool, Meta(description="Send large ranges of a log from the page cache without copying, where the system can.")
    ] = True


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's own messages, on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least important messages to show.")
    ] = "info"
    format: Annotated[Literal["text", "json"], Meta(description="Lines for people, or one JSON object a line.")] = (
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
