"""Scenario of log cleaning: how much memory the cleaning process takes, and what appends feel of it.

The broker's child is stopped and continued by signals between the slices, so that the same appends to the same log are
measured with it at work and at rest, in turns.
"""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import time
from pathlib import Path

from bench import wire
from bench.load import Control, Pipeline
from bench.method import Subject, Work, alternate, cpu_ns, peak_rss_bytes, ratio
from bench.processes import Server, ServerError, broker
from bench.result import Measure, Result
from bench.scenario import Run

TOPIC = "compacted"
RECORDS_PER_BATCH = 1_000
ROUNDS = 10
START_S_MAX = 60.0
CLEAN_S_MAX = 1_800.0
_CLEANED = re.compile(rb"cleaned " + TOPIC.encode() + rb"-0 up to offset (\d+)")
_COUNT_OFFSET = 57
_HEADER_BYTES = 61


def _key(number: int) -> bytes:
    return b"%010d" % number


def compaction(run: Run, result: Result) -> None:
    keys = 100_000 if run.quick else 1_000_000
    segment_bytes = (8 if run.quick else 64) * 1024 * 1024
    run.need_bytes(4 * keys * ROUNDS * 130)
    place = run.directory("compaction")
    data = place / "data"
    with broker(data, flush="os") as server:
        control = Control(server.address)
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(segment_bytes),
            "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": "0",
        }
        control.create_topic(TOPIC, 1, configs)
        filled, fill_s = _fill(server, keys)
        logs = data / f"{TOPIC}-0"
        active = max(int(path.stem) for path in logs.glob("*.log"))
        child = _child_at_work(server)
        os.kill(child, signal.SIGSTOP)
        try:
            _appends(run, result, server, child, keys)
        finally:
            os.kill(child, signal.SIGCONT)
        begin = time.perf_counter()
        _wait_until_cleaned(server, active)
        waited = time.perf_counter() - begin
        peak = peak_rss_bytes(child)
        cpu_s = cpu_ns(child) / 1e9
        left = sum(_records_in(path) for path in logs.glob("*.log") if int(path.stem) < active)
        if not keys // 2 < left <= keys:
            raise wire.WireError(f"{left} records of {keys} keys are left of {filled}")
        result.measures.append(Measure("filling", records_s=filled / fill_s))
        result.measures.append(Measure("cleaner", records_s=filled / cpu_s, rss_mb=peak / 1e6))
    result.check(
        f"cleaning {filled:,} records of {keys:,} keys, peak RSS of the cleaner",
        peak / 1e6,
        200.0,
        unit="MB",
        at_least=False,
        note=f"{left:,} records stay; {cpu_s:.0f} s of its CPU, {waited:.0f} s after the load ended",
    )
    result.notes.append(
        "keys of 10 B, values of 100 B, batches of 1,000; appends: single records, window of 100, acks=1"
    )


def _fill(server: Server, keys: int) -> tuple[int, float]:
    """Every key ten times, in an order of no order; the records, and the seconds it took."""
    order = list(range(keys))
    random.Random(1).shuffle(order)
    value = bytes(range(33, 127)) + b"......"
    frames = []
    for start in range(0, keys, RECORDS_PER_BATCH):
        some = [_key(number) for number in order[start : start + RECORDS_PER_BATCH]]
        frames.append(wire.produce(0, TOPIC, {0: wire.batch_of([value] * len(some), some)}, 1))
    begin = time.perf_counter()
    answered = 0
    for _ in range(ROUNDS):
        for start in range(0, len(frames), 10):
            pipeline = Pipeline(server.address, frames[start : start + 10], Work(1, RECORDS_PER_BATCH, 0), _any_order)
            pipeline.run(120.0, requests=9)
            answered += pipeline.answered
            pipeline.close()
    return answered * RECORDS_PER_BATCH, time.perf_counter() - begin


def _any_order(frame: memoryview, _index: int) -> None:
    wire.check_produce(frame, 0)


def _child_at_work(server: Server) -> int:
    """The cleaning process, once it cleans; the broker looks for work every few seconds."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                pid = int(path.parent.name)
                if parent == server.pid and cpu_ns(pid) > 300_000_000:
                    return pid
            except (FileNotFoundError, ProcessLookupError):
                continue
        time.sleep(0.05)
    raise ServerError(f"no log cleaning began in {START_S_MAX:.0f} s")


def _appends(run: Run, result: Result, server: Server, child: int, keys: int) -> None:
    batches = [wire.batch_of([b"v" * 100], [_key(number)]) for number in random.Random(2).sample(range(keys), 100)]
    frames = [wire.produce(i, TOPIC, {0: batch}, 1) for i, batch in enumerate(batches)]
    work = Work(1, 1, len(batches[0]))
    pipeline = Pipeline(server.address, frames, work)
    spent: list[int] = []

    def resume() -> None:
        spent.append(-cpu_ns(child))
        os.kill(child, signal.SIGCONT)

    def pause() -> None:
        os.kill(child, signal.SIGSTOP)
        spent.append(cpu_ns(child))

    subjects = [
        Subject("cleaner at rest", server.pid, pipeline.run),
        Subject("cleaner at work", server.pid, pipeline.run, resume, pause),
    ]
    series = alternate(subjects, run.slices, run.slice_s)
    for subject in subjects:
        result.add_series(series[subject.name], pipeline.latencies)
    idle, busy = series["cleaner at rest"], series["cleaner at work"]
    found = ratio(busy.per_s("requests"), idle.per_s("requests"))
    by_cpu = ratio(busy.per_cpu_s("requests"), idle.per_cpu_s("requests"))
    cores = sum(spent) * 1e-9 / (len(busy.slices) * run.slice_s)
    if cores <= 0.001:
        raise ServerError("the cleaner did nothing while appends were measured")
    note = f"medians {found.median:.2f}; by CPU second {by_cpu.best:.2f}; the cleaner took {cores:.2f} cores"
    result.check("appends to a topic under compaction, of their idle rate", found.best, 0.75, note=note)


def _wait_until_cleaned(server: Server, offset: int) -> None:
    deadline = time.monotonic() + CLEAN_S_MAX
    while time.monotonic() < deadline:
        done = _CLEANED.findall(server.log.read_bytes())
        if done and int(done[-1]) >= offset:
            return
        time.sleep(0.2)
    raise ServerError(f"the log was not cleaned up to offset {offset} in {CLEAN_S_MAX:.0f} s")


def _records_in(path: Path) -> int:
    """By the batches' own counts."""
    data = path.read_bytes()
    at = count = 0
    while at + _HEADER_BYTES <= len(data):
        count += struct.unpack_from(">i", data, at + _COUNT_OFFSET)[0]
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return count
