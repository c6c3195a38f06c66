"""The sink's options and columns: what is taken, and what is refused with which words."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.records.compression import Codec
from penstock.spark.sink.options import Delivery, SinkError, SinkOptions

TEXT, BYTES, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()
HEADERS = ArrayType(StructType().add("key", TEXT).add("value", BYTES))
TEXTS = ArrayType(StructType().add("key", TEXT).add("value", TEXT))

Columns = dict[str, DataType]


def told(columns: Columns | None = None, **options: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "t"}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    schema = StructType()
    for name, kind in ({"value": TEXT} if columns is None else columns).items():
        schema.add(name, kind)
    # Spark lower-cases the names
    return SinkOptions.of({name.lower(): value for name, value in given.items() if value}, schema)


def test_defaults_are_at_least_once_and_acknowledged_by_all() -> None:
    options = told()
    assert options.delivery is Delivery.AT_LEAST_ONCE
    assert (options.topic, options.acks, options.is_idempotent, options.codec) == ("t", -1, True, Codec.NONE)
    assert options.batch_bytes_max == 1_000_000
    assert pickle.loads(pickle.dumps(options)) == options


def test_settings_of_a_producer_are_obeyed() -> None:
    options = told(kafka__acks="1", kafka__compression__type="LZ4", kafka__batch__size="20000")
    assert (options.acks, options.is_idempotent, options.codec, options.batch_bytes_max) == (
        1,
        False,
        Codec.LZ4,
        20_000,
    )
    assert not told(kafka__enable__idempotence="false").is_idempotent
    assert told(delivery="EXACTLY_ONCE", kafka__transaction__timeout__ms="5000").timeout_ms == 5_000
    assert told(delivery="exactly_once").timeout_ms == 900_000


def test_settings_that_tune_what_is_not_there_are_let_through() -> None:
    told(kafka__linger__ms="5", kafka__buffer__memory="1000000", kafka__max__block__ms="1", kafka__group__id="g")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topik": "t"}, "unknown option topik: did you mean topic"),
        ({"subscribe": "t"}, "unknown option subscribe: expected topic, delivery, writeId, includeHeaders or kafka"),
        ({"delivry": "x"}, "did you mean delivery"),
        ({"kafka__bootstrap__servers": ""}, "kafka.bootstrap.servers is required"),
        ({"kafka__bootstrap__servers": "host:99999"}, "kafka.bootstrap.servers: 'host:99999' is not host:port"),
        (
            {"kafka__compresion__type": "lz4"},
            "unknown Kafka setting compresion.type: did you mean kafka.compression.type",
        ),
        ({"kafka__compression__type": "brotli"}, "'brotli' is not one of none, gzip, snappy, lz4, zstd"),
        ({"kafka__acks": "2"}, "'2' is not all, 1 or 0"),
        ({"kafka__batch__size": "big"}, "'big' is not an integer"),
        ({"kafka__request__timeout__ms": "x"}, "kafka.request.timeout.ms: 'x' is not a number of milliseconds"),
        ({"kafka__key__serializer": "x"}, "kafka.key.serializer cannot be set: keys are written as bytes"),
        ({"kafka__transactional__id": "x"}, "creates its own transactional ids"),
        ({"delivery": "at_most_once"}, "'at_most_once' is not at_least_once or exactly_once"),
        ({"delivery": "exactly_once", "kafka__acks": "1"}, "delivery=exactly_once requires acks=all"),
        ({"delivery": "exactly_once", "kafka__enable__idempotence": "false"}, "requires kafka.enable.idempotence=true"),
        ({"kafka__enable__idempotence": "maybe"}, "neither true nor false"),
        ({"kafka__transaction__timeout__ms": "5000"}, "requires delivery=exactly_once"),
        ({"writeId": "load-1"}, "writeId requires delivery=exactly_once"),
        ({"writeId": "a/b", "delivery": "exactly_once"}, "'a/b' must be 1 to 200 letters"),
        ({"includeHeaders": "yes"}, "includeHeaders: 'yes' is neither true nor false"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(options: dict[str, str], text: str) -> None:
    with pytest.raises(SinkError) as caught:
        told(**options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_that_a_record_has_are_used_and_others_left_alone() -> None:
    full: Columns = {"id": LONG, "key": BYTES, "value": BYTES, "headers": HEADERS, "topic": TEXT, "partition": INT}
    full["timestamp"] = TimestampType()
    assert told(full).columns == ("key", "value", "headers", "partition")
    assert told(full, topic="").columns == ("key", "value", "headers", "topic", "partition")
    assert told(full, includeHeaders="false").columns == ("key", "value", "partition")


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"id": LONG}, "column value is missing: the columns are id; rename one"),
        ({"value": StructType().add("a", INT)}, "column value is struct<a:int>, not binary or string: cast it"),
        ({"key": LONG, "value": TEXT}, "column key is bigint, not binary or string"),
        ({"partition": LONG, "value": TEXT}, "column partition is bigint, not int"),
        (
            {"headers": MapType(TEXT, BYTES), "value": TEXT},
            "column headers is map<string,binary>, not array<struct",
        ),
        (
            {"headers": TEXTS, "value": TEXT},
            "column headers is array<struct",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_told(columns: Columns, text: str) -> None:
    with pytest.raises(SinkError) as caught:
        told(columns)
    assert text in str(caught.value)


def test_a_topic_must_be_named_somewhere() -> None:
    with pytest.raises(SinkError, match="no topic: set the option topic, or add a column topic"):
        told(topic="")
    with pytest.raises(SinkError, match="column topic is int, not string"):
        told({"topic": INT, "value": TEXT}, topic="")
    # it is not looked at when the option says where rows go
    told({"topic": INT, "value": TEXT})
