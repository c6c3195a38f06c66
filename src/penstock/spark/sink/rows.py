"""Which partition each row goes to, and the rows of each partition as Arrow columns of their own.

A row goes where its column `partition` says; without that, a row with a key goes where Kafka's own producers put the key
(murmur2, as Java's default partitioner), so that a topic written from Spark and from elsewhere keeps a key in one
partition; a row without a key goes where its neighbours go, partition after partition, a batch's worth each (KIP-480).
Order is kept among the rows of one partition.

Nothing here sends anything: how many partitions a topic has is asked of the caller.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.kafka import KafkaError
from penstock.model.ids import TopicName, TopicPartition
from penstock.spark.sink.options import SinkError

CONTENT = ("key", "value", "headers")
"""The columns that are in the record itself."""
_SEED, _FACTOR, _SHIFT = 0x9747B28C, 0x5BD1E995, 24
_POSITIVE = 0x7FFFFFFF
_FILLED = 0.8
"""How much of a batch values may take; what records have beside them must fit too, or a small batch follows each large."""
_RADIX_MAX = 1 << 16
"""numpy sorts 16-bit numbers by radix, several times faster than others."""

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


class Router:
    """Rows to partitions; keeps where the rows without a key have got to."""

    def __init__(self, topic: str | None, partitions_of: Callable[[str], int], batch_bytes: int) -> None:
        """`partitions_of` gives the number of partitions of a topic, or raises for one that is not there."""
        self._topic = topic
        self._partitions_of = partitions_of
        self._batch_bytes = batch_bytes
        self._counts: dict[str, int] = {}
        self._next: dict[str, int] = {}
        """For rows without a key. Begins anywhere, or all tasks would begin with the same partition."""

    def route(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """The rows by partition, each part with only the columns that a record has."""
        if not rows.num_rows:
            return
        names, codes = self._topics(rows)
        content = rows.select([name for name in CONTENT if name in rows.schema.names])
        counts = np.array([self.count(name) for name in names], np.int64)
        firsts = np.concatenate(([0], np.cumsum(counts)))
        partitions = self._partitions(rows, names, codes, counts)
        places = partitions if codes is None else firsts[codes] + partitions
        for place, part in _split(content, places, int(firsts[-1])):
            at = int(np.searchsorted(firsts, place, "right")) - 1
            yield TopicPartition(TopicName(names[at]), place - int(firsts[at])), part

    def count(self, topic: str) -> int:
        """How many partitions the topic has; asked for once."""
        if topic not in self._counts:
            self._counts[topic] = self._partitions_of(topic)
            self._next[topic] = random.randrange(self._counts[topic])
        return self._counts[topic]

    def _topics(self, rows: pa.RecordBatch) -> tuple[list[str], Integers | None]:
        """The topics, and for each row which of them; None when all are of the first."""
        if self._topic is not None:
            return [self._topic], None
        column = rows.column("topic")
        if column.null_count:
            raise SinkError("a row has no topic: set it in the column topic or with the option topic")
        coded = column.dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        if len(names) == 1:
            return names, None
        return names, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def _partitions(
        self, rows: pa.RecordBatch, names: Sequence[str], codes: Integers | None, counts: Integers
    ) -> Integers:
        of_topic = np.full(rows.num_rows, counts[0]) if codes is None else counts[codes]
        partitions = np.full(rows.num_rows, -1, np.int64)
        columns = rows.schema.names
        if "partition" in columns and rows.column("partition").null_count < rows.num_rows:
            self._as_told(rows.column("partition"), partitions, of_topic, names, codes)
        if "key" in columns and rows.column("key").null_count < rows.num_rows:
            keys = rows.column("key").cast(pa.binary())
            is_keyed = (partitions < 0) & _is_there(keys)
            if is_keyed.all():
                partitions = murmur2_of(keys) % of_topic
            elif is_keyed.any():
                hashes = murmur2_of(keys.filter(pa.array(is_keyed)))
                partitions[is_keyed] = hashes % of_topic[is_keyed]
        for at, name in enumerate(names):
            is_free = partitions < 0 if codes is None else (partitions < 0) & (codes == at)
            free = int(np.count_nonzero(is_free))
            if free:
                partitions[is_free] = self._spread(name, free, rows.nbytes * free // rows.num_rows)
        return partitions

    def _as_told(
        self,
        column: pa.Array,
        partitions: Integers,
        of_topic: Integers,
        names: Sequence[str],
        codes: Integers | None,
    ) -> None:
        is_told = _is_there(column)
        told = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        wrong = np.flatnonzero(is_told & ((told < 0) | (told >= of_topic)))
        if len(wrong):
            row = int(wrong[0])
            topic = names[0 if codes is None else int(codes[row])]
            raise SinkError(
                f"partition {told[row]} of a row does not exist: {topic} has partitions 0 to {of_topic[row] - 1}; "
                "correct the column partition, or leave it null"
            )
        partitions[is_told] = told[is_told]

    def _spread(self, topic: str, rows: int, size: int) -> Integers:
        """Rows without a key: pieces of about a batch, each to the next partition."""
        pieces = math.ceil(max(size, 1) / (self._batch_bytes * _FILLED))
        first = self._next[topic]
        count = self._counts[topic]
        self._next[topic] = (first + pieces) % count
        return (first + np.arange(rows, dtype=np.int64) * pieces // rows) % count


def partitions_of(metadata: Callable[[str], Any]) -> Callable[[str], int]:
    """As `Router` wants it, of a client's metadata."""

    def count(topic: str) -> int:
        try:
            info = metadata(topic)
        except KafkaError as error:
            if error.name != "INVALID_TOPIC_EXCEPTION":
                raise
            raise SinkError(f"{topic!r} is not a valid topic name") from None
        if info is None or not info.partitions:
            raise SinkError(f"topic {topic} does not exist: create it with `penstock topics create {topic}`")
        return len(info.partitions)

    return count


def _is_there(column: pa.Array) -> npt.NDArray[np.bool_]:
    is_there: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return is_there


def _split(rows: pa.RecordBatch, places: Integers, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each place, in the order in which they came."""
    sizes = np.bincount(places, minlength=count)
    used = np.flatnonzero(sizes)
    if len(used) == 1:
        yield int(used[0]), rows
        return
    order = np.argsort(places.astype(np.uint16) if count <= _RADIX_MAX else places, kind="stable")
    taken = rows.take(pa.array(order))
    at = 0
    for place in used:
        size = int(sizes[place])
        yield int(place), taken.slice(at, size)
        at += size


# ---------------------------------------------------------------------------------------------------- murmur2


def murmur2_of(keys: pa.BinaryArray) -> Integers:
    """The hash of each key as Java's producer takes it for a partition: positive. No key may be null."""
    _, at, data = keys.buffers()
    offsets = np.frombuffer(at, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    # Three bytes more, so that a word can be read where only one byte of a key is left.
    held = np.zeros(offsets[-1] - offsets[0] + 3, np.uint8)
    if data is not None:
        held[:-3] = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    lengths = np.diff(offsets)
    hashes = (np.uint32(_SEED) ^ lengths.astype(np.uint32)).astype(np.uint32)
    # Every place of the bytes is the beginning of a little-endian word.
    words: Words = np.ndarray((len(held) - 3,), np.dtype("<u4"), held.data, strides=(1,))
    blocks = lengths >> 2
    factor = np.uint32(_FACTOR)
    is_even = bool(len(blocks)) and blocks.min() == blocks.max()
    for block in range(int(blocks.max(initial=0))):
        if is_even:
            hashes = (hashes * factor) ^ _mixed(words[starts + 4 * block])
        else:
            rows = np.flatnonzero(blocks > block)
            hashes[rows] = (hashes[rows] * factor) ^ _mixed(words[starts[rows] + 4 * block])
    rows = np.flatnonzero(lengths & 3)
    if len(rows):
        left = (lengths[rows] & 3).astype(np.uint32)
        rest = words[starts[rows] + 4 * blocks[rows]] & ((np.uint32(1) << (left << np.uint32(3))) - np.uint32(1))
        hashes[rows] = (hashes[rows] ^ rest) * factor
    hashes ^= hashes >> np.uint32(13)
    hashes *= factor
    hashes ^= hashes >> np.uint32(15)
    positive: Integers = (hashes & np.uint32(_POSITIVE)).astype(np.int64)
    return positive


def _mixed(block: Words) -> Words:
    block = block * np.uint32(_FACTOR)
    block ^= block >> np.uint32(_SHIFT)
    return block * np.uint32(_FACTOR)
