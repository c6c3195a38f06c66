"""Fetch: from the request's topics to broker reads, and from their results to the answer.

Fetch sessions (KIP-227) are not kept: every answer has session id 0, which clients take as "send everything each time".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.engine import Read, ReadResult
from penstock.dialects.kafka import fetch
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.fetch import READ_COMMITTED, FetchRequest, PartitionAnswer
from penstock.dialects.kafka.produce import TopicKey
from penstock.model.chunks import Chunk
from penstock.model.errors import Fault
from penstock.model.pending import Pending

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import KafkaService

FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Kafka's fetch.max.bytes of a broker: one answer, whatever the client asks for."""

Answers = list[tuple[TopicKey, list[PartitionAnswer]]]


class FetchCall:
    __slots__ = ("_request", "_service", "_unknown", "_version")

    def __init__(self, service: KafkaService, request: FetchRequest, version: int) -> None:
        self._service = service
        self._request = request
        self._version = version
        self._unknown: set[TopicKey] = set()
        """Ids of topics that there are not."""

    def perform(self) -> Answers | Pending[Answers]:
        request = self._request
        engine = self._service.engine
        reads: list[Read] = []
        max_wait_ms = request.max_wait_ms
        for topic, partitions in request.topics:
            name = engine.topic_name_of(topic) if isinstance(topic, bytes) else topic
            if name is None:
                self._unknown.add(topic)
                max_wait_ms = 0  # an error does not wait
                continue
            for partition, epoch, offset, _, max_bytes in partitions:
                reads.append(Read(name, partition, offset, max_bytes, epoch))
        found = engine.read(
            reads, min(request.max_bytes, FETCH_BYTES_MAX), request.min_bytes, max_wait_ms, request.isolation_level
        )
        return found.map(self._answers) if isinstance(found, Pending) else self._answers(found)

    def _answers(self, results: list[ReadResult]) -> Answers:
        rest = iter(results)
        committed = self._request.isolation_level == READ_COMMITTED
        answers: Answers = []
        for topic, partitions in self._request.topics:
            if topic in self._unknown:
                error = CODES[Fault.UNKNOWN_TOPIC_ID]
                answers.append((topic, [PartitionAnswer(entry.partition, error, -1) for entry in partitions]))
                continue
            row = []
            for entry in partitions:
                fault, high_watermark, stable, start, records, aborted = next(rest)
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

    @staticmethod
    def answer(version: int, correlation_id: int, answers: Answers) -> list[Chunk]:
        return fetch.encode_answer(version, correlation_id, 0, 0, answers)
