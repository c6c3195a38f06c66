"""Scenarios of writing: bulk, single records, many connections, and acks=all on disk."""

from __future__ import annotations

import os
import time
from functools import partial

from bench import wire
from bench.load import Check, Control, Pipeline, Swarm, unchecked
from bench.method import Latencies, Series, Subject, Work, alternate, ratio
from bench.processes import Address, Server, apart, broker, reference
from bench.result import Measure, Result
from bench.scenario import Run

SINGLE_RECORD_BYTES = 100
_TRAILING_TAGS = 3


class Renewed:
    """A pipeline on a log of its own for every slice: neither side pays for deleting what the last slice wrote."""

    def __init__(self, address: Address, control: Control | None, batch: bytes, records: int, window: int) -> None:
        self._address = address
        self._control = control
        self._batch = batch
        self._work = Work(1, records, len(batch))
        self._window = window
        self._count = 0
        self._pipeline: Pipeline | None = None
        self.latencies = Latencies()

    def topic(self) -> str:
        return f"bulk-{self._count:06d}"

    def prepare(self) -> None:
        check: Check = unchecked
        if self._control is not None:
            self._control.create_topic(self.topic(), 1, {"file.delete.delay.ms": "0"})
            check = wire.check_produce
        frames = [wire.produce(i, self.topic(), {0: self._batch}, 1) for i in range(self._window)]
        self._pipeline = Pipeline(self._address, frames, self._work, check)
        self._pipeline.latencies = self.latencies

    def work(self, seconds: float) -> Work:
        assert self._pipeline is not None
        return self._pipeline.run(seconds)

    def finish(self) -> None:
        assert self._pipeline is not None
        self._pipeline.close()
        if self._control is not None:
            self._control.expect_records(self.topic(), 1, self._pipeline.answered * self._work.records)
            self._control.delete_topic(self.topic())
        self._count += 1

    def subject(self, name: str, server: Server) -> Subject:
        return Subject(name, server.pid, self.work, self.prepare, self.finish)


def bulk_produce(run: Run, result: Result) -> None:
    shapes = [
        ("100 KB", "100 KB batches of 100 B", 100_000, 100, 10),
        ("1 MB", "1 MB batches of 1 KB", 1_000_000, 1_000, 5),
    ]
    for short, label, batch_bytes, value_bytes, window in shapes:
        batch, records = wire.batch_of_bytes(batch_bytes, value_bytes)
        frame = wire.produce(0, "bulk-000000", {0: batch}, 1)
        answer = wire.produce_answer(0, "bulk-000000", [0])
        batch_start = len(frame) - len(batch) - _TRAILING_TAGS - 4
        place = run.directory(f"bulk-{batch_bytes}")
        with (
            broker(place / "data", flush="os") as server,
            reference("sink", place, str(batch_start), answer.hex()) as sink,
        ):
            control = Control(server.address)
            ours = Renewed(server.address, control, batch, records, window)
            limit = Renewed(sink.address, None, batch, records, window)
            subjects = [ours.subject(f"broker, {short}", server), limit.subject(f"limit, {short}", sink)]
            with apart(server, sink):
                series = alternate(subjects, run.slices, run.slice_s)
            a, b = (series[subject.name] for subject in subjects)
            result.add_series(a, ours.latencies, server.rss_bytes(), unit="bytes", by_cpu=True)
            result.add_series(b, limit.latencies, sink.rss_bytes(), unit="bytes", by_cpu=True, reference=True)
            found = ratio(a.per_cpu_s("bytes"), b.per_cpu_s("bytes"))
            result.check(
                f"bulk produce, {label}, per broker CPU second, of recv+CRC+write",
                found.best,
                0.6,
                note=f"medians {found.median:.2f}",
            )
            control.close()
    result.notes.append("limit: recv + CRC + write; acks=1, flush=os; a log, or a file, of its own for every slice")


def single_produce(run: Run, result: Result) -> None:
    batch = wire.batch(1, SINGLE_RECORD_BYTES)
    topic = "single"
    frames = [wire.produce(i, topic, {0: batch}, 1) for i in range(100)]
    work = Work(1, 1, len(batch))
    place = run.directory("single")
    with (
        broker(place / "data", flush="os") as server,
        reference("echo", place, wire.produce_answer(0, topic, [0]).hex()) as echo,
    ):
        control = Control(server.address)
        control.create_topic(topic)
        ours = Pipeline(server.address, frames, work)
        theirs = Pipeline(echo.address, frames, work, unchecked)
        subjects = [Subject("broker", server.pid, ours.run), Subject("E", echo.pid, theirs.run)]
        series = alternate(subjects, run.slices, run.slice_s)
        measure = result.add_series(series["broker"], ours.latencies, server.rss_bytes())
        result.add_series(series["E"], theirs.latencies, echo.rss_bytes(), reference=True)
        _against_echo(result, series, "single-record Produce, window of 100", 0.5)
        _cpu_check(result, measure, series["broker"])
        control.expect_records(topic, 1, ours.answered)
    result.notes.append("one connection, one record of 100 B a request, acks=1, flush=os")


def _cpu_check(result: Result, measure: Measure, series: Series) -> None:
    assert measure.cpu_us_request is not None
    result.check(
        "single-record Produce, window of 100, broker CPU a request",
        measure.cpu_us_request,
        15.0,
        unit="us",
        at_least=False,
        note=f"median {1e6 / series.per_cpu_s('requests').median:.1f}",
    )


def _against_echo(result: Result, series: dict[str, Series], what: str, bar: float) -> None:
    found = ratio(series["broker"].per_s("requests"), series["E"].per_s("requests"))
    by_cpu = ratio(series["broker"].per_cpu_s("requests"), series["E"].per_cpu_s("requests"))
    note = f"medians {found.median:.2f}; by CPU second {by_cpu.best:.2f}"
    result.check(f"{what}, requests/s of E", found.best, bar, note=note)


def connections(run: Run, result: Result) -> None:
    batch = wire.batch(1, SINGLE_RECORD_BYTES)
    topic = "connections"
    frames = [wire.produce(i, topic, {0: batch}, 1) for i in range(16)]
    work = Work(1, 1, len(batch))
    place = run.directory("connections")
    with (
        broker(place / "data", flush="os") as server,
        reference("echo", place, wire.produce_answer(0, topic, [0]).hex()) as echo,
    ):
        control = Control(server.address)
        control.create_topic(topic)
        ours = Swarm(server.address, frames, work)
        theirs = Swarm(echo.address, frames, work, unchecked)
        subjects = [Subject("broker", server.pid, ours.run), Subject("E", echo.pid, theirs.run)]
        series = alternate(subjects, run.slices, run.slice_s)
        result.add_series(series["broker"], ours.latencies, server.rss_bytes())
        result.add_series(series["E"], theirs.latencies, echo.rss_bytes(), reference=True)
        _against_echo(result, series, "16 connections, one request in flight each", 0.3)
        control.expect_records(topic, 1, ours.answered)
    result.notes.append("one record of 100 B a request, one partition, acks=1, flush=os")


def durable_produce(run: Run, result: Result) -> None:
    batch = wire.batch(1, SINGLE_RECORD_BYTES)
    work = Work(1, 1, len(batch))
    shapes = [("1 producer", 1, 1), ("16 producers", 16, 1), ("64 producers", 64, 1), ("16 on 16 partitions", 16, 16)]
    place = run.directory("durable")
    with broker(place / "data", flush="acks") as server:
        control = Control(server.address)
        swarms: dict[str, Swarm] = {}
        for index, (label, producers, partitions) in enumerate(shapes):
            topic = f"durable-{index}"
            control.create_topic(topic, partitions)
            frames = [wire.produce(i, topic, {i % partitions: batch}, wire.ACKS_ALL) for i in range(producers)]
            swarms[label] = Swarm(server.address, frames, work)
        subjects = [Subject(label, server.pid, swarm.run) for label, swarm in swarms.items()]
        raw = partial(_raw_flushes, place / "raw.data", batch)
        subjects.append(Subject("write+fdatasync", os.getpid(), raw))
        series = alternate(subjects, run.slices, run.slice_s)
        for index, (label, _, partitions) in enumerate(shapes):
            control.expect_records(f"durable-{index}", partitions, swarms[label].answered)
        for label, swarm in swarms.items():
            result.add_series(series[label], swarm.latencies, server.rss_bytes())
        result.add_series(series["write+fdatasync"], reference=True)
    one = series["1 producer"].per_s("requests")
    for label, bar in (("16 producers", 5.0), ("64 producers", 9.0), ("16 on 16 partitions", 3.0)):
        found = ratio(series[label].per_s("requests"), one)
        result.check(f"acks=all on disk, {label}, of 1", found.best, bar, note=f"medians {found.median:.2f}")
    result.notes.append("one record of 100 B a request, one in flight a producer, flush=acks")
    result.notes.append("write+fdatasync: a plain loop in one process on the same file system")


def _raw_flushes(path: os.PathLike[str], data: bytes, seconds: float) -> Work:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        end = time.perf_counter() + seconds
        count = 0
        while time.perf_counter() < end:
            os.write(file, data)
            os.fdatasync(file)
            count += 1
    finally:
        os.close(file)
    return Work(count, count, count * len(data))
