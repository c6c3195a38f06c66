"""The reader: a batch with any wrong byte in it is a BatchError, never another exception and never a wrong record."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.limits import HEADERS_PER_RECORD_MAX
from penstock.records.batch import CRC_OFFSET, CRC_START, HEADER_BYTES, LOG_APPEND_TIME_BIT, Batch, BatchError
from penstock.records.builder import NewRecord, build_batch, build_run
from penstock.records.compression import CODECS, Codec, DecompressionError
from penstock.records.record import Record, read_records
from penstock.records.varint import INT64_MAX, INT64_MIN, varint, varlong

SMALL = [NewRecord(1_000, b"key", b"value", (("name", b"x"), ("none", None))), NewRecord(1_007, None, None)]


def read(built: bytes | bytearray) -> list[Record]:
    return list(read_records(Batch(memoryview(built))))


def with_payload(payload: bytes, count: int, last_offset_delta: int | None = None) -> bytearray:
    """A batch with a right header and CRC around any bytes."""
    built = build_batch([NewRecord(1_000)])[:HEADER_BYTES] + payload
    struct.pack_into(">i", built, 8, len(built) - 12)
    struct.pack_into(">i", built, 23, count - 1 if last_offset_delta is None else last_offset_delta)
    struct.pack_into(">i", built, 57, count)
    return sealed(built)


def sealed(built: bytearray) -> bytearray:
    struct.pack_into(">I", built, CRC_OFFSET, crc32c(memoryview(built)[CRC_START:]))
    return built


def raw_record(
    timestamp_delta: int = 0,
    offset_delta: int = 0,
    key: bytes = b"\x01",
    value: bytes = b"\x01",
    headers: bytes = b"\x00",
    length: int | None = None,
) -> bytes:
    body = b"\0" + varlong(timestamp_delta) + varint(offset_delta) + key + value + headers
    return varint(len(body) if length is None else length) + body


def test_a_record_is_read_whole() -> None:
    assert read(build_batch(SMALL, base_offset=50)) == [
        Record(50, 1_000, b"key", b"value", (("name", b"x"), ("none", None))),
        Record(51, 1_007, None, None, ()),
    ]


def test_a_record_cannot_be_changed() -> None:
    (record,) = read(build_run([b"value"], 1))
    with pytest.raises(AttributeError):
        record.value = b""  # type: ignore[misc]
    assert not hasattr(record, "__dict__")


def test_records_outlive_the_buffer_that_they_were_read_from() -> None:
    built = build_batch(SMALL)
    records = read(built)
    built[:] = bytes(len(built))
    assert records[0].value == b"value"


def test_append_time_counts_for_every_record_when_the_batch_says_so() -> None:
    assert [record.timestamp for record in read(build_batch(SMALL, append_time_ms=5_555))] == [5_555, 5_555]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_truncation_is_a_batch_error(codec: Codec) -> None:
    whole = build_batch(SMALL, compression=codec)
    for size in range(len(whole)):
        with pytest.raises(BatchError):
            read(whole[:size])


def test_every_truncation_of_the_records_under_a_right_header_is_a_batch_error() -> None:
    payload = bytes(build_batch(SMALL)[HEADER_BYTES:])
    assert len(read(with_payload(payload, 2))) == 2
    for size in range(len(payload)):
        with pytest.raises(BatchError):
            read(with_payload(payload[:size], 2))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_flipped_byte_is_a_wrong_crc_or_a_batch_error_or_outside_the_crc(codec: Codec) -> None:
    sound = build_batch(SMALL, base_offset=50, leader_epoch=3, compression=codec)
    uncovered = {*range(8), *range(12, 16)}
    for at in range(len(sound)):
        for flip in (*(1 << bit for bit in range(8)), 0xFF):
            sound[at] ^= flip
            try:
                batch = Batch(memoryview(sound))
                crc_is_right = batch.crc_is_right()
                list(read_records(batch, limit_bytes=10_000))
                assert not crc_is_right or at in uncovered, at
            except BatchError:
                pass
            sound[at] ^= flip


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_flipped_byte_under_a_right_crc_gives_records_or_a_batch_error(codec: Codec) -> None:
    sound = build_batch(SMALL, compression=codec)
    for at in range(CRC_START, len(sound)):
        for flip in range(1, 256):
            flipped = bytearray(sound)
            flipped[at] ^= flip
            try:
                list(read_records(Batch(memoryview(sealed(flipped))), limit_bytes=10_000))
            except BatchError:
                pass


@given(st.binary(max_size=100), st.integers(-1, 20), st.integers(-1, 2**31 - 1))
def test_noise_gives_records_or_a_batch_error(payload: bytes, count: int, last_offset_delta: int) -> None:
    try:
        assert len(read(with_payload(payload, count, last_offset_delta))) == count
    except BatchError:
        pass


@given(st.data())
def test_a_damaged_record_gives_records_or_a_batch_error(data: st.DataObject) -> None:
    payload = bytearray(build_batch([NewRecord(5, b"k" * 70, b"v" * 200, (("h", b"w"),) * 3)] * 70)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(read(with_payload(bytes(payload), 70))) == 70
    except BatchError:
        pass


REFUSED: dict[str, tuple[Sequence[bytes], str]] = {
    "negative record length": ([raw_record(length=-1)], "a record of -1 bytes"),
    "record length too small": ([raw_record(length=5)], "a record of 5 bytes"),
    "record longer than the batch": ([raw_record(length=7)], "a record of 7 bytes"),
    "record longer than its fields": ([raw_record(length=13), raw_record()], "a record ends at 7 and not at 14"),
    "record shorter than its fields": ([raw_record(value=b"\x06abc", length=6)], "3 bytes, 1 are there"),
    "key into the next record": ([raw_record(key=b"\x0a"), raw_record()], "a field of 5 bytes"),
    "value into the next record": ([raw_record(value=b"\x0a"), raw_record()], "a field of 5 bytes"),
    "long value into the next record": ([raw_record(value=b"\xc8\x01"), raw_record()], "a field of 100 bytes"),
    "key of negative length": ([raw_record(key=varint(-2))], "a field of -2 bytes"),
    "value of negative length": ([raw_record(value=varint(-2))], "a field of -2 bytes"),
    "value of a long negative length": ([raw_record(value=varint(-200))], "a field of -200 bytes"),
    "negative header count": ([raw_record(headers=varint(-1))], "-1 headers"),
    "more headers than bytes": ([raw_record(headers=varint(2**30))], "1073741824 headers"),
    "header without a name": ([raw_record(headers=b"\x02\x01\x01")], "without a name"),
    "header name too long": ([raw_record(headers=b"\x02\x08a\x01")], "a field of 4 bytes"),
    "header value too long": ([raw_record(headers=b"\x02\x02a\x08b")], "a field of 4 bytes"),
    "negative offset delta": ([raw_record(offset_delta=-1)], "offset delta -1"),
    "offset delta again": ([raw_record(), raw_record()], "offset delta 0 after 0"),
    "offset delta beyond the last": ([raw_record(offset_delta=1)], "offset delta 1 after -1"),
    "timestamp beyond 64 bits": ([raw_record(timestamp_delta=INT64_MAX)], "out of range"),
    "varint without an end": ([b"\xff" * 12], "longer than 5"),
    "bytes after the last record": ([raw_record() + b"\0"], "1 bytes after the last"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_lie_is_refused_for_what_it_is(name: str) -> None:
    records, said = REFUSED[name]
    with pytest.raises(BatchError, match=said):
        read(with_payload(b"".join(records), len(records)))


@pytest.mark.parametrize("count", [-1, -(2**31), 2, 2**31 - 1])
def test_a_count_that_the_bytes_cannot_hold_is_refused(count: int) -> None:
    with pytest.raises(BatchError, match="records in 7 bytes"):
        read(with_payload(raw_record(), count, 0))


def test_fewer_records_than_there_are_is_refused() -> None:
    with pytest.raises(BatchError, match="after the last of 0 records"):
        read(with_payload(raw_record(), 0, 0))


def test_a_bare_header_has_no_records() -> None:
    assert read(with_payload(b"", 0, 4)) == []


def test_offset_gaps_of_a_cleaned_batch_are_read() -> None:
    built = with_payload(raw_record(offset_delta=3) + raw_record(offset_delta=9), 2, 10)
    assert [record.offset for record in read(built)] == [3, 9]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 8_191, 8_192, 100_000])
def test_keys_and_values_of_every_width_are_read(length: int) -> None:
    field = bytes(length)
    (record,) = read(build_batch([NewRecord(1, field, field, (("h", field),))]))
    assert record == Record(0, 1, field, field, (("h", field),))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100, 8_191])
def test_a_value_ends_where_it_says_however_long_its_headers_are(length: int) -> None:
    headers = (("h", bytes(70_000)),)
    (record,) = read(build_batch([NewRecord(1, b"k" * length, b"v" * length, headers)]))
    assert record == Record(0, 1, b"k" * length, b"v" * length, headers)


def test_overlong_varints_mean_the_same() -> None:
    (record,) = read(with_payload(raw_record(key=b"\x81\x00", value=b"\x84\x80\x00ab", headers=b"\x80\x00"), 1))
    assert record == Record(0, 1_000, None, b"ab", ())


def test_header_names_that_are_not_utf8_survive_a_round_trip() -> None:
    built = with_payload(raw_record(headers=b"\x02\x04\xff\xfe\x00"), 1)
    (record,) = read(built)
    again = build_batch([NewRecord(record.timestamp, record.key, record.value, record.headers)])
    assert again[HEADER_BYTES:] == built[HEADER_BYTES:]


def test_as_many_headers_as_the_limit_says_are_read_and_no_more() -> None:
    header = (("", None),)
    (record,) = read(build_batch([NewRecord(1, headers=header * HEADERS_PER_RECORD_MAX)]))
    assert len(record.headers) == HEADERS_PER_RECORD_MAX
    with pytest.raises(BatchError, match="are allowed"):
        read(build_batch([NewRecord(1, headers=header * (HEADERS_PER_RECORD_MAX + 1))]))


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_refused(magic: int) -> None:
    built = build_batch(SMALL)
    built[16] = magic
    with pytest.raises(BatchError, match="magic"):
        read(built)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    built = build_batch(SMALL)
    built[22] |= codec
    with pytest.raises(BatchError, match="not known"):
        read(sealed(built))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_batch_that_unpacks_beyond_the_limit_is_refused(codec: Codec) -> None:
    batch = Batch(memoryview(build_batch([NewRecord(1, None, bytes(100_000))], compression=codec)))
    assert len(list(read_records(batch, limit_bytes=100_020))) == 1
    with pytest.raises(DecompressionError):
        list(read_records(batch, limit_bytes=100_000))


def test_offsets_beyond_64_bits_are_refused() -> None:
    batch = Batch(memoryview(build_batch([NewRecord(1), NewRecord(1)], base_offset=INT64_MAX)))
    with pytest.raises(BatchError, match="last offset"):
        list(read_records(batch))


def test_the_lowest_timestamps_are_read() -> None:
    built = build_batch([NewRecord(INT64_MIN), NewRecord(-1)])
    assert [record.timestamp for record in read(built)] == [INT64_MIN, -1]


def test_a_timestamp_out_of_range_does_not_matter_less_under_append_time() -> None:
    built = with_payload(raw_record(timestamp_delta=INT64_MAX), 1)
    built[22] |= LOG_APPEND_TIME_BIT
    with pytest.raises(BatchError, match="out of range"):
        read(sealed(built))
