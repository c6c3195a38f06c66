"""The kill run: idempotent producers and a follower at work while their broker is killed and started again.

Nothing that was acknowledged may be lost, doubled or moved, and nobody may read backwards or past a gap. Every choice comes
from a seed. A tenth of it runs with the tests, the full length with `make soak`.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from tests.history import History, Outcome, Verdict

TOPIC = "kill-run"
PARTITIONS = 3
WRITERS = 4
OUTSTANDING_MAX = 400
KILL_AFTER_S = (0.2, 1.0)
WAIT_S = 120.0


@dataclass(slots=True)
class Figures:
    """What a run did, and what it found."""

    seed: int
    cycles: int
    acknowledged: int
    unknown: int
    polled: int
    seconds: float
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "cycles": self.cycles,
            "writers": WRITERS,
            "partitions": PARTITIONS,
            "acknowledged": self.acknowledged,
            "unknown": self.unknown,
            "polled": self.polled,
            "seconds": round(self.seconds, 1),
            **self.verdict.figures(),
        }


class Writer(threading.Thread):
    """Sends numbered values as fast as they are acknowledged, to partitions that the seed picks."""

    def __init__(self, number: int, bootstrap: str, history: History, seed: int, stopping: threading.Event) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self._dice = random.Random(f"{seed} {number}")
        self._history = history
        self._stopping = stopping
        self.pauses = False
        self.outstanding = 0
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": int(WAIT_S * 1000),
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        try:
            self._write()
        except BaseException as failure:  # noqa: BLE001 - told by the thread that joins
            self.failure = failure

    def _write(self) -> None:
        sequence = 0
        while not self._stopping.is_set():
            while self.outstanding < OUTSTANDING_MAX and not self.pauses:
                partition = self._dice.randrange(PARTITIONS)
                value = f"{self.name}:{sequence}"
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
                self.outstanding += 1
                sequence += 1
            self._producer.poll(0.05)
        assert self._producer.flush(WAIT_S) == 0, "sends did not end"

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        self.outstanding -= 1
        value = message.value().decode()
        if error is None:
            self.acknowledged += 1
            self._history.sent(self.name, message.partition(), value, Outcome.OK, message.offset())
        else:
            self._history.sent(self.name, message.partition(), value, Outcome.UNKNOWN)


class Follower(threading.Thread):
    """Reads everything as it comes, over all restarts, without ever seeking."""

    def __init__(self, bootstrap: str, history: History, stopping: threading.Event) -> None:
        super().__init__(name="follower", daemon=True)
        self._address = bootstrap
        self._history = history
        self._stopping = stopping
        self.polled = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        consumer = _consumer(self._address)
        try:
            while not self._stopping.is_set():
                self.polled += _take(consumer, self._history, self.name, consumer.consume(500, 0.2))
        except BaseException as failure:  # noqa: BLE001 - told by the thread that joins
            self.failure = failure
        finally:
            consumer.close()


def _consumer(bootstrap: str) -> Any:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def _take(consumer: Any, history: History, name: str, messages: list[Any]) -> int:
    polled: dict[int, list[tuple[int, str]]] = {}
    for message in messages:
        error = message.error()
        if error is not None:
            # a broker that is away is what this run is about; any other error is a finding
            assert error.retriable() or error.code() in (
                confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
                confluent_kafka.KafkaError._TRANSPORT,
            ), error
            continue
        polled.setdefault(message.partition(), []).append((message.offset(), message.value().decode()))
    for partition, records in polled.items():
        history.polled(name, partition, records)
    return sum(map(len, polled.values()))


def read_back(bootstrap: str, history: History, name: str) -> int:
    """Read every partition from its start to its end; how many records there were."""
    consumer = _consumer(bootstrap)
    try:
        ends = {
            partition: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, partition), WAIT_S)
            for partition in range(PARTITIONS)
        }
        assert all(low == 0 for low, _ in ends.values())
        expected = sum(high for _, high in ends.values())
        count = 0
        deadline = time.monotonic() + WAIT_S
        while count < expected and time.monotonic() < deadline:
            count += _take(consumer, history, name, consumer.consume(5_000, 1.0))
        return count
    finally:
        consumer.close()


def kill_run(broker: Broker, cycles: int, seed: int) -> Figures:
    """`broker` runs; it is killed `cycles` times and runs again at the end."""
    began = time.monotonic()
    dice = random.Random(seed)
    history = History()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(WAIT_S)
    stopping, reading_stops = threading.Event(), threading.Event()
    writers = [Writer(number, broker.bootstrap, history, seed, stopping) for number in range(WRITERS)]
    follower = Follower(broker.bootstrap, history, reading_stops)
    for thread in (*writers, follower):
        thread.start()
    for cycle in range(cycles):
        _wait_for_progress(writers)
        # the one place where time itself is the point: the blow falls at no particular moment
        stopping.wait(dice.uniform(*KILL_AFTER_S))
        if cycle % 3 == 1:
            # under load the end of a log is what nobody was told of yet; here every byte of it counts
            _quiet(writers)
        broker.kill()
        broker.restart()
        for writer in writers:
            writer.pauses = False
    _wait_for_progress(writers)
    stopping.set()
    for writer in writers:
        writer.join(WAIT_S)
        assert not writer.is_alive()
    reading_stops.set()
    follower.join(WAIT_S)
    for thread in (*writers, follower):
        if thread.failure is not None:
            raise thread.failure
    polled = read_back(broker.bootstrap, history, "reader")
    acknowledged = history.count(Outcome.OK)
    return Figures(
        seed, cycles, acknowledged, history.count(Outcome.UNKNOWN), polled, time.monotonic() - began, history.check()
    )


def _quiet(writers: list[Writer]) -> None:
    """Everything that was sent is acknowledged, and nothing more comes."""
    for writer in writers:
        writer.pauses = True
    deadline = time.monotonic() + WAIT_S
    while any(writer.outstanding for writer in writers):
        assert time.monotonic() < deadline, "sends did not end"
        time.sleep(0.01)


def _wait_for_progress(writers: list[Writer]) -> None:
    """Every writer gets something acknowledged: a cycle in which nothing happened proves nothing."""
    before = [writer.acknowledged for writer in writers]
    deadline = time.monotonic() + WAIT_S
    while any(writer.acknowledged <= count for writer, count in zip(writers, before, strict=True)):
        failed = [writer.failure for writer in writers if writer.failure is not None]
        assert not failed, failed
        assert time.monotonic() < deadline, "a writer got nothing acknowledged"
        time.sleep(0.01)
