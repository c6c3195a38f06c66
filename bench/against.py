"""`python -m bench.against [REVISION] [--quick]`: this version of the broker against another one, by CPU per request.

Without a revision it is the commit of bench/baseline, whose figures no later version may fall 10 % below.

Both versions run at the same time, each in its own process with its own data, under the same load, in alternating slices.
The figure of a workload is the median over the pairs of neighbouring slices of (requests per CPU second here) / (there);
the spread is the middle half of these ratios. A workload is slower when even the upper quartile is below 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from bench import group_wire, report, wire
from bench.dialect_frames import FRAMES, Frames, check_minikafka, minikafka_produce
from bench.dialects import CONNECTIONS, LISTENERS, RECORD_BYTES, fill_for_reads, prefill, readers, value_of_size
from bench.fetch import fill
from bench.load import FETCH_BYTES, Control, Fetches, Pipeline, Swarm, receive_line
from bench.method import Series, Subject, Work, alternate
from bench.processes import ROOT, Server, dialect_broker
from bench.result import Result
from bench.scenario import WORKSPACES, Run

Load = Callable[[float], Work]
Workload = tuple[str, Callable[[Server], Load]]

FETCHED_BYTES = 64 * FETCH_BYTES


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """The tree of `revision` in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="against-", dir=WORKSPACES) as place:
        archive = Path(place) / "tree.tar"
        subprocess.run(["git", "archive", "-o", str(archive), revision, "src"], cwd=ROOT, check=True)
        subprocess.run(["tar", "-xf", str(archive), "-C", place], check=True)
        yield Path(place)


def server_of(tree: Path, data_dir: Path, flush: str) -> Server:
    """The broker with the sources of `tree`."""
    server = dialect_broker(data_dir, flush, "leader", *LISTENERS, "minikafka")
    server.settings["PYTHONPATH"] = str(tree / "src")
    return server


# ------------------------------------------------------------------------------------------------------------- workloads


def _single_produce(server: Server) -> Load:
    Control(server.address).create_topic("single")
    batch = wire.batch(1, RECORD_BYTES)
    return Pipeline(
        server.address, [wire.produce(i, "single", {0: batch}, 1) for i in range(100)], Work(1, 1, len(batch))
    ).run


def _connections(server: Server) -> Load:
    Control(server.address).create_topic("connections")
    batch = wire.batch(1, RECORD_BYTES)
    frames = [wire.produce(i, "connections", {0: batch}, 1) for i in range(CONNECTIONS)]
    return Swarm(server.address, frames, Work(1, 1, len(batch))).run


def _bulk_produce(server: Server) -> Load:
    Control(server.address).create_topic("bulk", 1, {"retention.bytes": "268435456", "segment.bytes": "67108864"})
    batch, records = wire.batch_of_bytes(100_000, 100)
    frames = [wire.produce(i, "bulk", {0: batch}, 1) for i in range(10)]
    return Pipeline(server.address, frames, Work(1, records, len(batch))).run


def _many_partitions(server: Server) -> Load:
    Control(server.address).create_topic("spread", CONNECTIONS)
    batch = wire.batch(10, RECORD_BYTES)
    frames = [wire.produce(i, "spread", dict.fromkeys(range(CONNECTIONS), batch), 1) for i in range(10)]
    return Pipeline(server.address, frames, Work(1, 10 * CONNECTIONS, len(batch) * CONNECTIONS)).run


def _bulk_fetch(server: Server) -> Load:
    records = fill(server, "warm", FETCHED_BYTES)
    offsets = [i * records for i in range(FETCHED_BYTES // FETCH_BYTES)]
    return Fetches(server.address, "warm", offsets, records, window=1).run


def _durable_produce(server: Server) -> Load:
    Control(server.address).create_topic("durable", 1)
    batch = wire.batch(1, RECORD_BYTES)
    frames = [wire.produce(i, "durable", {0: batch}, wire.ACKS_ALL) for i in range(CONNECTIONS)]
    return Swarm(server.address, frames, Work(1, 1, len(batch))).run


def _commits(server: Server) -> Load:
    Control(server.address).create_topic("commits", CONNECTIONS)
    frames = [group_wire.offset_commit(i, f"group-{i:02d}", "commits", {i: i}) for i in range(CONNECTIONS)]
    return Swarm(server.address, frames, Work(1, 1, len(frames[0])), group_wire.check_commit).run


def _minikafka(server: Server) -> Load:
    prefill(server, "minikafka", 4)
    value = value_of_size()
    requests = [minikafka_produce("minikafka", f"key-{i:02d}", value) for i in range(CONNECTIONS)]
    work = Work(1, 1, len(value))
    return Swarm(server.addresses["minikafka"], requests, work, check_minikafka, receive_line).run


def _window(frames: Frames) -> Callable[[Server], Load]:
    def load(server: Server) -> Load:
        topic = f"window-{frames.name.replace(' ', '-')}"
        Control(server.address).create_topic(topic)
        value = value_of_size()
        requests = [frames.produce(topic, value)] * 100
        address = server.addresses[frames.listener]
        return Pipeline(address, requests, Work(1, 1, len(value)), frames.check_produced, frames.receive).run

    return load


def _reads(frames: Frames) -> Callable[[Server], Load]:
    def load(server: Server) -> Load:
        topic = f"reads-{frames.name.replace(' ', '-')}"
        fill_for_reads(server, topic, 4_000, 10, wire.PLAIN)
        return readers(server.addresses[frames.listener], frames, topic, 40_000).run

    return load


WRITES: Sequence[Workload] = (
    ("single-record Produce, window of 100", _single_produce),
    ("Produce, 16 connections, one in flight", _connections),
    ("Produce of 100 KB batches", _bulk_produce),
    ("Produce of 16 partitions, window of 10", _many_partitions),
    ("Fetch of 1 MiB", _bulk_fetch),
    ("minikafka, 16 connections", _minikafka),
    *((f"{frames.name}, produce, window of 100", _window(frames)) for frames in FRAMES),
    *((f"{frames.name}, single reads, 16 connections", _reads(frames)) for frames in FRAMES),
)
DURABLE: Sequence[Workload] = (
    ("Produce with acks=all, 16 connections", _durable_produce),
    ("OffsetCommit, 16 connections", _commits),
)


# ------------------------------------------------------------------------------------------------------------- comparing


def compare(run: Run, result: Result, revision: str, tree: Path) -> None:
    for flush, workloads in (("os", WRITES), ("acks", DURABLE)):
        place = run.directory(f"flush-{flush}")
        with ExitStack() as stack:
            here = stack.enter_context(server_of(ROOT, place / "here", flush))
            there = stack.enter_context(server_of(tree, place / "there", flush))
            for name, load in workloads:
                subjects = [
                    Subject(f"{name}, here", here.pid, load(here)),
                    Subject(f"{name}, there", there.pid, load(there)),
                ]
                series = alternate(subjects, run.slices, run.slice_s)
                _judge(result, name, *(series[subject.name] for subject in subjects))
    result.notes.append(f"there: {revision}; requests per CPU second of the broker, pairs of neighbouring slices")


def _judge(result: Result, name: str, here: Series, there: Series) -> None:
    pairs = zip(here.slices, there.slices, strict=True)
    ratios = [(a.work.requests / a.cpu_ns) / (b.work.requests / b.cpu_ns) for a, b in pairs]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    result.add_series(here, by_cpu=True)
    result.add_series(there, by_cpu=True, reference=True)
    result.check(
        f"{name}, upper quartile of here / there",
        high,
        1.0,
        note=f"median {median:.3f}, middle half {low:.3f}-{high:.3f}",
    )


def _baseline() -> str:
    return str(json.loads((ROOT / "bench" / "baseline" / "figures.json").read_text())["commit"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Compare two versions of the broker.")
    parser.add_argument(
        "revision", nargs="?", default=_baseline(), help="commit to compare with (default: the baseline)"
    )
    parser.add_argument("--quick", action="store_true", help="shorter slices; results go to bench/results/quick/")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", options.revision], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    result = Result("against", f"Against {commit}, by CPU per request", options.quick)
    WORKSPACES.mkdir(exist_ok=True)
    with checked_out(commit) as tree, tempfile.TemporaryDirectory(prefix="bench-", dir=WORKSPACES) as place:
        compare(Run(options.quick, Path(place)), result, commit, tree)
    result.save()
    report.show_checks([result], Console())
    return 0 if all(check.holds for check in result.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
