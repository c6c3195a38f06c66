"""The stream's kill run: a query source -> windowed aggregate -> exactly-once sink, whose parts are killed at random.

What is killed: the driver (Spark's Java), one of its Python processes, the broker. Whatever falls and when, the output holds
each window of each key once, with the right count and sum. Every choice comes from a seed. Three kills run with the tests,
thirty with `make soak`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.windowed_stream import KEYS, LATE_S, WINDOW_S, Order

SOURCE, TARGET = "events", "sums"
PARTITIONS = 3
WAIT_S = 300.0
KILL_AFTER_S = (0.0, 1.5)
EVENTS_S = 400
VICTIMS = ("driver", "worker", "broker")

Row = tuple[int, str, int, int]
"""Start of the window, key, events, amount."""


class Killable(Protocol):
    """A broker: ours or Apache Kafka."""

    @property
    def bootstrap(self) -> str: ...

    def kill(self) -> None: ...

    def restart(self) -> object: ...


@dataclass(slots=True)
class Figures:
    seed: int
    kills: Counter[str]
    starts: int
    events: int
    rows: int
    seconds: float
    lost: list[Row]
    doubled: list[Row]
    wrong: list[Row]

    def __bool__(self) -> bool:
        """Whether the output is exactly what the input adds up to."""
        return not (self.lost or self.doubled or self.wrong)

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "kills": dict(self.kills),
            "starts": self.starts,
            "events": self.events,
            "rows": self.rows,
            "seconds": round(self.seconds, 1),
            "lost": len(self.lost),
            "doubled": len(self.doubled),
            "wrong": len(self.wrong),
        }

    def __str__(self) -> str:
        return f"{self.as_json()} lost {self.lost[:5]} doubled {self.doubled[:5]} wrong {self.wrong[:5]}"


class KillStream:
    def __init__(self, broker: Killable, place: Path, seed: int, settings: dict[str, str] | None = None) -> None:
        self._broker = broker
        self._dice = random.Random(seed)
        self._seed = seed
        self._log = place / "stream.log"
        self._order = Order(broker.bootstrap, SOURCE, TARGET, str(place / "checkpoint"), settings=settings or {})
        self._process: subprocess.Popen[str] | None = None
        self._kills: Counter[str] = Counter()
        self._starts = 0
        self._events = 0

    def run(self, victims: list[str]) -> Figures:
        began = time.monotonic()
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in (SOURCE, TARGET)]).values():
            made.result(WAIT_S)
        stopping = threading.Event()
        writer = threading.Thread(target=self._write, args=(stopping,), daemon=True)
        writer.start()
        output = Output(self._broker.bootstrap)
        try:
            self._start()
            for victim in victims:
                # a kill proves something only if work was done since the last
                self._until(output, output.count + 1)
                # the one place where time itself is the point: the blow falls at no particular moment
                stopping.wait(self._dice.uniform(*KILL_AFTER_S))
                while not self._kill(victim):
                    self._until(output, output.count + 1)
            self._until(output, output.count + 1)
            stopping.set()
            writer.join(WAIT_S)
            expected = expected_rows(self._events)
            self._until(output, len(expected))
            self._stop()
        except BaseException as failure:
            failure.add_note(f"seed {self._seed}; the stream's log ends with:\n{self._tail()}")
            raise
        finally:
            stopping.set()
            self._end()
            output.close()
        seen = Counter(read_committed(self._broker.bootstrap))
        return Figures(
            self._seed,
            self._kills,
            self._starts,
            self._events,
            seen.total(),
            time.monotonic() - began,
            sorted(expected - seen.keys()),
            sorted(row for row, count in seen.items() if count > 1),
            sorted(seen.keys() - expected),
        )

    # ------------------------------------------------------------------------------------------------ the stream

    def _start(self) -> None:
        self._starts += 1
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._order.command(), stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
            )

    def _until(self, output: Output, count: int) -> None:
        """Until the output has so many rows. A query that ended with what was killed below it is started again."""
        deadline = time.monotonic() + WAIT_S
        while output.count < count:
            assert time.monotonic() < deadline, f"stuck: {output.count} of {count} rows are in the output"
            assert self._process is not None
            if self._process.poll() is not None:
                self._forget(self._process)
                self._start()
            output.poll()

    def _stop(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(WAIT_S) == 0, "the query did not end well"

    def _end(self) -> None:
        if self._process is not None:
            for pid in (*below(self._process.pid), self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._forget(self._process)

    def _forget(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.wait()
        process.stdin.close()

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:] if self._log.exists() else ""

    # ------------------------------------------------------------------------------------------------ killing

    def _kill(self, victim: str) -> bool:
        """False when it is not there: it ended a moment ago, with what was killed before."""
        if victim == "broker":
            self._broker.kill()
            self._broker.restart()
        else:
            pids = {"driver": self._java, "worker": self._workers}[victim]()
            try:
                os.kill(self._dice.choice(pids), signal.SIGKILL)
            except (IndexError, ProcessLookupError):
                return False
        self._kills[victim] += 1
        return True

    def _java(self) -> list[int]:
        assert self._process is not None
        return [pid for pid in below(self._process.pid) if "SparkSubmit" in command_of(pid)]

    def _workers(self) -> list[int]:
        """Python processes that do the work of tasks and plan batches; not the one that forks them."""
        assert self._process is not None
        workers = [pid for pid in below(self._process.pid) if "pyspark" in command_of(pid) and pid not in self._java()]
        return [pid for pid in workers if not any("pyspark" in command_of(child) for child in below(pid))]

    # ------------------------------------------------------------------------------------------------ the input

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
        while not stopping.wait(0.05):
            for _ in range(EVENTS_S // 20):
                producer.produce(SOURCE, event(self._events), partition=self._events % PARTITIONS)
                self._events += 1
            producer.poll(0)
        # every partition is read up to here before a window closes over it
        assert producer.flush(WAIT_S) == 0
        for partition in range(PARTITIONS):
            producer.produce(SOURCE, event(self._events + 2 * LATE_S + WINDOW_S), partition=partition)
        assert producer.flush(WAIT_S) == 0


def event(number: int) -> bytes:
    return json.dumps({"number": number, "key": f"k{number % KEYS}", "amount": number % 97}).encode()


def expected_rows(events: int) -> set[Row]:
    sums: dict[tuple[int, str], tuple[int, int]] = {}
    for number in range(events):
        place = (number // WINDOW_S * WINDOW_S, f"k{number % KEYS}")
        count, amount = sums.get(place, (0, 0))
        sums[place] = (count + 1, amount + number % 97)
    return {(*place, *found) for place, found in sums.items()}


# -------------------------------------------------------------------------------------------------------- the output


class Output:
    """Counts the rows of the output that are committed, as they come."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = _consumer(bootstrap)
        self.count = 0

    def poll(self) -> None:
        self.count += sum(message.error() is None for message in self._consumer.consume(500, 0.1))

    def close(self) -> None:
        self._consumer.close()


def read_committed(bootstrap: str) -> list[Row]:
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
    finally:
        consumer.close()
    rows = map(json.loads, values)
    return [(row["start"], row["key"], row["events"], row["amount"]) for row in rows]


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


# ------------------------------------------------------------------------------------------------------- processes


def below(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *below(child)]
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
