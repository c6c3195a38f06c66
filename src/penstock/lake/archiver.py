"""The archiver: one step after the other from the topic into the table.

A step looks how far the table is and how far the topic, plans ranges of offsets, writes the plan down, has the engine write
the files, and commits. Killed anywhere it leaves either a commit or a plan; the next run goes on from the one or
carries out the other. What the broker deleted before it was archived stops it, unless it was told to go on without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock.client.kafka import EARLIEST, LATEST, Isolation, KafkaClient, KafkaSettings, TopicInfo
from penstock.lake.columns import wider
from penstock.lake.data_files import SUFFIX
from penstock.lake.engines import Engine
from penstock.lake.errors import ArchiveError
from penstock.lake.fetching import Gone
from penstock.lake.ranges import FILE_BYTES, PLAN, Backlog, Plan, plan
from penstock.lake.tables import Append, State, Table
from penstock.lake.tasks import ArchiveRange, Written
from penstock.records.batch import whole_batches

SAMPLE_BYTES = 256 * 1024
BYTES_AN_OFFSET_UNKNOWN = 100.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a step takes."""

    file_bytes: int = FILE_BYTES
    commit_records_max: int | None = None
    skip_lost: bool = False
    """Go on where the log begins now, when the broker deleted what was not archived yet."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit brought."""

    rows: int
    files: int
    bytes: int
    unreadable: int
    lag: int
    """Offsets that are left of what the run set out for."""
    seconds: float


class Archiver:
    """Works on a table whose lock is held."""

    def __init__(self, kafka: KafkaSettings, table: Table, engine: Engine, pace: Pace | None = None) -> None:
        if not (engine.is_one_process or table.place.is_shared):
            raise ArchiveError(f"{table.place.url} is in the memory of this process: use --engine local")
        self._kafka = kafka
        self._table = table
        self.engine = engine
        self._pace = pace or Pace()
        self._client = KafkaClient(kafka)
        self._topic = table.settings.topic

    def close(self) -> None:
        self._client.close()

    def ends(self) -> dict[int, int]:
        """The last stable offset of each partition now: what a run that is to end sets out for."""
        return self._listed(LATEST, sorted(self._topic_info().partitions))

    def step(self, ends: Mapping[int, int] | None = None) -> Step | None:
        """One commit towards `ends`, or towards wherever the topic ends now; None if there is nothing to do."""
        began = time.monotonic()
        info = self._topic_info()
        if ends is None:
            ends = self._listed(LATEST, sorted(info.partitions))
        state = self._table.state()
        todo = self._leftover(state) or self._planned(state, ends)
        if todo is None:
            return None
        try:
            written = self._carry_out(todo, state)
        except Gone as error:
            raise ArchiveError(f"{error}; use --skip-lost to continue without them") from None
        # Fetches name a topic by its name: what was read must have been the same topic all along.
        self._topic_info()
        grown = merged([one.grown for one in written])
        self._table.append(
            Append(
                todo.offsets,
                todo.after(),
                [file for one in written for file in one.files],
                {**state.kinds, **grown},
                state.with_error or self._table.settings.value.is_typed,
            )
        )
        after = todo.after()
        return Step(
            sum(file.rows for one in written for file in one.files),
            sum(len(one.files) for one in written),
            sum(file.bytes for one in written for file in one.files),
            sum(one.unreadable for one in written),
            sum(max(end - after.get(partition, 0), 0) for partition, end in ends.items()),
            time.monotonic() - began,
        )

    # ------------------------------------------------------------------------------------------------ planning

    def _topic_info(self) -> TopicInfo:
        """The topic, if it is still the one that the table was made for."""
        info = self._client.metadata([self._topic]).topics.get(self._topic)
        if info is None:
            raise ArchiveError(f"the broker has no topic {self._topic}; the table is unchanged")
        known = self._table.settings.topic_id
        if known is not None and info.topic_id is not None and str(info.topic_id) != known:
            raise ArchiveError(
                f"topic {self._topic} was deleted and created again since {self._table.place.url} was created: "
                "archive it to another path"
            )
        return info

    def _leftover(self, state: State) -> Plan | None:
        """The plan of a run that did not come to its commit. Its files are cleared away and written again."""
        data = self._table.place.read(PLAN)
        if data is None:
            return None
        try:
            left = msgspec.json.decode(data, type=Plan)
        except msgspec.DecodeError:
            return None
        if left.offsets != state.offsets or not left.ranges:
            return None
        stems = tuple(f"{one.stem}{SUFFIX}" for one in left.ranges)
        self._table.place.delete(one.name for one in self._table.place.found() if one.name.endswith(stems))
        self._table.place.clear_unfinished(time.time())
        starts = self._listed(EARLIEST, sorted({one.partition for one in left.ranges}))
        if any(one.start < starts[one.partition] for one in left.ranges):
            return None
        return left

    def _planned(self, state: State, ends: Mapping[int, int]) -> Plan | None:
        starts = self._listed(EARLIEST, sorted(ends))
        backlogs = self._backlogs(state, starts, ends)
        if not backlogs:
            return None
        made = plan(
            state.offsets,
            backlogs,
            self.engine.workers,
            starts=starts,
            file_bytes=self._pace.file_bytes,
            records_max=self._pace.commit_records_max,
        )
        self._table.place.write(PLAN, msgspec.json.encode(made))
        return made

    def _backlogs(self, state: State, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Backlog]:
        found = []
        for partition, end in ends.items():
            start, next_offset = starts[partition], state.offsets.get(partition)
            if next_offset is None:
                next_offset = start
            elif next_offset > end:
                raise ArchiveError(
                    f"partition {partition} of {self._topic} ends at {end}, but {self._table.place.url} ends at "
                    f"{next_offset}: the topic was truncated or created again; archive it to another path"
                )
            elif next_offset < min(start, end):
                if not self._pace.skip_lost:
                    raise ArchiveError(
                        f"offsets {next_offset} to {start - 1} of partition {partition} of {self._topic} were deleted "
                        "by the broker before they were archived; use --skip-lost to continue without them"
                    )
                next_offset = start
            if next_offset < end:
                found.append(Backlog(partition, next_offset, end, BYTES_AN_OFFSET_UNKNOWN))
        return self._weighed(found)

    def _weighed(self, backlogs: list[Backlog]) -> list[Backlog]:
        """With what an offset takes on the wire, by the first batches of each."""
        if not backlogs:
            return []
        sampled = self._client.fetch(
            {(self._topic, one.partition): one.start for one in backlogs},
            isolation=Isolation.READ_COMMITTED,
            wait_ms_max=0,
            partition_bytes_max=SAMPLE_BYTES,
        )
        sizes = {}
        for place, fetched in sampled.items():
            batches = list(whole_batches(fetched.records))
            if batches:
                offsets = batches[-1].last_offset + 1 - batches[0].base_offset
                sizes[place.partition] = sum(batch.size for batch in batches) / offsets
        return [one._replace(bytes_an_offset=sizes.get(one.partition, one.bytes_an_offset)) for one in backlogs]

    def _listed(self, which: int, partitions: Sequence[int]) -> dict[int, int]:
        listed = self._client.list_offsets(
            {(self._topic, partition): which for partition in partitions}, Isolation.READ_COMMITTED
        )
        return {place.partition: offset.offset or 0 for place, offset in listed.items()}

    # ------------------------------------------------------------------------------------------------ carrying out

    def _carry_out(self, todo: Plan, state: State) -> list[Written]:
        settings = self._table.settings
        tasks = [
            ArchiveRange(
                self._table.place,
                self._kafka,
                self._topic,
                one,
                settings.bucketing,
                settings.value,
                state.kinds,
                {},
            )
            for one in todo.ranges
        ]
        written = self.engine.run(tasks)
        grown = merged([one.grown for one in written])
        # Two workers may have met a new field as numbers and as text: who has it narrower writes again.
        again = [at for at, one in enumerate(written) if not one.grown.items() <= grown.items()]
        if again:
            for at, rewritten in zip(again, self.engine.run([tasks[at].wider(grown) for at in again]), strict=True):
                written[at] = replace(rewritten, grown=grown)
        return written


def merged(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The new columns of all workers, each wide enough for all, names that differ in case alone as one."""
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    for one in found:
        for name, kind in one.items():
            name = names.setdefault(name.lower(), name)
            kinds[name] = wider(kinds.get(name, kind), kind)
    return kinds
