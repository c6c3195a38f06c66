"""A topic as a table: one read from offset to offset.

The offsets are resolved when Spark plans the read, once a DataFrame: its actions all see the same records. To see what came
since, load it again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.model.ids import TopicPartition
from penstock.spark.source.errors import SourceError, log, lost
from penstock.spark.source.offsets import Offsets
from penstock.spark.source.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimestamp,
    Edge,
    SourceOptions,
)
from penstock.spark.source.planning import divided, ranges_between
from penstock.spark.source.range_reader import RangeReader, Task, tasks_of
from penstock.spark.source.topics import Topics

_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


class BatchSource(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        _check(options)
        self._options = options
        self._reader = RangeReader.of(options, schema)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        topics = Topics(options)
        try:
            places = topics.partitions()
            if not places:
                log.warning("no topic matches subscribePattern: nothing to read")
            starts = topics.start(options.starting or Edge.EARLIEST, places).offsets
            ends = topics.end(options.ending or Edge.LATEST, places)
            starts, ends = self._in_range(topics, places, starts, ends)
            ranges = divided(ranges_between(starts, ends), options.partitions_min, options.records_per_partition_max)
            return tasks_of(ranges, topics, options)
        finally:
            topics.close()

    def _in_range(
        self, topics: Topics, places: list[TopicPartition], starts: Offsets, ends: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Offsets that a user named may be anywhere; what the log does not have is a loss."""
        options = self._options
        if not isinstance(options.starting, AtOffsets) and not isinstance(options.ending, AtOffsets):
            return {where: min(starts[where], ends[where]) for where in places}, ends
        first, last = topics.earliest(places), topics.latest(places)
        for where in places:
            if isinstance(options.starting, AtOffsets) and isinstance(options.ending, AtOffsets):
                if starts[where] > ends[where]:
                    raise SourceError(
                        f"{where}: startingOffsets ({starts[where]}) is after endingOffsets ({ends[where]})"
                    )
            for option, offset in (("startingOffsets", starts[where]), ("endingOffsets", ends[where])):
                if not first[where] <= offset <= last[where]:
                    lost(
                        f"{where}: {option} ({offset}) is out of range: the log starts at {first[where]} "
                        f"and ends at {last[where]}",
                        options.fail_on_data_loss,
                    )
            ends[where] = max(first[where], min(ends[where], last[where]))
            starts[where] = min(max(starts[where], first[where]), ends[where])
        return starts, ends

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of nothing where there is none to read.
        return self._reader.read(partition) if isinstance(partition, Task) else iter(())


def _check(options: SourceOptions) -> None:
    """What a batch cannot do, whatever the cluster says."""
    starting, ending = options.starting, options.ending
    if starting is Edge.LATEST or (isinstance(starting, AtOffsets) and LATEST_OFFSET in starting.offsets.values()):
        raise SourceError("startingOffsets=latest (or -1) is for streams: a batch would read nothing")
    if ending is Edge.EARLIEST or (isinstance(ending, AtOffsets) and EARLIEST_OFFSET in ending.offsets.values()):
        raise SourceError("endingOffsets=earliest (or -2) is not supported: a batch would read nothing")
    if isinstance(starting, AtTimestamp) and isinstance(ending, AtTimestamp):
        if starting.timestamp_ms > ending.timestamp_ms:
            raise SourceError(
                f"startingTimestamp ({starting.timestamp_ms}) is after endingTimestamp ({ending.timestamp_ms})"
            )
    unused = [name for name in options.given if name in _OF_STREAMS]
    if unused:
        log.warning("%s is ignored: it applies to streams only", ", ".join(unused))
