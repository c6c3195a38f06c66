"""The configs of a topic: Kafka's names, types and defaults (Kafka 4), and which values this broker takes.

Every setting acts or is refused: a key that is not in `KEYS`, and a value that the broker could not honour, are
INVALID_CONFIG with the key and the reason. Values travel as text, as in Kafka's protocol; `parse` makes a `TopicConfig`
of them. Nothing here reads or stores a config.
"""

from __future__ import annotations

import difflib
import enum
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model import limits
from penstock.model.errors import BrokerError, Fault

_INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
"""Kafka's word for "never" in keys that have no -1."""

FLUSH_POLICIES = ("acks", "always", "interval", "os")

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


class KeyType(enum.Enum):
    """Kafka's config types, as DescribeConfigs names them."""

    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"


@dataclass(frozen=True, slots=True)
class Key:
    """One config: `parse` turns its text into the value, or raises ValueError with the reason in words."""

    name: str
    type: KeyType
    default: str | None
    parse: Callable[[str], Any]
    doc: str

    @property
    def field(self) -> str:
        """Its name in `TopicConfig`."""
        return self.name.replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The parsed values of one topic, all of them."""

    cleanup_policy: frozenset[str]
    compression_type: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    penstock_flush: str | None
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def has_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def _number(at_least: int, at_most: int, bits_max: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text.strip())
        except ValueError:
            raise ValueError("is not an integer") from None
        if not -bits_max - 1 <= value <= bits_max:
            raise ValueError(f"exceeds {32 if bits_max == _INT_MAX else 64} bits")
        if value < at_least:
            raise ValueError(f"is less than {at_least}")
        if value > at_most:
            raise ValueError(f"is more than {at_most}")
        return value

    return parse


def _int(at_least: int, at_most: int = _INT_MAX) -> Callable[[str], int]:
    return _number(at_least, at_most, _INT_MAX)


def _long(at_least: int, at_most: int = LONG_MAX) -> Callable[[str], int]:
    return _number(at_least, at_most, LONG_MAX)


def _capped(parse: Callable[[str], int], acts_at_most: int) -> Callable[[str], int]:
    return lambda text: min(parse(text), acts_at_most)


def _ratio(text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        raise ValueError("is not a number") from None
    if math.isnan(value) or not 0 <= value <= 1:
        raise ValueError("is not between 0 and 1")
    return value


def _boolean(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("is neither true nor false")


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip()
        if value not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return value

    return parse


def _cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(","))
    if not policies <= {"delete", "compact"}:
        raise ValueError("is not delete, compact or compact,delete")
    return policies


def _only(wanted: Any, parse_any: Callable[[str], Any], reason: str) -> Callable[[str], Any]:
    """A config of Kafka's of which this broker can honour one value."""

    def parse(text: str) -> Any:
        value = parse_any(text)
        if value != wanted:
            raise ValueError(reason)
        return value

    return parse


_COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

_KEYS = (
    Key(
        "cleanup.policy",
        KeyType.LIST,
        "delete",
        _cleanup_policy,
        "Cleanup of old segments: delete, compact (keeps the last record of each key), or both.",
    ),
    Key(
        "compression.type",
        KeyType.STRING,
        "producer",
        _only(
            "producer",
            _one_of(*_COMPRESSION_TYPES),
            "is not supported: batches are stored as the producer sent them; use producer",
        ),
        "Only producer is supported: batches are stored as received.",
    ),
    Key(
        "delete.retention.ms",
        KeyType.LONG,
        str(_DAY_MS),
        _long(0),
        "Time that a delete marker (null value) is kept in a compacted topic.",
    ),
    Key(
        "file.delete.delay.ms",
        KeyType.LONG,
        str(_MINUTE_MS),
        _long(0),
        "Time before the files of a deleted segment are removed from disk.",
    ),
    Key(
        "flush.messages",
        KeyType.LONG,
        str(LONG_MAX),
        _long(1),
        "Flush after at most this many records.",
    ),
    Key(
        "flush.ms",
        KeyType.LONG,
        str(LONG_MAX),
        _long(0),
        "Flush no later than this after an append.",
    ),
    Key(
        "index.interval.bytes",
        KeyType.INT,
        "4096",
        _capped(_int(0), limits.INDEX_INTERVAL_BYTES_MAX),
        f"Bytes of log between index entries; at most {limits.INDEX_INTERVAL_BYTES_MAX:,} take effect.",
    ),
    Key(
        "max.compaction.lag.ms",
        KeyType.LONG,
        str(LONG_MAX),
        _long(1),
        "Maximum time before a record is compacted.",
    ),
    Key(
        "max.message.bytes",
        KeyType.INT,
        "1048588",
        _int(0),
        "Maximum batch size as received (compressed).",
    ),
    Key(
        "message.timestamp.after.max.ms",
        KeyType.LONG,
        str(_HOUR_MS),
        _long(0),
        "Maximum time that a record's timestamp may be ahead of the broker's clock (CreateTime only).",
    ),
    Key(
        "message.timestamp.before.max.ms",
        KeyType.LONG,
        str(LONG_MAX),
        _long(0),
        "Maximum time that a record's timestamp may be behind the broker's clock (CreateTime only).",
    ),
    Key(
        "message.timestamp.type",
        KeyType.STRING,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "Source of record timestamps: CreateTime (the producer) or LogAppendTime (the broker).",
    ),
    Key(
        "min.cleanable.dirty.ratio",
        KeyType.DOUBLE,
        "0.5",
        _ratio,
        "Uncompacted share of a log at which compaction starts.",
    ),
    Key(
        "min.compaction.lag.ms",
        KeyType.LONG,
        "0",
        _long(0),
        "Minimum time before a record is compacted.",
    ),
    Key(
        "min.insync.replicas",
        KeyType.INT,
        "1",
        _only(1, _int(1), "exceeds 1: with a single broker, no produce with acks=all could succeed"),
        "Only 1 is supported: there is a single broker.",
    ),
    Key(
        "penstock.flush",
        KeyType.STRING,
        None,
        _one_of(*FLUSH_POLICIES),
        "Flush policy of the topic (acks, always, interval, os); unset: the broker's storage.flush.",
    ),
    Key(
        "preallocate",
        KeyType.BOOLEAN,
        "false",
        _only(False, _boolean, "is not supported: segments grow as they are written; use false"),
        "Only false is supported: segments grow as they are written.",
    ),
    Key(
        "retention.bytes",
        KeyType.LONG,
        "-1",
        _long(-1),
        "Delete old segments while a partition is larger than this; -1: no limit.",
    ),
    Key(
        "retention.ms",
        KeyType.LONG,
        str(7 * _DAY_MS),
        _long(-1),
        "Delete segments whose newest record is older than this; -1: no limit.",
    ),
    Key(
        "segment.bytes",
        KeyType.INT,
        str(1024**3),
        _int(14),
        "Maximum segment size; a segment that would exceed it is closed and a new one is started.",
    ),
    Key(
        "segment.index.bytes",
        KeyType.INT,
        str(10 * 1024**2),
        _int(4),
        "Maximum index size; a segment whose index would exceed it is closed and a new one is started.",
    ),
    Key(
        "segment.jitter.ms",
        KeyType.LONG,
        "0",
        _long(0),
        "Maximum random reduction of segment.ms, so that segments do not all roll at the same time.",
    ),
    Key(
        "segment.ms",
        KeyType.LONG,
        str(7 * _DAY_MS),
        _long(1),
        "Maximum segment age; an older segment is closed at the next append.",
    ),
    Key(
        "unclean.leader.election.enable",
        KeyType.BOOLEAN,
        "false",
        _only(False, _boolean, "is not supported: a single broker has no leader election; use false"),
        "Only false is supported: a single broker has no leader election.",
    ),
)

KEYS: Mapping[str, Key] = {key.name: key for key in _KEYS}
"""By name, in the order of their names."""


def parse(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """The values of a topic: its own, else the broker's `topic_defaults`, else Kafka's.

    Raises BrokerError(INVALID_CONFIG) that names the key and says why.
    """
    for name in overrides.keys() | defaults.keys():
        if name not in KEYS:
            raise BrokerError(Fault.INVALID_CONFIG, f"unknown topic config {name}{nearest(name, KEYS)}")
    values: dict[str, Any] = {}
    for key in KEYS.values():
        text = overrides.get(key.name, defaults.get(key.name, key.default))
        try:
            values[key.field] = None if text is None else key.parse(text)
        except ValueError as error:
            shown = repr(text if text is None or len(text) <= 60 else text[:57] + "...")
            raise BrokerError(Fault.INVALID_CONFIG, f"{key.name} = {shown} {error}") from None
    config = TopicConfig(**values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise BrokerError(
            Fault.INVALID_CONFIG,
            f"min.compaction.lag.ms = {config.min_compaction_lag_ms} is more than "
            f"max.compaction.lag.ms = {config.max_compaction_lag_ms}",
        )
    return config


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean X?" when there is something near, to end a line about an unknown name."""
    near = _nearest(name, tuple(names)) if len(name) <= _COMPARED_CHARS_MAX else None
    return f"; did you mean {near}?" if near else ""


_COMPARED_CHARS_MAX = 60
"""Longest name that is compared with the known ones: the work grows with its square."""


@functools.lru_cache(256)
def _nearest(name: str, names: tuple[str, ...]) -> str | None:
    near = difflib.get_close_matches(name, names, n=1)
    return near[0] if near else None
