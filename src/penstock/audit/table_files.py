"""Files of a table: every row is read, by pyarrow, and counted.

A table is what `penstock archive` keeps, in any of its formats, or a local folder of Parquet files with its columns. A file
that cannot be read is a finding, not the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.audit.facts import Facts
from penstock.audit.row_facts import COLUMNS, RowFacts
from penstock.imports.survey import Advance
from penstock.lake import ArchiveError, open_table
from penstock.lake.columns import RECORD
from penstock.lake.lock import FOLDER
from penstock.lake.places import Place, place_of

UNREADABLE = (OSError, pa.ArrowException, KeyError)
_ROWS = 50_000
NO_PARTITION = -1
"""Of a file that does not say."""


class TableTask(NamedTuple):
    topic: str
    place: Place
    name: str
    bytes: int


class TableToAudit(NamedTuple):
    topic: str
    tasks: list[TableTask]
    ends: dict[int, int]
    """The next offset of each partition, as the table itself says; empty where it does not."""
    topic_id: str = ""
    """Id of the topic that the table was archived from; empty if unknown, or if it is compared with another topic."""


def table_tasks(url: str, topic: str = "") -> TableToAudit:
    """Raises ArchiveError when there is no table."""
    root = Path(url)
    try:
        table = open_table(url)
    except ArchiveError:
        if not root.is_dir() or (root / FOLDER).exists() or not any(root.rglob("*.parquet")):
            raise  # there is none, or it is an archive whose own files are damaged
        place = place_of(url)
        paths = sorted(path for path in root.rglob("*.parquet") if path.is_file())
        tasks = [TableTask(topic, place, str(path.relative_to(root)), path.stat().st_size) for path in paths]
        return TableToAudit(topic, tasks, {})
    name = topic or table.settings.topic
    tasks = [TableTask(name, table.place, file.name, file.bytes) for file in table.files()]
    topic_id = table.settings.topic_id if name == table.settings.topic else None
    return TableToAudit(name, tasks, dict(table.state().offsets), topic_id or "")


def audit_table_file(task: TableTask, advance: Advance) -> list[Facts]:
    """Facts of each partition that has rows in the file. What of a broken file could be read does not count."""
    by_partition: dict[int, tuple[Facts, RowFacts]] = {}
    unnumbered = Facts(task.topic, NO_PARTITION, files=1, bytes=task.bytes)
    try:
        for rows in table_rows(task):
            partition, offset = rows.column("partition"), rows.column("offset")
            numbered = rows.filter(pc.and_(pc.greater_equal(partition, 0), pc.greater_equal(offset, 0)))
            unnumbered.records += rows.num_rows - numbered.num_rows
            _take(task, numbered, by_partition)
    except UNREADABLE as error:
        facts = Facts(task.topic, NO_PARTITION, files=1, bytes=task.bytes)
        facts.found.add("damage", task.name, f"cannot read the file: {str(error).splitlines()[0]}")
        return [facts]
    finally:
        advance(task.bytes)
    for facts, rows_of in by_partition.values():
        rows_of.finish()
        facts.runs = facts.visible
        facts.log_start_offset = min(first for first, _ in facts.runs)
        facts.log_end_offset = max(last for _, last in facts.runs) + 1
    found = [facts for facts, _ in by_partition.values()]
    if unnumbered.records:
        text = f"rows without a valid partition and offset: {unnumbered.records}"
        unnumbered.found.add("damage", task.name, text, unnumbered.records)
        found.append(unnumbered)
    return found


def table_rows(task: TableTask) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order. Raises one of `UNREADABLE`."""
    with task.place.files.open_input_file(task.place.path(task.name)) as source:
        for rows in pq.ParquetFile(source).iter_batches(_ROWS, columns=COLUMNS):
            yield _plain(rows)


def _plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """With the types of the archive: other tools rewrite tables with views, large binaries or other units of time."""
    kinds = [RECORD.field(name).type for name in rows.schema.names]
    arrays = [column.cast(kind) for column, kind in zip(rows.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)


def _take(task: TableTask, rows: pa.RecordBatch, by_partition: dict[int, tuple[Facts, RowFacts]]) -> None:
    for number in pc.unique(rows.column("partition")).to_pylist():
        some: Any = rows.filter(pc.equal(rows.column("partition"), number))
        if number not in by_partition:
            facts = Facts(task.topic, number, files=1, bytes=task.bytes)
            by_partition[number] = facts, RowFacts(facts)
        by_partition[number][1].take(some)
