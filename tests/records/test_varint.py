"""Varints: every width, the bounds, and kio's as the other implementation."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.serial import readers, writers

from penstock.records.batch import BatchError
from penstock.records.varint import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    read_varint,
    read_varlong,
    varint,
    varlong,
)

INT32 = st.integers(INT32_MIN, INT32_MAX)
INT64 = st.integers(INT64_MIN, INT64_MAX)


@given(INT32, st.binary(max_size=3), st.binary(max_size=3))
@example(INT32_MIN, b"", b"")
@example(INT32_MAX, b"", b"")
def test_varint_reads_back_what_was_written_wherever_it_lies(value: int, before: bytes, after: bytes) -> None:
    written = varint(value)
    assert read_varint(before + written + after, len(before)) == (value, len(before) + len(written))


@given(INT64, st.binary(max_size=3), st.binary(max_size=3))
@example(INT64_MIN, b"", b"")
@example(INT64_MAX, b"", b"")
def test_varlong_reads_back_what_was_written_wherever_it_lies(value: int, before: bytes, after: bytes) -> None:
    written = varlong(value)
    assert read_varlong(memoryview(before + written + after), len(before)) == (value, len(before) + len(written))


@given(INT32, INT64)
def test_varints_are_those_of_kio(small: int, large: int) -> None:
    written = io.BytesIO()
    writers.write_signed_varint(written, small)
    assert varint(small) == written.getvalue()
    assert readers.read_signed_varint(varint(small), 0) == (small, len(varint(small)))
    written = io.BytesIO()
    writers.write_signed_varlong(written, large)
    assert varlong(large) == written.getvalue()
    assert readers.read_signed_varlong(varlong(large), 0) == (large, len(varlong(large)))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (63, b"\x7e"),
        (-64, b"\x7f"),
        (64, b"\x80\x01"),
        (8191, b"\xfe\x7f"),
        (8192, b"\x80\x80\x01"),
        (INT32_MAX, b"\xfe\xff\xff\xff\x0f"),
        (INT32_MIN, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_widths_change_where_zigzag_says(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded
    assert varlong(value) == encoded


def test_extreme_varlongs_take_ten_bytes() -> None:
    assert varlong(INT64_MIN) == b"\xff" * 9 + b"\x01"
    assert varlong(INT64_MAX) == b"\xfe" + b"\xff" * 8 + b"\x01"


def test_values_that_do_not_fit_are_not_written() -> None:
    for value in (INT32_MIN - 1, INT32_MAX + 1):
        with pytest.raises(BatchError, match="32 bits"):
            varint(value)
    for value in (INT64_MIN - 1, INT64_MAX + 1):
        with pytest.raises(BatchError, match="64 bits"):
            varlong(value)


def test_more_bytes_than_the_bound_are_refused_even_when_they_add_nothing() -> None:
    assert read_varint(b"\x80\x80\x80\x80\x00", 0) == (0, 5)
    with pytest.raises(BatchError, match="longer than 5"):
        read_varint(b"\x80\x80\x80\x80\x80\x00", 0)
    assert read_varlong(b"\x80" * 9 + b"\x00", 0) == (0, 10)
    with pytest.raises(BatchError, match="longer than 10"):
        read_varlong(b"\x80" * 10 + b"\x00", 0)


def test_bits_beyond_the_width_are_refused() -> None:
    with pytest.raises(BatchError, match="wider than 32"):
        read_varint(b"\xff\xff\xff\xff\x10", 0)
    with pytest.raises(BatchError, match="wider than 64"):
        read_varlong(b"\xff" * 9 + b"\x02", 0)


@given(INT64)
def test_every_truncation_is_refused(value: int) -> None:
    written = varlong(value)
    for end in range(len(written)):
        with pytest.raises(BatchError, match="cut off"):
            read_varlong(written[:end], 0)
