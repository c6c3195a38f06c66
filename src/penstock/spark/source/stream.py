"""Topics as a stream: which offsets each micro-batch has.

Spark keeps one of these in a process of its own for the life of a query and asks it what to read next; the tasks get copies.
Truth is in Spark's checkpoint: offsets that it logged are read again as they are after a crash. What the checkpoint does not
hold is where the query began, see `query_place`.

Offsets belong to a topic, not to a name: they carry the topic's id, which is compared with the cluster's when a batch is
planned, when it is divided into tasks, and by each task (range_reader). A topic with a different id was deleted and created
again. That is a loss; if losses are allowed, the next batch starts at the first record of the new topic.

Spark's order of questions for a new query is initialOffset, latestOffset, partitions. After a crash in batch 0 it is
initialOffset, partitions: the end comes from the log and the start is asked for again. An answer made up anew would lose or
repeat records, so there it is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.model.ids import TopicPartition
from penstock.spark.source.errors import SourceError, log, lost, recreated
from penstock.spark.source.offsets import OffsetJson, Offsets, TopicIds, ids_of_json, of_json, shown, to_json
from penstock.spark.source.options import AtOffsets, Bound, Edge, SourceOptions
from penstock.spark.source.planning import backlog, divided, limited, ranges_between
from penstock.spark.source.query_place import QueryPlace
from penstock.spark.source.range_reader import RangeReader, Task, tasks_of
from penstock.spark.source.topics import Topics


class StreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            name = next(name for name in options.given if name.startswith("ending"))
            raise SourceError(
                f"{name} is for batches only: a stream ends when it is stopped, or with the trigger availableNow"
            )
        self._options = options
        self._reader = RangeReader.of(options, schema)
        self._topics = Topics(options)
        self._place = QueryPlace(self._topics, options.group, options.group_prefix, self._starting)
        self._initial: Offsets | None = None
        self._initial_ids: TopicIds = {}
        self._is_made_up: frozenset[TopicPartition] = frozenset()
        """Partitions whose start nobody would find again."""
        self._added: Offsets = {}
        """Partitions that came before the first batch."""
        self._target: Offsets | None = None
        """Where a run with the trigger availableNow ends."""
        self._target_ids: TopicIds = {}
        self._latest: Offsets | None = None
        self._planned: Offsets | None = None
        """The end that was given last."""
        self._given_out: Offsets | None = None
        """The end of the batch that was made into tasks last."""
        self._triggered_at: float | None = None

    @property
    def _starting(self) -> Bound:
        return self._options.starting or Edge.LATEST

    # ------------------------------------------------------------------------------------------------ offsets

    def initialOffset(self) -> OffsetJson:  # noqa: N802 - these names are Spark's
        if self._initial is None:
            self._initial = self._begin()
            self._initial_ids = self._topics.topic_ids()
        return to_json(self._initial, self._initial_ids)

    def _begin(self) -> Offsets:
        places = self._topics.partitions()
        kept = self._place.start(places)
        if kept is not None:
            return kept
        resolved = self._topics.start(self._starting, places)
        offsets = resolved.offsets
        if isinstance(self._starting, AtOffsets):
            offsets = self._in_range(places, offsets)
        if self._place.keeps_start:
            self._place.keep_start(offsets)
        else:
            self._is_made_up = resolved.at_log_end
            if self._is_made_up:
                log.warning(
                    "the query starts at the end of %s, and its start offsets are not stored until the first batch is "
                    "committed: set kafka.group.id to a group of its own to lose nothing if the first batch fails",
                    shown(self._is_made_up),
                )
        return offsets

    def _in_range(self, places: list[TopicPartition], offsets: Offsets) -> Offsets:
        first, last = self._topics.earliest(places), self._topics.latest(places)
        for where in places:
            if not first[where] <= offsets[where] <= last[where]:
                lost(
                    f"{where}: startingOffsets ({offsets[where]}) is out of range: the log starts at {first[where]} "
                    f"and ends at {last[where]}",
                    self._options.fail_on_data_loss,
                )
        return {where: min(max(offsets[where], first[where]), last[where]) for where in places}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        places = self._topics.partitions_since(())
        self._target, self._target_ids = self._topics.latest(places), self._topics.topic_ids()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Where the next micro-batch ends. Spark asks when the batch that ended at `start` is through."""
        begun, known = of_json(start), ids_of_json(start)
        is_first = begun == self._initial
        if not is_first or begun == self._given_out:
            self._place.advance(begun)
        places = self._topics.partitions_since(begun) if self._target is None else []
        ids = self._topics.topic_ids() if self._target is None else self._target_ids
        changed = self._recreated(known, ids)
        kept = _without(begun, changed)
        ends = self._topics.latest(places) if self._target is None else self._ends(self._target, kept, is_first)
        self._latest = ends
        self._check_gone(kept, ends)
        added = self._topics.earliest(ends.keys() - kept.keys())
        if is_first and added != self._added:
            # Should the first batch fail, these began here.
            self._place.keep_start(added)
            self._added = added
        starts = {**kept, **added}
        for where, end in ends.items():
            if end < starts[where]:
                lost(
                    f"{where}: the query is at offset {starts[where]}, but the log ends at {end}: "
                    "it was truncated, or the topic was created again",
                    self._options.fail_on_data_loss,
                )
        planned = self._limited(starts, ends, limit)
        if planned is None:
            return start
        self._planned = planned
        # Spark compares text: what did not change comes back as it came.
        return start if planned == begun and not changed else to_json(planned, {**known, **ids})

    def _ends(self, target: Offsets, begun: Offsets, is_first: bool) -> Offsets:
        ends = dict(target)
        if not begun.keys() <= ends.keys():
            # The query knows partitions that came after the target was set: this run leaves them where they are.
            there = self._topics.partitions_since(begun)
            ends |= {where: begun[where] for where in begun if where in there and where not in ends}
        if is_first:
            # Spark asks for the target first: a start at the log's end may be behind it.
            ends = {where: max(end, begun.get(where, end)) for where, end in ends.items()}
        return ends

    def _limited(self, starts: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets | None:
        """None while there is too little to begin a batch."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return ends
        # A run that ends by itself takes the rest, however little it is.
        if options.offsets_per_trigger_min is not None and self._target is None:
            now = time.monotonic()
            waited_ms = None if self._triggered_at is None else (now - self._triggered_at) * 1_000
            is_due = waited_ms is None or waited_ms >= options.trigger_delay_ms_max
            if not is_due and backlog(starts, ends) < options.offsets_per_trigger_min:
                return None
            self._triggered_at = now
        if options.offsets_per_trigger_max is None:
            return ends
        return limited(starts, ends, options.offsets_per_trigger_max)

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def commit(self, end: dict[str, Any]) -> None:
        self._place.advance(of_json(end))

    def stop(self) -> None:
        self._topics.close()

    # ------------------------------------------------------------------------------------------------ work

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        starts, ends, ids = of_json(start), of_json(end), ids_of_json(end)
        self._given_out = dict(ends)
        is_replayed = ends != self._planned
        if is_replayed and self._planned is None and starts == self._initial and self._is_made_up:
            raise SourceError(
                "the query stopped in its first batch and its start offsets were not stored: startingOffsets=latest would "
                "now be another offset and lose records; delete the checkpoint and start again with kafka.group.id set"
            )
        now = self._topics.topic_ids_now({where.topic for where in ends})
        ends = _without(ends, self._recreated(ids, now))
        if is_replayed:
            there = set(self._topics.partitions_since(ends))
            self._check_gone(ends, there)
            ends = {where: offset for where, offset in ends.items() if where in there}
        # The batch starts at the first record of topics that were created again since the previous batch.
        starts = self._with_added(_without(starts, _changed(ids_of_json(start), ids)), ends)
        first = self._topics.earliest(ends)
        last = self._topics.latest(ends) if is_replayed else ends
        for where in sorted(ends):
            self._check_range(where, starts[where], ends[where], first[where], last[where])
            ends[where] = min(ends[where], last[where])
            starts[where] = min(max(starts[where], first[where]), ends[where])
        options = self._options
        ranges = divided(ranges_between(starts, ends), options.partitions_min, options.records_per_partition_max)
        return tasks_of(ranges, self._topics, options, {**now, **ids})

    def _recreated(self, known: TopicIds, now: TopicIds) -> set[str]:
        """The topics whose id has changed, if losing the unread records of the old ones is allowed."""
        changed = _changed(known, now)
        if changed:
            self._topics.forget_partitions()
        for topic in sorted(changed):
            lost(recreated(topic, known[topic], now[topic]), self._options.fail_on_data_loss)
        return changed

    def _with_added(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Partitions that came since the last batch are read from their beginning."""
        added = self._topics.earliest(ends.keys() - starts.keys())
        for where, offset in sorted(added.items()):
            if offset > 0:
                lost(f"new partition {where} starts at offset {offset} instead of 0", self._options.fail_on_data_loss)
        return {**starts, **added}

    def _check_range(self, where: TopicPartition, start: int, end: int, first: int, last: int) -> None:
        if start > end:
            text = f"{where}: the batch starts at offset {start} but ends at {end}"
        elif start < first and start < end:
            text = f"{where}: offsets {start} to {min(first, end) - 1} were deleted, the log now starts at {first}"
        elif end > last:
            text = (
                f"{where}: the batch ends at offset {end}, but the log at {last}: "
                "it was truncated, or the topic was created again"
            )
        else:
            return
        lost(text, self._options.fail_on_data_loss)

    def _check_gone(self, known: Mapping[TopicPartition, int], there: Any) -> None:
        gone = [where for where in known if where not in there]
        if gone:
            lost(f"{shown(gone)} was read and no longer exists", self._options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition) if isinstance(partition, Task) else iter(())


def _changed(known: TopicIds, now: TopicIds) -> set[str]:
    """Topics whose ids are both known and differ."""
    return {topic for topic, topic_id in known.items() if now.get(topic, topic_id) != topic_id}


def _without(offsets: Offsets, topics: set[str]) -> Offsets:
    return {where: offset for where, offset in offsets.items() if where.topic not in topics}


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What stands in for a stream that cannot be: Spark 4.3 covers an exception of streamReader() with an
    UnboundLocalError of its own, and shows one of the first question to the stream as it is."""

    def __init__(self, problem: SourceError) -> None:
        self._problem = problem

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        raise self._problem

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetJson:  # noqa: N802
        raise self._problem

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._problem

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise self._problem

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._problem

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._problem
