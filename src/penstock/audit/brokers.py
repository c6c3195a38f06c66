"""A topic as a running broker gives it to readers of committed records: what a table is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from penstock.audit.facts import Facts
from penstock.audit.row_facts import RowFacts
from penstock.client.kafka import EARLIEST, LATEST, Isolation, KafkaClient, KafkaError, KafkaSettings
from penstock.imports.engine import JobFailed
from penstock.imports.survey import Advance
from penstock.lake import ArchiveError
from penstock.lake.fetching import fetch_range
from penstock.lake.ranges import OffsetRange


class BrokerTask(NamedTuple):
    settings: KafkaSettings
    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""


def broker_tasks(settings: KafkaSettings, topic: str) -> list[BrokerTask]:
    """Every partition from its start to the last stable offset. Raises KafkaError."""
    with KafkaClient(settings) as client:
        info = client.metadata([topic]).topics.get(topic)
        if info is None:
            raise JobFailed(f"the broker has no topic {topic}")
        places = [(topic, number) for number in info.partitions]
        starts = client.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(places, LATEST), Isolation.READ_COMMITTED)
    topic_id = "" if info.topic_id is None else str(info.topic_id)
    return [
        BrokerTask(settings, topic, place.partition, listed.offset or 0, ends[place].offset or 0, topic_id)
        for place, listed in starts.items()
    ]


def audit_broker(task: BrokerTask, advance: Advance) -> Facts:
    facts = Facts(
        task.topic, task.partition, log_start_offset=task.start, log_end_offset=task.end, topic_id=task.topic_id
    )
    rows = RowFacts(facts)
    for decoded in broker_rows(task, [(task.start, task.end)]):
        rows.take(decoded)
        advance(decoded.nbytes)
    rows.finish()
    facts.runs = facts.visible
    facts.bytes = facts.key_bytes + facts.value_bytes
    return facts


def broker_rows(task: BrokerTask, ranges: Iterable[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    """The committed records of ranges of offsets, whose ends are exclusive. Raises JobFailed."""
    try:
        with KafkaClient(task.settings) as client:
            for start, end in ranges:
                wanted = OffsetRange(task.partition, max(start, task.start), min(end, task.end))
                if wanted.start < wanted.end:
                    yield from fetch_range(client, task.topic, wanted)
    except (KafkaError, ArchiveError) as error:
        raise JobFailed(f"cannot read {task.topic}-{task.partition}: {error}") from None
