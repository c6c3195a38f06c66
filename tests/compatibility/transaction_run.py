"""The transaction run: transformers read a topic and write another in transactions, while they and their broker are killed.

Whatever is killed and when: under read_committed every input is in the output exactly once. Every choice comes from a seed.
Five kills run with the tests, fifty with `make soak`.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from tests.compatibility.transformer import SESSION_MS

SOURCE, TARGET, GROUP = "source", "target", "transformers"
PARTITIONS = 4
TRANSFORMERS = 2
WAIT_S = 90.0
KILL_AFTER_S = (0.0, 0.6)

BROKER_SETTINGS = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.session_timeout_min_ms": min(1_000, SESSION_MS),
    "storage.checkpoint_interval_ms": 500,
}


@dataclass(slots=True)
class Figures:
    seed: int
    kills: Counter[str]
    inputs: int
    seconds: float
    missing: list[bytes]
    doubled: list[bytes]
    strange: list[bytes]

    def __bool__(self) -> bool:
        """Whether each input is in the output exactly once."""
        return not (self.missing or self.doubled or self.strange)

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "kills": dict(self.kills),
            "inputs": self.inputs,
            "seconds": round(self.seconds, 1),
            "missing": len(self.missing),
            "doubled": len(self.doubled),
            "strange": len(self.strange),
        }

    def __str__(self) -> str:
        return f"{self.as_json()} missing {self.missing[:5]} doubled {self.doubled[:5]} strange {self.strange[:5]}"


class TransactionRun:
    def __init__(self, broker: Broker, seed: int) -> None:
        self._broker = broker
        self._seed = seed
        self._dice = random.Random(seed)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kills: Counter[str] = Counter()
        self._inputs = 0

    def run(self, kills: int) -> Figures:
        began = time.monotonic()
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in (SOURCE, TARGET)]).values():
            made.result(WAIT_S)
        stopping = threading.Event()
        writer = threading.Thread(target=self._write, args=(stopping,), daemon=True)
        writer.start()
        reader = Reader(self._broker.bootstrap)
        try:
            for number in range(TRANSFORMERS):
                self._start(f"transformer-{number}")
            victims = ["broker" if number % 2 else "client" for number in range(kills)]
            self._dice.shuffle(victims)
            for victim in victims:
                # a kill proves something only if work was done since the last
                reader.until_more()
                stopping.wait(self._dice.uniform(*KILL_AFTER_S))
                self._kill(victim)
            reader.until_more()
            stopping.set()
            writer.join(WAIT_S)
            reader.until(self._inputs)
            for process in self._processes.values():
                process.send_signal(signal.SIGTERM)
            for name, process in self._processes.items():
                assert process.wait(WAIT_S) == 0, f"{name} did not end well"
        finally:
            stopping.set()
            for process in self._processes.values():
                if process.poll() is None:
                    process.kill()
                process.wait()
            reader.close()
        seen = Counter(read_committed(self._broker.bootstrap))
        expected = {b"out %d" % number for number in range(self._inputs)}
        return Figures(
            self._seed,
            self._kills,
            self._inputs,
            time.monotonic() - began,
            sorted(expected - seen.keys()),
            sorted(value for value, count in seen.items() if count > 1),
            sorted(seen.keys() - expected),
        )

    def _start(self, name: str) -> None:
        program = str(Path(__file__).with_name("transformer.py"))
        command = [sys.executable, program, self._broker.bootstrap, SOURCE, TARGET, GROUP, name]
        self._processes[name] = subprocess.Popen(command)

    def _kill(self, victim: str) -> None:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended by itself"
        self._kills[victim] += 1
        if victim == "broker":
            self._broker.kill()
            self._broker.restart()
        else:
            name = self._dice.choice(sorted(self._processes))
            self._processes[name].kill()
            self._processes[name].wait()
            self._start(name)

    def _write(self, stopping: threading.Event) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(WAIT_S * 1000),
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        while not stopping.wait(0.02):
            for _ in range(4):
                producer.produce(SOURCE, b"%d" % self._inputs, partition=self._inputs % PARTITIONS)
                self._inputs += 1
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0


class Reader:
    """Counts what of the output is committed, as it comes."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = _consumer(bootstrap)
        self._count = 0

    def until_more(self) -> None:
        """Some of what comes now was not there before."""
        self.until(self._count + 1)

    def until(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while self._count < count:
            assert time.monotonic() < deadline, f"stuck: {self._count} of {count} records are in the output"
            self._count += sum(message.error() is None for message in self._consumer.consume(500, 0.1))

    def close(self) -> None:
        self._consumer.close()


def read_committed(bootstrap: str) -> list[bytes]:
    """All of the output that counts, from the start to the end."""
    consumer = _consumer(bootstrap)
    try:
        ends = {
            partition: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TARGET, partition), WAIT_S)[1]
            for partition in range(PARTITIONS)
        }
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while any(position.offset < ends[position.partition] for position in consumer.position(consumer.assignment())):
            assert time.monotonic() < deadline, "the output does not end"
            values += [message.value() for message in consumer.consume(1_000, 0.2) if message.error() is None]
        return values
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Any:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
    return consumer
