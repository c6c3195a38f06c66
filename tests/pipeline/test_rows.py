"""Rows are decoded as declared; what does not fit is refused with a reason and lost nowhere."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.declaration import BadRows, Check, Decoding, FileSource, RowRules, TopicSource
from penstock.pipeline.fields import parse_fields

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
AT = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def records(spark: SparkSession, values: list[Any]) -> DataFrame:
    rows = [(b"k%d" % at, value, "t", 0, at, AT, 0) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORD)


def source(decoding: Decoding, rules: RowRules | None = None, key: str = "string") -> TopicSource:
    return TopicSource("t", 1, True, {}, decoding, key, rules or RowRules())


def verdicts(frame: DataFrame) -> list[str | None]:
    from penstock.pipeline.rows import REFUSED

    return [row[REFUSED] for row in frame.orderBy("offset").select(REFUSED).collect()]


def test_json_values_become_columns_and_those_that_do_not_fit_have_a_reason(spark: SparkSession) -> None:
    from penstock.pipeline import rows

    decoding = Decoding("json", parse_fields("id BIGINT NOT NULL, name STRING, timestamp STRING"))
    frame = rows.decoded_topic(
        records(
            spark,
            [
                b'{"id": 1, "name": "a", "timestamp": "mine", "more": 5}',
                b'{"id": "one"}',
                b"{nope",
                b'{"name": "b"}',
                b"\xff\xfe",
                b"",
                b"5",
                None,
            ],
        ),
        source(decoding),
    )
    assert verdicts(frame) == [
        None,
        "the value does not fit the schema",
        "the value is not JSON",
        "id is null or missing",
        "the value is not UTF-8",
        "the value is not JSON",
        "the value does not fit the schema",
        "id is null or missing",
    ]
    good = rows.accepted(frame, RowRules(bad_rows=BadRows.SKIP), "sources.t").collect()
    # the value's own timestamp takes the place of the record's
    assert [row.asDict() for row in good] == [
        {
            "id": 1,
            "name": "a",
            "timestamp": "mine",
            "key": "k0",
            "topic": "t",
            "partition": 0,
            "offset": 0,
            "timestampType": 0,
        }
    ]


def test_letters_are_the_records_as_they_came_with_the_reason_and_their_place(spark: SparkSession) -> None:
    from pyspark.sql import functions

    from penstock.pipeline import rows

    raw = records(spark, [b"good", b"\xff"]).withColumn(
        "headers",
        functions.array(functions.struct(functions.lit("mine").alias("key"), functions.lit(b"h").alias("value"))),
    )
    (letter,) = rows.letters(rows.decoded_topic(raw, source(Decoding("string"))), "p", "t").collect()
    assert (bytes(letter.key), bytes(letter.value)) == (b"k1", b"\xff")
    assert [(header.key, bytes(header.value).decode()) for header in letter.headers] == [
        ("mine", "h"),
        ("penstock.topic", "t"),
        ("penstock.partition", "0"),
        ("penstock.offset", "1"),
        ("penstock.timestamp_ms", "1767268800000"),
        ("penstock.reason", "the value is not UTF-8"),
        ("penstock.pipeline", "p"),
        ("penstock.origin", "t"),
    ]


def test_csv_strings_and_bytes_are_decoded(spark: SparkSession) -> None:
    from penstock.pipeline import rows

    csv = source(Decoding("csv", parse_fields("a INT, b STRING"), {"sep": ";"}), key="binary")
    frame = rows.decoded_topic(records(spark, [b"1;x", b"one;y", None]), csv)
    assert verdicts(frame) == [None, "the value does not fit the schema", None]
    first = frame.orderBy("offset").first()
    assert first is not None
    assert (first.a, first.b, bytes(first.key)) == (1, "x", b"k0")
    text = rows.decoded_topic(records(spark, ["grüezi".encode()]), source(Decoding("string"))).first()
    raw = rows.decoded_topic(records(spark, [b"\xff"]), source(Decoding())).first()
    assert text is not None
    assert raw is not None
    assert (text.value, bytes(raw.value)) == ("grüezi", b"\xff")


def test_a_key_that_is_no_text_is_a_reason_too(spark: SparkSession) -> None:
    from penstock.pipeline import rows

    raw = spark.createDataFrame([(b"\xff", b"v", "t", 0, 0, AT, 0), (None, b"v", "t", 0, 1, AT, 0)], RECORD)
    assert verdicts(rows.decoded_topic(raw, source(Decoding()))) == ["the key is not UTF-8", None]


def test_a_check_refuses_what_is_not_true_and_the_first_reason_stays(spark: SparkSession) -> None:
    from penstock.pipeline import rows

    frame = rows.with_verdict(spark.createDataFrame([(1, 5), (2, -5), (3, None), (4, 500)], "offset INT, x INT"))
    for name, condition in (("positive", "x > 0"), ("small", "x < 100")):
        frame = rows.checked(frame, Check(name, condition, 1))
    assert verdicts(frame) == [None, "check failed: positive", "check failed: positive", "check failed: small"]
    letter = rows.letters(frame, "p", "t").orderBy("value").first()
    assert letter is not None
    assert letter.value == b'{"offset":2,"x":-5}'


def test_a_bad_row_fails_with_its_place_unless_told_otherwise(spark: SparkSession) -> None:
    from penstock.pipeline import rows
    from penstock.spark.failures import one_line

    frame = rows.decoded_topic(records(spark, [b"fine", b"\xff"]), source(Decoding("string")))
    with pytest.raises(Exception, match="not UTF-8") as failed:
        rows.accepted(frame, RowRules(), "sources.t").count()
    assert one_line(failed.value) == "sources.t: record 1 of t-0: the value is not UTF-8"
    assert rows.accepted(frame, RowRules(bad_rows=BadRows.SKIP), "sources.t").count() == 1


@pytest.mark.parametrize(("layout", "text"), [("json", '{"a": 1}\n{"a": "x"}\n{"b": 2}\nnope\n'), ("csv", "1\nx\n\n")])
def test_lines_of_files_that_are_no_rows_are_refused(
    spark: SparkSession, tmp_path: Path, layout: str, text: str
) -> None:
    from penstock.pipeline import rows

    (tmp_path / "in").write_text(text)
    files = FileSource("f", 1, False, str(tmp_path / "in"), layout, parse_fields("a INT NOT NULL"), {}, RowRules())
    reader = spark.read.format(layout).options(**rows.file_options(files)).schema(rows.file_schema(files))
    frame = rows.with_verdict(reader.load(files.path), files)
    assert [row.a for row in rows.accepted(frame, RowRules(bad_rows=BadRows.SKIP), "f").collect()] == [1]
    reasons = {
        bytes(row.value).decode(): {header.key: bytes(header.value).decode() for header in row.headers}[
            "penstock.reason"
        ]
        for row in rows.letters(frame, "p", "f").collect()
    }
    wrong = f"the line does not match the schema ({layout.upper()})"
    if layout == "json":
        assert reasons == {'{"a": "x"}': wrong, "{}": "a is null or missing", "nope": wrong}
    else:
        assert reasons == {"x": wrong}
