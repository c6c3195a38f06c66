"""An import from end to end: find, survey, make topics, write, read back, commit offsets, report.

    1. find      partitions by names; names that are none of Kafka's need a new one
    2. survey    every byte is read once: what is whole, what is not (a dry run ends here)
    3. topics    are made by the broker, new and empty, and nothing in them expires
    4. write     `Online`: produced to a running broker; `Offline`: laid into a stopped broker's data directory
    5. verify    what is there is read back, counted and compared
    6. commits   what groups committed, translated where offsets changed

A run that ended early is repeated with the same words and goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.client.kafka import EARLIEST, LATEST, GroupOffset, KafkaClient, KafkaError, KafkaSettings, Producer
from penstock.imports import source
from penstock.imports.engine import Engine, ImportFailed, J, LocalEngine, NobodyWatches, R, Watcher
from penstock.imports.entries import open_regular
from penstock.imports.installing import install
from penstock.imports.kafka import log_start_offsets
from penstock.imports.online import CheckJob, SendJob, Sent, check_partition, send_partition
from penstock.imports.plan import Plan, make_plan, topic_configs, usable_commits
from penstock.imports.progress import Progress, RunState, default_folder
from penstock.imports.report import PartitionReport, Report
from penstock.imports.source import Commit, Findings, Found, Skips, SourceError, SourcePartition, shown
from penstock.imports.staging import StageJob, remove_staging, stage_partition, staging_folder
from penstock.imports.survey import Advance, Survey, survey_partition
from penstock.model.ids import TopicName, TopicPartition
from penstock.storage.segment_reader import base_offset_of, list_segments

OpenBroker = Callable[[], AbstractContextManager[str]]
"""A broker on the data directory, running as long as the context, by its address."""


@dataclass(slots=True)
class ImportRequest:
    reader: str
    root: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    topics: Sequence[str] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    progress_folder: Path | None = None
    engine: Engine = field(default_factory=LocalEngine)
    watcher: Watcher = field(default_factory=NobodyWatches)


class SurveyJob(NamedTuple):
    reader: str
    partition: SourcePartition


def _survey(job: SurveyJob, advance: Advance) -> Survey:
    try:
        return survey_partition(job.reader, job.partition, advance)
    except OSError as error:
        raise ImportFailed(f"{job.partition} cannot be read: {error}") from None


class Import:
    """What all targets have in common. `dry_run`, `into_broker` or `into_directory` is called, once."""

    def __init__(self, request: ImportRequest) -> None:
        self._request = request
        self._root = request.root
        self._reader = source.load(request.reader)
        self._starts: dict[tuple[str, int], int] = {}
        self._plan = Plan()
        self._surveys: list[Survey] = []
        self._commits: list[Commit] = []
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        self._report = Report(request.reader, shown(str(request.root)), "", dry_run=True)

    # ------------------------------------------------------------------------------------------------ looking

    def dry_run(self) -> Report:
        self._look()
        self._report.committed_offsets = len(self._commits)
        return self._report

    def _look(self) -> None:
        request = self._request
        try:
            found = self._reader.find(self._root)
        except OSError as error:
            raise SourceError(f"{shown(str(self._root))} cannot be read: {error.strerror or error}") from None
        if not found.partitions:
            raise SourceError(_nothing_found(self._root, request.reader, found.skipped))
        if self._reader.TAKES_FILES_OVER:
            self._starts = log_start_offsets(self._root)
            found = Found([self._without_old_files(one) for one in found.partitions], found.skipped)
        self._plan = make_plan(found, request.mapping, request.topics)
        report = self._report
        report.skipped = self._plan.skipped
        if _is_locked(self._root / ".lock"):
            report.notes.append("a broker is using the directory: what it writes from now on does not come over")
        jobs = [SurveyJob(request.reader, partition) for partition in self._plan.partitions]
        self._surveys = self._work("reading", _survey, jobs, [job.partition.bytes for job in jobs])
        report.partitions = [
            PartitionReport.of(survey, *self._plan.target(survey.partition)) for survey in self._surveys
        ]
        findings = Findings()
        try:
            commits = self._reader.commits(self._root, findings)
        except OSError as error:
            commits = []
            findings.add(str(error.filename or self._root), 0, 0, f"committed offsets cannot be read: {error.strerror}")
        if request.topics:
            commits = [commit for commit in commits if commit.topic in request.topics]
        self._commits = usable_commits(commits, self._plan, report.skipped)
        report.commit_damage = findings

    def _without_old_files(self, partition: SourcePartition) -> SourcePartition:
        """Files that delete-records left behind do not come over."""
        start = self._starts.get((partition.topic, partition.partition), 0)
        old = 0
        while old + 1 < len(partition.files) and base_offset_of(Path(partition.files[old + 1])) <= start:
            old += 1
        return partition._replace(files=partition.files[old:], sizes=partition.sizes[old:])

    def _start_of(self, survey: Survey) -> int:
        partition = survey.partition
        if self._reader.TAKES_FILES_OVER:
            first = base_offset_of(Path(partition.files[0]))
            start = max(first, self._starts.get((partition.topic, partition.partition), 0))
            return min(start, survey.end_offset)
        return max(survey.first_offset, 0)

    def _work(self, what: str, function: Callable[[J, Advance], R], jobs: Sequence[J], sizes: Sequence[int]) -> list[R]:
        watcher = self._request.watcher
        watcher.begin(what, sum(sizes))
        return list(self._request.engine.run(function, jobs, sizes, watcher.advance))

    def _with_records(self) -> list[Survey]:
        return [survey for survey in self._surveys if survey.batches]

    # ------------------------------------------------------------------------------------------------ topics

    def _make_topics(self, client: KafkaClient, state: RunState, progress: Progress) -> None:
        """New topics, and empty ones of the same name; a topic with records is another's."""
        counts = self._plan.partition_counts()
        there = client.metadata(None).topics
        wanted = [topic for topic in counts if topic not in state.topics_made]
        for topic in wanted:
            if topic in there:
                self._check_empty(client, topic, counts[topic], len(there[topic].partitions))
        for topic in wanted:
            surveys = [one for one in self._surveys if self._plan.target(one.partition)[0] == topic]
            if topic not in there:
                client.create_topic(topic, counts[topic], configs=topic_configs(surveys, self._request.configs))
            state.topics_made.append(topic)
            progress.save(state)

    def _check_empty(self, client: KafkaClient, topic: str, count: int, has: int) -> None:
        other = f"give it another name with --map {topic}=NEW"
        if has < count:
            raise ImportFailed(f"topic {topic} exists with {has} partitions, {count} are needed; {other}")
        places = {(topic, number): LATEST for number in range(has)}
        if any((one.offset or 0) > 0 for one in client.list_offsets(places).values()):
            raise ImportFailed(f"topic {topic} exists and has records; {other}")

    @contextlib.contextmanager
    def _progress(self, target: str) -> Iterator[tuple[Progress, RunState]]:
        request = self._request
        root = shown(str(self._root.absolute()))
        folder = request.progress_folder or default_folder(request.reader, root, target)
        progress = Progress(folder)
        try:
            fresh = RunState(request.reader, root, target, self._plan.renames())
            state, self._report.resumed = progress.open_state(fresh)
            try:
                yield progress, state
            except BaseException:
                if not state.topics_made:
                    progress.remove()
                raise
            progress.remove()
        finally:
            progress.release()

    # ------------------------------------------------------------------------------------------------ online

    def into_broker(self, settings: KafkaSettings, address: str) -> Report:
        """Produce to a running broker; offsets are new."""
        self._report.target, self._report.dry_run = address, False
        self._look()
        with self._progress(address) as (progress, state), KafkaClient(settings) as client:
            try:
                self._make_topics(client, state, progress)
                if state.producer_id < 0:
                    state.producer_id, state.producer_epoch = client.init_producer_id()
                    progress.save(state)
                sent = self._send(settings, state, progress)
                self._check(settings, sent)
                self._commit(client, {(one.topic, one.number): one for one in sent})
            except KafkaError as error:
                raise ImportFailed(str(error)) from None
        self._report.verified = True
        return self._report

    def _send(self, settings: KafkaSettings, state: RunState, progress: Progress) -> list[Sent]:
        producer = Producer(state.producer_id, state.producer_epoch)
        surveys = self._with_records()
        jobs = []
        for survey in surveys:
            topic, number = self._plan.target(survey.partition)
            path = str(progress.partition_path(topic, number).absolute())
            start = self._start_of(survey)
            jobs.append(
                SendJob(
                    self._request.reader,
                    survey.partition,
                    topic,
                    number,
                    settings,
                    producer,
                    path,
                    survey.transactions,
                    start,
                    survey.end_offset,
                    survey.findings.bytes,
                )
            )
        sent: list[Sent] = self._work("writing", send_partition, jobs, [one.tally.bytes for one in surveys])
        rows = {(row.topic, row.partition): row for row in self._report.partitions}
        for survey, one in zip(surveys, sent, strict=True):
            is_all = not survey.transactions.seen and self._start_of(survey) <= survey.first_offset
            if is_all and one.tally.records != survey.tally.records:
                raise ImportFailed(f"{one.topic}-{one.number}: found were {survey.tally}; written were {one.tally}")
            rows[one.topic, one.number].records = one.tally.records
            rows[one.topic, one.number].bytes = one.tally.bytes
            self._report.aborted_transactions += len(survey.transactions.open)
        return sent

    def _check(self, settings: KafkaSettings, sent: list[Sent]) -> None:
        jobs = [CheckJob(settings, one) for one in sent]
        problems: list[str | None] = self._work("verifying", check_partition, jobs, [one.tally.bytes for one in sent])
        for problem in problems:
            if problem is not None:
                raise ImportFailed(f"what was written is not what is there: {problem}")

    # ------------------------------------------------------------------------------------------------ offline

    def into_directory(self, data_dir: Path, open_broker: OpenBroker) -> Report:
        """Lay the logs into the data directory of a broker that is stopped; offsets stay."""
        target = str(data_dir.absolute())
        self._report.target, self._report.dry_run = target, False
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as starter:
            # A broker takes as long to start as half a gigabyte to read.
            starting = starter.submit(stack.enter_context, open_broker())
            self._look()
            address = starting.result()
            with self._progress(target) as (progress, state):
                try:
                    with KafkaClient(address) as client:
                        self._make_topics(client, state, progress)
                        made = client.metadata(state.topics_made).topics
                    stack.close()
                    self._stage_and_install(
                        data_dir, {name: one.topic_id for name, one in made.items() if one.topic_id}
                    )
                    with open_broker() as address, KafkaClient(address) as client:
                        self._check_ends(client)
                        self._commit(client, None)
                except KafkaError as error:
                    raise ImportFailed(str(error)) from None
                remove_staging(data_dir)
        self._report.verified = True
        return self._report

    def _in_place(self, data_dir: Path) -> set[TopicPartition]:
        """What a run before this one had put in place already: the broker may have appended to it since."""
        found = set()
        for place in map(self._place, self._with_records()):
            folder = data_dir / str(place)  # missing when that run ended between two renames
            if folder.exists() and any(one.stat().st_size for one in list_segments(folder)):
                found.add(place)
        return found

    def _place(self, survey: Survey) -> TopicPartition:
        topic, number = self._plan.target(survey.partition)
        return TopicPartition(TopicName(topic), number)

    def _stage_and_install(self, data_dir: Path, ids: Mapping[str, uuid.UUID]) -> None:
        in_place = self._in_place(data_dir)
        surveys = [survey for survey in self._with_records() if self._place(survey) not in in_place]
        jobs = []
        for survey in surveys:
            name = str(self._place(survey))
            folder = str(staging_folder(data_dir.absolute(), name))
            jobs.append(StageJob(self._request.reader, survey, folder, name, self._start_of(survey)))
        staged = self._work("writing", stage_partition, jobs, [one.tally.bytes for one in surveys])
        self._report.aborted_transactions = sum(one.aborted for one in staged)
        self._ends = {
            self._place(survey): (one.log_start_offset, one.log_end_offset)
            for survey, one in zip(surveys, staged, strict=True)
        }
        if staged:
            install(data_dir, staged, {str(place): ids[place.topic] for place in self._ends})

    def _check_ends(self, client: KafkaClient) -> None:
        """The broker serves every log from its start to its end."""
        starts = client.list_offsets(dict.fromkeys(self._ends, EARLIEST))
        stops = client.list_offsets(dict.fromkeys(self._ends, LATEST))
        for place, ends in self._ends.items():
            served = (starts[place].offset, stops[place].offset)
            if served != ends:
                raise ImportFailed(
                    f"{place}: the broker serves offsets {served[0]} to {served[1]}, {ends[0]} to {ends[1]} were written"
                )

    # ------------------------------------------------------------------------------------------------ commits

    def _commit(self, client: KafkaClient, sent: Mapping[tuple[str, int], Sent] | None) -> None:
        ends = {(one.partition.topic, one.partition.partition): one.end_offset for one in self._surveys}
        groups: dict[str, dict[TopicPartition, GroupOffset]] = {}
        for commit in self._commits:
            topic, number = self._plan.target_of(commit.topic, commit.partition)
            place = TopicPartition(TopicName(topic), number)
            offset = min(commit.offset, ends.get((commit.topic, commit.partition), 0))
            if offset < commit.offset:
                self._report.notes.append(
                    f"group {shown(commit.group)} had committed offset {commit.offset} of "
                    f"{shown(commit.topic)}-{commit.partition}, which ends at {offset} now"
                )
            epoch = commit.leader_epoch
            if sent is not None:
                offset, epoch = sent[place].translate(offset) if place in sent else 0, -1
            groups.setdefault(commit.group, {})[place] = GroupOffset(offset, commit.metadata, epoch)
        for group, offsets in groups.items():
            client.commit_offsets(group, {(*place,): wanted for place, wanted in offsets.items()})
            there = client.fetch_offsets(group)
            for place, wanted in offsets.items():
                kept = there.get(place)
                if kept is None or kept.offset != wanted.offset:
                    raise ImportFailed(f"group {group}: offset {wanted.offset} of {place} was not kept")
            self._report.committed_offsets += len(offsets)


def _nothing_found(root: Path, reader: str, skipped: Skips) -> str:
    text = f"{shown(str(root))} holds no data of {reader}"
    first = next(iter(skipped), None)
    return text if first is None else f"{text}; {len(skipped)} skipped, the first is {first.what}: {first.why}"


def _is_locked(path: Path) -> bool:
    """Whether a broker holds the directory; Java's locks and flock are told apart by the kernel, so both are asked."""
    try:
        fd = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
