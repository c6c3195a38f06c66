"""Builders: what goes in comes out of the reader, whichever way the batch was made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.builder import RECORD_OVERHEAD_BYTES_MAX, NewRecord, build_batch, build_run, rebuild_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.record import Record, read_records

FIELD = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), FIELD), max_size=4).map(tuple)
NEW_RECORD = st.builds(NewRecord, st.integers(-1, 2**62), FIELD, FIELD, HEADERS)
RECORDS = st.lists(NEW_RECORD, min_size=1, max_size=10)


def read(built: bytes | bytearray) -> list[Record]:
    batch = Batch(memoryview(built))
    assert batch.size == len(built)
    assert batch.crc_is_right()
    return list(read_records(batch))


@given(RECORDS, st.sampled_from(sorted(CODECS)), st.integers(0, 2**62))
def test_records_come_back_from_a_batch(records: list[NewRecord], codec: Codec, base_offset: int) -> None:
    built = build_batch(records, compression=codec, base_offset=base_offset)
    assert read(built) == [Record(base_offset + n, *record) for n, record in enumerate(records)]
    batch = Batch(memoryview(built))
    assert batch.count == len(records) == batch.last_offset_delta + 1
    assert batch.base_timestamp == records[0].timestamp
    assert batch.max_timestamp == max(record.timestamp for record in records)


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=200),
    st.integers(-1, 2**62),
    st.integers(0, 2**62),
    st.integers(-1, 2**31 - 1),
)
def test_a_run_is_byte_for_byte_the_batch_of_the_same_records(
    values: list[bytes], timestamp_ms: int, base_offset: int, leader_epoch: int
) -> None:
    assert build_run(values, timestamp_ms, base_offset=base_offset, leader_epoch=leader_epoch) == build_batch(
        [NewRecord(timestamp_ms, None, value) for value in values], base_offset=base_offset, leader_epoch=leader_epoch
    )


@given(st.lists(st.tuples(FIELD, st.binary(max_size=200)), min_size=1, max_size=200))
def test_a_run_with_keys_is_byte_for_byte_the_batch_of_the_same_records(
    pairs: list[tuple[bytes | None, bytes]],
) -> None:
    keys = [key for key, _ in pairs]
    values = [value for _, value in pairs]
    assert build_run(values, 7, keys) == build_batch([NewRecord(7, key, value) for key, value in pairs])


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_192, 8_193, 70_000])
def test_runs_are_right_where_offset_deltas_grow_wider(count: int) -> None:
    values = [b"v%d" % n for n in range(count)]
    keys = [b"k%d" % n for n in range(count)]
    assert [record.value for record in read(build_run(values, 1))] == values
    assert [(record.key, record.value) for record in read(build_run(values, 1, keys))] == list(
        zip(keys, values, strict=True)
    )


@pytest.mark.parametrize("length", [0, 57, 58, 59, 60, 63, 64, 4_095, 4_096, 4_097, 8_185, 8_192, 100_000, 1_100_000])
def test_runs_are_right_where_lengths_grow_wider(length: int) -> None:
    value = bytes(length)
    assert build_run([value, value], 1) == build_batch([NewRecord(1, None, value)] * 2)
    assert build_run([value], 1, [value]) == build_batch([NewRecord(1, value, value)])


def test_a_long_run_is_byte_for_byte_the_batch_of_the_same_records() -> None:
    values = [bytes(n % 300) for n in range(9_000)]
    assert build_run(values, 1) == build_batch([NewRecord(1, None, value) for value in values])


def test_views_and_bytearrays_are_taken_as_they_are() -> None:
    wire = b"onetwothree"
    views = [memoryview(wire)[:3], bytearray(b"two"), memoryview(wire)[6:]]
    assert [record.value for record in read(build_run(views, 1, views))] == [b"one", b"two", b"three"]
    built = build_batch([NewRecord(1, view, view) for view in views])
    assert [record.key for record in read(built)] == [b"one", b"two", b"three"]


def test_a_built_batch_can_be_placed() -> None:
    built = build_run([b"value"], 1)
    Batch(memoryview(built)).place(9, 4)
    assert built == build_run([b"value"], 1, base_offset=9, leader_epoch=4)


@given(st.lists(st.tuples(FIELD, st.binary(max_size=200)), min_size=1, max_size=50), st.integers(-1, 2**62))
def test_the_overhead_of_a_record_is_at_most_what_is_said(
    pairs: list[tuple[bytes | None, bytes]], timestamp: int
) -> None:
    built = build_batch([NewRecord(0), *(NewRecord(timestamp, key, value) for key, value in pairs)])
    fields = sum(len(key or b"") + len(value) for key, value in pairs)
    assert len(built) <= HEADER_BYTES + fields + RECORD_OVERHEAD_BYTES_MAX * (len(pairs) + 1)


@given(RECORDS, st.sampled_from(sorted(CODECS)), st.booleans(), st.none() | st.integers(0, 2**62), st.data())
def test_what_log_cleaning_keeps_stays_as_it_was(
    records: list[NewRecord], codec: Codec, by_append_time: bool, horizon: int | None, data: st.DataObject
) -> None:
    batch = Batch(
        memoryview(
            build_batch(
                records,
                compression=codec,
                base_offset=1_000,
                leader_epoch=5,
                producer_id=9,
                producer_epoch=1,
                base_sequence=77,
                transactional=True,
                append_time_ms=12_345 if by_append_time else None,
            )
        )
    )
    kept = [record for record in read_records(batch) if data.draw(st.booleans())]
    rebuilt = rebuild_batch(batch, kept, horizon)
    assert read(rebuilt) == kept
    again = Batch(memoryview(rebuilt))
    for name in ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(again, name) == getattr(batch, name)
    assert again.is_transactional
    assert again.has_log_append_time == by_append_time
    assert again.delete_horizon_ms == horizon
    assert again.compression == (codec if kept else Codec.NONE)
    # Cleaned again, the horizon stays.
    assert Batch(memoryview(rebuild_batch(again, kept))).delete_horizon_ms == horizon
    assert read(rebuild_batch(again, kept)) == kept


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_batch_of_which_nothing_is_kept_is_a_bare_header(codec: Codec) -> None:
    batch = Batch(memoryview(build_batch([NewRecord(1), NewRecord(2)], compression=codec, base_sequence=3)))
    bare = Batch(memoryview(rebuild_batch(batch, [])))
    assert (bare.size, bare.count, bare.compression) == (HEADER_BYTES, 0, Codec.NONE)
    assert (bare.last_offset, bare.last_sequence, bare.max_timestamp) == (1, 4, 2)
    assert bare.crc_is_right()


def test_a_batch_without_records_is_not_built() -> None:
    with pytest.raises(BatchError, match="at least one record"):
        build_batch([])
    with pytest.raises(BatchError, match="at least one record"):
        build_run([], 1)


def test_keys_that_do_not_pair_with_values_are_refused() -> None:
    with pytest.raises(BatchError, match="1 keys for 2 values"):
        build_run([b"a", b"b"], 1, [b"k"])


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 2**63},
        {"producer_id": 2**63},
        {"producer_epoch": 2**15},
        {"base_sequence": 2**31},
        {"leader_epoch": 2**31},
        {"append_time_ms": 2**63},
        {"compression": 5},
        {"compression": 8},
        {"compression": -1},
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(BatchError):
        build_batch([NewRecord(1)], **fields)


def test_timestamps_too_far_apart_are_refused() -> None:
    with pytest.raises(BatchError, match="64 bits"):
        build_batch([NewRecord(-1), NewRecord(2**63 - 1)])


def test_a_header_name_that_no_bytes_mean_is_refused() -> None:
    with pytest.raises(BatchError, match="header name"):
        build_batch([NewRecord(1, headers=(("\ud800", None),))])
