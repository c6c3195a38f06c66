"""Fetch: from the request's topics to broker reads, and from their results to the answer.

Fetch sessions (KIP-227) are not kept: every answer has session id 0, which clients take as "send everything each time".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.broker.engine import Read, ReadResult
from penstock.dialects.kafka import fetch
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.fetch import READ_COMMITTED, FetchPartition, FetchRequest, PartitionAnswer
from penstock.dialects.kafka.kio_writer import Encoded
from penstock.dialects.kafka.produce import TopicKey
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.model.slices import Failed, Work

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import KafkaService
    from penstock.dialects.kafka.session import Call

FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Kafka's fetch.max.bytes of a broker: one answer, whatever the client asks for."""
AT_ONCE_BYTES_MAX = 4 * 1024
"""Requests up to this size, with a few hundred partitions, are performed at once; larger ones in slices."""

Answers = list[tuple[TopicKey, list[PartitionAnswer]]]


def perform_fetch(service: KafkaService, call: Call) -> Answers | Pending[Answers] | Pending[Encoded]:
    if len(call.view) - call.body_start > AT_ONCE_BYTES_MAX:
        work = _in_slices(service, call)
        return service.engine.in_slices(work, drop=True, borrows=True)  # type: ignore[no-any-return]
    request = fetch.decode(call.view, call.body_start, call.version)
    fetched = _Fetch(service, request)
    reads = fetched.reads(request.topics)
    found = service.engine.read(
        reads, fetched.max_bytes, request.min_bytes, fetched.max_wait_ms, request.isolation_level
    )
    return found.map(fetched.answers) if isinstance(found, Pending) else fetched.answers(found)


def _in_slices(service: KafkaService, call: Call) -> Work[Encoded]:
    request = yield from fetch.decode_in_slices(call.view, call.body_start, call.version)
    fetched = _Fetch(service, request)
    reads: list[Read] = []
    for piece in _pieces(request):
        reads += fetched.reads((piece,))
        yield None
    found = yield from service.engine.read_in_slices(
        reads, fetched.max_bytes, request.min_bytes, fetched.max_wait_ms, request.isolation_level
    )
    rest = iter(found)
    answers: Answers = []
    for piece in _pieces(request):
        ((topic, rows),) = fetched.answers_to((piece,), rest)
        if answers and answers[-1][0] == topic:
            answers[-1][1].extend(rows)
        else:
            answers.append((topic, rows))
        yield None
    return Encoded((yield from fetch.encode_in_slices(call.version, call.correlation_id, answers)))


def _pieces(request: FetchRequest) -> Iterator[tuple[TopicKey, list[FetchPartition]]]:
    """The topics of the request, each with a part of its partitions."""
    for topic, partitions in request.topics:
        yield topic, partitions[: fetch.PAUSE_PARTITIONS]
        for start in range(fetch.PAUSE_PARTITIONS, len(partitions), fetch.PAUSE_PARTITIONS):
            yield topic, partitions[start : start + fetch.PAUSE_PARTITIONS]


class _Fetch:
    """One request and the names of its topics."""

    __slots__ = ("_request", "_service", "_unknown", "max_bytes", "max_wait_ms")

    def __init__(self, service: KafkaService, request: FetchRequest) -> None:
        self._service = service
        self._request = request
        self._unknown: set[TopicKey] = set()
        """Ids of topics that there are not."""
        self.max_bytes = min(request.max_bytes, FETCH_BYTES_MAX)
        self.max_wait_ms = request.max_wait_ms

    def reads(self, topics: Sequence[tuple[TopicKey, list[FetchPartition]]]) -> list[Read]:
        engine = self._service.engine
        reads: list[Read] = []
        for topic, partitions in topics:
            name = engine.topic_name_of(topic) if isinstance(topic, bytes) else topic
            if name is None:
                self._unknown.add(topic)
                self.max_wait_ms = 0  # errors are answered at once
                continue
            for partition, epoch, offset, _, max_bytes in partitions:
                reads.append(Read(name, partition, offset, max_bytes, epoch))
        return reads

    def answers(self, results: list[ReadResult] | Failed) -> Answers:
        if isinstance(results, Failed):
            return results  # type: ignore[return-value]  # the session raises it
        return self.answers_to(self._request.topics, iter(results))

    def answers_to(
        self, topics: Sequence[tuple[TopicKey, list[FetchPartition]]], results: Iterator[ReadResult]
    ) -> Answers:
        committed = self._request.isolation_level == READ_COMMITTED
        answers: Answers = []
        for topic, partitions in topics:
            if topic in self._unknown:
                error = CODES[Fault.UNKNOWN_TOPIC_ID]
                answers.append((topic, [PartitionAnswer(entry.partition, error, -1) for entry in partitions]))
                continue
            row = []
            for entry in partitions:
                fault, high_watermark, stable, start, records, aborted = next(results)
                row.append(
                    PartitionAnswer(
                        entry.partition,
                        CODES[fault],
                        high_watermark,
                        stable,
                        start,
                        (aborted or ()) if committed else None,
                        () if records is None else (records,),
                    )
                )
            answers.append((topic, row))
        return answers
