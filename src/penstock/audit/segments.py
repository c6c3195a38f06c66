"""Segment files: every batch's CRC, every record, offsets over all files of a partition, indexes, producers' sequences.

A partition is read twice: once for the batches, and how transactions ended; then the records that readers see. Neither
index nor broker is asked. The scan goes on behind damage, so one bad batch hides nothing that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock.arrow.decode import decode_batches
from penstock.audit.facts import Facts, add_run
from penstock.audit.row_facts import DECODED_COLUMNS, RowFacts, renamed
from penstock.imports.kafka import scan_past_damage, sound_batches
from penstock.imports.source import Findings
from penstock.imports.survey import Advance
from penstock.imports.transactions import Transactions
from penstock.records.batch import NO_SEQUENCE, Batch, BatchError
from penstock.storage.segment_reader import (
    Damage,
    base_offset_of,
    check_indexes,
    list_partitions,
    list_segments,
    topic_id_of,
)

PRODUCERS_MAX = 100_000
"""Whose last sequence is remembered."""
_SEQUENCES = 1 << 31
_GROUP_BYTES = 4 * 1024 * 1024


class SegmentsTask(NamedTuple):
    topic: str
    partition: int
    files: tuple[str, ...]
    topic_id: str = ""

    @property
    def bytes(self) -> int:
        return sum(Path(file).stat().st_size for file in self.files)


def segment_tasks(path: Path, topics: tuple[str, ...] = ()) -> list[SegmentsTask]:
    """The partitions of a data directory, or the one whose folder it is."""
    folders = [path] if list_segments(path) else list_partitions(path)
    tasks = []
    for folder in folders:
        topic, _, number = folder.absolute().name.rpartition("-")
        if number.isdecimal() and (not topics or topic in topics):
            topic_id = topic_id_of(folder)
            files = tuple(map(str, list_segments(folder)))
            tasks.append(SegmentsTask(topic, int(number), files, "" if topic_id is None else str(topic_id)))
    return tasks


def audit_segments(task: SegmentsTask, advance: Advance) -> Facts:
    facts = Facts(task.topic, task.partition, files=len(task.files), topic_id=task.topic_id)
    rows = RowFacts(facts)
    try:
        _read(task, facts, rows, advance)
    except OSError as error:
        facts.found.add("damage", facts.place, f"cannot read the log: {error}")
    rows.finish()
    facts.log_end_offset = max(facts.log_start_offset, facts.log_end_offset)
    return facts


def segment_rows(task: SegmentsTask, wanted: Callable[[Batch], bool]) -> Iterator[pa.RecordBatch]:
    """The committed records of the wanted batches once more, in order of their offsets. Raises OSError.

    Unreadable batches are left out: `audit_segments` has reported them.
    """
    transactions = Transactions()
    for batch in _sound(task.files):
        transactions.note(batch)
    batches = (batch for batch in _rising(transactions.committed(_sound(task.files))) if wanted(batch))
    yield from _decoded(batches, Facts(task.topic, task.partition))


def _sound(files: Iterable[str]) -> Iterator[Batch]:
    return (batch for file in files for _, batch in sound_batches(Path(file), Findings()))


def _read(task: SegmentsTask, facts: Facts, rows: RowFacts, advance: Advance) -> None:
    transactions = Transactions()
    batches = _Batches(facts, transactions)
    for file in task.files:
        batches.read(Path(file))
        advance(Path(file).stat().st_size)
    for decoded in _decoded(_rising(transactions.committed(_sound(task.files))), facts):
        rows.take(decoded)
    facts.hidden = batches.records - facts.records


class _Batches:
    """The first reading."""

    def __init__(self, facts: Facts, transactions: Transactions) -> None:
        self._facts = facts
        self._transactions = transactions
        self._sequences: dict[tuple[int, int], int] = {}
        self._following: int | None = None
        self.records = 0

    def read(self, path: Path) -> None:
        facts = self._facts
        where = f"{facts.place} {path.name}"

        def damaged_by(damage: Damage, _: int) -> None:
            facts.found.add(damage.kind.value, where, f"at {damage.position}: {damage.reason}")

        places = []
        if self._following is None:
            facts.log_start_offset = base_offset_of(path)
        for position, batch in scan_past_damage(path, damaged_by):
            places.append((position, batch.base_offset, batch.last_offset))
            facts.batches += 1
            facts.bytes += batch.size
            self._take(path, position, batch)
        for problem in check_indexes(path, places):
            facts.found.add("index", where, problem)

    def _take(self, path: Path, position: int, batch: Batch) -> None:
        facts = self._facts
        where = f"{facts.place} {path.name}"
        if self._following is not None and batch.base_offset < self._following:
            kind = "duplicate" if any(first <= batch.base_offset <= last for first, last in facts.runs) else "order"
            text = f"at {position}: offset {batch.base_offset} again, expected {self._following}"
            facts.found.add(kind, where, text)
            return
        self.records += batch.count
        self._following = batch.next_offset
        facts.log_end_offset = batch.next_offset
        add_run(facts.runs, batch.base_offset, batch.last_offset)
        self._transactions.note(batch)
        if batch.base_sequence != NO_SEQUENCE:
            self._check_sequence(where, position, batch)

    def _check_sequence(self, where: str, position: int, batch: Batch) -> None:
        producer = (batch.producer_id, batch.producer_epoch)
        last = self._sequences.get(producer)
        if last is not None and 0 <= (last - batch.base_sequence) % _SEQUENCES < _SEQUENCES // 2:
            text = f"at {position}: sequence {batch.base_sequence} of producer {batch.producer_id} again, after {last}"
            self._facts.found.add("duplicate", where, text)
        if last is not None or len(self._sequences) < PRODUCERS_MAX:
            self._sequences[producer] = batch.last_sequence


def _rising(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Without batches that repeat offsets: they were found, and must not be counted twice."""
    following = 0
    for batch in batches:
        if batch.base_offset >= following:
            following = batch.next_offset
            yield batch


def _decoded(batches: Iterator[Batch], facts: Facts) -> Iterator[pa.RecordBatch]:
    """The records of all batches that can be read; of the others it is said."""
    group: list[Batch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.size
        if size >= _GROUP_BYTES:
            yield from _decoded_group(group, facts)
            group, size = [], 0
    yield from _decoded_group(group, facts)


def _decoded_group(group: list[Batch], facts: Facts) -> list[pa.RecordBatch]:
    try:
        return [renamed(rows) for rows in decode_batches(group, facts.topic, facts.partition, columns=DECODED_COLUMNS)]
    except BatchError as error:
        if len(group) == 1:
            facts.found.add("records", facts.place, f"the batch at offset {group[0].base_offset}: {error}")
            return []
    return [decoded for batch in group for decoded in _decoded_group([batch], facts)]
