"""Consume, transform, produce, in one transaction a batch; a process of its own, for runs that kill it.

    python transformer.py BOOTSTRAP SOURCE TARGET GROUP NAME

Every value of SOURCE goes to TARGET with "out " in front, and the offsets of GROUP with it. NAME is the transactional id.
SIGTERM ends it between two transactions. It imports confluent-kafka and nothing of Penstock.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

import confluent_kafka

SESSION_MS = 2_000
BATCH = 20
BATCH_S = 0.1
CALL_S = 20.0


class Transformer:
    def __init__(self, bootstrap: str, source: str, target: str, group: str, name: str) -> None:
        shared = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            # librdkafka's re-bootstrap leaves calls to the group's coordinator waiting for ever (its issue 5511)
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
        self._target = target
        self._is_stopping = False
        self._consumer = confluent_kafka.Consumer(
            {
                **shared,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 250,
                "fetch.wait.max.ms": 100,
            }
        )
        self._producer = confluent_kafka.Producer(
            {**shared, "transactional.id": name, "transaction.timeout.ms": 10_000, "linger.ms": 0}
        )
        self._batch: list[Any] = []
        self._consumer.subscribe([source], on_revoke=self._forget, on_lost=self._forget)

    def stop(self, *_: Any) -> None:
        self._is_stopping = True

    def _forget(self, *_: Any) -> None:
        """The partitions go: what was read and is not in a transaction yet is for whoever gets them."""
        self._batch.clear()

    def run(self) -> None:
        self._producer.init_transactions(3 * CALL_S)
        while not self._is_stopping:
            until = time.monotonic() + BATCH_S
            while len(self._batch) < BATCH and (left := until - time.monotonic()) > 0:
                message = self._consumer.poll(left)
                if message is not None and message.error() is None:
                    self._batch.append(message)
            if self._batch:
                self._transform(self._batch)
                self._batch = []
        self._consumer.close()

    def _transform(self, messages: list[Any]) -> None:
        ends = {(message.topic(), message.partition()): message.offset() + 1 for message in messages}
        offsets = [confluent_kafka.TopicPartition(*place, end) for place, end in ends.items()]
        self._producer.begin_transaction()
        try:
            for message in messages:
                self._producer.produce(self._target, b"out " + message.value(), partition=message.partition())
            metadata = self._consumer.consumer_group_metadata()
            self._again(self._producer.send_offsets_to_transaction, offsets, metadata)
            self._again(self._producer.commit_transaction)
        except confluent_kafka.KafkaException as error:
            if error.args[0].fatal():
                raise
            self._again(self._producer.abort_transaction)
            self._go_back()

    @staticmethod
    def _again(call: Any, *arguments: Any) -> None:
        """Calls that ran into a timeout are made again, as the documentation says, until their outcome is known."""
        while True:
            try:
                call(*arguments, CALL_S)
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _go_back(self) -> None:
        """What was read in vain is read again."""
        while True:
            try:
                for partition in self._consumer.committed(self._consumer.assignment(), CALL_S):
                    start = partition.offset if partition.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
                    self._consumer.seek(confluent_kafka.TopicPartition(partition.topic, partition.partition, start))
                return
            except confluent_kafka.KafkaException:
                # the broker is away, or the partition has gone to another member, whom it concerns now
                self._consumer.poll(0.1)


def main() -> None:
    transformer = Transformer(*sys.argv[1:])
    signal.signal(signal.SIGTERM, transformer.stop)
    transformer.run()


if __name__ == "__main__":
    main()
