"""The main job in two minutes: orders in through three protocols, revenue out through Spark, two kills, nothing lost.

    make demo

starts a broker, feeds it orders as a Kafka client, a FluxGo client and a Day1 client, and runs the Spark job of
examples/revenue.py in a process of its own. In the middle the broker is killed with signal 9, and then the whole Spark job.
Both start again. At the end the topic with the revenue is compared with what was ordered, window by window.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from penstock import Broker
from penstock.client.day1 import Day1Client
from penstock.client.fluxgo import FluxGoClient
from penstock.client.kafka import KafkaClient
from penstock.records.builder import NewRecord, build_batch

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "demo"
ORDERS, REVENUE = "orders", "revenue"
DIALECTS = ("kafka", "fluxgo", "day1")
"""One partition of the orders each."""
CUSTOMERS = ("ada", "edsger", "grace", "leslie", "tony")
ROUND_ORDERS = 900
"""Of all dialects together. An order a second, by the shop's own clock: a round is fifteen minutes."""
ROUND_PAUSE_S = 0.25
WINDOW_S = 600
OPENS_AT = dt.datetime(2026, 1, 5, 8, 0, tzinfo=dt.UTC)
DEADLINE_S = 150.0
_JAVA = "-XX:TieredStopAtLevel=1"
"""A job of a minute does without the second compiler; Spark starts in half of the CPU time."""


class Order(NamedTuple):
    number: int
    customer: str
    cents: int

    @property
    def placed_at(self) -> dt.datetime:
        return OPENS_AT + dt.timedelta(seconds=self.number)

    def as_json(self) -> bytes:
        fields = {"order": self.number, "customer": self.customer, "cents": self.cents}
        return json.dumps({**fields, "placed_at": self.placed_at.isoformat()}).encode()


class Revenue(NamedTuple):
    """A row of the result: who, from when, how many orders, how much."""

    customer: str
    began_at: dt.datetime
    orders: int
    cents: int


class Shop(threading.Thread):
    """Takes orders, and sends them until it is told to close."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(name="shop", daemon=True)
        self._broker = broker
        self._kafka = KafkaClient(broker.bootstrap)
        self._kafka.create_topic(ORDERS, len(DIALECTS))
        self._kafka.create_topic(REVENUE, 2)
        self._closing = threading.Event()
        self._numbers = itertools.count()
        self.between_rounds = threading.Lock()
        """Who holds it may kill the broker. Two of the protocols have no way to ask whether a record that got no answer
        is there, and the demo is about Spark."""
        self.sent: Counter[str] = Counter()
        self.orders: list[Order] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._closing.wait(ROUND_PAUSE_S):
                with self.between_rounds:
                    self._send([self._next_order() for _ in range(ROUND_ORDERS)])
            # windows close when later orders come: one of next week in every partition
            last = next(self._numbers) + 7 * 24 * 3600
            self._send([Order(last, "nobody", 0)] * len(DIALECTS))
        except BaseException as failure:  # noqa: BLE001 - told by the thread that waits
            self.failure = failure
        finally:
            self._kafka.close()

    def _next_order(self) -> Order:
        number = next(self._numbers)
        return Order(number, CUSTOMERS[number * 7 % len(CUSTOMERS)], 100 + number * 37 % 9_900)

    def _send(self, orders: list[Order]) -> None:
        parts = [orders[index :: len(DIALECTS)] for index in range(len(DIALECTS))]
        values = [[order.as_json() for order in part] for part in parts]
        now_ms = time.time_ns() // 1_000_000
        batch = build_batch([NewRecord(now_ms, value=value) for value in values[0]])
        self._kafka.produce({(ORDERS, 0): batch})
        with FluxGoClient(*self._address("fluxgo")) as fluxgo:
            fluxgo.produce_many(ORDERS, 1, values[1])
        with Day1Client(*self._address("day1")) as day1:
            day1.produce(ORDERS, 2, [(b"", value) for value in values[2]])
        for dialect, part in zip(DIALECTS, parts, strict=True):
            self.sent[dialect] += len(part)
        self.orders += orders

    def _address(self, dialect: str) -> tuple[str, int]:
        host, _, port = self._broker.addresses[dialect].rpartition(":")
        return host, int(port)

    def close(self) -> None:
        self._closing.set()
        self.join(DEADLINE_S)
        if self.failure is not None:
            raise self.failure

    def expected(self) -> set[Revenue]:
        """What the orders add up to; the ones that only close windows do not count."""
        sums: dict[tuple[str, dt.datetime], tuple[int, int]] = {}
        for order in self.orders:
            if order.customer in CUSTOMERS:
                place = order.customer, OPENS_AT + dt.timedelta(seconds=order.number // WINDOW_S * WINDOW_S)
                count, cents = sums.get(place, (0, 0))
                sums[place] = count + 1, cents + order.cents
        return {Revenue(*place, *found) for place, found in sums.items()}


class Job:
    """The Spark job, in a process of its own that can be killed."""

    def __init__(self, bootstrap: str) -> None:
        self._command = [sys.executable, str(ROOT / "examples" / "revenue.py"), bootstrap, str(PLACE / "checkpoint")]
        self._process: subprocess.Popen[bytes] | None = None
        self.log = PLACE / "spark.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "JDK_JAVA_OPTIONS": _JAVA},
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Driver, Java and Python workers."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """Let it finish what is there; its exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(DEADLINE_S)


class Results:
    """The topic with the revenue, as an ordinary Kafka client reads it."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(REVENUE, partition, 0) for partition in (0, 1)])
        self.rows: list[Revenue] = []

    def until(self, count: int, job: Job, shop: Shop) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.rows) < count:
            if shop.failure is not None:
                raise shop.failure
            if not job.running:
                raise SystemExit(f"the Spark job ended: see {job.log}")
            if time.monotonic() > deadline:
                raise SystemExit(f"no result in {DEADLINE_S:.0f} s: see {job.log}")
            self.poll(0.2)

    def poll(self, timeout_s: float) -> bool:
        """Take what there is; whether that was anything."""
        messages = [message for message in self._consumer.consume(1_000, timeout_s) if message.error() is None]
        for message in messages:
            row = json.loads(message.value() or b"")
            began_at = dt.datetime.fromisoformat(row["from"])
            self.rows.append(Revenue(row["customer"], began_at, row["orders"], row["cents"]))
        return bool(messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()


def main() -> int:
    if find_spec("pyspark") is None:
        raise SystemExit("the demo runs Spark: pip install '.[spark]'")
    console = Console()
    began = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s[/] {text}")

    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    listen = tuple(f"{dialect}=127.0.0.1:0" for dialect in DIALECTS)
    with Broker(PLACE / "data", listen=listen) as broker, Results(broker.bootstrap) as results:
        tell("the broker runs: " + ", ".join(f"{name} at {address}" for name, address in broker.addresses.items()))
        shop = Shop(broker)
        job = Job(broker.bootstrap)
        try:
            shop.start()
            job.start()
            tell("orders come in by three protocols; the Spark job starts")
            results.until(1, job, shop)
            tell(f"first revenue is there; {len(shop.orders):,} orders so far")

            with shop.between_rounds:
                pid = broker.pid
                broker.kill()
                tell(f"kill -9 of the broker, process {pid}, below the running Spark job")
                broker.restart()
            results.until(len(results.rows) + 50, job, shop)
            tell("the broker is back and the Spark job went on; 50 more rows of revenue")

            job.kill()
            tell(f"kill -9 of the Spark job: driver, Java and Python workers; {len(shop.orders):,} orders so far")
            job.start()
            results.until(len(results.rows) + 50, job, shop)
            tell("the Spark job is back; 50 more rows of revenue")

            shop.close()
            tell("the shop is closed; the last windows follow")
            expected = shop.expected()
            results.until(len(expected), job, shop)
            if job.stop() != 0:
                raise SystemExit(f"the Spark job ended badly: see {job.log}")
            while results.poll(1.0):
                pass
        finally:
            job.kill()
    found = Counter(results.rows)
    lost, wrong = expected - found.keys(), found.keys() - expected
    doubled = sum(count - 1 for count in found.values())
    table = Table("what", "count")
    for dialect in DIALECTS:
        table.add_row(f"orders by {dialect}", f"{shop.sent[dialect]:,}")
    table.add_row("kills with signal 9: broker, Spark job", "1, 1")
    table.add_row("windows of ten minutes, by customer", f"{len(expected):,}")
    table.add_row("rows of revenue", f"{len(results.rows):,}")
    table.add_row("lost, doubled, wrong", f"{len(lost)}, {doubled}, {len(wrong)}")
    table.add_row("ordered", _money(sum(order.cents for order in shop.orders)))
    table.add_row("revenue", _money(sum(row.cents for row in results.rows)))
    table.add_row("time", f"{time.monotonic() - began:.0f} s")
    console.print(table)
    best = Table("customer", "orders", "revenue")
    for customer in CUSTOMERS:
        rows = [row for row in results.rows if row.customer == customer]
        best.add_row(customer, f"{sum(row.orders for row in rows):,}", _money(sum(row.cents for row in rows)))
    console.print(best)
    exact = not lost and not doubled and not wrong
    console.print("[green]every order is counted, once[/]" if exact else f"[red]failed[/]: see {job.log}")
    place = PLACE.relative_to(ROOT)
    console.print(
        f"look at it:  .venv/bin/penstock serve --data-dir {place}/data\n"
        f"and then:    .venv/bin/penstock consume {REVENUE}\n"
        f"the job:     examples/revenue.py, its log {place}/spark.log; docs/spark.md has the rest"
    )
    return 0 if exact else 1


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
