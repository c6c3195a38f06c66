"""Into a running broker, of any Kafka: batches are produced, get new offsets, and are read back at the end.

Every partition is sent by one idempotent producer whose id, epoch and sequence are in the progress file. A run that was
killed left at most a window of batches that the broker has and the file does not know; the next run sends them again with
the same sequences, and the broker recognises them. So nothing is there twice.

Only what readers of committed records would see is sent: neither markers nor aborted transactions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.client.kafka import EARLIEST, LATEST, KafkaClient, KafkaError, KafkaSettings, Produced, Producer
from penstock.imports import source
from penstock.imports.engine import ImportFailed
from penstock.imports.progress import PartitionProgress, Step
from penstock.imports.source import Findings, SourcePartition
from penstock.imports.stamping import SEQUENCE_MASK, Stamped, stamp
from penstock.imports.survey import Advance
from penstock.imports.tally import Tally
from penstock.imports.transactions import Transactions
from penstock.model.ids import TopicPartition
from penstock.records.batch import Batch, BatchError, whole_batches

WINDOW_BATCHES = 5
"""As many batches of a producer as a broker remembers."""
WINDOW_BYTES = 8 * 1024 * 1024


class SendJob(NamedTuple):
    reader: str
    partition: SourcePartition
    topic: str
    number: int
    settings: KafkaSettings
    producer: Producer
    progress_path: str
    transactions: Transactions
    start_offset: int
    end_offset: int
    damaged_bytes: int
    """The findings of the survey: the partition is read a second time and must be unchanged."""


class Sent(NamedTuple):
    """What the broker acknowledged of one partition, over all runs."""

    topic: str
    number: int
    tally: Tally
    start_offset: int
    end_offset: int
    breaks: list[tuple[int, int]]

    def translate(self, source_offset: int) -> int:
        """The target's offset for the first record at or behind an offset of the source."""
        at = bisect_right(self.breaks, source_offset, key=lambda one: one[0]) - 1
        if at < 0:
            return self.start_offset
        begun, target = self.breaks[at]
        following = self.breaks[at + 1][1] if at + 1 < len(self.breaks) else self.end_offset
        return min(target + source_offset - begun, following)


def send_partition(job: SendJob, advance: Advance) -> Sent:
    with KafkaClient(job.settings) as client, PartitionProgress(Path(job.progress_path)) as progress:
        try:
            return _Sending(job, client, progress, advance).run()
        except KafkaError as error:
            raise ImportFailed(f"{job.topic}-{job.number}: {error}") from None
        except BatchError as error:
            raise ImportFailed(f"{job.partition}: a batch cannot be read: {error}") from None


class _Sending:
    def __init__(self, job: SendJob, client: KafkaClient, progress: PartitionProgress, advance: Advance) -> None:
        self._job = job
        self._client = client
        self._progress = progress
        self._advance = advance
        self._place = (job.topic, job.number)
        last = progress.last
        if last is None:
            ends = client.list_offsets({self._place: LATEST})
            end = next(iter(ends.values())).offset or 0
            last = Step(job.start_offset, end, 0, Tally())
            progress.write(last)
        self._step = last
        self._read_to = last.source_offset
        begun, target = progress.breaks[-1] if progress.breaks else (0, 0)
        self._shift: int | None = target - begun if progress.breaks else None

    def run(self) -> Sent:
        job, step = self._job, self._step
        sequence = step.sequence
        findings = Findings()
        found = source.load(job.reader).batches(job.partition, findings, step.source_offset)
        window: list[Stamped] = []
        size = 0
        for batch in job.transactions.committed(self._noted(found)):
            stamped = stamp(batch, step.source_offset, job.producer, sequence)
            if stamped is None:
                continue
            if window and (len(window) == WINDOW_BATCHES or size + len(stamped.data) > WINDOW_BYTES):
                self._send(window)
                window, size = [], 0
            window.append(stamped)
            size += len(stamped.data)
            sequence = sequence + stamped.records & SEQUENCE_MASK
        if window:
            self._send(window)
        if self._read_to < job.end_offset or findings.bytes != job.damaged_bytes:
            raise ImportFailed(f"{job.partition} changed while it was imported: import it again to another topic")
        end = self._step
        start = self._progress.breaks[0][1] if self._progress.breaks else end.target_offset
        return Sent(job.topic, job.number, end.tally, start, end.target_offset, self._progress.breaks)

    def _noted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._read_to = batch.next_offset
            yield batch

    def _send(self, window: list[Stamped]) -> None:
        """All at once; after any failure one by one, since the broker tells what it has already."""
        calls = [self._client.begin_produce({self._place: stamped.data}) for stamped in window]
        try:
            answers = [_only(call.wait) for call in calls]
        except KafkaError:
            answers = [_only(self._client.begin_produce({self._place: one.data}).wait) for one in window]
        step = self._step
        tally, target, sequence = step.tally.copy(), step.target_offset, step.sequence
        breaks: list[tuple[int, int]] = []
        for stamped, answer in zip(window, answers, strict=True):
            if answer.base_offset not in (-1, target):
                raise ImportFailed(
                    f"{self._job.topic}-{self._job.number}: offset {answer.base_offset} where {target} is due; "
                    "somebody else writes to the topic"
                )
            new = stamped.breaks(target, self._shift)
            if new:
                self._shift = new[-1][1] - new[-1][0]
            breaks += new
            target += stamped.records
            sequence = sequence + stamped.records & SEQUENCE_MASK
            tally.add(Batch(memoryview(stamped.data)))
            self._advance(len(stamped.data))
        self._step = Step(window[-1].source_next, target, sequence, tally, breaks)
        self._progress.write(self._step)


def _only(wait: Callable[[], dict[TopicPartition, Produced]]) -> Produced:
    return next(iter(wait().values()))


class CheckJob(NamedTuple):
    settings: KafkaSettings
    sent: Sent


def check_partition(job: CheckJob, advance: Advance) -> str | None:
    """Read back what was sent; what is wrong, or None."""
    sent = job.sent
    place = (sent.topic, sent.number)
    found = Tally()
    with KafkaClient(job.settings) as client:
        try:
            earliest = next(iter(client.list_offsets({place: EARLIEST}).values())).offset or 0
            if earliest > sent.start_offset and sent.tally.records:
                return f"{sent.topic}-{sent.number} begins at offset {earliest} already: its retention takes it away"
            offset = sent.start_offset
            while offset < sent.end_offset:
                fetched = next(iter(client.fetch({place: offset}).values()))
                before = offset
                for batch in whole_batches(fetched.records):
                    if batch.base_offset >= sent.end_offset:
                        break
                    if batch.last_offset < offset:
                        continue
                    if not batch.crc_is_right():
                        return f"{sent.topic}-{sent.number}: the CRC of the batch at {batch.base_offset} does not fit"
                    found.add(batch)
                    advance(batch.size)
                    offset = batch.next_offset
                if offset == before:
                    return f"{sent.topic}-{sent.number} ends at offset {offset}, {sent.end_offset} were written"
        except (KafkaError, BatchError) as error:
            return f"{sent.topic}-{sent.number} cannot be read back: {error}"
    if found != sent.tally:
        return f"{sent.topic}-{sent.number}: written were {sent.tally}; read back were {found}"
    return None
