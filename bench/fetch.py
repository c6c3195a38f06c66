"""Scenarios of reading: warm against sendfile, and cold with an eye on everybody else."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from functools import partial
from pathlib import Path

from bench import wire
from bench.load import FETCH_BYTES, Control, Fetches, Pipeline
from bench.method import Latencies, Subject, Work, alternate, measure, ratio
from bench.pings import Pings
from bench.processes import Server, apart, broker, reference
from bench.result import Measure, Result
from bench.scenario import Run

_BATCHES_PER_FETCH = 8
_RECORD_BYTES = 1_000


def fill(server: Server, topic: str, size: int) -> int:
    """A log of `size` bytes in batches of which eight fill a fetch exactly; gives the records of one fetch."""
    batch, records = wire.batch_of_bytes(FETCH_BYTES // _BATCHES_PER_FETCH, _RECORD_BYTES)
    Control(server.address).create_topic(topic)
    frames = [wire.produce(i, topic, {0: batch}, 1) for i in range(8)]
    pipeline = Pipeline(server.address, frames, Work(1, records, len(batch)))
    pipeline.run(600.0, requests=size // len(batch) - 1)
    pipeline.close()
    return records * _BATCHES_PER_FETCH


def _framed(frame: memoryview, correlation_id: int, offset: int) -> None:
    """The sendfile reference answers whole frames of 1 MiB, whatever is asked."""
    if len(frame) != FETCH_BYTES or struct.unpack_from(">I", frame)[0] != FETCH_BYTES - 4:
        raise wire.WireError(f"the reference answered {len(frame)} bytes")


def bulk_fetch(run: Run, result: Result) -> None:
    size = (64 if run.quick else 512) * FETCH_BYTES
    place = run.directory("fetch")
    with broker(place / "data", flush="os") as server, reference("sendfile", place, str(size)) as sender:
        records = fill(server, "warm", size)
        offsets = [i * records for i in range(size // FETCH_BYTES)]
        ours = Fetches(server.address, "warm", offsets, records, window=1)
        theirs = Fetches(sender.address, "warm", offsets, records, window=1, check=_framed)
        ours.run(60.0, requests=len(offsets))
        ours.latencies.clear()
        subjects = [Subject("broker", server.pid, ours.run), Subject("sendfile", sender.pid, theirs.run)]
        with apart(server, sender):
            series = alternate(subjects, run.slices, run.slice_s)
        result.add_series(series["broker"], ours.latencies, server.rss_bytes(), unit="bytes", by_cpu=True)
        result.add_series(
            series["sendfile"], theirs.latencies, sender.rss_bytes(), unit="bytes", by_cpu=True, reference=True
        )
        both = ratio(series["broker"].per_total_cpu_s("bytes"), series["sendfile"].per_total_cpu_s("bytes"))
        found = ratio(series["broker"].per_cpu_s("bytes"), series["sendfile"].per_cpu_s("bytes"))
        result.check(
            "bulk fetch, warm, per broker CPU second, of sendfile",
            found.best,
            0.5,
            note=f"medians {found.median:.2f}; by CPU second of both sides {both.best:.2f}",
        )
    result.notes.append("fetches of 1 MiB through the whole log, one in flight, batches of 128 KiB")


def evict(directory: Path) -> float:
    """Drop the pages of every log file under `directory`; gives the share of sampled pages that is really gone."""
    gone = sampled = 0
    for path in sorted(directory.rglob("*.log")):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(file).st_size
            for place in range(0, size - 4096, 1024 * 1024):
                sampled += 1
                gone += _is_cold(file, place)
        finally:
            os.close(file)
    return gone / sampled if sampled else 1.0


def _is_cold(file: int, place: int) -> bool:
    try:
        os.preadv(file, [bytearray(1)], place, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return True
    return False


def cold_fetch(run: Run, result: Result) -> None:
    size = (128 if run.quick else 1024) * FETCH_BYTES
    rounds = 2 if run.quick else 5
    place = run.directory("cold")
    with broker(place / "data", flush="os") as server:
        records = fill(server, "cold", size)
        offsets = [i * records for i in range(size // FETCH_BYTES)]
        with Pings(server.address) as idle:
            time.sleep(1.0 if run.quick else 5.0)
        warm_fetches = Fetches(server.address, "cold", offsets, records)
        warm_fetches.run(120.0, requests=len(offsets))
        with Pings(server.address) as warm:
            warm_fetches.run(1.0 if run.quick else 5.0)
        warm_fetches.close()

        shares: list[float] = []
        p99s: list[float] = []
        latencies = Latencies()
        order = random.Random(1)
        bytes_read = wall = cpu = 0.0
        for _ in range(rounds):
            order.shuffle(offsets)  # in order, read-ahead would warm what comes next
            shares.append(evict(place))
            fetches = Fetches(server.address, "cold", offsets, records)
            fetches.latencies = latencies
            once = Subject("cold", server.pid, partial(fetches.run, requests=len(offsets)))
            with Pings(server.address) as pings:
                part = measure(once, 120.0)
            fetches.close()
            p99s.append(pings.percentiles_ms["p99"])
            bytes_read += part.work.bytes
            wall += part.wall_ns / 1e9
            cpu += part.cpu_ns / 1e9
        p50, p99, p999 = latencies.percentiles_ms(0.5, 0.99, 0.999)
        result.measures.append(
            Measure(
                "cold fetch",
                requests_s=len(latencies.values_ns) / wall,
                mb_s=bytes_read / wall / 1e6,
                mb_cpu_s=bytes_read / cpu / 1e6,
                p50_ms=p50,
                p99_ms=p99,
                p999_ms=p999,
                cpu_cores=cpu / wall,
                rss_mb=server.rss_bytes() / 1e6,
            )
        )
    for name, one in (("pings, broker idle", idle), ("pings, warm fetch", warm), ("pings, last cold round", pings)):
        found = one.percentiles_ms
        result.measures.append(Measure(name, p50_ms=found["p50"], p99_ms=found["p99"], p999_ms=found["p999"]))
    result.notes.append(f"pings: {idle.count} idle, {warm.count} beside warm, {pings.count} in the last cold round")
    lag = sorted(p99s)[len(p99s) // 2] - idle.percentiles_ms["p99"]
    result.check(
        "cold fetch, event-loop lag p99 (pings beside it, less idle ones)",
        max(lag, 0.0),
        5.0,
        unit="ms",
        at_least=False,
        note="rounds " + ", ".join(f"{value:.2f}" for value in p99s),
    )
    result.notes.append(f"{size / 1e6:.0f} MB in random order; {min(shares):.0%} of sampled pages were cold before")
