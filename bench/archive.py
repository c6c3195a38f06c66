"""Topics into tables against Spark's own way there, and the import of a directory against a copy of its files.

The archive writes Parquet, Delta and Iceberg, and Spark streams `format("kafka")` into its Parquet sink until nothing is
left (availableNow): from one broker, in one session, taking turns. Every job makes a table of its own, counts its rows
against the topic, and takes it away again. CPU is that of Java, of every Python process below it, and of the driver, which
commits. The archive syncs its files; Spark's sink does not.

The import is the command, from its start to its exit, into a data directory that is not there yet, and that is what is held
against the copy, which is of the same files and syncs them. What the command takes for next to nothing is measured in turn
with both, so that it can be seen how much of the import is its start.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench import wire
from bench.load import Control
from bench.method import Series, Slice, Work, ratio
from bench.processes import ROOT, Server, broker
from bench.result import Measure, Result
from bench.scenario import Run
from bench.spark import (
    BATCH_RECORDS,
    CORES,
    KEY_BYTES,
    PARTITIONS,
    Shape,
    Spark,
    rounds,
    shapes,
    spark_session,
    take_turns,
)

BATCHES = 64
"""That differ; a topic repeats them. A column of one value would be compressed to nothing by anybody."""
SPARK = "Spark, kafka to Parquet"
FORMATS = ("parquet", "delta", "iceberg")
IMPORT_S_MAX = 600.0
IMPORT_ROUNDS, IMPORT_ROUNDS_QUICK = 7, 5
"""The first warms up."""


def _fill(server: Server, topic: str, shape: Shape) -> None:
    """Keys and values that hardly repeat, half of each value as random as text gets."""
    control = Control(server.address)
    control.create_topic(topic, PARTITIONS, {"file.delete.delay.ms": "0"})
    dice = random.Random(shape.value_bytes)
    batches = []
    for _ in range(BATCHES):
        keys = [b"%0*d" % (KEY_BYTES, dice.randrange(10**KEY_BYTES)) for _ in range(BATCH_RECORDS)]
        notes = (dice.randbytes(shape.value_bytes // 2).hex().encode() for _ in range(BATCH_RECORDS))
        values = [b'{"order": %s, "note": "%s"}' % (key, note) for key, note in zip(keys, notes, strict=True)]
        batches.append(wire.batch_of([value[: shape.value_bytes] for value in values], keys))
    count = shape.records // BATCH_RECORDS
    for number in range(count):
        # what is not flushed yet is not there to be read
        acks = wire.ACKS_ALL if number + PARTITIONS >= count else 1
        sent = {number % PARTITIONS: batches[number // PARTITIONS % BATCHES]}
        frame, asked = control.ask(partial(wire.produce, topic=topic, batches=sent, acks=acks))
        wire.check_produce(frame, asked)
    control.expect_records(topic, PARTITIONS, shape.records)
    control.close()


def _add(result: Result, name: str, series: Series, *, reference: bool) -> None:
    rate = series.per_s("records")
    records = series.slices[0].work.records
    result.measures.append(
        Measure(
            name,
            records_s=rate.best,
            mb_s=series.per_s("bytes").best / 1e6,
            cpu_s_million=1e6 / series.per_cpu_s("records").best,
            broker_cpu_s_million=min(one.load_cpu_ns for one in series.slices) / 1e3 / records or None,
            cpu_cores=series.cpu_share,
            spread_low=rate.p25 / rate.best,
            spread_high=rate.p75 / rate.best,
            reference=reference,
        )
    )
    result.slices[name] = {
        "wall_ns": [one.wall_ns for one in series.slices],
        "cpu_ns": [one.cpu_ns for one in series.slices],
        "broker_cpu_ns": [one.load_cpu_ns for one in series.slices],
        "records": [one.work.records for one in series.slices],
    }


def _check(result: Result, what: str, a: Series, b: Series, bar: float) -> None:
    found = ratio(a.per_s("records"), b.per_s("records"))
    by_cpu = ratio(a.per_cpu_s("records"), b.per_cpu_s("records"))
    result.check(what, found.best, bar, note=f"medians {found.median:.2f}; by CPU second {by_cpu.best:.2f}")


# -------------------------------------------------------------------------------------------------------------- archive


class _WithDriver(Spark):
    """Commits are this process's work."""

    def cpu_ns(self) -> int:
        return super().cpu_ns() + time.process_time_ns()


def archive(run: Run, result: Result) -> None:
    run.need_bytes(16_000_000_000)
    data = run.directory("archive") / "data"
    with broker(data) as server, spark_session(run) as session:
        spark = _WithDriver(session.session, session.pid)
        for shape in shapes(run.quick):
            topic = f"archived-{shape.value_bytes}"
            _fill(server, topic, shape)
            work = Work(1, shape.records, shape.records * shape.value_bytes)
            tables = _Tables(run.directory(topic), spark, server, topic, shape.records)
            jobs: dict[str, Callable[[], None]] = {SPARK: tables.stream}
            jobs |= {name: partial(tables.archive, name) for name in FORMATS}
            series = take_turns(spark, server, jobs, work, rounds(run.quick))
            for name, one in series.items():
                _add(result, f"{name}, {shape.label}", one, reference=name == SPARK)
            what = f"archive of {shape.label} to"
            _check(result, f"{what} Parquet, rows/s of Spark's kafka to Parquet", series["parquet"], series[SPARK], 1.5)
            for name in FORMATS[1:]:
                _check(result, f"{what} {name.title()}, rows/s of Parquet", series[name], series["parquet"], 0.75)
            Control(server.address).delete_topic(topic)
    result.notes.append(
        f"whole topics of {PARTITIONS} partitions into new tables, local[{CORES}]; batches of {BATCH_RECORDS} records with "
        f"keys of {KEY_BYTES} B, everything in the page cache"
    )
    result.notes.append("the archive keeps headers, compresses with zstd and syncs; Spark's sink has its defaults")


class _Tables:
    """One topic, archived again and again."""

    def __init__(self, folder: Path, spark: Spark, server: Server, topic: str, records: int) -> None:
        self._folder = folder
        self._session = spark.session
        self._bootstrap = "{}:{}".format(*server.address)
        self._topic = topic
        self._records = records
        self._count = 0

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """Counting and removing a handful of files is a few milliseconds of a job of seconds, and the same for all."""
        self._count += 1
        path = self._folder / str(self._count)
        yield path
        shutil.rmtree(path)

    def _expect(self, rows: int, path: Path) -> None:
        if rows != self._records:
            raise RuntimeError(f"{self._topic} has {self._records} records, {path.name} has {rows} rows")

    def archive(self, format_: str) -> None:
        """What `penstock archive run` does, in a session that runs already."""
        from penstock.cli.archive_options import Format, table_for
        from penstock.client.kafka import KafkaSettings
        from penstock.lake.archiver import Archiver
        from penstock.lake.compaction import recover
        from penstock.lake.engines import SparkEngine
        from penstock.lake.lock import locked
        from penstock.lake.opening import open_table
        from penstock.lake.places import place_of

        kafka = KafkaSettings.of(self._bootstrap)
        with self._place() as path:
            with locked(place_of(str(path)), f"archive run {self._topic}"):
                table = table_for(kafka, self._topic, str(path), Format(format_), None, None, {}, None)
                recover(table)
                with closing(Archiver(kafka, table, SparkEngine(lambda: self._session))) as archiver:
                    ends = archiver.ends()
                    while (step := archiver.step(ends)) is not None and step.lag:
                        pass
            self._expect(sum(file.rows for file in open_table(str(path)).files()), path)

    def stream(self) -> None:
        import pyarrow.parquet as pq

        with self._place() as path:
            options = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": self._topic}
            rows = self._session.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
            writer = rows.writeStream.format("parquet").trigger(availableNow=True)
            writer.option("checkpointLocation", str(path / "checkpoint")).start(str(path / "rows")).awaitTermination()
            self._expect(sum(pq.read_metadata(file).num_rows for file in (path / "rows").glob("*.parquet")), path)


# ---------------------------------------------------------------------------------------------------------------- import


def import_copy(run: Run, result: Result) -> None:
    sizes = {"import": 100_000 if run.quick else 4_000_000, "start": PARTITIONS * BATCH_RECORDS}
    run.need_bytes(16_000_000_000)
    folder = run.directory("import")
    sources = {}
    for name, records in sizes.items():
        sources[name] = folder / f"source-{name}"
        with broker(sources[name], flush="os") as server:
            _fill(server, "imported", Shape("1 KB", records, 1_000))
    files = sorted(path for path in sources["import"].glob("imported-*/*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    jobs: dict[str, Callable[[Path], None]] = {
        name: partial(_import, sources[name], records) for name, records in sizes.items()
    }
    jobs["copy"] = partial(_copy, files)
    series = {name: Series(name) for name in jobs}
    for turn in range(IMPORT_ROUNDS_QUICK if run.quick else IMPORT_ROUNDS):
        for name in jobs if turn % 2 else reversed(list(jobs)):
            target = folder / f"{name}-{turn}"
            cpu_before = _cpu_ns()
            start = time.perf_counter_ns()
            jobs[name](target)
            wall = time.perf_counter_ns() - start
            if turn:
                work = Work(1, sizes["import"], size) if name != "start" else Work(1, sizes["start"], 0)
                series[name].slices.append(Slice(wall, _cpu_ns() - cpu_before, 0, work))
            shutil.rmtree(target)
    for name in ("copy", "import"):
        _add(result, name, series[name], reference=name == "copy")
    found = ratio(series["import"].per_s("bytes"), series["copy"].per_s("bytes"))
    start_s, import_s, copy_s = (
        median(one.wall_ns for one in series[name].slices) / 1e9 for name in ("start", "import", "copy")
    )
    result.check(
        "import of a Kafka directory, bytes/s of a plain copy",
        found.best,
        0.5,
        note=f"medians {found.median:.2f}: {import_s:.1f} s, {start_s:.1f} s for next to nothing, {copy_s:.1f} s the copy",
    )
    result.notes.append(
        f"{size / 1e6:,.0f} MB in {PARTITIONS} partitions; `penstock import --from kafka --data-dir`: every batch is "
        "checked, and what was written is read back. The copy: one file after the other, each synced"
    )
    result.notes.append(
        f"next to nothing is the same command on {sizes['start']:,} records: a Python, and a broker that is started and "
        "stopped twice; the source is in the page cache"
    )


def _cpu_ns() -> int:
    """Of this process and of those that it started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((ended.ru_utime + ended.ru_stime) * 1e9)


def _import(source: Path, records: int, target: Path) -> None:
    command = [sys.executable, "-m", "penstock", "import", str(source), "--from", "kafka", "--data-dir", str(target)]
    progress = target.with_name(f"{target.name}-progress")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    done = subprocess.run(
        [*command, "--progress", str(progress), "--json"],
        capture_output=True,
        text=True,
        timeout=IMPORT_S_MAX,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the import ended with code {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if not report["verified"] or sum(row["records"] for row in report["partitions"]) != records:
        raise RuntimeError(f"{records} records were there, the import says: {done.stdout[:500]}")


def _copy(files: list[Path], target: Path) -> None:
    for path in files:
        folder = target / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path.name)
        _sync(folder / path.name)
    for folder in [*target.iterdir(), target]:
        _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
