"""Walks over records: they find what decoding would find, refuse what it refuses, and pause."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.limits import HEADERS_PER_RECORD_MAX
from penstock.records.batch import HEADER_BYTES, Batch, BatchError, BatchTooLarge
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records
from penstock.records.varint import INT64_MIN
from penstock.records.walk import (
    PAUSE_HEADERS,
    PAUSE_RECORDS,
    Violation,
    find_timestamp,
    find_violation,
    offset_delta_at,
    skip_records,
    unpacked_bytes_max,
)

T = TypeVar("T")
MIB = 1024 * 1024

fields = st.one_of(st.none(), st.binary(max_size=5), st.just(b"x" * 63), st.just(b"x" * 64), st.just(b"x" * 9_000))
headers = st.lists(st.tuples(st.sampled_from(["", "name", "n" * 70]), fields), max_size=3).map(tuple)
records = st.lists(
    st.builds(NewRecord, st.integers(0, 2**40), fields, fields, headers), min_size=1, max_size=2 * PAUSE_RECORDS
)


def result(walk: Generator[None, None, T]) -> tuple[T, int]:
    """What a walk returns, and how often it paused."""
    pauses = 0
    while True:
        try:
            next(walk)
        except StopIteration as stop:
            return stop.value, pauses
        pauses += 1


def by_decoding(batch: Batch, needs_keys: bool, oldest_ms: int) -> Violation | None:
    for index, record in enumerate(read_records(batch)):
        if needs_keys and record.key is None:
            return Violation(index, None)
        if record.timestamp < oldest_ms:
            return Violation(index, record.timestamp)
    return None


def with_payload(payload: bytes, count: int) -> Batch:
    data = build_batch([NewRecord(5, b"k", b"v")])[:HEADER_BYTES] + payload
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[23:27] = max(0, count - 1).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    return Batch(memoryview(data))


@given(records, st.booleans(), st.one_of(st.just(INT64_MIN), st.integers(0, 2**40)))
def test_violations_are_those_that_decoding_finds(made: list[NewRecord], needs_keys: bool, oldest_ms: int) -> None:
    batch = Batch(memoryview(build_batch(made)))
    expected = by_decoding(batch, needs_keys, oldest_ms)
    for data in (batch.payload(), bytes(batch.payload())):
        found, _ = result(find_violation(batch, data, needs_keys=needs_keys, oldest_ms=oldest_ms))
        assert found == expected


def assert_same_outcome(batch: Batch) -> None:
    outcomes = []
    for look in (
        lambda: by_decoding(batch, True, 4),
        lambda: result(find_violation(batch, batch.payload(), needs_keys=True, oldest_ms=4))[0],
    ):
        try:
            outcomes.append(look())
        except BatchError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


@given(st.data())
def test_damage_is_refused_where_decoding_refuses_it(data: st.DataObject) -> None:
    record = NewRecord(
        5, b"k" * data.draw(st.sampled_from([0, 1, 70])), b"v" * 200, (("h", b"w"), ("n" * 70, None)) * 2
    )
    payload = bytearray(build_batch([record] * 20)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    assert_same_outcome(with_payload(bytes(payload), 20))


@given(st.binary(max_size=60), st.integers(0, 8))
def test_noise_is_refused_where_decoding_refuses_it(payload: bytes, count: int) -> None:
    assert_same_outcome(with_payload(payload, count))


def test_null_fields_in_long_varints_are_null_fields() -> None:
    # length 8, attributes, timestamp, offset, key length -1 in two bytes, value length 0, no headers
    without_key = with_payload(bytes((14, 0, 0, 0, 0x81, 0x00, 0, 0)), 1)
    assert_same_outcome(without_key)
    assert result(find_violation(without_key, without_key.payload(), needs_keys=True)) == (Violation(0, None), 0)
    without_name = with_payload(bytes((22, 0, 0, 0, 2, 65, 0, 2, 0x81, 0x00, 0, 0)), 1)
    assert_same_outcome(without_name)
    with pytest.raises(BatchError):
        result(find_violation(without_name, without_name.payload(), needs_keys=True))


def test_walks_pause_between_records_and_between_headers() -> None:
    many = Batch(memoryview(build_batch([NewRecord(5, b"k", b"")] * (10 * PAUSE_RECORDS))))
    assert result(find_violation(many, many.payload(), needs_keys=True)) == (None, 9)
    assert result(find_timestamp(many, many.payload(), 6, 0)) == (None, 10)
    one = Batch(memoryview(build_batch([NewRecord(5, b"k", b"", (("h", b""),) * (4 * PAUSE_HEADERS))])))
    assert result(find_violation(one, one.payload(), needs_keys=True)) == (None, 3)


def test_headers_are_counted_before_they_are_walked() -> None:
    batch = Batch(memoryview(build_batch([NewRecord(5, b"k", b"", (("h", b""),) * 6)] * 10)))
    assert result(find_violation(batch, batch.payload(), needs_keys=True, headers_max=60))[0] is None
    with pytest.raises(BatchTooLarge, match="more than 59 headers in a batch"):
        result(find_violation(batch, batch.payload(), needs_keys=True, headers_max=59))
    over = NewRecord(5, b"k", b"", (("h", b""),) * (HEADERS_PER_RECORD_MAX + 1))
    batch = Batch(memoryview(build_batch([over])))
    with pytest.raises(BatchTooLarge, match="10001 headers, 10000 are allowed"):
        result(find_violation(batch, batch.payload(), needs_keys=True))


@given(records, st.integers(0, 2**40), st.integers(0, 300))
def test_the_first_record_at_or_after_a_time_is_found(made: list[NewRecord], timestamp: int, offset: int) -> None:
    batch = Batch(memoryview(build_batch(made, base_offset=20)))
    expected = next(
        ((r.offset, r.timestamp) for r in read_records(batch) if r.timestamp >= timestamp and r.offset >= offset), None
    )
    assert result(find_timestamp(batch, bytes(batch.payload()), timestamp, offset))[0] == expected


@given(records, st.data())
def test_records_are_skipped_by_their_lengths(made: list[NewRecord], data: st.DataObject) -> None:
    batch = Batch(memoryview(build_batch(made)))
    index = data.draw(st.integers(0, len(made) - 1))
    at = skip_records(batch.payload(), 0, index)
    assert offset_delta_at(batch.payload(), at) == index
    assert skip_records(batch.payload(), at, len(made) - index) == len(batch.payload())
    with pytest.raises(BatchError):
        skip_records(batch.payload(), 0, len(made) + 1)


def test_small_batches_may_unpack_to_more_of_their_size_than_large_ones() -> None:
    assert unpacked_bytes_max(4_000) == 16 * MIB
    assert unpacked_bytes_max(MIB) == 100 * MIB
    assert unpacked_bytes_max(10 * MIB) == 128 * MIB
