"""Reading segment files beside a running broker: the same records as over the wire, whatever lies in the log and whatever
happens to the files."""

from __future__ import annotations

import shutil
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the spark extra is not installed")

import pyarrow as pa

from penstock import Broker
from penstock.arrow.columns import DEFAULT, schema_of
from penstock.client.kafka import LATEST, Isolation, KafkaClient
from penstock.spark.source import segments
from penstock.spark.source.errors import DataLost, SourceError
from penstock.spark.source.offsets import place
from penstock.spark.source.planning import Range
from penstock.spark.source.range_reader import RangeReader, Task, tasks_of
from penstock.spark.source.schema import full_schema
from penstock.spark.source.segments import folder_of, read_segments
from penstock.spark.source.topics import Topics
from penstock.spark.source.wire_reader import forget_connections
from penstock.storage.segment_reader import list_segments, position_before, read_segment, topic_id_of
from tests.spark.made_topics import append, append_transaction, delete_before, options, recreate_topic, topic

SMALL = {"segment.bytes": "4096"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    forget_connections()


def stable_end(broker: Broker, name: str) -> int:
    """The last stable offset, once the markers of ended transactions are written: EndTxn does not wait for them."""
    deadline = time.monotonic() + 30
    with KafkaClient(broker.bootstrap) as client:
        while True:
            ends = [
                client.list_offsets({(name, 0): LATEST}, isolation)[place(name, 0)].offset for isolation in Isolation
            ]
            if ends[0] == ends[1] is not None:
                return ends[1]
            assert time.monotonic() < deadline


def folder(broker: Broker, name: str) -> Path:
    return broker.data_dir / f"{name}-0"


def from_segments(broker: Broker, work: Range, columns: Sequence[str] = DEFAULT) -> tuple[pa.Table, int]:
    """The rows, and how far they go."""
    reading = read_segments(folder(broker, work.topic), work, columns)
    batches = []
    while True:
        try:
            batches.append(next(reading))
        except StopIteration as end:
            return pa.Table.from_batches(batches, schema_of(columns)), end.value


def from_wire(broker: Broker, work: Range) -> pa.Table:
    reader = RangeReader.of(options(broker, subscribe=work.topic, read="wire"), full_schema(False))
    return pa.Table.from_batches(reader.read(Task(work, (), None)), schema_of(DEFAULT))


def test_segments_and_wire_give_the_same_rows(broker: Broker) -> None:
    name = topic(broker, 1, 500, SMALL)
    assert len(list_segments(folder(broker, name))) > 3
    for start, end in [(0, 500), (0, 1), (499, 500), (3, 497), (120, 250), (250, 251)]:
        work = Range(name, 0, start, end)
        rows, reached = from_segments(broker, work)
        assert reached >= end
        assert rows["offset"].to_pylist() == list(range(start, end))
        assert rows.equals(from_wire(broker, work))


def test_only_the_columns_asked_for_are_built(broker: Broker) -> None:
    name = topic(broker, 1, 30)
    rows, _ = from_segments(broker, Range(name, 0, 0, 30), ["offset", "headers"])
    assert rows.column_names == ["offset", "headers"]


def test_aborted_transactions_are_left_out_even_if_they_end_in_a_later_segment(broker: Broker) -> None:
    name = topic(broker, 1, 20, SMALL)
    append_transaction(broker, name, range(20, 25), commit=True)
    append_transaction(broker, name, range(25, 30), commit=None, transactional_id=f"{name}-long")
    append(broker, name, 0, range(30, 300))
    # The same id again: what it left open is aborted, hundreds of records and some segments later.
    append_transaction(broker, name, range(300, 305), commit=True, transactional_id=f"{name}-long")
    append_transaction(broker, name, range(305, 310), commit=False)
    append(broker, name, 0, range(310, 320))
    end = stable_end(broker, name)
    whole = Range(name, 0, 0, end)
    rows, reached = from_segments(broker, whole)
    assert reached == end
    numbers = [int(key[1:]) for key in rows["key"].to_pylist()]
    assert numbers == [*range(25), *range(30, 305), *range(310, 320)]
    assert rows.equals(from_wire(broker, whole))
    for start in (21, 26, 40, 250):
        part = Range(name, 0, start, end)
        assert from_segments(broker, part)[0].equals(from_wire(broker, part))


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["plain", "commit", "abort"]), min_size=1, max_size=12), st.data())
def test_any_mixture_of_transactions_reads_alike(broker: Broker, steps: list[str], data: st.DataObject) -> None:
    name = topic(broker, 1, 0, SMALL)
    for at, step in enumerate(steps):
        if step == "plain":
            append(broker, name, 0, range(at * 20, at * 20 + 20))
        else:
            append_transaction(
                broker,
                name,
                range(5),
                commit=step == "commit",
                transactional_id=f"{name}-{data.draw(st.integers(0, 1))}",
            )
    end = stable_end(broker, name)
    start = data.draw(st.integers(0, end - 1))
    work = Range(name, 0, start, end)
    rows, reached = from_segments(broker, work)
    assert reached == end
    assert rows.equals(from_wire(broker, work))


def test_compacted_segments_read_alike_where_they_can_be_read(broker: Broker) -> None:
    name = topic(
        broker, 1, 0, {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
    )
    for _ in range(10):
        append(broker, name, 0, range(40))
    work = Range(name, 0, 0, stable_end(broker, name))
    rows, reached = from_segments(broker, work)
    rest = from_wire(broker, work._replace(start=reached)) if reached < work.end else rows.slice(0, 0)
    seen = pa.concat_tables([rows, rest])
    assert len(set(seen["offset"].to_pylist())) == seen.num_rows
    assert set(seen["key"].to_pylist()) == {b"k%d" % number for number in range(40)}


# ---------------------------------------------------------------------------------------------------- files that go


def task(broker: Broker, work: Range, **some: Any) -> tuple[RangeReader, Task]:
    """A task as the driver makes it."""
    told = options(broker, subscribe=work.topic, **some)
    topics = Topics(told)
    try:
        topics.partitions()
        (made,) = tasks_of([work], topics, told)
    finally:
        topics.close()
    assert isinstance(made, Task)
    return RangeReader.of(told, full_schema(False)), made


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_a_file_that_went_in_between_is_read_over_the_wire(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topic(broker, 1, 500, SMALL)
    work = Range(name, 0, 0, 500)
    reader, made = task(broker, work, read="segments")
    # Small chunks, so that later files are still to be opened when the first rows are out.
    monkeypatch.setattr(segments, "CHUNK_BYTES", 1024)
    copy = broker.data_dir / "copy"
    shutil.copytree(folder(broker, name), copy / f"{name}-0")
    made.data_dirs = (str(copy),)
    try:
        reading = reader.read(made)
        first = next(reading)
        for path in list_segments(copy / f"{name}-0")[1:]:
            path.unlink()
        assert first["offset"].to_pylist() + offsets(reading) == list(range(500))
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "harm", ["first file", "middle file", "all files", "cut", "swap", "index", "index of another file", "garbage"]
)
def test_whatever_is_wrong_with_the_files_the_rows_are_right(broker: Broker, harm: str) -> None:
    name = topic(broker, 1, 500, SMALL)
    copy = broker.data_dir / f"copy-{harm}"
    there = copy / f"{name}-0"
    shutil.copytree(folder(broker, name), there)
    files = list_segments(there)
    match harm:
        case "first file":
            files[0].unlink()
        case "middle file":
            files[2].unlink()
        case "all files":
            for path in files:
                path.unlink()
        case "cut":
            files[1].write_bytes(files[1].read_bytes()[:-7])
        case "swap":
            (there / "swap").write_bytes(b"")
        case "index":
            for path in files:
                path.with_suffix(".index").write_bytes(bytes.fromhex("00000001 00000009") * 3)
        case "index of another file":
            for path in files:
                *_, (later, _) = read_segment(path)
                path.with_suffix(".index").write_bytes(struct.pack(">ii", 1, later))
        case "garbage":
            files[1].write_bytes(bytes(5_000))
    reader, made = task(broker, Range(name, 0, 7, 493), read="segments")
    made.data_dirs = (str(copy),)
    try:
        assert offsets(reader.read(made)) == list(range(7, 493))
    finally:
        shutil.rmtree(copy)


def test_records_behind_the_end_of_the_files_come_over_the_wire(broker: Broker) -> None:
    name = topic(broker, 1, 50)
    copy = broker.data_dir / "older"
    shutil.copytree(folder(broker, name), copy / f"{name}-0")
    append(broker, name, 0, range(50, 90))
    reader, made = task(broker, Range(name, 0, 0, 90))
    made.data_dirs = (str(copy),)
    try:
        assert offsets(reader.read(made)) == list(range(90))
    finally:
        shutil.rmtree(copy)


def test_what_retention_took_is_left_to_the_wire_to_tell(broker: Broker) -> None:
    name = topic(broker, 1, 500, SMALL)
    delete_before(broker, name, 0, 400)
    reader, made = task(broker, Range(name, 0, 0, 500), read="segments")
    with pytest.raises(SourceError, match="offsets 0 to 399 were deleted"):
        offsets(reader.read(made))


# ---------------------------------------------------------------------------------------------------- which way


def test_auto_reads_the_files_of_a_broker_on_this_machine(broker: Broker) -> None:
    name = topic(broker, 1, 20)
    _, made = task(broker, Range(name, 0, 0, 20))
    assert folder_of(made.work, made.data_dirs, made.topic_id) == folder(broker, name)


@pytest.mark.parametrize("some", [{"read": "wire"}, {"kafka_isolation_level": "read_uncommitted"}])
def test_the_wire_is_taken_where_it_is_asked_for_or_needed(broker: Broker, some: dict[str, Any]) -> None:
    name = topic(broker, 1, 20)
    reader, made = task(broker, Range(name, 0, 0, 20), **some)
    assert made.data_dirs == ()
    assert offsets(reader.read(made)) == list(range(20))


def test_a_folder_of_another_topic_with_the_same_name_is_not_read(broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, 1, 20)
    shutil.copytree(folder(broker, name), tmp_path / f"{name}-0")
    (tmp_path / f"{name}-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
    reader, made = task(broker, Range(name, 0, 0, 20), segments_dir=tmp_path)
    assert folder_of(made.work, made.data_dirs, made.topic_id) is None
    assert offsets(reader.read(made)) == list(range(20))
    reader, made = task(broker, Range(name, 0, 0, 20), read="segments", segments_dir=tmp_path)
    with pytest.raises(SourceError, match=f"{name}-0 of this cluster is not in {tmp_path}"):
        offsets(reader.read(made))


def test_a_topic_created_again_while_its_files_are_read_is_noticed(broker: Broker) -> None:
    name = topic(broker, 1, 20)
    reader, made = task(broker, Range(name, 0, 0, 20), read="segments")
    reading = reader.read(made)
    next(reading)
    recreate_topic(broker, name, 20)
    with pytest.raises(DataLost, match=f"topic {name} was deleted and created again"):
        list(reading)


def test_the_topic_id_of_a_folder_is_the_clusters(broker: Broker) -> None:
    name = topic(broker)
    with KafkaClient(broker.bootstrap) as client:
        told = client.metadata([name]).topics[name].topic_id
    assert isinstance(told, uuid.UUID)
    assert topic_id_of(folder(broker, name)) == told


def test_an_index_leads_near_the_offset(tmp_path: Path) -> None:
    # Indexes of closed segments are whole: a broker that rolls writes them.
    with Broker(tmp_path / "data") as broker:
        name = topic(broker, 1, 1_000, {"segment.bytes": "16384", "index.interval.bytes": "512"})
        path = list_segments(broker.data_dir / f"{name}-0")[0]
        bounds = {position: (batch.base_offset, batch.last_offset) for position, batch in read_segment(path)}
        last = max(last for _, last in bounds.values())
        found = {position_before(path, offset) for offset in range(last + 1)}
        assert len(found) > 3
        for offset in range(last + 1):
            assert bounds[position_before(path, offset)][0] <= offset


def test_files_that_are_being_exchanged_are_not_looked_at(broker: Broker) -> None:
    name = topic(broker, 1, 50)
    assert from_segments(broker, Range(name, 0, 0, 50))[1] == 50
    mark = folder(broker, name) / "swap"
    mark.touch()
    try:
        rows, reached = from_segments(broker, Range(name, 0, 0, 50))
    finally:
        mark.unlink()
    assert (rows.num_rows, reached) == (0, 0)
