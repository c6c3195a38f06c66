"""Where rows go: the hash of Kafka's producers, columns that say so, and rows that nobody places."""

from __future__ import annotations

import warnings
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from penstock.spark.sink.options import SinkError
from penstock.spark.sink.rows import Router, murmur2_of

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 would like to see replaced
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2

BATCH_BYTES = 1_000


def router(topic: str | None = "t", **counts: int) -> Router:
    return Router(topic, lambda name: (counts or {"t": 4})[name], BATCH_BYTES)


def routed(rows: pa.RecordBatch, by: Router) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {}
    for place, part in by.route(rows):
        found.setdefault(place, []).extend(part.column("value").to_pylist())
    return found


@given(st.lists(st.binary(max_size=40)), st.integers(0, 5))
def test_the_hash_is_that_of_kafkas_producers(keys: list[bytes], skipped: int) -> None:
    column = pa.array([b"skipped"] * skipped + keys, pa.binary()).slice(skipped)
    assert murmur2_of(column).tolist() == [murmur2(key) & 0x7FFFFFFF for key in keys]


def test_kafkas_own_examples() -> None:
    """From the tests of Java's Utils.murmur2."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert murmur2_of(pa.array(known, pa.binary())).tolist() == [value & 0x7FFFFFFF for value in known.values()]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t", "u"]), st.none() | st.integers(0, 1), st.none() | st.binary(max_size=5), st.binary()
        ),
        max_size=60,
    )
)
def test_every_row_goes_to_one_place_and_rows_of_a_place_keep_their_order(
    rows: list[tuple[str, int | None, bytes | None, bytes]],
) -> None:
    table = pa.record_batch(
        {
            "topic": pa.array([row[0] for row in rows], pa.string()),
            "partition": pa.array([row[1] for row in rows], pa.int32()),
            "key": pa.array([row[2] for row in rows], pa.binary()),
            "value": pa.array([b"%d" % at for at in range(len(rows))], pa.binary()),
        }
    )
    counts = {"t": 2, "u": 5}
    found = routed(table, router(None, **counts))
    order = {value: at for at, value in enumerate(b"%d" % at for at in range(len(rows)))}
    place_of = {value: place for place, values in found.items() for value in values}
    assert Counter(value for values in found.values() for value in values) == Counter(order.keys())
    assert all(values == sorted(values, key=order.__getitem__) for values in found.values())
    for at, (topic, partition, key, _) in enumerate(rows):
        at_topic, at_partition = place_of[b"%d" % at]
        assert at_topic == topic
        assert 0 <= at_partition < counts[topic]
        if partition is not None:
            assert at_partition == partition
        elif key is not None:
            assert at_partition == (murmur2(key) & 0x7FFFFFFF) % counts[topic]


def test_rows_without_a_key_go_on_from_partition_to_partition_a_batch_each() -> None:
    by = router()
    table = pa.record_batch({"value": pa.array([bytes(100)] * 40, pa.binary())})
    sizes: Counter[int] = Counter()
    for _ in range(10):
        for (_, partition), values in routed(table, by).items():
            sizes[partition] += len(values)
    assert sizes.keys() == {0, 1, 2, 3}
    assert max(sizes.values()) < 1.2 * min(sizes.values())
    # few rows stay together
    few = pa.record_batch({"value": pa.array([b"x"] * 5, pa.binary())})
    assert len(routed(few, by)) == 1


def test_only_what_a_record_holds_is_handed_on() -> None:
    table = pa.record_batch({"value": [b"x"], "partition": pa.array([1], pa.int32()), "key": [b"k"]})
    ((place, part),) = router().route(table)
    assert place == ("t", 1)
    assert part.schema.names == ["key", "value"]


def test_a_row_that_cannot_be_placed_is_refused() -> None:
    for partition in (-1, 4):
        table = pa.record_batch({"value": [b"x"], "partition": pa.array([partition], pa.int32())})
        with pytest.raises(SinkError, match=f"partition {partition} of a row does not exist: t has partitions 0 to 3"):
            list(router().route(table))
    table = pa.record_batch({"value": [b"x", b"y"], "topic": pa.array(["t", None])})
    with pytest.raises(SinkError, match="a row has no topic"):
        list(router(None).route(table))
