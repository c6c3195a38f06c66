"""The digest of rows: the same for the same rows in any order and division, another for any other rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.sink.options import SinkError
from penstock.spark.sink.row_digest import Content, ContentCounter, content_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)

# short ones, the borders of every class of lengths, and some that are long
_SIZES = sorted({size + more for size in (8, 16, 32, 64, 128, 256, 512, 1_024) for more in (-1, 0, 1)} | {5_000})
_fields = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from(_SIZES).flatmap(lambda size: st.binary(min_size=size, max_size=size))
)
_headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=10), "value": st.none() | st.binary(max_size=20)}), max_size=3
)
_rows = st.fixed_dictionaries(
    {
        "key": _fields,
        "value": _fields,
        "headers": _headers,
        "topic": st.sampled_from(["a", "b"]),
        "partition": st.none() | st.integers(0, 5),
    }
)
Row = dict[str, Any]


def table(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def written(row: Row) -> tuple[Any, ...]:
    """What of a row reaches the topic: no headers and an empty list of them are the same."""
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return (row["key"], row["value"], headers, row["topic"], row["partition"])


@given(st.lists(_rows, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_order_and_division_of_rows_do_not_change_the_digest(rows: list[Row], dice: Any, cut: int) -> None:
    whole = content_of(table(rows)) if rows else Content()
    shuffled = dice.sample(rows, len(rows))
    counter = ContentCounter(SCHEMA.names)
    # the second part is a slice: its columns begin somewhere in their buffers
    parts = [table(shuffled[:cut]), table(shuffled).slice(cut)]
    assert list(counter.watch(parts)) == parts
    assert counter.content == whole
    assert counter.content.rows == len(rows)


@given(_rows, _rows)
def test_rows_that_differ_have_different_digests(one: Row, other: Row) -> None:
    is_same = written(one) == written(other)
    assert (content_of(table([one])) == content_of(table([other]))) is is_same


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17, 100, 1_024, 1_025, 70_000])
def test_every_byte_of_a_value_counts(size: int) -> None:
    value = bytes(at * 7 % 251 for at in range(size))
    seen = {digest_of(value)}
    for at in {0, 1, size // 3, size // 2, size - 2, size - 1} & set(range(size)):
        for bit in (0, 7):
            changed = bytearray(value)
            changed[at] ^= 1 << bit
            seen.add(digest_of(bytes(changed)))
    seen.add(digest_of(value + b"\0"))
    assert len(seen) == 2 + 2 * len({0, 1, size // 3, size // 2, size - 2, size - 1} & set(range(size)))


def test_two_numbers_that_change_their_signs_are_another_value() -> None:
    import struct

    assert digest_of(struct.pack("<dd", 1.5, 2.5)) != digest_of(struct.pack("<dd", -1.5, -2.5))
    assert digest_of(struct.pack("<16d", *[1.0] * 16)) != digest_of(struct.pack("<16d", *[-1.0] * 2, *[1.0] * 14))


def test_swaps_between_rows_or_columns_change_the_digest() -> None:
    plain = pa.record_batch({"key": pa.array([b"a", b"b"]), "value": pa.array([b"1", b"2"])})
    rows = pa.record_batch({"key": pa.array([b"a", b"b"]), "value": pa.array([b"2", b"1"])})
    columns = pa.record_batch({"key": pa.array([b"1", b"2"]), "value": pa.array([b"a", b"b"])})
    assert len({content_of(one).digest for one in (plain, rows, columns)}) == 3


def test_text_and_bytes_are_the_same_content() -> None:
    as_text = pa.record_batch({"value": pa.array(["a", None, "", "é" * 40])})
    as_bytes = pa.record_batch({"value": pa.array([b"a", None, b"", "é".encode() * 40])})
    with_keys = pa.record_batch({"key": pa.nulls(4, pa.string()), "value": as_bytes.column(0)})
    assert content_of(as_text) == content_of(as_bytes) == content_of(with_keys)


def test_digests_that_are_in_journals_stay_valid() -> None:
    """For ever: a changed digest would make a replay after an upgrade an error."""
    row = {
        "key": b"k" * 12,
        "value": b"v" * 100,
        "headers": [{"key": "h", "value": b"x"}],
        "topic": "t",
        "partition": 3,
    }
    other = {"key": None, "value": b"long" * 1_000, "headers": None, "topic": "t", "partition": None}
    assert content_of(table([row])) == Content(1, 0x357B39B2C956AB57)
    assert content_of(table([row, other])) == Content(2, 0x1B88F2CA737800AF)


def test_row_that_cannot_be_written_is_an_error() -> None:
    nameless = pa.record_batch(
        {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)}
    )
    with pytest.raises(SinkError, match="a header has no key"):
        list(ContentCounter(["value", "headers"]).watch([nameless]))


def digest_of(value: bytes) -> int:
    return content_of(pa.record_batch({"value": pa.array([value], pa.binary())})).digest
