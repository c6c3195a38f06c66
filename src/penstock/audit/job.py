"""The audit from end to end: what to read, who reads it, what comes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.audit.brokers import BrokerTask, audit_broker, broker_tasks
from penstock.audit.comparing import compare, compare_topic_ids
from penstock.audit.facts import Facts, Found
from penstock.audit.merging import Merged, merge
from penstock.audit.report import AuditReport
from penstock.audit.rereading import RereadTask, compare_rows
from penstock.audit.segments import SegmentsTask, audit_segments, segment_tasks
from penstock.audit.table_files import TableToAudit, audit_table_file, table_tasks
from penstock.client.kafka import KafkaSettings
from penstock.imports.engine import Engine, NobodyWatches, Watcher
from penstock.storage.segment_reader import topics_that_compact


class NothingToAudit(Exception):
    """One line for the user."""


@dataclass(slots=True)
class AuditRequest:
    """Segments, a table, or a table against the segments or the broker of its topic."""

    engine: Engine
    segments: Path | None = None
    table: str = ""
    broker: KafkaSettings | None = None
    topics: Sequence[str] = ()
    allowed: Collection[str] = ()
    watcher: Watcher = field(default_factory=NobodyWatches)


def audit(request: AuditRequest) -> AuditReport:
    """Raises NothingToAudit, ArchiveError or KafkaError when it cannot begin."""
    if not request.table:
        if request.segments is None:
            raise NothingToAudit("nothing to audit: give a data directory or --table")
        tasks = _segment_tasks(request.segments, tuple(request.topics))
        merged = _segments(request, tasks, request.segments)
        return AuditReport(str(request.segments), merged, allowed=request.allowed)
    table = table_tasks(request.table, request.topics[0] if request.topics else "")
    if not table.tasks:
        raise NothingToAudit(f"{request.table} has no files yet")
    request.watcher.begin("table", sum(task.bytes for task in table.tasks))
    parts = list(
        request.engine.run(audit_table_file, table.tasks, [task.bytes for task in table.tasks], request.watcher.advance)
    )
    facts = [one for part in parts for one in part]
    compares = request.segments is not None or request.broker is not None
    # Held against its topic, a table may lack what the topic lacks.
    kept = merge(facts, {table.topic} if compares else ())
    report = AuditReport(f"table {request.table}", kept, allowed=request.allowed)
    if compares:
        if not table.topic:
            raise NothingToAudit("the topic of the table is unknown: give it with --topic")
        report.compared_with = f"topic {table.topic} of {request.segments or 'the broker'}"
        _compare(request, table, parts, report)
    return report


def _compare(request: AuditRequest, table: TableToAudit, parts: Sequence[list[Facts]], report: AuditReport) -> None:
    """Read the topic, then the doubtful pieces of both again; `parts` are the facts of each of the table's files."""
    sources, report.topic_partitions = _topic(request, table.topic)
    topic = _by_number(report.topic_partitions)
    comparison = compare(_by_number(report.partitions), topic, table.ends)
    report.comparison = compare_topic_ids(table.topic, table.topic_id, {one.facts.topic_id for one in topic.values()})
    report.comparison.take(comparison.found)
    tasks = []
    for number, pieces in comparison.doubtful.items():
        has_rows = [any(one.partition == number for one in part) for part in parts]
        files = tuple(task for task, wanted in zip(table.tasks, has_rows, strict=True) if wanted)
        tasks.append(RereadTask(number, tuple(pieces), files, sources[number]))
    if tasks:
        request.watcher.begin("rows that may differ", 0)
        for found in request.engine.run(compare_rows, tasks, [0] * len(tasks), request.watcher.advance):
            report.comparison.take(found)


def _segments(request: AuditRequest, tasks: Sequence[SegmentsTask], path: Path) -> list[Merged]:
    sizes = [task.bytes for task in tasks]
    request.watcher.begin("segments", sum(sizes))
    facts = list(request.engine.run(audit_segments, tasks, sizes, request.watcher.advance))
    known = topics_that_compact(path) | topics_that_compact(path.parent)
    return merge(facts, {topic for topic, compacts in known.items() if compacts})


def _segment_tasks(path: Path, topics: tuple[str, ...]) -> list[SegmentsTask]:
    tasks = segment_tasks(path, topics)
    if not tasks:
        raise NothingToAudit(f"no segments{' of that topic' if topics else ''} in {path}")
    return tasks


def _topic(request: AuditRequest, topic: str) -> tuple[Mapping[int, BrokerTask | SegmentsTask], list[Merged]]:
    """The reader of each partition of the topic, and its facts."""
    if request.segments is not None:
        tasks = _segment_tasks(request.segments, (topic,))
        return {task.partition: task for task in tasks}, _segments(request, tasks, request.segments)
    assert request.broker is not None
    asked = broker_tasks(request.broker, topic)
    request.watcher.begin("topic", 0)
    facts: list[Facts] = list(request.engine.run(audit_broker, asked, [0] * len(asked), request.watcher.advance))
    merged = merge(facts, {topic})
    for one in merged:
        one.facts.found = Found()
    return {task.partition: task for task in asked}, merged


def _by_number(merged: Sequence[Merged]) -> dict[int, Merged]:
    return {one.facts.partition: one for one in merged if one.facts.partition >= 0}
