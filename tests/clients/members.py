"""Members of consumer groups, one thread each: confluent-kafka, aiokafka and kafka-python, used as their users would.

A member reads until it is closed. What it owns and what it has read can be looked at from outside at any time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRange

from tests.clients.drivers import WAIT_S, kafka

POLL_S = 0.05


class Read(NamedTuple):
    partition: int
    offset: int
    value: bytes | None


def until(condition: Callable[[], bool], what: str, within_s: float = 2 * WAIT_S) -> None:
    """Wait for the condition, not for a time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        time.sleep(0.02)


class Member:
    """What all have in common; a subclass makes a consumer in its thread and polls it."""

    name = ""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.settings = settings
        self.assigned: frozenset[int] = frozenset()
        self.reads: list[Read] = []
        self.errors: list[Any] = []
        self.assignments: list[frozenset[int]] = []
        """Each assignment as it came, also when it is the same again."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{self.name} in {group}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, with everything read committed."""
        self._closing.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{self.name} does not close"

    def _run(self) -> None:
        raise AssertionError

    @property
    def values(self) -> list[bytes | None]:
        return [read.value for read in self.reads]


class ConfluentMember(Member):
    name = "confluent-kafka"

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
                **self.settings,
            }
        )
        consumer.subscribe([self.topic], on_assign=self._assigned)
        while not self._closing.is_set():
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is not None:
                self.errors.append(message.error())
                if message.error().fatal():
                    break
            elif message is not None:
                self.reads.append(Read(message.partition(), message.offset(), message.value()))
            self.assigned = _numbers(consumer.assignment())
        consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.assignments.append(_numbers(partitions))


class KafkaPythonMember(Member):
    name = "kafka-python"

    def _run(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            **{"partition_assignment_strategy": [_kafka_python_range()], **self.settings},
        )
        while not self._closing.is_set():
            # A poll of 3.0.12 that runs out just as its join succeeds loses the outcome: the member then neither beats nor
            # joins again. So it is given time to join in, and begins anew seldom.
            timeout_s = 10 * POLL_S if self.assigned else 60 * POLL_S
            for records in consumer.poll(timeout_ms=int(timeout_s * 1000)).values():
                self.reads += [Read(record.partition, record.offset, record.value) for record in records]
            self.assigned = _numbers(consumer.assignment())
        consumer.close()


class AiokafkaMember(Member):
    name = "aiokafka"

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            **{"partition_assignment_strategy": [AiokafkaRange], **self.settings},
        )
        await consumer.start()
        try:
            while not self._closing.is_set():
                for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                    self.reads += [Read(record.partition, record.offset, record.value) for record in records]
                self.assigned = _numbers(consumer.assignment())
        finally:
            await consumer.stop()


def _numbers(partitions: Iterable[Any]) -> frozenset[int]:
    return frozenset(partition.partition for partition in partitions)


def _kafka_python_range() -> Any:
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    return RangePartitionAssignor


def shared(members: Iterable[Member], partitions: int) -> bool:
    """Whether every partition has one owner and every member has one partition at least."""
    owned = [member.assigned for member in members]
    return all(owned) and sorted(at for numbers in owned for at in numbers) == list(range(partitions))
