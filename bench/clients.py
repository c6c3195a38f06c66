"""What a user sees: the rates of confluent-kafka against the broker. For information; librdkafka is half of it.

`python -m bench.clients produce|consume HOST:PORT TOPIC COUNT VALUE_BYTES ACKS` runs one client and prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.load import Control
from bench.processes import ROOT, broker
from bench.result import Measure, Result
from bench.scenario import Run

DEADLINE_S = 300.0


def produce(address: str, topic: str, count: int, value_bytes: int, acks: str) -> float:
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": acks == "all",
        }
    )
    value = b"v" * value_bytes
    start = time.perf_counter()
    for _ in range(count):
        try:
            producer.produce(topic, value, on_delivery=delivered)
        except BufferError:
            producer.poll(1.0)
            producer.produce(topic, value, on_delivery=delivered)
    left = producer.flush(DEADLINE_S)
    took = time.perf_counter() - start
    if left or failed:
        raise SystemExit(f"{left} records were not delivered, {len(failed)} failed: {failed[:1]}")
    return took


def consume(address: str, topic: str, count: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    start = time.perf_counter()
    seen = 0
    while seen < count:
        if time.perf_counter() - start > DEADLINE_S:
            raise SystemExit(f"{seen} of {count} records after {DEADLINE_S:.0f} s")
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                raise SystemExit(f"consume: {error}")
            seen += 1
    took = time.perf_counter() - start
    consumer.close()
    return took


def clients(run: Run, result: Result) -> None:
    shapes = [("100 B", 2_000_000, 100), ("1 KB", 500_000, 1_000)]
    place = run.directory("clients")
    with broker(place / "data") as server:
        address = f"{server.address[0]}:{server.address[1]}"
        control = Control(server.address)
        for label, records, value_bytes in shapes:
            count = records // 10 if run.quick else records
            for acks in ("1", "all"):
                topic = f"clients-{value_bytes}-{acks}"
                control.create_topic(topic)
                for role in ("produce", "consume") if acks == "all" else ("produce",):
                    cpu = server.cpu_ns()
                    command = [sys.executable, "-m", "bench.clients", role, address, topic]
                    command += [str(count), str(value_bytes), acks]
                    done = subprocess.run(
                        command, cwd=ROOT, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
                    )
                    if done.returncode != 0:
                        raise RuntimeError(f"confluent-kafka {role}: {done.stderr.strip()[-500:]}")
                    took = float(json.loads(done.stdout)["seconds"])
                    name = f"{role}, {label}" + (f", acks={acks}" if role == "produce" else "")
                    result.measures.append(
                        Measure(
                            name,
                            records_s=count / took,
                            mb_s=count * value_bytes / took / 1e6,
                            cpu_cores=(server.cpu_ns() - cpu) / took / 1e9,
                            rss_mb=server.rss_bytes() / 1e6,
                        )
                    )
    result.notes.append("one confluent-kafka client in its own process, one partition, flush=acks; for information")


def main(arguments: list[str]) -> None:
    role, address, topic, count, value_bytes, acks = arguments
    if role == "produce":
        took = produce(address, topic, int(count), int(value_bytes), acks)
    else:
        took = consume(address, topic, int(count))
    print(json.dumps({"seconds": took}))


if __name__ == "__main__":
    main(sys.argv[1:])
