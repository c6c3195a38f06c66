"""Which batches readers see: as a model of transactions says, and as a real broker's answers are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker
from penstock.arrow.decode import decode_view
from penstock.arrow.encode import Writer, encode
from penstock.arrow.ways import Way
from penstock.client.kafka import EARLIEST, LATEST, AbortedTransaction, Isolation, KafkaClient
from penstock.records.batch import Batch, whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS
from penstock.records.control import Marker, MarkerKind, build_marker
from penstock.records.visibility import visible_batches
from tests.spark.batches import WAYS


class Log(NamedTuple):
    batches: list[Batch]
    aborted: list[AbortedTransaction]
    visible: list[int]
    """Base offsets."""


@st.composite
def transactional_logs(draw: st.DrawFn) -> Log:
    """Three producers with transactions, one without, in any order; every transaction ends."""
    batches: list[Batch] = []
    open_at: dict[int, list[int]] = {}
    aborted: list[AbortedTransaction] = []
    visible: list[int] = []
    offset = 0
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "commit", "abort"])), max_size=30))
    for producer, step in [*steps, *((producer, "abort") for producer in (1, 2, 3))]:
        if producer == 0:
            batch = build_batch([NewRecord(1)] * draw(st.integers(1, 3)), base_offset=offset)
            visible.append(offset)
        elif step == "write":
            batch = build_batch(
                [NewRecord(1)] * draw(st.integers(1, 3)),
                base_offset=offset,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            open_at.setdefault(producer, []).append(offset)
        elif producer in open_at:
            written = open_at.pop(producer)
            kind = MarkerKind.COMMIT if step == "commit" else MarkerKind.ABORT
            batch = build_marker(
                Marker(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1, base_offset=offset
            )
            if step == "commit":
                visible += written
            else:
                aborted.append(AbortedTransaction(producer, written[0]))
        else:
            continue
        batches.append(Batch(memoryview(batch)))
        offset = batches[-1].next_offset
    return Log(batches, draw(st.permutations(aborted)), sorted(visible))


@given(transactional_logs(), st.data())
def test_what_was_aborted_is_not_seen_and_all_else_is(log: Log, data: st.DataObject) -> None:
    assert [batch.base_offset for batch in visible_batches(log.batches, log.aborted)] == log.visible
    # A fetch from the middle names what overlaps it, whenever that began.
    rest = log.batches[data.draw(st.integers(0, len(log.batches))) :]
    if rest:
        start = rest[0].base_offset
        overlapping = [one for one in log.aborted if _end(log, one) >= start]
        found = [batch.base_offset for batch in visible_batches(rest, overlapping)]
        assert found == [offset for offset in log.visible if offset >= start]


def _end(log: Log, one: AbortedTransaction) -> int:
    """Where the transaction's marker is."""
    return next(
        batch.base_offset
        for batch in log.batches
        if batch.is_control and batch.producer_id == one.producer_id and batch.base_offset > one.first_offset
    )


def test_a_producer_that_aborted_once_is_seen_again() -> None:
    parts = []
    for offset, kind in ((0, MarkerKind.ABORT), (2, MarkerKind.COMMIT)):
        records = [NewRecord(1)]
        parts.append(
            build_batch(
                records, base_offset=offset, producer_id=1, producer_epoch=0, base_sequence=offset, transactional=True
            )
        )
        parts.append(
            build_marker(Marker(kind, 0), producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=offset + 1)
        )
    batches = [Batch(memoryview(part)) for part in parts]
    seen = visible_batches(batches, [AbortedTransaction(1, 0)])
    assert [batch.base_offset for batch in seen] == [2]


def test_without_aborted_transactions_only_markers_are_left_out() -> None:
    marker = build_marker(Marker(MarkerKind.ABORT, 0), producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=1)
    written = build_batch([NewRecord(1)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    batches = [Batch(memoryview(written)), Batch(memoryview(marker))]
    assert [batch.base_offset for batch in visible_batches(batches)] == [0]


# ---------------------------------------------------------------------------------------------------- a real broker


@pytest.fixture(scope="module")
def client() -> Iterator[KafkaClient]:
    with Broker(settings={"storage.flush": "os"}) as broker, KafkaClient(broker.bootstrap) as client:
        yield client


@pytest.mark.parametrize("way", WAYS)
def test_what_was_committed_to_a_broker_is_what_arrow_shows(client: KafkaClient, way: Way) -> None:
    topic, name = f"topic-{way.value}", f"tx-{way.value}"
    client.create_topic(topic, 1)
    place = (topic, 0)
    producer = client.init_producer_id(name)
    sequence = 0
    wanted: list[bytes] = []
    for turn, codec in enumerate(sorted(CODECS) * 2):
        client.add_partitions_to_txn(name, producer, [place])
        values = [b"%d-%d" % (turn, at) for at in range(500)]
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values), "key": pa.array(values)})
        writer = Writer(producer.producer_id, producer.producer_epoch, is_transactional=True)
        for one in encode(
            rows,
            timestamp_ms=1_000 + turn,
            codec=codec,
            writer=writer,
            base_sequence=sequence,
            batch_bytes_max=9_000,
            way=way,
        ):
            client.produce({place: one.batch}, transactional_id=name)
            sequence += one.records
        client.end_txn(name, producer, commit=turn % 3 != 1)
        if turn % 3 != 1:
            wanted += values

    at = client.list_offsets({place: EARLIEST})[place].offset
    end = client.list_offsets({place: LATEST}, Isolation.READ_COMMITTED)[place].offset
    assert at is not None
    assert end is not None
    found: list[bytes] = []
    offsets: list[int] = []
    while at < end:
        fetched = client.fetch({place: at}, isolation=Isolation.READ_COMMITTED, partition_bytes_max=20_000)[place]
        for decoded in decode_view(fetched.records, topic, 0, start=at, aborted=fetched.aborted, way=way):
            found += decoded.column("value").to_pylist()
            offsets += decoded.column("offset").to_pylist()
        at = _next_offset(fetched.records)
    assert found == wanted
    assert offsets == sorted(set(offsets))


def _next_offset(records: memoryview) -> int:
    *_, last = whole_batches(records)
    return last.next_offset
