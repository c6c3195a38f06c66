"""Scenarios of Spark: `format("penstock")` and Spark's own `format("kafka")` on the same broker, in one local session.

The formats take turns, a whole job each, and the order turns round. CPU is that of Java and of every Python process below
it; the broker's is given beside it. A job reads a topic into nothing (Spark's noop sink, all columns), or writes rows that
Spark makes up on the way. Spark's connector is no part of pyspark: its jars come from Maven, and without them nothing is
compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import wire
from bench.load import Control
from bench.method import Series, Slice, Work, cpu_ns, ratio
from bench.processes import Server, broker
from bench.result import Measure, Result
from bench.scenario import NoRoom, Run
from tests.maven import Unresolved
from tests.spark.jvm import connector, end_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
CORES = 2
BATCH_RECORDS = 500
KEY_BYTES = 8
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Shape:
    label: str
    records: int
    value_bytes: int


def shapes(quick: bool) -> list[Shape]:
    part = 10 if quick else 1
    return [Shape("100 B", 2_000_000 // part, 100), Shape("1 KB", 500_000 // part, 1_000)]


def rounds(quick: bool) -> int:
    return 3 if quick else 8


# -------------------------------------------------------------------------------------------------------------- session


class Spark:
    """A session, and what it costs."""

    def __init__(self, session: SparkSession, pid: int) -> None:
        self.session = session
        self.pid = pid

    def cpu_ns(self) -> int:
        """Of Java and everything below it, those included that have ended."""
        children: dict[int, list[int]] = {}
        spent: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                # the name of the program is in brackets and may hold anything
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
            spent[int(entry)] = sum(map(int, fields[11:15]))
        total = 0
        left = [self.pid]
        while left:
            pid = left.pop()
            total += spent.get(pid, 0)
            left += children.get(pid, ())
        return total * (1_000_000_000 // _TICKS_S)


@contextmanager
def spark_session(run: Run) -> Iterator[Spark]:
    from pyspark import SparkContext

    from penstock.spark.session import open_session

    try:
        jars = connector()
    except Unresolved as missing:
        raise NoRoom(str(missing)) from None
    session = open_session(
        "bench",
        f"local[{CORES}]",
        {
            "spark.driver.memory": "2g",
            "spark.driver.extraClassPath": ":".join(map(str, jars)),
            "spark.local.dir": str(run.workspace),
            "spark.sql.warehouse.dir": str(run.workspace / "warehouse"),
        },
    )
    try:
        gateway = SparkContext._gateway
        assert gateway is not None
        yield Spark(session, gateway.proc.pid)
    finally:
        session.stop()
        end_java()


# -------------------------------------------------------------------------------------------------------------- rounds


Job = Callable[[], None]


def take_turns(spark: Spark, server: Server, jobs: Mapping[str, Job], work: Work, count: int) -> dict[str, Series]:
    """Each job in turn, `count` times, after once each to warm up; the order turns round every time."""
    series = {name: Series(name) for name in jobs}
    for turn in range(count + 1):
        for name in jobs if turn % 2 else reversed(list(jobs)):
            spark_before, broker_before = spark.cpu_ns(), cpu_ns(server.pid)
            start = time.perf_counter_ns()
            jobs[name]()
            wall = time.perf_counter_ns() - start
            if turn:
                spent = spark.cpu_ns() - spark_before
                series[name].slices.append(Slice(wall, spent, cpu_ns(server.pid) - broker_before, work))
    return series


def _record(result: Result, label: str, series: dict[str, Series], work: Work, reference: str) -> None:
    for name, one in series.items():
        rate = one.per_s("records")
        result.measures.append(
            Measure(
                f"{name}, {label}",
                records_s=rate.best,
                mb_s=one.per_s("bytes").best / 1e6,
                cpu_s_million=1e6 / one.per_cpu_s("records").best,
                broker_cpu_s_million=min(slice_.load_cpu_ns for slice_ in one.slices) / 1e3 / work.records,
                cpu_cores=one.cpu_share,
                spread_low=rate.p25 / rate.best,
                spread_high=rate.p75 / rate.best,
                reference=name == reference,
            )
        )
        result.slices[f"{name}, {label}"] = {
            "wall_ns": [slice_.wall_ns for slice_ in one.slices],
            "cpu_ns": [slice_.cpu_ns for slice_ in one.slices],
            "broker_cpu_ns": [slice_.load_cpu_ns for slice_ in one.slices],
            "records": [slice_.work.records for slice_ in one.slices],
        }


def _check(result: Result, what: str, a: Series, b: Series, bar: float) -> None:
    found = ratio(a.per_s("records"), b.per_s("records"))
    by_cpu = ratio(a.per_cpu_s("records"), b.per_cpu_s("records"))
    by_all = ratio(a.per_total_cpu_s("records"), b.per_total_cpu_s("records"))
    result.check(
        what,
        found.best,
        bar,
        note=f"medians {found.median:.2f}; by CPU second {by_cpu.best:.2f}, with the broker's {by_all.best:.2f}",
    )


# ---------------------------------------------------------------------------------------------------------------- read


def read(run: Run, result: Result) -> None:
    run.need_bytes(2_000_000_000)
    data = run.directory("read") / "data"
    with broker(data) as server, spark_session(run) as spark:
        for shape in shapes(run.quick):
            topic = f"read-{shape.value_bytes}"
            _fill(server, topic, shape)
            work = Work(1, shape.records, shape.records * shape.value_bytes)
            jobs = {
                "kafka": partial(_read, spark.session, server, topic, "kafka", {}),
                "wire": partial(_read, spark.session, server, topic, "penstock", {"read": "wire"}),
                "segments": partial(
                    _read, spark.session, server, topic, "penstock", {"read": "segments", "segments.dir": str(data)}
                ),
            }
            series = take_turns(spark, server, jobs, work, rounds(run.quick))
            _record(result, shape.label, series, work, "kafka")
            for name, bar in (("wire", 1.0), ("segments", 1.3)):
                what = f"Spark reads {shape.label} by {name}, rows/s of Spark's kafka format"
                _check(result, what, series[name], series["kafka"], bar)
            Control(server.address).delete_topic(topic)
    result.notes.append(f"batch reads of all columns into the noop sink; {PARTITIONS} partitions, local[{CORES}]")
    result.notes.append(
        f"plain batches of {BATCH_RECORDS} records with keys of {KEY_BYTES} B, everything in the page cache"
    )


def _fill(server: Server, topic: str, shape: Shape) -> None:
    control = Control(server.address)
    control.create_topic(topic, PARTITIONS, {"file.delete.delay.ms": "0"})
    value = bytes(range(33, 127)) * (shape.value_bytes // 94 + 1)
    values = [value[: shape.value_bytes]] * BATCH_RECORDS
    batch = wire.batch_of(values, [b"%0*d" % (KEY_BYTES, number) for number in range(BATCH_RECORDS)])
    batches = shape.records // BATCH_RECORDS
    for number in range(batches):
        # what is not flushed yet is not there to be read
        acks = wire.ACKS_ALL if number + PARTITIONS >= batches else 1
        frame, asked = control.ask(partial(wire.produce, topic=topic, batches={number % PARTITIONS: batch}, acks=acks))
        wire.check_produce(frame, asked)
    control.expect_records(topic, PARTITIONS, shape.records)
    control.close()


def _read(session: SparkSession, server: Server, topic: str, kind: str, options: dict[str, str]) -> None:
    frame = session.read.format(kind).options(**{**_address(server), "subscribe": topic}, **options).load()
    frame.write.format("noop").mode("overwrite").save()


def _address(server: Server) -> dict[str, str]:
    host, port = server.address
    return {"kafka.bootstrap.servers": f"{host}:{port}"}


# --------------------------------------------------------------------------------------------------------------- write


def write(run: Run, result: Result) -> None:
    run.need_bytes(4_000_000_000)
    data = run.directory("write") / "data"
    with broker(data) as server, spark_session(run) as spark:
        for shape in shapes(run.quick):
            work = Work(1, shape.records, shape.records * shape.value_bytes)
            sinks = {
                "kafka": Sink(spark.session, server, shape, "kafka", {}),
                "at least once": Sink(spark.session, server, shape, "penstock", {"delivery": "at_least_once"}),
                "exactly once": Sink(spark.session, server, shape, "penstock", {"delivery": "exactly_once"}),
            }
            jobs = {name: sink.write for name, sink in sinks.items()}
            series = take_turns(spark, server, jobs, work, rounds(run.quick))
            _record(result, shape.label, series, work, "kafka")
            for name, against, bar in (("at least once", "kafka", 0.8), ("exactly once", "at least once", 0.6)):
                other = "Spark's kafka format" if against == "kafka" else against
                what = f"Spark writes {shape.label} {name}, rows/s of {other}"
                _check(result, what, series[name], series[against], bar)
    result.notes.append(
        f"batch writes of keys and values by {PARTITIONS} tasks to {PARTITIONS} partitions, local[{CORES}]"
    )
    result.notes.append("acks=all, flush=acks; the rows come from Spark's range, a topic of its own for every job")


class Sink:
    """One format; every job writes a topic of its own, which goes when the next job comes."""

    def __init__(self, session: SparkSession, server: Server, shape: Shape, kind: str, options: dict[str, str]) -> None:
        self._server = server
        self._shape = shape
        self._kind = kind
        self._options = options
        self._control = Control(server.address)
        self._name = f"{options.get('delivery', kind)}-{shape.value_bytes}"
        self._count = 0
        # the number and a constant: whatever the making of a row costs is part of what is measured
        number = f"cast(lpad(cast(id as string), {KEY_BYTES}, '0') as binary)"
        rest = (b"." * (shape.value_bytes - KEY_BYTES)).hex()
        self._rows: DataFrame = session.range(0, shape.records, 1, PARTITIONS).selectExpr(
            f"{number} as key", f"concat({number}, X'{rest}') as value"
        )

    def write(self) -> None:
        # Making and deleting the topic is a few milliseconds of a job of seconds, and the same for all.
        topic = f"{self._name}-{self._count}"
        self._control.create_topic(topic, PARTITIONS, {"file.delete.delay.ms": "0"})
        identity = {"writeId": topic} if self._options.get("delivery") == "exactly_once" else {}
        writer = self._rows.write.format(self._kind).mode("append")
        writer.options(**{**_address(self._server), "topic": topic}, **self._options, **identity).save()
        found = sum(self._control.latest_offsets(topic, PARTITIONS).values())
        # a transaction ends with a marker in each partition that it wrote to
        if not self._shape.records <= found <= self._shape.records + PARTITIONS * PARTITIONS:
            raise wire.WireError(f"{self._shape.records} records were written, {topic} holds {found}")
        self._control.delete_topic(topic)
        self._count += 1
