"""Columns to batches: every way gives the bytes that the plain builder builds, and they are read back as they were."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow import encode as arrow_encode
from penstock.arrow.columns import HEADERS, SCHEMA
from penstock.arrow.decode import decode
from penstock.arrow.encode import Encoded, Writer, encode
from penstock.arrow.ways import Way
from penstock.records.batch import Batch, BatchError
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.record import read_records
from penstock.records.varint import INT64_MAX, INT64_MIN
from tests.spark.batches import WAYS, new_records

COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.timestamp("ms")),
    ]
)


def table(records: Sequence[NewRecord]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(
                [[{"key": name, "value": value} for name, value in record.headers] or None for record in records],
                HEADERS,
            ),
            pa.array([record.timestamp for record in records], pa.int64()).cast(pa.timestamp("ms")),
        ],
        schema=COLUMNS,
    )


def read(encoded: Sequence[Encoded]) -> list[NewRecord]:
    return [NewRecord(*record[1:]) for one in encoded for record in read_records(Batch(memoryview(one.batch)))]


# ---------------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("way", WAYS)
@given(records=st.lists(new_records(), min_size=1, max_size=12), codec=st.sampled_from(sorted(CODECS)), data=st.data())
def test_every_way_gives_the_bytes_of_the_plain_builder(
    way: Way, records: list[NewRecord], codec: Codec, data: st.DataObject
) -> None:
    records = records * data.draw(st.sampled_from([1, 20]))
    writer = Writer(
        data.draw(st.integers(0, 2**63 - 1)), data.draw(st.integers(0, 2**15 - 1)), data.draw(st.booleans())
    )
    sequence = data.draw(st.integers(0, 2**31 - 1))
    found = list(
        encode(table(records), codec=codec, writer=writer, base_sequence=sequence, batch_bytes_max=20_000, way=way)
    )
    first = 0
    for one in found:
        assert one.batch == build_batch(
            records[first : first + one.records],
            compression=codec,
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            base_sequence=(sequence + first) % 2**31,
            transactional=writer.is_transactional,
        )
        first += one.records
    assert first == len(records)


@pytest.mark.parametrize("way", WAYS)
@given(records=st.lists(new_records(), min_size=1, max_size=30), bytes_max=st.integers(100, 30_000), data=st.data())
def test_a_batch_is_as_large_as_allowed_and_not_larger(
    way: Way, records: list[NewRecord], bytes_max: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # However little is packed at once.
        patch.setattr(arrow_encode, "_PACKED_AT_ONCE_BYTES_MAX", data.draw(st.sampled_from([1, 50_000, 10**9])))
        found = list(encode(table(records), batch_bytes_max=bytes_max, way=way))
    assert read(found) == records
    for one in found:
        assert len(one.batch) <= bytes_max or one.records == 1
    # Two neighbours would not have fitted, by the most that their records may take.
    for one, following in itertools.pairwise(found):
        added = (arrow_encode.RECORD_OVERHEAD_BYTES_MAX + 60) * (one.records + following.records)
        assert len(one.batch) + len(following.batch) + added > bytes_max


@pytest.mark.parametrize("way", WAYS)
def test_sequences_go_on_from_batch_to_batch_and_begin_again_at_the_end(way: Way) -> None:
    records = [NewRecord(1, None, bytes(50))] * 6
    found = encode(table(records), writer=Writer(1, 0), base_sequence=2**31 - 3, batch_bytes_max=250, way=way)
    sequences = [Batch(memoryview(one.batch)).base_sequence for one in found]
    assert sequences == [2**31 - 3, 2**31 - 1, 1]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_decoded_is_encoded_to_the_same_records(way: Way) -> None:
    headers = (("h", b"w"), ("i", None))
    records = [NewRecord(1_000 + at, b"k%d" % at, b"v" * (at % 200), headers * (at % 3)) for at in range(10_000)]
    found = list(encode(table(records), way=way, batch_bytes_max=100_000))
    offset, batches = 0, []
    for one in found:
        batch = Batch(memoryview(one.batch))
        batch.place(offset, 0)
        offset += one.records
        batches.append(batch)
    decoded = decode(batches, "t", 0, SCHEMA.names, way=way)
    again = list(encode(decoded.slice(10, 9_000), way=way))
    assert read(again) == records[10:9_010]


@pytest.mark.parametrize("way", WAYS)
def test_one_time_for_all_and_no_sequence_unless_told(way: Way) -> None:
    values = pa.RecordBatch.from_pydict({"value": pa.array(["a", None, "ü"])})
    (one,) = encode(values, timestamp_ms=5, way=way)
    batch = Batch(memoryview(one.batch))
    assert batch.crc_is_right()
    assert (batch.base_sequence, batch.producer_id, batch.producer_epoch) == (-1, -1, -1)
    assert not batch.is_transactional
    assert read([one]) == [NewRecord(5, None, b"a"), NewRecord(5, None, None), NewRecord(5, None, "ü".encode())]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()])
def test_any_kind_of_bytes_or_text_is_taken(way: Way, kind: pa.DataType) -> None:
    values = ["a", "", None, "bc"]
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    column = pa.array([value if texts or value is None else value.encode() for value in values], kind)
    (one,) = encode(pa.RecordBatch.from_pydict({"value": column, "key": column}).slice(1), timestamp_ms=1, way=way)
    assert read([one]) == [NewRecord(1, b"", b""), NewRecord(1), NewRecord(1, b"bc", b"bc")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("times", "milliseconds"),
    [
        (pa.array([1_999, -1, -1_000, -1_001], pa.timestamp("us", "UTC")), [1, -1, -1, -2]),
        (pa.array([1_999_999, -1], pa.timestamp("ns")), [1, -1]),
        (pa.array([7, -7], pa.timestamp("s")), [7_000, -7_000]),
        (pa.array([7, -7], pa.timestamp("ms")), [7, -7]),
        (pa.array([7, -7], pa.int64()), [7, -7]),
    ],
)
def test_times_of_any_unit_are_milliseconds_rounded_down(way: Way, times: pa.Array, milliseconds: list[int]) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.nulls(len(times), pa.binary()), "timestamp": times})
    assert [record.timestamp for record in read(list(encode(rows, way=way)))] == milliseconds


@pytest.mark.parametrize("way", WAYS)
def test_no_rows_are_no_batches(way: Way) -> None:
    assert list(encode(table([]), way=way)) == []


@pytest.mark.parametrize("way", WAYS)
def test_columns_of_nothing_but_nulls_are_taken(way: Way) -> None:
    nulls = pa.RecordBatch.from_pydict({name: pa.nulls(2) for name in ("key", "value", "headers")})
    assert read(list(encode(nulls, timestamp_ms=1, way=way))) == [NewRecord(1), NewRecord(1)]


# ---------------------------------------------------------------------------------------------------- what is refused

VALUES = pa.array([b"a", b"b"])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": VALUES}, "column value is missing"),
        ({"value": pa.array([1, 2])}, "column value is int64, not binary or string"),
        ({"value": VALUES, "key": pa.array([1.0, 2.0])}, "column key is double"),
        ({"value": VALUES, "headers": VALUES}, "column headers is binary"),
        ({"value": VALUES, "headers": pa.array([["a"], []])}, "column headers is list"),
        (
            {"value": VALUES, "headers": pa.array([[{"key": 1, "value": b""}], None])},
            "column headers.key is int64",
        ),
        ({"value": VALUES, "headers": pa.array([[{"key": None, "value": b""}], None], HEADERS)}, "has no key"),
        ({"value": VALUES, "headers": pa.array([[None], None], HEADERS)}, "has no key"),
        ({"value": VALUES, "timestamp": pa.array([1, None])}, "column timestamp: a row has no timestamp"),
        ({"value": VALUES, "timestamp": pa.array(["now", "then"])}, "column timestamp is string"),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        list(encode(pa.RecordBatch.from_pydict(columns), timestamp_ms=1))


def test_rows_without_a_time_are_refused() -> None:
    with pytest.raises(ValueError, match="no default timestamp"):
        list(encode(pa.RecordBatch.from_pydict({"value": VALUES})))


@pytest.mark.parametrize("way", WAYS)
def test_times_too_far_apart_for_one_batch_are_refused(way: Way) -> None:
    rows = pa.RecordBatch.from_pydict({"value": VALUES, "timestamp": pa.array([INT64_MIN, INT64_MAX])})
    with pytest.raises(BatchError, match="64 bits"):
        list(encode(rows, way=way))
    assert len(list(encode(rows, way=way, batch_bytes_max=100))) == 2


def test_spark_gives_utc_and_gets_it_back() -> None:
    time = dt.datetime(2026, 11, 16, 12, 0, 0, 123_000, tzinfo=dt.UTC)
    rows = pa.RecordBatch.from_pydict({"value": VALUES, "timestamp": pa.array([time, time], pa.timestamp("us", "UTC"))})
    (one,) = encode(rows)
    batch = Batch(memoryview(one.batch))
    assert decode([batch], "t", 0, ["timestamp"]).column(0).to_pylist() == [time, time]
