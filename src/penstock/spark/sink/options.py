"""What the sink is told: its options, checked before a row is looked at, and the columns that rows must have.

Names and meanings are those of Spark's Kafka sink: `topic`, `includeHeaders`, and a producer's settings as `kafka.*`.
`delivery` and `writeId` are Penstock's own. An option that nobody would read is an error that names the nearest one; so is
a producer setting that this sink would have to disobey. Of the other `kafka.*` only a slip of the pen is refused: many a
setting of Java's clients tunes queues that are not there, and a job that sets them should move here as it is.

Everything here is plain data: a writer is pickled to every task, options and secrets with it.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.arrow.encode import BATCH_BYTES_MAX
from penstock.client.kafka import KafkaError, KafkaSettings
from penstock.records.compression import Codec

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PREFIX = "kafka."
COLUMNS: Final = ("key", "value", "headers", "topic", "partition")

_OWN: Final = ("topic", "delivery", "writeId", "includeHeaders")
_OF_SPARK: Final = ("checkpointLocation", "queryName", "path")
"""Spark's own, which it hands on."""
_PRODUCER: Final = (
    "acks",
    "batch.size",
    "compression.type",
    "enable.idempotence",
    "max.request.size",
    "transaction.timeout.ms",
)
_CONNECTION: Final = (
    "bootstrap.servers",
    "client.id",
    "default.api.timeout.ms",
    "metadata.max.age.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.truststore.location",
)
_REFUSED: Final = {
    "key.serializer": "keys are written as bytes: cast the column key to binary or string",
    "value.serializer": "values are written as bytes: cast the column value to binary or string",
    "interceptor.classes": "the sink does not use a Java producer",
    "partitioner.class": "the sink does not use a Java producer; set the column partition instead",
    "transactional.id": "delivery=exactly_once creates its own transactional ids, one per task",
}
_WRITE_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SLIP_OF_THE_PEN = 0.9
"""How alike two names are of which one is meant for the other; metadata.max.idle.ms is not metadata.max.age.ms."""
_ALL, _LEADER, _NONE = -1, 1, 0
_ACKS: Final = {"all": _ALL, "-1": _ALL, "1": _LEADER, "0": _NONE}
TRANSACTION_TIMEOUT_MS_MAX = 900_000
"""Kafka's default of transaction.max.timeout.ms, for where a broker does not say how much it allows."""
BATCH_BYTES_MIN = 1_024
"""Java's batch.size may be less; a batch of one record is made whatever its size."""


class SinkError(ValueError):
    """What a user can put right: an option, a column, a topic. One line."""


class Delivery(enum.Enum):
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    settings: KafkaSettings
    topic: str | None = None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    write_id: str | None = None
    includes_headers: bool = True
    acks: int = _ALL
    is_idempotent: bool = True
    """Whether a batch that is sent twice is written once; a broker that may forget a batch cannot promise that."""
    codec: Codec = Codec.NONE
    batch_bytes_max: int = BATCH_BYTES_MAX
    transaction_timeout_ms: int | None = None
    """None is the most that the broker allows."""
    columns: tuple[str, ...] = field(default=())
    """Those of the rows that the sink uses."""
    checkpoint: str | None = None
    """Checkpoint location of a stream, if the query sets it as an option."""

    @property
    def timeout_ms(self) -> int:
        """Of a transaction."""
        return self.transaction_timeout_ms or TRANSACTION_TIMEOUT_MS_MAX

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery is Delivery.EXACTLY_ONCE

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> SinkOptions:
        """Raises SinkError for the first thing that is wrong."""
        given = {str(name).lower(): str(value) for name, value in options.items()}
        _check_names(given)
        try:
            settings = KafkaSettings.of_options(_of_kafka(given))
        except KafkaError as error:
            raise SinkError(_with_prefix(error.text)) from None
        others = settings.others
        delivery = _delivery(given.get("delivery", Delivery.AT_LEAST_ONCE.value))
        write_id = given.get("writeid")
        if write_id is not None and _WRITE_ID.fullmatch(write_id) is None:
            raise SinkError(f"writeId: {write_id!r} must be 1 to 200 letters, digits, dots, dashes and underscores")
        if write_id is not None and delivery is not Delivery.EXACTLY_ONCE:
            raise SinkError("writeId requires delivery=exactly_once")
        includes_headers = _boolean(given, "includeHeaders", default=True)
        acks = _acks(others, delivery)
        return cls(
            settings,
            topic=given.get("topic") or None,
            delivery=delivery,
            write_id=write_id,
            includes_headers=includes_headers,
            acks=acks,
            is_idempotent=_idempotence(others, delivery) and acks == _ALL,
            codec=_codec(others),
            batch_bytes_max=_batch_bytes(others),
            transaction_timeout_ms=_transaction_timeout(others, delivery),
            columns=checked_columns(schema, given.get("topic") or None, includes_headers=includes_headers),
            checkpoint=given.get("checkpointlocation"),
        )


# ---------------------------------------------------------------------------------------------------- columns


def checked_columns(schema: StructType, topic: str | None, *, includes_headers: bool) -> tuple[str, ...]:
    """The columns of `schema` that the sink uses; the others are left alone, as Spark's Kafka sink does."""
    kinds = {column.name: column.dataType for column in schema.fields}
    if "value" not in kinds:
        shown = ", ".join(kinds) or "none"
        raise SinkError(f"column value is missing: the columns are {shown}; rename one, or create it (to_json, cast)")
    if topic is None and "topic" not in kinds:
        raise SinkError("no topic: set the option topic, or add a column topic")
    wanted = [name for name in COLUMNS if name in kinds]
    if topic is not None and "topic" in wanted:
        wanted.remove("topic")
    if not includes_headers and "headers" in wanted:
        wanted.remove("headers")
    for name in wanted:
        _check_type(name, kinds[name])
    return tuple(wanted)


def _check_type(name: str, kind: DataType) -> None:
    from pyspark.sql.types import BinaryType, IntegerType, StringType

    shown = kind.simpleString()
    if name in ("key", "value"):
        fits, wanted = isinstance(kind, BinaryType | StringType), "binary or string"
    elif name == "topic":
        fits, wanted = isinstance(kind, StringType), "string"
    elif name == "partition":
        fits, wanted = isinstance(kind, IntegerType), "int"
    else:
        fits, wanted = _is_headers(kind), "array<struct<key:string,value:binary>>"
    if not fits:
        raise SinkError(f"column {name} is {shown}, not {wanted}: cast it")


def _is_headers(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    pair = [(one.name, type(one.dataType)) for one in kind.elementType.fields]
    return pair == [("key", StringType), ("value", BinaryType)]


# ---------------------------------------------------------------------------------------------------- options


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*_OWN, *_OF_SPARK)}
    for name in given:
        if name not in known and not name.startswith(PREFIX):
            by_lower = {one.lower(): one for one in (*_OWN, PREFIX + "bootstrap.servers")}
            near = difflib.get_close_matches(name, by_lower, 1)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"expected {', '.join(_OWN)} or kafka.*"
            raise SinkError(f"unknown option {name}: {hint}")


def _of_kafka(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a producer; Spark has lower-cased their names, which all of Kafka's are."""
    of_kafka = {name: value for name, value in given.items() if name.startswith(PREFIX)}
    for name in of_kafka:
        bare = name.removeprefix(PREFIX)
        if bare in _REFUSED:
            raise SinkError(f"{name} cannot be set: {_REFUSED[bare]}")
    if PREFIX + "bootstrap.servers" not in of_kafka:
        raise SinkError("kafka.bootstrap.servers is required: host:port, or several separated by commas")
    try:
        others = KafkaSettings.of_options(of_kafka).others
    except KafkaError as error:
        raise SinkError(_with_prefix(error.text)) from None
    for bare in others:
        near = difflib.get_close_matches(bare, (*_PRODUCER, *_CONNECTION), 1, _SLIP_OF_THE_PEN)
        if near and bare not in _PRODUCER:
            raise SinkError(f"unknown Kafka setting {bare}: did you mean {PREFIX}{near[0]}?")
    return of_kafka


def _with_prefix(text: str) -> str:
    """Kafka's name of a setting as it is called here."""
    name = text.split(":")[0].split(" ")[0]
    return PREFIX + text if "." in name and not name.startswith(PREFIX) else text


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SinkError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def _delivery(text: str) -> Delivery:
    try:
        return Delivery(text.strip().lower())
    except ValueError:
        names = " or ".join(one.value for one in Delivery)
        raise SinkError(f"delivery: {text!r} is not {names}") from None


def _acks(others: Mapping[str, str], delivery: Delivery) -> int:
    text = others.get("acks", "all").strip().lower()
    if text not in _ACKS:
        raise SinkError(f"kafka.acks: {text!r} is not all, 1 or 0")
    acks = _ACKS[text]
    if delivery is Delivery.EXACTLY_ONCE and acks != _ALL:
        raise SinkError(f"kafka.acks={text}: delivery=exactly_once requires acks=all")
    return acks


def _idempotence(others: Mapping[str, str], delivery: Delivery) -> bool:
    text = others.get("enable.idempotence", "true").strip().lower()
    if text not in ("true", "false"):
        raise SinkError(f"kafka.enable.idempotence: {text!r} is neither true nor false")
    if text == "false" and delivery is Delivery.EXACTLY_ONCE:
        raise SinkError("delivery=exactly_once requires kafka.enable.idempotence=true")
    return text == "true"


def _codec(others: Mapping[str, str]) -> Codec:
    text = others.get("compression.type", "none").strip().upper()
    if text not in Codec.__members__:
        names = ", ".join(name.lower() for name in Codec.__members__)
        raise SinkError(f"kafka.compression.type: {text.lower()!r} is not one of {names}")
    return Codec[text]


def _batch_bytes(others: Mapping[str, str]) -> int:
    """Of Java's two bounds the larger counts: its batch.size is what it waits for, 16 KB, and not what a row may be."""
    asked = [_number(others, name, BATCH_BYTES_MIN) for name in ("batch.size", "max.request.size") if name in others]
    return min(BATCH_BYTES_MAX, max(asked)) if asked else BATCH_BYTES_MAX


def _transaction_timeout(others: Mapping[str, str], delivery: Delivery) -> int | None:
    if "transaction.timeout.ms" not in others:
        return None
    if delivery is not Delivery.EXACTLY_ONCE:
        raise SinkError("kafka.transaction.timeout.ms requires delivery=exactly_once")
    return _number(others, "transaction.timeout.ms", 1)


def _number(others: Mapping[str, str], name: str, lowest: int) -> int:
    text = others[name].strip()
    if not text.isdecimal() or not 0 <= int(text) < 1 << 31:
        raise SinkError(f"kafka.{name}: {text!r} is not an integer below 2^31")
    return max(int(text), lowest)
