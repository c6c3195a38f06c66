"""Opening all partitions at start: logs, then what the broker knows of their producers and aborted transactions.

The producers of a log are rebuilt from the newest snapshot that the log still covers, and from the batch headers after it.
A damaged snapshot is passed over; without any, the log is read from where its first producer may be. The index of aborted
transactions is held against the log, and made again from it where it does not fit: without it, readers of committed data
would get records that were taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.broker.aborted import AbortedTransactions
from penstock.broker.catalogue import TopicEntry
from penstock.broker.partition import Partition
from penstock.coordination.producer_records import AbortedTransaction, decode_snapshot
from penstock.coordination.producers import ProducerTable
from penstock.model.ids import TopicPartition
from penstock.model.topic_config import TopicConfig
from penstock.records.batch import NO_PRODUCER_ID, Batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, disk_failure, is_shortage
from penstock.storage.log import PartitionLog
from penstock.storage.recovery import RecoveryReport
from penstock.storage.segment import Place, Segment

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
    """Open every partition; a damaged one stays offline until the next start.

    Raises OSError if the system is short of descriptors or memory: the broker does not start then, rather than serve less
    than it has.
    """
    opened: list[tuple[TopicPartition, TopicConfig, PartitionLog | None, RecoveryReport]] = []
    for entry in entries:
        config = config_of(entry.name)
        for at in range(entry.partitions):
            partition_id = TopicPartition(entry.name, at)
            opened.append((partition_id, config, *directory.open_log(str(partition_id), entry.id, config, now_ms)))
    directory.flush(log for _, _, log, _ in opened if log is not None)
    partitions = []
    offline = 0
    for partition_id, config, log, report in opened:
        loading = Loading(directory.disk, log, report, now_ms)
        if log is not None:
            try:
                if log.failure is not None:
                    raise disk_failure(log.failure)
                if log.dirty:  # what recovery found may be in memory alone, and must not be served
                    if log.flush_refused is not None and is_shortage(log.flush_refused):
                        raise log.flush_refused
                    raise OSError(f"it could not be flushed: {log.flush_refused}")
                loading.load()
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and is_shortage(error):
                    raise
                directory.stays_offline(log)
                log, report.offline = None, str(error)
        if log is None:
            offline += 1
            logger.error("partition %s", report)
        elif report.has_cut:
            logger.warning("recovered %s", report)
        elif report.scanned_bytes or report.notes:
            logger.info("recovered %s", report)
        reason = directory.without_path(report.offline or "")
        partition = Partition(partition_id, log, config, flush, leader_epoch, loading.producers, request_flush, reason)
        partition.snapshot_offset = loading.snapshot_offset
        partition.aborted = loading.aborted
        partitions.append(partition)
    return Opened(partitions, offline)


class Loading:
    """Brings the producers and aborted transactions of one log to where the log ends."""

    def __init__(self, disk: Disk, log: PartitionLog | None, report: RecoveryReport, now_ms: int) -> None:
        self._disk = disk
        self._log = log
        self._report = report
        self.producers = ProducerTable(now_ms)
        self.aborted = AbortedTransactions()
        self.snapshot_offset = -1
        """Of the snapshot that was used; -1 for none."""

    def load(self) -> None:
        log = self._log
        assert log is not None
        mend = not self._load_aborted(log)
        if mend:
            self._report.notes.append("index of aborted transactions made again")
            self.aborted = AbortedTransactions()
            self._replay(log, log.log_start_offset, ProducerTable(0))
        start = max(self._load_snapshot(log), log.producerless_offset, log.log_start_offset)
        if start < log.log_end_offset:
            mend |= self._replay(log, start, self.producers)
        self.producers.high_watermark_moved(log.log_end_offset)
        if mend:
            self._mend_aborted(log)

    # ------------------------------------------------------------------------------------------------ producers

    def _load_snapshot(self, log: PartitionLog) -> int:
        """Take the newest snapshot that fits; the offset that it covers, or -1."""
        names = [name for name in self._report.sizes if name.endswith(".snapshot") and name[:20].isdigit()]
        latest = log.log_end_offset
        if self._report.marker_offset is not None:
            # what a crash left of the index of aborted transactions may end before this marker: replay it
            latest = min(latest, self._report.marker_offset)
        stale = False
        for name in sorted(names, reverse=True):
            offset = int(name[:20])
            if offset > log.log_end_offset:
                self._disk.remove(log.directory / name)  # made of a tail that the log lost
                stale = True
        if stale:
            self._disk.sync_directory(log.directory)  # once the log is as long again it would be believed
        for name in sorted(names, reverse=True):
            offset = int(name[:20])
            if not log.producerless_offset < offset <= latest:
                continue
            try:
                self.producers.load(decode_snapshot(self._disk.read_whole(log.directory / name)))
            except ValueError as error:
                logger.warning("producer snapshot %s/%s is damaged and passed over: %s", log.name, name, error)
                self._disk.remove(log.directory / name)
                continue
            self.snapshot_offset = offset
            return offset
        return -1

    def _replay(self, log: PartitionLog, start: int, producers: ProducerTable) -> bool:
        """Take in every batch from `start` on; whether an aborted transaction was not known."""
        added = False
        for segment, position, header in log.headers(start):
            if header.producer_id == NO_PRODUCER_ID or header.base_offset < start:
                continue
            batch = header
            if header.is_control:
                place = Place(position, header.size, header.base_offset, header.last_offset, -1, -1)
                batch = Batch(memoryview(segment.read_batch(place)))
            entry = producers.replay(batch)
            if entry is not None:
                added |= self.aborted.add(entry)
        return added

    # ------------------------------------------------------------------------------------------------ aborted

    def _load_aborted(self, log: PartitionLog) -> bool:
        """Take in the index; whether all of it is of this log. A crash may leave entries whose markers it took."""
        for segment in self._segments_with_aborted(log):
            try:
                if not self.aborted.load(log.read_aborted(segment), log.log_end_offset):
                    return False
            except ValueError:
                return False
        # cleaning takes records and markers away
        return log.config.compacts or all(_is_real(log, entry) for entry in self.aborted)

    def _segments_with_aborted(self, log: PartitionLog) -> list[Segment]:
        sizes = self._report.sizes
        if not any(name.endswith(".txnindex") for name in sizes):
            return []
        return [segment for segment in log.segments if f"{segment.path.stem}.txnindex" in sizes]

    def _mend_aborted(self, log: PartitionLog) -> None:
        with_index = self._segments_with_aborted(log)
        for at, segment in enumerate(log.segments):
            end = log.segments[at + 1].base_offset if at + 1 < len(log.segments) else log.log_end_offset
            entries = [entry.encode() for entry in self.aborted if segment.base_offset <= entry.last_offset < end]
            if entries or segment in with_index:
                log.rewrite_aborted(segment, b"".join(entries))


def _is_real(log: PartitionLog, entry: AbortedTransaction) -> bool:
    """Whether the log has the transaction's first batch and its marker."""
    for offset, is_control in ((entry.first_offset, False), (entry.last_offset, True)):
        found = next(log.headers(offset), None)
        if found is None:
            return False
        batch = found[2]
        if (batch.base_offset, batch.producer_id, batch.is_control) != (offset, entry.producer_id, is_control):
            return False
    return entry.first_offset < entry.last_offset
