"""Looking at a partition of the source without writing anything: what would come over, and what would not.

The survey reads every byte. What it finds decides how topics are made (the largest batch, the youngest timestamp), is what a
dry run prints, and is what the written log is compared with at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from crc32c import crc32c

from penstock.imports import source
from penstock.imports.kafka_scan import KafkaScan, Stretch
from penstock.imports.source import Findings, SourcePartition
from penstock.imports.tally import Tally
from penstock.imports.transactions import Transactions
from penstock.records.batch import Batch

_ADVANCE_BYTES = 8 * 1024 * 1024

Advance = Callable[[int], None]
"""Called with bytes done since the last call."""


@dataclass(slots=True)
class Survey:
    partition: SourcePartition
    tally: Tally = field(default_factory=Tally)
    batches: int = 0
    first_offset: int = -1
    """-1 while there is no record."""
    end_offset: int = 0
    missing: int = 0
    """Offsets between the first and the last that no record has."""
    largest_batch_bytes: int = 0
    timestamp_max: int = -1
    producer_id_max: int = -1
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Each leader epoch and the offset that it begins at."""
    transactions: Transactions = field(default_factory=Transactions)
    findings: Findings = field(default_factory=Findings)
    stretches: list[Stretch] = field(default_factory=list)
    """Only for sources whose files are taken over."""

    def fingerprint(self) -> int:
        """A checksum of what would come over: what was made of another survey is told by it."""
        pieces = [stretch[1:] for stretch in self.stretches]
        return crc32c(msgspec.json.encode((self.first_offset, self.end_offset, self.tally, pieces)))

    def note(self, batch: Batch) -> None:
        if self.first_offset < 0:
            self.first_offset = batch.base_offset
        else:
            self.missing += batch.base_offset - self.end_offset
        self.missing += batch.last_offset_delta + 1 - batch.count
        self.end_offset = batch.next_offset
        self.batches += 1
        if batch.size > self.largest_batch_bytes:
            self.largest_batch_bytes = batch.size
        if batch.max_timestamp > self.timestamp_max:
            self.timestamp_max = batch.max_timestamp
        if batch.producer_id > self.producer_id_max:
            self.producer_id_max = batch.producer_id
        if not self.epochs or batch.leader_epoch > self.epochs[-1][0]:
            self.epochs.append((batch.leader_epoch, batch.base_offset))
        if batch.is_transactional:
            self.transactions.note(batch)


def survey_partition(reader_name: str, partition: SourcePartition, advance: Advance) -> Survey:
    reader = source.load(reader_name)
    survey = Survey(partition)
    found: Iterable[Batch]
    if reader.TAKES_FILES_OVER:
        found = scan = KafkaScan(partition, survey.findings)
        survey.stretches = scan.stretches
        tally = survey.tally.count
    else:
        found = reader.batches(partition, survey.findings)
        tally = survey.tally.add
    unsaid = 0
    for batch in found:
        survey.note(batch)
        tally(batch)
        unsaid += batch.size
        if unsaid > _ADVANCE_BYTES:
            advance(unsaid)
            unsaid = 0
    advance(unsaid)
    return survey
