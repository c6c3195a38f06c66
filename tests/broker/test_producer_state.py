"""Producers and aborted transactions after a restart are what they were before it, wherever the last snapshot was."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest

from penstock.broker.catalogue import TopicEntry
from penstock.broker.opening import open_partitions
from penstock.broker.partition import Partition
from penstock.coordination.producer_records import encode_snapshot
from penstock.coordination.producers import ProducerTable
from penstock.model import topic_config
from penstock.model.ids import TopicName, TopicPartition
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage.data_directory import DataDirectory
from penstock.storage.segment import file_name
from tests.storage.logs import NOW_MS, TOPIC_ID, checkpoint, crash, flush
from tests.storage.simulated_disk import SimulatedDisk

ENTRY = TopicEntry(TopicName("t"), TOPIC_ID, 1, {"segment.bytes": "700", "index.interval.bytes": "150"})


class Life:
    """Some producers of all kinds, by chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-producers-"))
        self.disk = SimulatedDisk(self.folder)
        self.directory = DataDirectory(self.folder, disk=self.disk)
        config = topic_config.parse(ENTRY.configs, {})
        log = self.directory.create_log("t-0", TOPIC_ID, config)
        self.directory.sync()
        self.partition = Partition(
            TopicPartition(ENTRY.name, 0), log, config, "acks", 0, ProducerTable(NOW_MS), lambda _: None
        )
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def close(self) -> None:
        crash(self.directory)
        shutil.rmtree(self.folder)

    def step(self) -> None:
        log = self.partition.log
        assert log is not None
        match self.random.randrange(10):
            case 0:
                self.plain()
            case 1 | 2 | 3:
                self.idempotent(self.random.randrange(1, 4))
            case 4 | 5:
                self.transactional(self.random.randrange(11, 14))
            case 6:
                self.end(self.random.randrange(11, 14))
            case 7:
                flush(log, self.disk)
                self.partition.flushed()
            case 8:
                self.store_snapshot()
            case _:
                flush(log, self.disk)
                self.partition.flushed()
                self.store_snapshot()
                checkpoint(self.directory, log)

    def plain(self) -> None:
        self.append()

    def idempotent(self, producer: int) -> None:
        sequence = self.sequences.get(producer, 0)
        self.append(producer_id=producer, producer_epoch=0, base_sequence=sequence)
        self.sequences[producer] = sequence + 2

    def transactional(self, producer: int) -> None:
        epoch = self.epochs.setdefault(producer, 0)
        sequence = self.sequences.get(producer, 0)
        self.partition.producers.verified(producer, epoch)
        self.append(producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        self.sequences[producer] = sequence + 2

    def end(self, producer: int) -> None:
        if self.partition.producers.has_open_transaction(producer):
            kind = self.random.choice((MarkerKind.ABORT, MarkerKind.COMMIT))
            self.partition.append_marker(Marker(kind, 0), producer, self.epochs[producer], 0, NOW_MS)

    def append(self, **fields: object) -> None:
        data = build_batch([NewRecord(NOW_MS, None, b"v" * 20)] * 2, **fields)  # type: ignore[arg-type]
        (result,), _ = self.partition.append([memoryview(data)], NOW_MS)
        assert result.base_offset >= 0, result

    def store_snapshot(self) -> None:
        log = self.partition.log
        assert log is not None
        if len(self.partition.producers):
            path = log.directory / file_name(log.log_end_offset, ".snapshot")
            self.disk.replace_whole(path, encode_snapshot(self.partition.producers.snapshot()), durable=False)
        else:
            log.producerless_offset = log.log_end_offset

    def restarted(self, disk: SimulatedDisk) -> Partition:
        crash(self.directory)
        self.disk = disk
        self.directory = DataDirectory(self.folder, disk=disk)
        (partition,) = open_partitions(
            self.directory,
            [ENTRY],
            lambda _: topic_config.parse(ENTRY.configs, {}),
            "acks",
            0,
            lambda _: None,
            NOW_MS,
        ).partitions
        assert partition.log is not None, partition.reason
        return partition


def state_of(partition: Partition) -> tuple[object, ...]:
    producers = partition.producers
    return (
        sorted(producers.snapshot()),
        [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in partition.aborted],
        producers.first_undecided_offset,
        partition.log.log_end_offset if partition.log else None,
    )


@pytest.mark.parametrize("seed", range(40))
def test_after_a_kill_the_rebuilt_state_is_the_live_one(seed: int) -> None:
    life = Life(seed)
    try:
        for _ in range(60):
            life.step()
        log = life.partition.log
        assert log is not None
        flush(log, life.disk)
        life.partition.flushed()
        live = state_of(life.partition)
        assert state_of(life.restarted(life.disk.copy())) == live
        # and once more, from what the first start left
        assert state_of(life.restarted(life.disk.copy())) == live
    finally:
        life.close()


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_the_state_is_that_of_what_the_log_still_has(seed: int) -> None:
    """Snapshots, index entries and markers that were not synced may each be lost; the log decides."""
    life = Life(1000 + seed)
    try:
        for _ in range(60):
            life.step()
        cut = life.restarted(life.disk.after_cut(Random(seed)))
        assert cut.log is not None
        state = state_of(cut)
        bare = life.disk.copy()
        for path in list(bare.files()):
            if path.suffix in (".snapshot", ".txnindex"):
                bare.remove(path)
        (folder,) = {path.parent for path in bare.files() if path.suffix == ".log"}
        assert folder.name == "t-0"
        from_log_alone = life.restarted(without_shortcuts(bare))
        assert state_of(from_log_alone) == state
    finally:
        life.close()


def without_shortcuts(disk: SimulatedDisk) -> SimulatedDisk:
    """No checkpoint either: everything is read again from the first offset."""
    disk.remove(disk.root / "checkpoint")
    return disk


def test_a_log_without_producers_is_not_read_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(0)
    try:
        for _ in range(30):
            life.plain()
        log = life.partition.log
        assert log is not None
        flush(log, life.disk)
        life.store_snapshot()
        checkpoint(life.directory, log)
        life.plain()
        monkeypatch.setattr("penstock.storage.log.PartitionLog.headers", lambda *_: pytest.fail("the log was read"))
        again = life.restarted(life.disk.copy())
        assert len(again.producers) == 0
    finally:
        life.close()


def test_a_snapshot_of_a_tail_that_was_lost_is_not_believed_later() -> None:
    life = Life(0)
    try:
        log = life.partition.log
        assert log is not None
        life.idempotent(1)
        flush(log, life.disk)
        for _ in range(3):
            life.idempotent(2)
        life.store_snapshot()
        files = life.disk.copy()
        path = log.active.path
        files.put(path, files.read_whole(path)[: log.flushed_position])
        again = life.restarted(files)
        assert [entry.producer_id for entry in again.producers.snapshot()] == [1]
        life.partition, life.sequences = again, {1: 2}
        for _ in range(3):
            life.idempotent(3)
        once_more = life.restarted(life.disk.copy())
        assert {entry.producer_id for entry in once_more.producers.snapshot()} == {1, 3}
    finally:
        life.close()


def test_an_abort_whose_index_entry_was_lost_is_found_again_though_a_snapshot_covers_it() -> None:
    life = Life(0)
    try:
        log = life.partition.log
        assert log is not None
        life.transactional(11)
        life.partition.append_marker(Marker(MarkerKind.ABORT, 0), 11, 0, 0, NOW_MS)
        life.store_snapshot()
        live = state_of(life.partition)
        files = life.disk.copy()
        files.remove(log.active.path.with_suffix(".txnindex"))
        assert state_of(life.restarted(files))[1] == live[1] == [(11, 0, 2)]
        assert state_of(life.restarted(life.disk.copy()))[1] == [(11, 0, 2)]
    finally:
        life.close()
