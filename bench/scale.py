"""Scenarios of size: idle connections, a start over many partitions, a log of many segments."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bench import wire
from bench.fetch import evict
from bench.load import Control, Fetches, Pipeline
from bench.method import Latencies, Subject, Work, alternate, measure, raise_open_files, ratio
from bench.processes import Server, apart, broker
from bench.result import Curve, Measure, Result
from bench.scenario import Run

IDLE_CONNECTIONS = 1_500
PARTITIONS = 1_000
PARTITIONS_PER_REQUEST = 100
SEGMENTS = 1_000


def idle_connections(run: Run, result: Result) -> None:
    raise_open_files(4 * IDLE_CONNECTIONS)
    place = run.directory("idle")
    with broker(place / "data") as server:
        for _ in range(50):  # what the first connections load once is not theirs
            control = Control(server.address)
            control.api_versions()
            control.close()
        before = server.rss_bytes()
        begin = time.perf_counter()
        open_ones = []
        for _ in range(IDLE_CONNECTIONS):
            control = Control(server.address)
            control.api_versions()
            open_ones.append(control)
        took = time.perf_counter() - begin
        after = server.rss_bytes()
        cpu_before = server.cpu_ns()
        time.sleep(2.0)
        cores = (server.cpu_ns() - cpu_before) / 2e9
        for control in open_ones:
            control.close()
    result.measures.append(
        Measure(
            f"{IDLE_CONNECTIONS} connections", requests_s=IDLE_CONNECTIONS / took, cpu_cores=cores, rss_mb=after / 1e6
        )
    )
    result.measures.append(Measure("before them", rss_mb=before / 1e6))
    result.check(
        f"{IDLE_CONNECTIONS:,} idle connections, growth of RSS", (after - before) / 1e6, 10.0, unit="MB", at_least=False
    )
    result.notes.append("each has asked ApiVersions once; CPU is that of the broker over 2 s while they are idle")


# --------------------------------------------------------------------------------------------------- big start


def big_start(run: Run, result: Result) -> None:
    rounds = 100 if run.quick else 1_000
    batch, records = wire.batch_of_bytes(10_000, 1_000)
    total = rounds * PARTITIONS * len(batch)
    run.need_bytes(total + 8_000_000_000)
    place = run.directory("start")
    data = place / "data"
    topic = "big"

    with broker(data, flush="os") as server:
        Control(server.address).create_topic(topic, PARTITIONS)
        pipeline = _wide_pipeline(server, topic, batch, records)
        filled = measure(Subject("fill", server.pid, lambda _: _fill(pipeline, rounds)), 0)
        stop_s = server.stop()
    result.measures.append(
        Measure(
            "filling",
            records_s=filled.work.records * 1e9 / filled.wall_ns,
            mb_s=filled.work.bytes * 1e3 / filled.wall_ns,
            cpu_cores=filled.cpu_ns / filled.wall_ns,
        )
    )
    stored = pipeline.answered * PARTITIONS_PER_REQUEST * records

    starts = [_clean_start(data, topic, stored) for _ in range(3)]
    evict(data)
    cold = _clean_start(data, topic, stored)
    result.measures.append(Measure("clean start", rss_mb=starts[0].rss_bytes / 1e6))
    walls = ", ".join(f"{start.seconds:.2f}" for start in starts)
    result.check(
        f"clean start, {PARTITIONS:,} partitions, {total / 1e9:.0f} GB",
        statistics.median(start.seconds for start in starts),
        2.0,
        unit="s",
        at_least=False,
        note=f"all {walls}; with cold log files {cold.seconds:.2f}; CPU {min(s.cpu_s for s in starts):.2f} s",
    )
    rss = max(start.rss_bytes for start in [*starts, cold])
    result.check("clean start, RSS", rss / 1e6, 120.0, unit="MB", at_least=False)

    load_s = 3.0 if run.quick else 8.0
    acknowledged, written = _kill_under_load(data, topic, batch, records, load_s)
    server = broker(data)
    seconds = server.start(deadline_s=300.0)
    cpu_s = server.cpu_ns() / 1e9
    try:
        found = sum(Control(server.address).latest_offsets(topic, PARTITIONS).values())
        if found < stored + acknowledged:
            raise wire.WireError(f"{stored + acknowledged} records were acknowledged before kill -9, {found} are there")
        result.measures.append(Measure("start after kill -9", rss_mb=server.rss_bytes() / 1e6))
    finally:
        server.kill()
    result.check(
        "start after kill -9 under load",
        seconds,
        10.0,
        unit="s",
        at_least=False,
        note=f"{load_s:.0f} s of load, {written / 1e6:.0f} MB acknowledged, none lost; CPU {cpu_s:.2f} s",
    )
    result.notes.append(f"batches of 10 KB; the stop that wrote the clean mark took {stop_s:.1f} s")


def _wide_pipeline(server: Server, topic: str, batch: bytes, records: int) -> Pipeline:
    """Requests that carry one batch for each of a hundred partitions; ten of them reach all."""
    frames = []
    for i in range(PARTITIONS // PARTITIONS_PER_REQUEST):
        first = i * PARTITIONS_PER_REQUEST
        frames.append(wire.produce(i, topic, dict.fromkeys(range(first, first + PARTITIONS_PER_REQUEST), batch), 1))
    work = Work(1, PARTITIONS_PER_REQUEST * records, PARTITIONS_PER_REQUEST * len(batch))
    return Pipeline(server.address, frames, work)


def _fill(pipeline: Pipeline, rounds: int) -> Work:
    return pipeline.run(1_800.0, requests=rounds * PARTITIONS // PARTITIONS_PER_REQUEST - 1)


class Start(NamedTuple):
    seconds: float
    cpu_s: float
    rss_bytes: int


def _clean_start(data: Path, topic: str, stored: int) -> Start:
    """The log end offsets must add up to what was stored."""
    with broker(data) as server:
        start = Start(server.start_s, server.cpu_ns() / 1e9, server.rss_bytes())
        control = Control(server.address)
        if control.partition_count(topic) != PARTITIONS:
            raise wire.WireError("partitions are missing after a clean start")
        control.expect_records(topic, PARTITIONS, stored)
        return start


def _kill_under_load(data: Path, topic: str, batch: bytes, records: int, seconds: float) -> tuple[int, int]:
    """Records and bytes that were acknowledged until the broker was killed in the middle."""
    with broker(data) as server:
        pipeline = _wide_pipeline(server, topic, batch, records)
        timer = threading.Timer(seconds, server.kill)
        timer.start()
        with contextlib.suppress(ConnectionError):
            pipeline.run(seconds + 60.0)
        timer.join()
    acknowledged = pipeline.answered * PARTITIONS_PER_REQUEST
    return acknowledged * records, acknowledged * len(batch)


# ---------------------------------------------------------------------------------------------- segment growth


class Appended:
    """Single records, appended to one topic, or to a new topic for every slice."""

    def __init__(self, server: Server, name: str, segment_bytes: int, *, renew: bool) -> None:
        self._server = server
        self._control = Control(server.address)
        self._name = name
        self._batch = wire.batch(1, 100)
        self._segment_bytes = segment_bytes
        self._renew = renew
        self._count = 0
        self._pipeline: Pipeline | None = None
        self._filled = 0
        self.latencies = Latencies()

    @property
    def topic(self) -> str:
        return f"{self._name}-{self._count:06d}"

    def prepare(self) -> None:
        if self._pipeline is not None and not self._renew:
            return
        self._control.create_topic(self.topic, 1, {"segment.bytes": str(self._segment_bytes)})
        frames = [wire.produce(i, self.topic, {0: self._batch}, 1) for i in range(100)]
        self._pipeline = Pipeline(self._server.address, frames, Work(1, 1, len(self._batch)))
        self._pipeline.latencies = self.latencies

    def work(self, seconds: float) -> Work:
        assert self._pipeline is not None
        return self._pipeline.run(seconds)

    def finish(self) -> None:
        """Old topics stay: files in the place of just deleted ones are cheaper than those of a log that grows."""
        if self._renew and self._pipeline is not None:
            self._pipeline.close()
            self._count += 1

    def fill(self, segments: int) -> None:
        """Make the log so many segments longer, by batches that fill a segment in four."""
        batch, records = wire.batch_of_bytes(self._segment_bytes // 4, 1_000)
        frames = [wire.produce(i, self.topic, {0: batch}, 1) for i in range(4)]
        pipeline = Pipeline(self._server.address, frames, Work(1, records, len(batch)))
        pipeline.run(120.0, requests=4 * segments - 1)
        pipeline.close()
        self._filled += pipeline.answered * records

    @property
    def records(self) -> int:
        assert self._pipeline is not None
        return self._filled + self._pipeline.answered

    def subject(self, name: str) -> Subject:
        return Subject(name, self._server.pid, self.work, self.prepare, self.finish)


def segment_growth(run: Run, result: Result) -> None:
    segment_bytes = (128 if run.quick else 1024) * 1024
    run.need_bytes(2 * SEGMENTS * segment_bytes)
    step = SEGMENTS // 10
    place = run.directory("segments")
    with broker(place / "data", flush="os") as server:
        grown = Appended(server, "grown", segment_bytes, renew=False)
        grown.prepare()
        points: list[tuple[float, float]] = []
        for segments in range(0, SEGMENTS + 1, step):
            parts = [measure(grown.subject("grow"), run.slice_s) for _ in range(4)]
            points.append((max(segments, 1), min(part.cpu_ns / 1e3 / part.work.records for part in parts)))
            if segments < SEGMENTS:
                grown.fill(step)
        fresh = Appended(server, "fresh", segment_bytes, renew=True)
        subjects = [fresh.subject("new log"), grown.subject(f"{SEGMENTS:,} segments")]
        grown.latencies.clear()
        with apart(server):
            series = alternate(subjects, run.slices, run.slice_s)
        count = sum(1 for _ in (place / "data").rglob("grown*/*.log"))
        small, large = (series[subject.name] for subject in subjects)
        result.add_series(small, fresh.latencies, unit="records", by_cpu=True)
        result.add_series(large, grown.latencies, server.rss_bytes(), unit="records", by_cpu=True)
        Control(server.address).expect_records(grown.topic, 1, grown.records)
        result.measures.append(_read_everywhere(run, server, grown))
    found = ratio(small.per_cpu_s("records"), large.per_cpu_s("records"))
    result.check(
        f"broker CPU a record, log of {SEGMENTS:,} segments, of a new one",
        found.best,
        1.25,
        at_least=False,
        note=f"medians {found.median:.2f}",
    )
    result.curves.append(Curve("Cost of a record while a log grows", "segments", "us of broker CPU a record", points))
    result.notes.append(
        f"single records of 100 B, window of 100, segment.bytes {segment_bytes}; {count} segments at the end"
    )


def _read_everywhere(run: Run, server: Server, grown: Appended) -> Measure:
    """Fetches all over the grown log; an answer ends with its segment."""
    fetches = Fetches(server.address, grown.topic, range(0, grown.records, grown.records // 500), 0, smallest=1)
    part = measure(Subject("read", server.pid, fetches.run), 0.5 if run.quick else 2.0)
    p50, p99, p999 = fetches.latencies.percentiles_ms(0.5, 0.99, 0.999)
    fetches.close()
    return Measure(
        "fetches all over it",
        requests_s=part.work.requests * 1e9 / part.wall_ns,
        mb_s=part.work.bytes * 1e3 / part.wall_ns,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        cpu_us_request=part.cpu_ns / 1e3 / part.work.requests,
        cpu_cores=part.cpu_ns / part.wall_ns,
    )
