"""How a table stands: what it holds, and how far behind its topic it is."""

from __future__ import annotations

import msgspec

from penstock.client.kafka import LATEST, Isolation, KafkaClient, KafkaSettings
from penstock.lake.tables import Table


class PartitionStatus(msgspec.Struct, frozen=True):
    partition: int
    next_offset: int
    end_offset: int | None
    """The last stable offset; None if the broker does not say."""
    lag: int | None
    files: int
    rows: int
    bytes: int


class TableStatus(msgspec.Struct, frozen=True):
    path: str
    topic: str
    format: str
    partition_by: str
    values: str
    columns: dict[str, str]
    files: int
    rows: int
    bytes: int
    lag: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    partitions: list[PartitionStatus]


def table_status(table: Table, kafka: KafkaSettings | None) -> TableStatus:
    """Without a broker there is no lag. Raises ArchiveError, KafkaError."""
    state, files = table.state(), table.files()
    ends = {} if kafka is None else _ends(table, kafka)
    partitions = []
    for partition in sorted({*state.offsets, *ends}):
        own = [file for file in files if file.partition == partition]
        next_offset, end = state.offsets.get(partition, 0), ends.get(partition)
        partitions.append(
            PartitionStatus(
                partition,
                next_offset,
                end,
                None if end is None else max(end - next_offset, 0),
                len(own),
                sum(file.rows for file in own),
                sum(file.bytes for file in own),
            )
        )
    settings = table.settings
    return TableStatus(
        table.place.url,
        settings.topic,
        settings.format.value,
        settings.bucketing.value,
        settings.value.values.value,
        state.kinds,
        len(files),
        sum(file.rows for file in files),
        sum(file.bytes for file in files),
        sum(one.lag or 0 for one in partitions) if ends else None,
        min((file.first_us // 1_000 for file in files), default=None),
        max((file.last_us // 1_000 for file in files), default=None),
        partitions,
    )


def _ends(table: Table, kafka: KafkaSettings) -> dict[int, int]:
    """Of the topic, if it is there and still the same."""
    topic = table.settings.topic
    with KafkaClient(kafka) as client:
        info = client.metadata([topic]).topics.get(topic)
        known = table.settings.topic_id
        if info is None or (known is not None and info.topic_id is not None and str(info.topic_id) != known):
            return {}
        listed = client.list_offsets(
            {(topic, partition): LATEST for partition in info.partitions}, Isolation.READ_COMMITTED
        )
    return {place.partition: offset.offset or 0 for place, offset in listed.items()}
