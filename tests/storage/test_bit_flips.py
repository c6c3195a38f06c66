"""One flipped bit in any byte of any file of a data directory.

What holds, and what this file proves byte by byte:

- A small file of the broker's own (identity, leader-epoch, topics, producer-ids) with a flipped bit stops the start with
  a line that names it. A damaged checkpoint or marker only makes recovery look at more.
- Indexes, the leader-epoch checkpoint, producer snapshots and the index of aborted transactions are caches: with a flipped
  bit exactly the right records are served, by offset, by timestamp, and to readers of committed data.
- A flipped bit in a log after a crash: where recovery reads (from the last indexed batch before the recovery point on),
  the partition is offline if that is below the recovery point, and above it the log is cut there, as it would be by a
  torn write, and never served wrong.
- A flipped bit in a log after a clean stop, or where recovery does not read: bytes that the CRC covers (from attributes on)
  and the CRC itself reach the client with a CRC that does not fit, which it checks. The 17 bytes before them (base offset,
  length, leader epoch, magic) have no CRC in Kafka's format. A flip there is noticed when the broker walks over the header
  (no batch header there, a batch that is cut off); otherwise the client gets what stands there, as from Kafka: records with
  right content under a wrong offset, bytes that are no batch, or nothing. Never a record with wrong content.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.broker import catalogue
from penstock.broker.catalogue import TopicEntry
from penstock.broker.opening import open_partitions
from penstock.broker.partition import Partition
from penstock.broker.producer_ids import ProducerIds
from penstock.coordination.producer_records import encode_snapshot
from penstock.model.errors import StartError
from penstock.model.ids import TopicName, TopicPartition
from penstock.records.batch import CRC_OFFSET, BatchError, whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.records.record import read_records
from penstock.storage.data_directory import DataDirectory, Identity
from penstock.storage.files import DiskFailed
from penstock.storage.log import PartitionLog
from penstock.storage.segment import file_name
from tests.storage.logs import NOW_MS, TOPIC_ID, checkpoint, config, crash, flush
from tests.storage.simulated_disk import SimulatedDisk

CONFIG = {"segment_bytes": 10_000, "index_interval_bytes": 100}
TOPIC = TopicName("t")
ENTRY = TopicEntry(TOPIC, TOPIC_ID, 1, {name.replace("_", "."): str(value) for name, value in CONFIG.items()})
FLIPPED_BITS = (0x01, 0x80, 0x10, 0x04, 0x40, 0x02, 0x20, 0x08)

Rows = list[tuple[int, int, bytes | None]]


@dataclass
class Served:
    """What a started broker would give to clients."""

    rows: Rows
    aborted: list[tuple[int, int, int]]
    producers: list[object]
    by_time: list[int | None]


def fill(directory: DataDirectory) -> Partition:
    """Plain, idempotent and aborted transactional records over three segments and two epochs."""
    log = directory.create_log("t-0", TOPIC_ID, config(**CONFIG))
    directory.identity(Identity("c" * 22, 0))
    directory.write_state(catalogue.FILE_NAME, catalogue.encode({TOPIC: ENTRY}))
    ids = ProducerIds(directory)
    ids.reserved(ids.reserve())
    directory.sync()
    partition = new_partition(log)
    time = NOW_MS
    for round_ in range(6):
        partition.leader_epoch = round_ // 3
        for fields in ({}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * round_}):
            time += 1000
            append_to(partition, [b"%d/%d" % (round_, len(fields)), b"second"], time, **fields)
        if round_ in (1, 3):
            partition.producers.verified(9, 0)
            append_to(
                partition,
                [b"taken back"],
                time + 5,
                producer_id=9,
                producer_epoch=0,
                base_sequence=round_ // 2,
                transactional=True,
            )
            partition.append_marker(Marker(MarkerKind.ABORT, 0), 9, 0, 0, time + 6)
        if round_ in (1, 2):
            log.roll()
    return partition


def new_partition(log: PartitionLog) -> Partition:
    from penstock.coordination.producers import ProducerTable

    return Partition(TopicPartition(TOPIC, 0), log, log.config, "acks", 0, ProducerTable(NOW_MS), lambda _: None)


def append_to(partition: Partition, values: list[bytes], time: int, **fields: object) -> None:
    data = build_batch([NewRecord(time + n, None, value) for n, value in enumerate(values)], **fields)  # type: ignore[arg-type]
    (result,), _ = partition.append([memoryview(data)], time)
    assert result.base_offset >= 0, result


def store_snapshot(directory: DataDirectory, partition: Partition) -> None:
    assert partition.log is not None
    path = partition.log.directory / file_name(partition.log.log_end_offset, ".snapshot")
    directory.disk.replace_whole(path, encode_snapshot(partition.producers.snapshot()))


def clean_disk(root: Path) -> SimulatedDisk:
    root.mkdir(exist_ok=True)  # for the lock, which is the kernel's
    disk = SimulatedDisk(root)
    directory = DataDirectory(root, disk=disk)
    partition = fill(directory)
    store_snapshot(directory, partition)
    assert partition.log is not None
    checkpoint_of(directory, partition.log)
    directory.close([partition.log], clean=True)
    return disk


def crashed_disk(root: Path) -> SimulatedDisk:
    """As a crash leaves it, with the recovery point near the end."""
    root.mkdir(exist_ok=True)  # for the lock, which is the kernel's
    disk = SimulatedDisk(root)
    directory = DataDirectory(root, disk=disk)
    partition = fill(directory)
    log = partition.log
    assert log is not None
    checkpoint_of(directory, log)
    store_snapshot(directory, partition)
    append_to(partition, [b"after"], NOW_MS + 10**6)
    append_to(partition, [b"the checkpoint"], NOW_MS + 10**6)
    crash(directory)
    return disk


def checkpoint_of(directory: DataDirectory, log: PartitionLog) -> None:
    flush(log, directory.disk)
    checkpoint(directory, log)


def start(disk: SimulatedDisk) -> tuple[Partition | None, str]:
    """Everything that a start reads; None and the reason when it refuses."""
    try:
        directory = DataDirectory(disk.root, disk=disk)
    except StartError as error:
        return None, str(error)
    try:
        directory.identity(Identity("other", 1))
        ProducerIds(directory)
        entries = catalogue.decode(directory.read_state(catalogue.FILE_NAME))
        opened = open_partitions(
            directory,
            entries.values(),
            lambda _: config(**CONFIG),
            "acks",
            directory.leader_epoch,
            lambda _: None,
            NOW_MS,
        )
    except StartError as error:
        return None, str(error)
    finally:
        crash(directory)
    (partition,) = opened.partitions
    return (partition, "") if partition.online else (None, partition.reason)


def served(disk: SimulatedDisk, partition: Partition) -> Served:
    log = partition.log
    assert log is not None
    aborted = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in partition.aborted]
    by_time = [
        None if (found := log.find_timestamp(NOW_MS + late)) is None else found[1].base_offset
        for late in range(0, 12_000, 700)
    ]
    return Served(list(rows_of(disk, log)), aborted, list(partition.producers.snapshot()), by_time)


def rows_of(disk: SimulatedDisk, log: PartitionLog) -> Iterator[tuple[int, int, bytes | None]]:
    """As a client reads: answer after answer, CRC checked; raises BatchError or DiskFailed where it cannot go on."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 200, log.log_end_offset, one_batch=True)
        if found is None:
            raise BatchError("nothing there")
        data = disk.read_at(found.file, found.position, found.length)  # type: ignore[arg-type]
        before = offset
        for batch in whole_batches(memoryview(data)):
            if not batch.crc_is_right():
                raise BatchError("the CRC does not fit")
            for record in read_records(batch):
                if record.offset >= offset:
                    yield record.offset, record.timestamp, record.value
            offset = max(offset, batch.next_offset)
        if offset == before:
            raise BatchError("no progress")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def flips(disk: SimulatedDisk, path: Path, bits: int, step: int = 1) -> Iterator[tuple[int, SimulatedDisk]]:
    data = disk.files()[path]
    assert data, path
    for at in range(0, len(data), step):
        for bit in [FLIPPED_BITS[(at + n) % 8] for n in range(bits)]:
            flipped = disk.copy()
            flipped.put(path, data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            yield at, flipped


def kinds(disk: SimulatedDisk) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path, data in disk.files().items():
        if data:
            found.setdefault(path.suffix or path.name, []).append(path)
    return found


CACHES = (".index", ".timeindex", ".txnindex", ".snapshot", ".metadata")
OWN = ("identity", "leader-epoch", "topics", "producer-ids")


def test_the_directories_hold_every_kind_of_file(tmp_path: Path) -> None:
    for made in (clean_disk(tmp_path / "clean"), crashed_disk(tmp_path / "crashed")):
        assert {".log", "leader-epoch-checkpoint", "checkpoint", *CACHES, *OWN} <= kinds(made).keys()
    assert "clean-stop" in kinds(clean_disk(tmp_path / "again"))


@pytest.fixture(params=["clean", "crashed"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> SimulatedDisk:
    return clean_disk(tmp_path) if request.param == "clean" else crashed_disk(tmp_path)


@pytest.mark.parametrize("kind", [*CACHES, "leader-epoch-checkpoint", "checkpoint", "clean-stop"])
def test_a_flip_in_a_cache_changes_nothing_that_is_served(disk: SimulatedDisk, kind: str) -> None:
    # a checksum over the whole file is known to work by its own tests
    check_caches(disk, kind, 1, step=5 if kind in (".snapshot", "checkpoint", "clean-stop") else 1)


def check_caches(disk: SimulatedDisk, kind: str, bits: int, step: int = 1) -> None:
    partition, reason = start(disk.copy())
    assert partition is not None, reason
    right = served(disk, partition)
    for path in kinds(disk).get(kind, []):
        for at, flipped in flips(disk, path, bits, step):
            partition, reason = start(flipped)
            assert partition is not None, f"{path.name} at {at}: {reason}"
            assert served(flipped, partition) == right, f"{path.name} at {at}"
            if at % 4 == 0:  # what was mended stays so
                again, reason = start(flipped)
                assert again is not None, reason
                assert served(flipped, again) == right, f"{path.name} at {at}, second start"


@pytest.mark.parametrize("kind", OWN)
def test_a_flip_in_a_file_of_the_brokers_own_stops_the_start_and_names_it(disk: SimulatedDisk, kind: str) -> None:
    (path,) = kinds(disk)[kind]
    for at, flipped in flips(disk, path, 1):
        partition, reason = start(flipped)
        assert partition is None, f"{kind} at {at}"
        assert f"{kind} is damaged" in reason


def test_a_flip_in_a_log_after_a_clean_stop_never_gives_a_record_with_wrong_content(tmp_path: Path) -> None:
    check_log_after_clean_stop(tmp_path, 1)


def check_log_after_clean_stop(root: Path, bits: int) -> None:
    disk = clean_disk(root)
    partition, _ = start(disk.copy())
    assert partition is not None
    right = served(disk, partition).rows
    contents = {(time, value) for _, time, value in right}
    for path in kinds(disk)[".log"]:
        heads = batch_heads(disk, path)
        for at, flipped in flips(disk, path, bits):
            partition, reason = start(flipped)
            if partition is None:
                assert reason
                continue
            assert partition.log is not None
            rows: Rows = []
            try:
                rows.extend(rows_of(flipped, partition.log))
            except (BatchError, DiskFailed):
                continue  # the client was told
            assert {(time, value) for _, time, value in rows} <= contents, f"{path.name} at {at}: wrong content"
            if not any(head <= at < head + CRC_OFFSET for head in heads):
                pytest.fail(f"{path.name} at {at}: nobody noticed a flip under the CRC")


def batch_heads(disk: SimulatedDisk, path: Path) -> list[int]:
    heads, at = [], 0
    for batch in whole_batches(memoryview(disk.files()[path])):
        heads.append(at)
        at += batch.size
    return heads


def test_a_flip_in_a_log_after_a_crash_is_offline_below_the_recovery_point_and_a_cut_above_it(tmp_path: Path) -> None:
    check_log_after_crash(tmp_path, 1)


def check_log_after_crash(root: Path, bits: int) -> None:
    disk = crashed_disk(root)
    partition, _ = start(disk.copy())
    assert partition is not None
    assert partition.log is not None
    right = served(disk, partition).rows
    recovery_point = partition.log.log_end_offset - 2
    active = partition.log.active
    scanned_from = recovery_scan_start(disk, active.path)
    cut = offline = 0
    for at, flipped in flips(disk, active.path, bits):
        if at < scanned_from:
            continue
        partition, reason = start(flipped)
        if partition is None:
            assert "before the recovery point" in reason
            offline += 1
            continue
        assert partition.log is not None
        end = partition.log.log_end_offset
        assert end >= recovery_point, f"at {at}: an acknowledged record is cut"
        rows = list(rows_of(flipped, partition.log))
        if end < recovery_point + 2:
            cut += 1
        elif rows != right:
            head = max(head for head in batch_heads(disk, active.path) if head <= at)
            assert 12 <= at - head < 16, f"at {at}: served wrong"  # the leader epoch alone may differ
        assert [row for row in right if row[0] < end] == rows, f"at {at}: served wrong"
    assert cut > 50 * bits
    assert offline > 50 * bits


def recovery_scan_start(disk: SimulatedDisk, path: Path) -> int:
    """Where the batch of the last stored index entry begins; recovery does not look before it."""
    data = disk.files()[path.with_suffix(".index")]
    return int.from_bytes(data[-4:], "big")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_bit_of_every_file(tmp_path: Path) -> None:
    for kind in (*CACHES, "leader-epoch-checkpoint", "checkpoint", "clean-stop"):
        check_caches(clean_disk(tmp_path / f"clean{kind}"), kind, 8)
        check_caches(crashed_disk(tmp_path / f"crashed{kind}"), kind, 8)
    check_log_after_clean_stop(tmp_path / "logs", 8)
    check_log_after_crash(tmp_path / "crashed logs", 8)
