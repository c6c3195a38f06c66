"""Batches to columns: every way gives what the plain reader reads, and refuses what it refuses."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow import kernels_numpy
from penstock.arrow.columns import DEFAULT, SCHEMA, schema_of
from penstock.arrow.decode import OFFSET_MAX, decode, decode_batches, decode_view
from penstock.arrow.ways import Way, best_way
from penstock.model.limits import HEADERS_PER_RECORD_MAX
from penstock.records.batch import CRC_OFFSET, CRC_START, HEADER_BYTES, Batch, BatchError
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.record import read_records
from penstock.records.varint import INT64_MAX, INT64_MIN, varint, varlong
from tests.spark.batches import WAYS, Made, logs, made

ALL = SCHEMA.names
SIDE_BY_SIDE = st.sampled_from([0, 1_000_000])
"""numpy walks all batches at once, or one after the other."""
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def expected(batches: Sequence[Batch], start: int = 0, end: int = OFFSET_MAX) -> list[dict[str, Any]]:
    """The rows, by the reader of single records."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp * 1_000,
            "timestampType": int(batch.has_log_append_time),
            "headers": [
                {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
                for name, value in record.headers
            ]
            or None,
        }
        for batch in batches
        for record in read_records(batch)
        if start <= record.offset < end
    ]


def rows(decoded: pa.RecordBatch) -> list[dict[str, Any]]:
    """Times as microseconds: not every one is a datetime of Python."""
    decoded.validate(full=True)
    if "timestamp" in decoded.schema.names:
        at = decoded.schema.names.index("timestamp")
        decoded = decoded.set_column(at, "timestamp", decoded.column("timestamp").cast(pa.int64()))
    found: list[dict[str, Any]] = decoded.to_pylist()
    return found


def decoded(batches: Sequence[Batch], way: Way, columns: Sequence[str] = ALL, **bounds: int) -> list[dict[str, Any]]:
    return rows(decode(batches, "orders", 3, columns, way=way, **bounds))


def sealed(built: bytearray) -> bytearray:
    struct.pack_into(">I", built, CRC_OFFSET, crc32c(memoryview(built)[CRC_START:]))
    return built


def with_payload(payload: bytes, count: int, last_offset_delta: int | None = None) -> Batch:
    """A batch with a right header and CRC around any bytes."""
    built = build_batch([NewRecord(1_000)])[:HEADER_BYTES] + payload
    struct.pack_into(">i", built, 8, len(built) - 12)
    struct.pack_into(">i", built, 23, count - 1 if last_offset_delta is None else last_offset_delta)
    struct.pack_into(">i", built, 57, count)
    return Batch(memoryview(sealed(built)))


def raw_record(
    timestamp_delta: int = 0, offset_delta: int = 0, key: bytes = b"\1", value: bytes = b"\1", headers: bytes = b"\0"
) -> bytes:
    body = b"\0" + varlong(timestamp_delta) + varint(offset_delta) + key + value + headers
    return varint(len(body)) + body


# ---------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("way", WAYS)
@given(log=logs(), side_by_side=SIDE_BY_SIDE, data=st.data())
def test_every_way_gives_what_the_plain_reader_reads(
    way: Way, log: Made, side_by_side: int, data: st.DataObject
) -> None:
    columns = data.draw(st.lists(st.sampled_from(ALL), min_size=1, unique=True))
    start = data.draw(st.integers(0, log.batches[-1].next_offset + 2))
    end = data.draw(st.integers(start, log.batches[-1].next_offset + 2) | st.just(OFFSET_MAX))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels_numpy, "SIDE_BY_SIDE_MIN", side_by_side)
        patch.setattr(kernels_numpy, "HEADER_ROUND_MIN", data.draw(st.sampled_from([1, 2, 64])))
        found = decoded(log.batches, way, columns, start=start, end=end)
    assert found == [{name: row[name] for name in columns} for row in expected(log.batches, start, end)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_fetch_answer_becomes_a_few_arrow_batches(way: Way, codec: Codec) -> None:
    values = [b"%d" % at * (at % 90) for at in range(3_000)]
    parts = [
        build_batch(
            [NewRecord(1_000 + at, b"k%d" % at, values[at]) for at in range(first, first + 100)],
            base_offset=first,
            compression=codec,
        )
        for first in range(0, 3_000, 100)
    ]
    answer = memoryview(b"".join(parts) + bytes(parts[0][:80]))
    found = list(decode_view(answer, "orders", 3, start=150, end=2_950, way=way, rows_max=1_000))
    assert [one.num_rows for one in found] == [950, 1_000, 850]
    table = pa.Table.from_batches(found)
    assert table.schema == schema_of()
    assert table.column("offset").to_pylist() == list(range(150, 2_950))
    assert table.column("value").to_pylist() == values[150:2_950]
    by_size = decode_view(answer, "orders", 3, way=way, bytes_max=2 * max(map(len, parts)))
    assert all(100 <= one.num_rows <= 1_000 for one in by_size)


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_several_buffers_are_one_arrow_batch(way: Way) -> None:
    batches = [Batch(memoryview(build_batch([NewRecord(1, None, b"%d" % at)], base_offset=at))) for at in range(300)]
    assert [row["value"] for row in decoded(batches, way)] == [b"%d" % at for at in range(300)]


@pytest.mark.parametrize("way", WAYS)
def test_the_schema_is_that_of_sparks_kafka_source(way: Way) -> None:
    found = decode(made([build_batch([NewRecord(1, b"k", b"v")])]).batches, "t", 0, ALL, way=way)
    assert found.schema == SCHEMA
    types = pytest.importorskip("pyspark.sql.types", reason="the extra `spark` is not installed")
    arrow = pytest.importorskip("pyspark.sql.pandas.types")
    header = types.StructType().add("key", "string").add("value", "binary")
    spark = types.StructType().add("key", "binary").add("value", "binary").add("topic", "string")
    spark = spark.add("partition", "integer").add("offset", "long").add("timestamp", "timestamp")
    spark = spark.add("timestampType", "integer").add("headers", types.ArrayType(header))
    assert found.schema == arrow.to_arrow_schema(spark, timezone="UTC")


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_an_empty_batch_with_the_schema(way: Way) -> None:
    empty = decode([], "t", 0, ALL, way=way)
    assert empty.num_rows == 0
    assert empty.schema == SCHEMA
    assert list(decode_batches([], "t", 0, way=way)) == []
    cleaned = with_payload(b"", 0, 4)
    assert decode([cleaned], "t", 0, ALL, way=way).num_rows == 0
    assert list(decode_batches([cleaned], "t", 0, way=way)) == []


def test_a_column_that_no_topic_has_is_named() -> None:
    with pytest.raises(ValueError, match="unknown column 'Key'"):
        decode([], "t", 0, ["Key"])
    assert "headers" not in DEFAULT


@pytest.mark.parametrize("way", WAYS)
def test_header_names_that_are_not_utf8_have_replacement_characters(way: Way) -> None:
    batch = with_payload(raw_record(headers=b"\x04\x04\xff\xfe\x00\x02a\x01"), 1)
    (row,) = decoded([batch], way)
    assert row["headers"] == [{"key": "��", "value": b""}, {"key": "a", "value": None}]


@pytest.mark.parametrize("way", WAYS)
def test_one_record_may_have_as_many_headers_as_the_limit_says(way: Way) -> None:
    header = (("h", b"v"),)
    records = [NewRecord(1), NewRecord(1, headers=header * HEADERS_PER_RECORD_MAX), NewRecord(1, headers=header)]
    counts = [len(row["headers"] or ()) for row in decoded(made([build_batch(records)]).batches, way)]
    assert counts == [0, HEADERS_PER_RECORD_MAX, 1]
    more = made([build_batch([NewRecord(1, headers=header * (HEADERS_PER_RECORD_MAX + 1))])])
    with pytest.raises(BatchError, match="are allowed"):
        decoded(more.batches, way)


@pytest.mark.parametrize("way", WAYS)
def test_the_widest_numbers_are_read(way: Way) -> None:
    far = (1 << 31) - 1
    batch = with_payload(raw_record(offset_delta=0) + raw_record(-(10**15), offset_delta=far), 2, far)
    assert [row["offset"] for row in decoded([batch], way)] == [0, far]
    assert decoded([batch], way)[1]["timestamp"] == (1_000 - 10**15) * 1_000
    # Numbers that are longer than they need to be mean the same.
    overlong = with_payload(raw_record(key=b"\x81\x00", value=b"\x84\x80\x00ab", headers=b"\x80\x00"), 1)
    assert [(row["key"], row["value"]) for row in decoded([overlong], way)] == [(None, b"ab")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("timestamp", [INT64_MIN, INT64_MAX, INT64_MAX // 1_000 + 1, -(INT64_MAX // 1_000) - 1])
def test_a_time_that_microseconds_cannot_say_is_refused_where_it_is_asked_for(way: Way, timestamp: int) -> None:
    batches = made([build_batch([NewRecord(timestamp, None, b"v")])]).batches
    assert [row["value"] for row in decoded(batches, way, ["value"])] == [b"v"]
    with pytest.raises(BatchError, match="microseconds"):
        decoded(batches, way, ["timestamp"])


@pytest.mark.parametrize("way", WAYS)
def test_no_time_is_shown_as_sparks_source_shows_it(way: Way) -> None:
    found = decode(made([build_batch([NewRecord(-1)])]).batches, "t", 0, way=way)
    assert found.column("timestamp").to_pylist() == [EPOCH - dt.timedelta(milliseconds=1)]


def test_the_fastest_way_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"numpy", "numba"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in installed else None)
    for missing, way in (("", Way.NUMBA), ("numba", Way.NUMPY), ("numpy", Way.PURE)):
        installed.discard(missing)
        best_way.cache_clear()
        assert best_way() is way
    best_way.cache_clear()


# ---------------------------------------------------------------------------------------------------- what is refused


def verdict(batches: Sequence[Batch], way: Way) -> list[dict[str, Any]] | str:
    try:
        return decoded(batches, way)
    except BatchError as error:
        return str(error)


def plain_verdict(batches: Sequence[Batch]) -> list[dict[str, Any]] | str:
    try:
        return expected(batches)
    except BatchError as error:
        return str(error)


@pytest.mark.parametrize("way", WAYS)
@given(side_by_side=SIDE_BY_SIDE, data=st.data())
def test_a_changed_byte_is_read_or_refused_as_by_the_plain_reader(
    way: Way, side_by_side: int, data: st.DataObject
) -> None:
    headers = (("h", b"w"), ("i", None))
    payload = bytearray(
        build_batch([NewRecord(1_000, b"k" * 70, b"v" * 200, headers), NewRecord(1_001)] * 35)[HEADER_BYTES:]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1) | st.sampled_from([0, 1, 2, 3, 4, 5]))
        payload[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    cut = data.draw(st.sampled_from([len(payload), len(payload) - 1, len(payload) // 2]))
    sound = build_batch([NewRecord(1, b"a", b"b")] * 2, base_offset=70)
    damaged = with_payload(bytes(payload[:cut]), data.draw(st.sampled_from([70, 69, 71])), 69)
    batches = made([damaged.view, sound]).batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels_numpy, "SIDE_BY_SIDE_MIN", side_by_side)
        patch.setattr(kernels_numpy, "HEADER_ROUND_MIN", data.draw(st.sampled_from([1, 2, 64])))
        assert verdict(batches, way) == plain_verdict(batches)


@pytest.mark.parametrize("way", WAYS)
@given(payload=st.binary(max_size=60), count=st.integers(-1, 8), last=st.integers(-1, 2**31 - 1))
def test_noise_is_read_or_refused_as_by_the_plain_reader(way: Way, payload: bytes, count: int, last: int) -> None:
    batches = [with_payload(payload, count, last)]
    found, plain = verdict(batches, way), plain_verdict(batches)
    assert isinstance(found, str) == isinstance(plain, str)


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "negative record length": (b"\x01" + bytes(8), 1, "a record of -1 bytes"),
    "record longer than the batch": (b"\x10" + bytes(7), 1, "a record of 8 bytes"),
    "key into the next record": (raw_record(key=b"\x0a") + raw_record(offset_delta=1), 2, "a field of 5 bytes"),
    "value of negative length": (raw_record(value=varint(-2)), 1, "a field of -2 bytes"),
    "header without a name": (raw_record(headers=b"\x02\x01\x01"), 1, "without a name"),
    "more headers than bytes": (raw_record(headers=varint(2**30)), 1, "1073741824 headers"),
    "offset delta again": (raw_record() * 2, 2, "offset delta 0 after 0"),
    "timestamp beyond 64 bits": (raw_record(timestamp_delta=INT64_MAX), 1, "out of range"),
    "key wider than 32 bits": (raw_record(key=b"\x82\x80\x80\x80\x10a"), 1, "wider than 32"),
    "value wider than 32 bits": (raw_record(value=b"\x81\x80\x80\x80\x10"), 1, "wider than 32"),
    "number without an end": (b"\xff" * 12, 1, "longer than 5"),
    "bytes after the last record": (raw_record() + b"\0", 1, "1 bytes after the last"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("at_once_min", [0, 1_000_000])
def test_a_lie_is_refused_for_what_it_is(
    way: Way, name: str, at_once_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_numpy, "SIDE_BY_SIDE_MIN", at_once_min)
    monkeypatch.setattr(kernels_numpy, "HEADER_ROUND_MIN", at_once_min or 1)
    payload, count, said = REFUSED[name]
    with pytest.raises(BatchError, match=said):
        decoded([with_payload(payload, count)], way)


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_crc_is_refused_with_its_offset(way: Way) -> None:
    built = build_batch([NewRecord(1, None, b"value")], base_offset=42)
    built[-2] ^= 1
    with pytest.raises(BatchError, match="the batch at offset 42"):
        decoded([Batch(memoryview(built))], way)


@pytest.mark.parametrize("way", WAYS)
def test_other_formats_and_codecs_are_refused(way: Way) -> None:
    old = build_batch([NewRecord(1)])
    old[16] = 1
    with pytest.raises(BatchError, match="magic 1"):
        decoded([Batch(memoryview(old))], way)
    unknown = build_batch([NewRecord(1)])
    unknown[22] |= 5
    with pytest.raises(BatchError, match="not known"):
        decoded([Batch(memoryview(sealed(unknown)))], way)
    far = build_batch([NewRecord(1), NewRecord(1)], base_offset=INT64_MAX)
    with pytest.raises(BatchError, match="last offset"):
        decoded([Batch(memoryview(far))], way)
