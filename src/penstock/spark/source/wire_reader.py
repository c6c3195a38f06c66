"""A range of offsets over the wire: fetches, the next one on its way while the last is decoded and consumed.

Runs in an executor's Python worker, which lives longer than a task: the connections of a task that ended well are kept
for the next. A range ends at its last offset even if that is a marker, a gap that log cleaning left, or of a transaction
that was aborted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from kio.schema.errors import ErrorCode

from penstock.arrow.decode import decode_batches
from penstock.client.kafka import EARLIEST, LATEST, Call, Fetched, Isolation, KafkaClient, KafkaError, KafkaSettings
from penstock.model.ids import ZERO_ID, TopicPartition
from penstock.records.batch import Batch, BatchError, whole_batches
from penstock.records.visibility import visible_batches
from penstock.spark.source.errors import SourceError, explained, lost, recreated
from penstock.spark.source.offsets import id_text, place
from penstock.spark.source.planning import Range

FIRST_FETCH_BYTES = 1024 * 1024
"""How large records are is not known yet, and a range may be short."""
FETCH_SLACK_BYTES = 64 * 1024
FETCH_WAIT_MS_MAX = 500

_kept: dict[tuple[object, ...], KafkaClient] = {}
_KEPT_MAX = 4


@dataclass(frozen=True, slots=True)
class WireReader:
    """How to fetch; picklable."""

    settings: KafkaSettings
    isolation: Isolation
    fail_on_data_loss: bool
    poll_timeout_ms: int
    fetch_bytes_max: int
    partition_fetch_bytes_max: int

    def read(self, work: Range, columns: Sequence[str], topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
        """Raises SourceError if the broker cannot return the range from the topic with that id."""
        with explained(self.settings):
            client = _take(self.settings)
            try:
                # An allowed loss must not return records of a different topic: its first batch will have them.
                if self.fail_on_data_loss or not self._is_recreated(client, work, topic_id):
                    yield from self._read(client, work, columns, topic_id)
                    self._is_recreated(client, work, topic_id)
            except BaseException:
                # A consumer that stops early (LIMIT) comes here too: an answer may still be on its way.
                client.close()
                raise
            _keep(self.settings, client)

    def is_recreated(self, work: Range, topic_id: str | None) -> bool:
        """Whether the topic's id has changed. Raises DataLost if so, unless a loss is allowed."""
        with explained(self.settings), KafkaClient(self.settings) as client:
            return self._is_recreated(client, work, topic_id)

    def _is_recreated(self, client: KafkaClient, work: Range, topic_id: str | None) -> bool:
        if topic_id is None:
            return False
        found = client.metadata([work.topic]).topics.get(work.topic)
        if found is None or found.topic_id in (None, ZERO_ID) or id_text(found.topic_id) == topic_id:
            return False
        lost(recreated(work.topic, topic_id, id_text(found.topic_id)), self.fail_on_data_loss)
        return True

    def _read(
        self, client: KafkaClient, work: Range, columns: Sequence[str], topic_id: str | None
    ) -> Iterator[pa.RecordBatch]:
        where = place(work.topic, work.partition)
        at, bytes_max = work.start, min(FIRST_FETCH_BYTES, self.partition_fetch_bytes_max)
        deadline = time.monotonic() + self.poll_timeout_ms / 1_000
        call = self._begin(client, where, at, bytes_max)
        while True:
            try:
                fetched = call.wait()[where]
            except KafkaError as error:
                if error.error_code is not ErrorCode.offset_out_of_range:
                    raise
                if self._is_recreated(client, work, topic_id):
                    return
                at = self._after_loss(client, work, at)
                if at >= work.end:
                    return
                call = self._begin(client, where, at, bytes_max)
                continue
            batches = _sound(fetched, where)
            begun_at = at
            if batches:
                at = batches[-1].next_offset
                deadline = time.monotonic() + self.poll_timeout_ms / 1_000
            elif self._is_recreated(client, work, topic_id):
                return
            elif time.monotonic() >= deadline:
                raise SourceError(
                    f"{where}: no records from offset {at} within {self.poll_timeout_ms} ms; the range ends at {work.end}; "
                    "increase kafkaConsumer.pollTimeoutMs to wait longer"
                )
            if at < work.end:
                if batches:
                    bytes_max = self._next_bytes(len(fetched.records), at - begun_at, work.end - at)
                call = self._begin(client, where, at, bytes_max)
            yield from decode_batches(
                visible_batches(batches, fetched.aborted),
                work.topic,
                work.partition,
                columns=columns,
                # The first batch may begin before the offset that was asked for, and before the log does.
                start=begun_at,
                end=work.end,
            )
            if at >= work.end:
                return

    def _begin(self, client: KafkaClient, where: TopicPartition, at: int, bytes_max: int) -> Call[Fetched]:
        return client.begin_fetch(
            {where: at},
            isolation=self.isolation,
            wait_ms_max=FETCH_WAIT_MS_MAX,
            bytes_max=self.fetch_bytes_max,
            partition_bytes_max=bytes_max,
        )

    def _next_bytes(self, got_bytes: int, got_offsets: int, left_offsets: int) -> int:
        """As much as the rest will take if its records are like those before: what comes behind the end is thrown away."""
        estimate = got_bytes * left_offsets // max(1, got_offsets)
        return min(self.partition_fetch_bytes_max, estimate + estimate // 8 + FETCH_SLACK_BYTES)

    def _after_loss(self, client: KafkaClient, work: Range, at: int) -> int:
        """Where to go on when the broker no longer has an offset."""
        where = place(work.topic, work.partition)
        first = client.list_offsets({where: EARLIEST}, self.isolation)[where].offset or 0
        last = client.list_offsets({where: LATEST}, self.isolation)[where].offset or 0
        if at > last:
            text = (
                f"{where}: offset {at} was requested, but the log ends at {last}: "
                "it was truncated, or the topic was created again"
            )
        else:
            text = f"{where}: offsets {at} to {min(first, work.end) - 1} were deleted, the log now starts at {first}"
        lost(text, self.fail_on_data_loss)
        return work.end if at > last else max(first, at)


def _sound(fetched: Fetched, where: TopicPartition) -> list[Batch]:
    try:
        return list(whole_batches(fetched.records))
    except BatchError as error:
        raise SourceError(f"{where}: the broker sent a corrupt batch: {error}") from None


def _take(settings: KafkaSettings) -> KafkaClient:
    return _kept.pop(_key(settings), None) or KafkaClient(settings)


def _keep(settings: KafkaSettings, client: KafkaClient) -> None:
    _kept[_key(settings)] = client
    while len(_kept) > _KEPT_MAX:
        _kept.pop(next(iter(_kept))).close()


def forget_connections() -> None:
    """Close what earlier tasks of this process left open."""
    while _kept:
        _kept.popitem()[1].close()


def _key(settings: KafkaSettings) -> tuple[object, ...]:
    return (
        settings.bootstrap,
        settings.client_id,
        settings.request_timeout_ms,
        settings.api_timeout_ms,
        settings.tls,
        settings.sasl,
    )
