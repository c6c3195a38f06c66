"""Opening all partitions at start: logs, then the producers that wrote to them.

The producers of a log are rebuilt from the newest snapshot that the log still covers, and from the batch headers after it.
A damaged snapshot is passed over; without any the whole log is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.broker.aborted import AbortedTransactions
from penstock.broker.catalogue import TopicEntry
from penstock.broker.partition import Partition
from penstock.coordination.producer_records import decode_snapshot
from penstock.coordination.producers import ProducerTable
from penstock.model.ids import TopicPartition
from penstock.model.topic_config import TopicConfig
from penstock.records.batch import NO_PRODUCER_ID, Batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import DiskFailed
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Place

logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    partitions: list[Partition]
    offline: int


def open_partitions(
    directory: DataDirectory,
    entries: Iterable[TopicEntry],
    config_of: Callable[[str], TopicConfig],
    flush: str,
    leader_epoch: int,
    request_flush: Callable[[PartitionLog], None],
    now_ms: int,
) -> Opened:
    partitions = []
    offline = 0
    for entry in entries:
        config = config_of(entry.name)
        for at in range(entry.partitions):
            partition_id = TopicPartition(entry.name, at)
            log, report = directory.open_log(str(partition_id), config, now_ms)
            producers = ProducerTable(now_ms)
            aborted = AbortedTransactions()
            snapshot_offset = -1
            if log is not None:
                try:
                    aborted.load(log.read_aborted(), log.log_end_offset)
                    snapshot_offset = _load_producers(directory, log, producers, aborted)
                except (DiskFailed, ValueError) as error:
                    log, report.offline = None, str(error)
            if log is None:
                offline += 1
                logger.error("partition %s", report)
            elif report.scanned_bytes or report.cut_bytes or report.notes:
                logger.info("recovered %s", report)
            partition = Partition(
                partition_id, log, config, flush, leader_epoch, producers, request_flush, report.offline or ""
            )
            partition.snapshot_offset = snapshot_offset
            partition.aborted = aborted
            partitions.append(partition)
    return Opened(partitions, offline)


def _load_producers(
    directory: DataDirectory, log: PartitionLog, producers: ProducerTable, aborted: AbortedTransactions
) -> int:
    """Fill the table; the offset of the snapshot used, or -1."""
    disk = directory.disk
    names = [name for name in disk.names(log.directory) if name.endswith(".snapshot") and name[:20].isdigit()]
    covered = -1
    for name in sorted(names, reverse=True):
        offset = int(name[:20])
        if offset > log.log_end_offset:
            disk.remove(log.directory / name)  # made of a tail that the log lost
            continue
        try:
            producers.load(decode_snapshot(disk.read_whole(log.directory / name)))
        except ValueError as error:
            logger.warning("producer snapshot %s/%s is damaged and passed over: %s", log.name, name, error)
            disk.remove(log.directory / name)
            continue
        covered = offset
        break
    start = max(covered, log.log_start_offset)
    if start < log.log_end_offset:
        for segment, position, header in log.headers(start):
            if header.producer_id == NO_PRODUCER_ID or header.base_offset < start:
                continue
            batch = header
            if header.is_control:
                place = Place(position, header.size, header.base_offset, header.last_offset, -1, -1)
                batch = Batch(memoryview(segment.read_batch(place)))
            entry = producers.replay(batch)
            if entry is not None:
                aborted.add(entry)
    producers.high_watermark_moved(log.log_end_offset)
    return covered
