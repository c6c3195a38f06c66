"""Scenarios of size: idle connections, a start over many partitions, a log of many segments."""

from __future__ import annotations

import contextlib
import resource
import statistics
import threading
import time
from pathlib import Path

from bench import wire
from bench.fetch import evict
from bench.load import Control, Fetches, Pipeline
from bench.method import Subject, Work, alternate, measure, ratio
from bench.processes import Server, apart, broker
from bench.result import Curve, Measure, Result
from bench.scenario import Run

IDLE_CONNECTIONS = 1_500
PARTITIONS = 1_000
PARTITIONS_PER_REQUEST = 100
SEGMENTS = 1_000


def idle_connections(run: Run, result: Result) -> None:
    _raise_open_files(4 * IDLE_CONNECTIONS)
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


def _raise_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
    middle = statistics.median(seconds for seconds, _ in starts)
    result.measures.append(Measure("clean start", rss_mb=starts[0][1] / 1e6))
    result.check(
        f"clean start, {PARTITIONS:,} partitions, {total / 1e9:.0f} GB",
        middle,
        2.0,
        unit="s",
        at_least=False,
        note="all " + ", ".join(f"{seconds:.2f}" for seconds, _ in starts) + f"; with cold log files {cold[0]:.2f}",
    )
    result.check("clean start, RSS", max(rss for _, rss in [*starts, cold]) / 1e6, 120.0, unit="MB", at_least=False)

    load_s = 3.0 if run.quick else 8.0
    acknowledged, written = _kill_under_load(data, topic, batch, records, load_s)
    server = broker(data)
    seconds = server.start(deadline_s=300.0)
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
        note=f"{load_s:.0f} s of load, {written / 1e6:.0f} MB acknowledged, none lost",
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


def _clean_start(data: Path, topic: str, stored: int) -> tuple[float, int]:
    """Seconds and RSS; the log end offsets must add up to what was stored."""
    with broker(data) as server:
        rss = server.rss_bytes()
        control = Control(server.address)
        if control.partition_count(topic) != PARTITIONS:
            raise wire.WireError("partitions are missing after a clean start")
        control.expect_records(topic, PARTITIONS, stored)
        return server.start_s, rss


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


class Growing:
    """Appends of whole segments to one topic, or to a new topic for every slice."""

    def __init__(
        self, server: Server, name: str, batch: bytes, records: int, segment_bytes: int, *, renew: bool
    ) -> None:
        self._server = server
        self._control = Control(server.address)
        self._name = name
        self._batch = batch
        self._work = Work(1, records, len(batch))
        self._segment_bytes = segment_bytes
        self._renew = renew
        self._count = 0
        self.pipeline: Pipeline | None = None

    @property
    def topic(self) -> str:
        return f"{self._name}-{self._count:06d}"

    def prepare(self) -> None:
        if self.pipeline is not None and not self._renew:
            return
        self._control.create_topic(self.topic, 1, {"segment.bytes": str(self._segment_bytes)})
        frames = [wire.produce(i, self.topic, {0: self._batch}, 1) for i in range(10)]
        self.pipeline = Pipeline(self._server.address, frames, self._work)

    def append_segments(self, count: int) -> Work:
        assert self.pipeline is not None
        return self.pipeline.run(120.0, requests=count * self._segment_bytes // len(self._batch))

    def finish(self) -> None:
        """Old topics stay: files made anew from just deleted ones are cheaper than those of a log that grows."""
        if self._renew and self.pipeline is not None:
            self.pipeline.close()
            self._count += 1


def segment_growth(run: Run, result: Result) -> None:
    segment_bytes = 64 * 1024
    batch, records = wire.batch_of_bytes(segment_bytes // 4, 100)
    segments_max = SEGMENTS
    piece = 10 if run.quick else 25
    place = run.directory("segments")
    with broker(place / "data", flush="os") as server:
        grown = Growing(server, "grown", batch, records, segment_bytes, renew=False)
        grown.prepare()
        points: list[tuple[float, float]] = []
        for segments in range(0, segments_max, segments_max // 20):
            part = measure(Subject("grow", server.pid, lambda _: grown.append_segments(segments_max // 20)), 0)
            points.append((segments + segments_max / 20, part.cpu_ns / 1e3 / part.work.records))
        fresh = Growing(server, "fresh", batch, records, segment_bytes, renew=True)
        label = f"append, {segments_max:,} segments"
        subjects = [
            Subject("append, new log", server.pid, lambda _: fresh.append_segments(piece), fresh.prepare, fresh.finish),
            Subject(label, server.pid, lambda _: grown.append_segments(piece)),
        ]
        with apart(server):
            series = alternate(subjects, run.slices)
        count = sum(1 for _ in (place / "data").rglob("grown*/*.log"))
        assert grown.pipeline is not None
        small, large = series["append, new log"], series[label]
        result.add_series(small, unit="records", by_cpu=True)
        result.add_series(large, grown.pipeline.latencies, server.rss_bytes(), unit="records", by_cpu=True)
        Control(server.address).expect_records(grown.topic, 1, grown.pipeline.answered * records)
        reads = _read_everywhere(run, server, grown, records)
        result.measures.append(reads)
    found = ratio(small.per_cpu_s("records"), large.per_cpu_s("records"))
    result.check(
        f"broker CPU a record, log of {segments_max:,} segments, of a new one",
        found.best,
        1.25,
        at_least=False,
        note=f"medians {found.median:.2f}",
    )
    result.curves.append(Curve("Cost of a record while a log grows", "segments", "us of broker CPU a record", points))
    result.notes.append(
        f"segment.bytes {segment_bytes}, four batches of 100 B records each; {count} segments at the end"
    )


def _read_everywhere(run: Run, server: Server, grown: Growing, records: int) -> Measure:
    """Fetches that cross segments, over the whole of the grown log."""
    assert grown.pipeline is not None
    last = grown.pipeline.answered * records
    step = records * 64
    fetches = Fetches(server.address, grown.topic, range(0, last - step, step), 0, smallest=1)
    part = measure(Subject("read", server.pid, fetches.run), 0.5 if run.quick else 2.0)
    p50, p99, p999 = fetches.latencies.percentiles_ms(0.5, 0.99, 0.999)
    fetches.close()
    return Measure(
        "fetch all over it",
        requests_s=part.work.requests * 1e9 / part.wall_ns,
        mb_s=part.work.bytes * 1e3 / part.wall_ns,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        cpu_us_request=part.cpu_ns / 1e3 / part.work.requests,
        cpu_cores=part.cpu_ns / part.wall_ns,
    )
