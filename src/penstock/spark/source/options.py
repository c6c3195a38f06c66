"""The options of a read, checked: what is wrong, unknown or contradicts itself is told before anything is asked of a broker.

Names and meanings are those of Spark's Kafka source, so that a job moves by changing the format's name; `read` and
`segments.dir` are ours. Spark gives option names in lower case. What begins with `kafka.` is the client's; a name there
that this client has no use for is let through, as it may well mean something to Java's. One default differs from Kafka's
consumer: kafka.isolation.level is read_committed, because a table of records that are later taken back is no table.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.client.kafka import Isolation, KafkaError, KafkaSettings
from penstock.client.kafka_partitions import FETCH_BYTES_MAX, FETCH_PARTITION_BYTES_MAX
from penstock.client.kafka_settings import PREFIX
from penstock.model.ids import TopicPartition
from penstock.spark.source.errors import SourceError
from penstock.spark.source.offsets import Offsets, of_text, partitions_of_text

LATEST_OFFSET, EARLIEST_OFFSET = -1, -2
"""In JSON offsets: what Kafka's ListOffsets calls them."""
TRIGGER_DELAY_MS = 15 * 60 * 1_000
POLL_TIMEOUT_MS = 120_000
RETRY_PAUSE_MS = 10
METADATA_TTL_MS = 100
"""An idle stream asks for its end a hundred times a second; whether there are new partitions need not be asked as often."""

KNOWN: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
    "read",
    "segments.dir",
)
_OF_THE_SINK: Final = ("topic", "delivery", "writeId")
_REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are binary columns; cast or parse them in the query",
    "value.deserializer": "values are binary columns; cast or parse them in the query",
    "key.serializer": "it is a producer setting",
    "value.serializer": "it is a producer setting",
    "enable.auto.commit": "Spark's checkpoint stores the offsets of a query",
    "interceptor.classes": "the source does not use a Java consumer",
}
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME = re.compile(r"(\d{1,15})\s*(us|ms|s|min|m|h|d)?")
_ISOLATIONS: Final = {"read_committed": Isolation.READ_COMMITTED, "read_uncommitted": Isolation.READ_UNCOMMITTED}


class ReadWay(enum.Enum):
    AUTO = "auto"
    WIRE = "wire"
    SEGMENTS = "segments"


class Edge(enum.Enum):
    """An end of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -1 and -2 are the ends of the log."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record that is not older, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    timestamps_ms: Mapping[TopicPartition, int]


Bound = Edge | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    pattern: re.Pattern[str]


Subscription = Assigned | Subscribed | Matching


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a batch or a stream was told; picklable, and no secret is in its repr."""

    subscription: Subscription
    settings: KafkaSettings
    contact_timeout_is_given: bool
    starting: Bound | None
    ending: Bound | None
    begins_at_end_if_unmatched: bool
    """Where no record is as young as the starting timestamp; otherwise that is an error."""
    fail_on_data_loss: bool
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    records_per_partition_max: int | None
    group: str | None
    group_prefix: str | None
    include_headers: bool | None
    isolation: Isolation
    read: ReadWay
    segments_dir: str | None
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_pause_ms: int
    metadata_ttl_ms: int
    fetch_bytes_max: int
    partition_fetch_bytes_max: int
    given: tuple[str, ...] = field(default=())
    """The names that were set, as this module writes them."""


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises SourceError at the first option that cannot be used."""
    own = {name.lower(): str(value) for name, value in options.items()}
    client = {name.removeprefix(PREFIX): own.pop(name) for name in list(own) if name.startswith(PREFIX)}
    _check_names(own, client)
    read = _Options(own)
    settings = _settings(client)
    isolation = _isolation(settings.others.get("isolation.level", "read_committed"))
    way = read.one_of("read", ReadWay, ReadWay.AUTO)
    if way is ReadWay.SEGMENTS and isolation is Isolation.READ_UNCOMMITTED:
        raise SourceError(
            "read=segments returns committed records only; set kafka.isolation.level=read_committed or read=wire"
        )
    offsets_min, offsets_max = read.count("minOffsetsPerTrigger"), read.count("maxOffsetsPerTrigger")
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise SourceError(f"minOffsetsPerTrigger ({offsets_min}) exceeds maxOffsetsPerTrigger ({offsets_max})")
    strategy = read.text("startingOffsetsByTimestampStrategy") or "error"
    if strategy.lower() not in ("error", "latest"):
        raise SourceError(f"startingOffsetsByTimestampStrategy={strategy} is not error or latest")
    return SourceOptions(
        subscription=_subscription(read),
        settings=settings,
        contact_timeout_is_given="default.api.timeout.ms" in client,
        starting=_bound(read, "starting"),
        ending=_bound(read, "ending"),
        begins_at_end_if_unmatched=strategy.lower() == "latest",
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        offsets_per_trigger_max=offsets_max,
        offsets_per_trigger_min=offsets_min,
        trigger_delay_ms_max=read.time_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
        partitions_min=read.count("minPartitions"),
        records_per_partition_max=read.count("maxRecordsPerPartition"),
        group=settings.others.get("group.id") or None,
        group_prefix=read.text("groupIdPrefix"),
        include_headers=read.flag("includeHeaders", False) if "includeheaders" in own else None,
        isolation=isolation,
        read=way,
        segments_dir=read.text("segments.dir"),
        poll_timeout_ms=read.count("kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
        offset_retries=read.number("fetchOffset.numRetries", 0, lowest=0),
        offset_retry_pause_ms=read.number("fetchOffset.retryIntervalMs", RETRY_PAUSE_MS, lowest=0),
        metadata_ttl_ms=read.number("partition.metadata.cache.ttl.ms", METADATA_TTL_MS, lowest=-1),
        fetch_bytes_max=_bytes(settings, "fetch.max.bytes", FETCH_BYTES_MAX),
        partition_fetch_bytes_max=_bytes(settings, "max.partition.fetch.bytes", FETCH_PARTITION_BYTES_MAX),
        given=tuple(name for name in KNOWN if name.lower() in own),
    )


class _Options:
    """One option at a time, as what it is."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def text(self, name: str) -> str | None:
        """None when it is not there; an option without text is a mistake."""
        text = self._options.get(name.lower())
        if text is not None and not text.strip():
            raise SourceError(f"option {name} is empty")
        return None if text is None else text.strip()

    def number(self, name: str, default: int, *, lowest: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if not lowest <= number < 1 << 63:
            raise SourceError(f"{name}={text} is not an integer of at least {lowest}")
        return number

    def count(self, name: str) -> int | None:
        return self.number(name, 0, lowest=1) or None

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise SourceError(f"{name}={text} is neither true nor false")
        return text.lower() == "true"

    def one_of(self, name: str, kind: type[ReadWay], default: ReadWay) -> ReadWay:
        text = self.text(name)
        if text is None:
            return default
        try:
            return kind(text.lower())
        except ValueError:
            raise SourceError(f"{name}={text} is not one of {', '.join(one.value for one in kind)}") from None

    def time_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        match = _TIME.fullmatch(text.lower())
        if match is None:
            raise SourceError(f"{name}={text} is not a duration such as 500ms, 30s, 15m or 1h")
        number, unit = int(match[1]), match[2] or "ms"
        return number // 1_000 if unit == "us" else number * _UNITS_MS[unit]


def _check_names(own: Mapping[str, str], client: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    of_the_sink = {name.lower() for name in _OF_THE_SINK}
    for name in own:
        if name in known:
            continue
        if name in of_the_sink:
            raise SourceError(f"option {name} is for writes; use subscribe, subscribePattern or assign")
        if name in ("path", "paths"):
            raise SourceError("load() does not accept a path: set the option subscribe to the topics")
        raise SourceError(f"unknown option {name}{_nearest(name, known)}")
    for name, reason in _REFUSED.items():
        if name in client:
            raise SourceError(f"option {PREFIX}{name} cannot be set: {reason}")


def _nearest(name: str, known: Mapping[str, str]) -> str:
    if f"{PREFIX}{name}" in ("kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level"):
        return f"; did you mean {PREFIX}{name}?"
    near = difflib.get_close_matches(name, [*known, "kafka.bootstrap.servers", "kafka.group.id"], 1, 0.5)
    return f"; did you mean {known.get(near[0], near[0])}?" if near else ""


def _settings(client: Mapping[str, str]) -> KafkaSettings:
    if "bootstrap.servers" not in client:
        raise SourceError("option kafka.bootstrap.servers is required: host:port, or several separated by commas")
    try:
        return KafkaSettings.of_options(client)
    except KafkaError as error:
        raise SourceError(f"invalid kafka.* option: {error.text}") from None


def _isolation(text: str) -> Isolation:
    found = _ISOLATIONS.get(text.strip().lower())
    if found is None:
        raise SourceError(f"kafka.isolation.level={text} is not one of {', '.join(_ISOLATIONS)}")
    return found


def _bytes(settings: KafkaSettings, name: str, default: int) -> int:
    text = settings.others.get(name, str(default))
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise SourceError(f"kafka.{name}={text} is not a number of bytes")
    return int(text)


def _subscription(read: _Options) -> Subscription:
    names = ("assign", "subscribe", "subscribePattern")
    given = {name: text for name in names if (text := read.text(name)) is not None}
    if len(given) != 1:
        what = " and ".join(given) + " are set" if given else "no topic is set"
        raise SourceError(f"{what}: set exactly one of subscribe, subscribePattern and assign")
    ((name, text),) = given.items()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise SourceError(f"subscribe={text} contains no topic")
        return Subscribed(topics)
    if name == "subscribePattern":
        try:
            return Matching(re.compile(text))
        except re.error as error:
            raise SourceError(f"subscribePattern={text} is not a regular expression: {error}") from None
    try:
        return Assigned(tuple(partitions_of_text(text)))
    except ValueError as error:
        raise SourceError(f'assign={text}: {error}; expected the form {{"topic":[0,1]}}') from None


def _bound(read: _Options, side: str) -> Bound | None:
    """The one that counts, in the order that Spark's Kafka source has."""
    if read.text(f"{side}Timestamp") is not None:
        return AtTimestamp(read.number(f"{side}Timestamp", 0, lowest=0))
    name = f"{side}OffsetsByTimestamp"
    text = read.text(name)
    if text is not None:
        try:
            return AtTimestamps(of_text(text))
        except ValueError as error:
            raise SourceError(
                f'{name}={text}: {error}; expected milliseconds per partition: {{"topic":{{"0":1700000000000}}}}'
            ) from None
    name = f"{side}Offsets"
    text = read.text(name)
    if text is None:
        return None
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    try:
        return AtOffsets(of_text(text, EARLIEST_OFFSET))
    except ValueError as error:
        raise SourceError(
            f'{name}={text}: {error}; expected earliest, latest, or offsets per partition: {{"topic":{{"0":42}}}}'
        ) from None
