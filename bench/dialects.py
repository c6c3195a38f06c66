"""Scenarios of the five dialects: produces in windows, on disk and over many connections; connections for one message;
reads of single records; JSON."""

from __future__ import annotations

import os
import random
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench import wire
from bench.dialect_frames import (
    FRAMES,
    Frames,
    check_json,
    check_minikafka,
    json_produce,
    minikafka_produce,
    minikafka_produced,
)
from bench.load import Control, Pipeline, Swarm, receive_line
from bench.method import Latencies, Series, Subject, Work, alternate, ratio
from bench.processes import Address, Server, dialect_broker, reference
from bench.references import JsonAnswer, JsonRequest, Offsets
from bench.result import Result
from bench.scenario import Run

RECORD_BYTES = 100
CONNECTIONS = 16
TOGETHER_SLICES = 2
"""Times as many slices where all dialects take turns: they last for minutes, and each needs its share of good moments."""
LISTENERS = ("fluxgo", "rustlog", "day1", "flymq")

SEVEN_DIGITS = 1_000_000
"""Answers in text grow with the offset. The load counts answers by size, so their topics begin with so many records."""


def value_of_size(size: int = RECORD_BYTES) -> bytes:
    return (bytes(range(33, 127)) * (size // 94 + 1))[:size]


def _echo(place: Path, frames: Frames, answer: bytes) -> Server:
    return reference("echo", place, answer.hex(), str(frames.head_bytes))


def _compare(result: Result, ours: Series, theirs: Series, what: str, bar: float) -> None:
    found = ratio(ours.per_s("requests"), theirs.per_s("requests"))
    by_cpu = ratio(ours.per_cpu_s("requests"), theirs.per_cpu_s("requests"))
    note = f"medians {found.median:.2f}; by CPU second {by_cpu.best:.2f}"
    result.check(f"{what}, requests/s of E", found.best, bar, note=note)


def prefill(server: Server, topic: str, partitions: int) -> int:
    """A topic whose offsets have seven digits from now on; gives how many records it has."""
    Control(server.address).create_topic(topic, partitions)
    batch = wire.batch(10_000, 1)
    frames = [wire.produce(0, topic, dict.fromkeys(range(partitions), batch), 1)]
    pipeline = Pipeline(server.address, frames, Work(1, 10_000, len(batch)))
    pipeline.run(120.0, requests=SEVEN_DIGITS // 10_000 - 1)
    pipeline.close()
    return partitions * SEVEN_DIGITS


# ------------------------------------------------------------------------------------------------------------- produce


def produce_in_thousands(run: Run, result: Result) -> None:
    _produce_in_windows(run, result, 1_000, 2.0)


def produce_in_hundreds(run: Run, result: Result) -> None:
    _produce_in_windows(run, result, 100, 1.5)


def _produce_in_windows(run: Run, result: Result, window: int, bar: float) -> None:
    value = value_of_size()
    place = run.directory("windows")
    with dialect_broker(place / "data", "os", "leader", *LISTENERS) as server:
        control = Control(server.address)
        for number, frames in enumerate(FRAMES):
            topic = f"windows-{number}"
            control.create_topic(topic)
            with _echo(place, frames, frames.produced(topic, value)) as echo:
                requests = [frames.produce(topic, value)] * window
                work = Work(1, 1, len(value))
                address = server.addresses[frames.listener]
                ours = Pipeline(address, requests, work, frames.check_produced, frames.receive)
                theirs = Pipeline(echo.address, requests, work, frames.check_produced, frames.receive)
                subjects = [
                    Subject(frames.name, server.pid, ours.run),
                    Subject(f"E for {frames.name}", echo.pid, theirs.run),
                ]
                series = alternate(subjects, run.slices, run.slice_s)
                broker, limit = (series[subject.name] for subject in subjects)
                result.add_series(broker, ours.latencies, server.rss_bytes())
                result.add_series(limit, theirs.latencies, reference=True)
                _compare(result, broker, limit, f"{frames.name}, produce, window of {window:,}", bar)
                ours.close()
                theirs.close()
            control.expect_records(topic, 1, ours.answered)
    result.notes.append("one connection, one record of 100 B a request, acks=leader, flush=os; E cuts the same frames")


def durable_windows(run: Run, result: Result) -> None:
    value = value_of_size()
    work = Work(1, 1, len(value))
    place = run.directory("durable")
    with dialect_broker(place / "data", "acks", "all", *LISTENERS) as server:
        control = Control(server.address)
        for number, frames in enumerate(FRAMES):
            address = server.addresses[frames.listener]
            pipelines: dict[str, Pipeline] = {}
            for label, window in (("one at a time", 1), ("window of 100", 100)):
                topic = f"durable-{number}-{window}"
                control.create_topic(topic)
                requests = [frames.produce(topic, value)] * window
                pipelines[label] = Pipeline(address, requests, work, frames.check_produced, frames.receive)
            subjects = [Subject(f"{frames.name}, {label}", server.pid, p.run) for label, p in pipelines.items()]
            series = alternate(subjects, run.slices, run.slice_s)
            one, many = (series[subject.name] for subject in subjects)
            for found, pipeline in zip((one, many), pipelines.values(), strict=True):
                result.add_series(found, pipeline.latencies, server.rss_bytes())
            for pipeline, window in zip(pipelines.values(), (1, 100), strict=True):
                control.expect_records(f"durable-{number}-{window}", 1, pipeline.answered)
                pipeline.close()
            _durable_check(result, frames.name, one, many)
    result.notes.append("one connection, one record of 100 B a request, acks=all, flush=acks")
    result.notes.append(
        "the bar is 20,000/s, or, on a disk that is slower than that, 10 times the rate of one at a time"
    )


def _durable_check(result: Result, name: str, one: Series, many: Series) -> None:
    rate = many.per_s("requests")
    times = ratio(rate, one.per_s("requests"))
    what = f"{name}, acks=all, window of 100"
    if rate.best >= 20_000 or times.best < 10:
        result.check(what, rate.best, 20_000, unit="/s", note=f"{times.best:.1f} times one at a time")
    else:
        result.check(
            f"{what}, of one at a time", times.best, 10.0, note=f"{rate.best:,.0f}/s; medians {times.median:.1f}"
        )


# --------------------------------------------------------------------------------------------------------- connections


def connections(run: Run, result: Result) -> None:
    value = value_of_size()
    work = Work(1, 1, len(value))
    place = run.directory("connections")
    with ExitStack() as stack:
        server = stack.enter_context(dialect_broker(place / "data", "os", "leader", *LISTENERS, "minikafka"))
        control = Control(server.address)
        stored = prefill(server, "minikafka", 4)
        requests = [minikafka_produce("minikafka", f"key-{i:02d}", value) for i in range(CONNECTIONS)]
        swarms = {"minikafka": Swarm(server.addresses["minikafka"], requests, work, check_minikafka, receive_line)}
        subjects = [Subject("minikafka", server.pid, swarms["minikafka"].run)]
        for frames in FRAMES:
            topic = _topic_of(frames)
            control.create_topic(topic)
            echo = stack.enter_context(_echo(place, frames, frames.produced(topic, value)))
            requests = [frames.produce(topic, value)] * CONNECTIONS
            for name, address, pid in (
                (frames.name, server.addresses[frames.listener], server.pid),
                (f"E for {frames.name}", echo.address, echo.pid),
            ):
                swarms[name] = Swarm(address, requests, work, frames.check_produced, frames.receive)
                subjects.append(Subject(name, pid, swarms[name].run))
        series = alternate(subjects, TOGETHER_SLICES * run.slices, run.slice_s)
        for frames in FRAMES:
            broker, limit = series[frames.name], series[f"E for {frames.name}"]
            result.add_series(broker, swarms[frames.name].latencies, server.rss_bytes())
            result.add_series(limit, swarms[f"E for {frames.name}"].latencies, reference=True)
            _compare(result, broker, limit, f"{frames.name}, 16 connections, one in flight", 0.3)
            control.expect_records(_topic_of(frames), 1, swarms[frames.name].answered)
        result.add_series(series["minikafka"], swarms["minikafka"].latencies, server.rss_bytes())
        cost = ratio(series["fluxgo"].per_cpu_s("requests"), series["minikafka"].per_cpu_s("requests"))
        result.check(
            "minikafka, 16 connections, broker CPU a request, of fluxgo's",
            cost.best,
            1.5,
            at_least=False,
            note=f"medians {cost.median:.2f}",
        )
        control.expect_records("minikafka", 4, stored + swarms["minikafka"].answered)
        for swarm in swarms.values():
            swarm.close()
    result.notes.append("one record of 100 B a request, acks=leader, flush=os; minikafka over four partitions, by key")
    result.notes.append("all dialects and their E take turns: a slow minute of the machine hits all of them")


def _topic_of(frames: Frames) -> str:
    return f"of-{frames.name.replace(' ', '-')}"


class Visits:
    """Connect, ask once, take the answer, close: one after the other."""

    def __init__(self, address: Address, request: bytes, work: Work) -> None:
        self._address = address
        self._request = request
        self._work = work
        self.latencies = Latencies()
        self.answered = 0

    def run(self, seconds: float) -> Work:
        clock = time.perf_counter_ns
        now = clock()
        end = now + int(seconds * 1e9)
        done = 0
        while now < end:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.connect(self._address)
                connection.sendall(self._request)
                answer = connection.recv(256)
            if not answer.startswith(b"+OFFSET ") or not answer.endswith(b"\n"):
                raise wire.WireError(f"a visit was answered {answer!r}")
            self.latencies.add(clock() - now)
            now = clock()
            done += 1
        self.answered += done
        return Work(done, done * self._work.records, done * self._work.bytes)


def visits(run: Run, result: Result) -> None:
    value = value_of_size()
    request = minikafka_produce("visits", "key", value)
    work = Work(1, 1, len(value))
    place = run.directory("visits")
    with (
        dialect_broker(place / "data", "os", "leader", "minikafka") as server,
        reference("greet", place, minikafka_produced(0).hex()) as greeter,
    ):
        control = Control(server.address)
        control.create_topic("visits", 4)
        ours = Visits(server.addresses["minikafka"], request, work)
        theirs = Visits(greeter.address, request, work)
        subjects = [Subject("minikafka", server.pid, ours.run), Subject("greet", greeter.pid, theirs.run)]
        series = alternate(subjects, run.slices, run.slice_s)
        result.add_series(series["minikafka"], ours.latencies, server.rss_bytes())
        result.add_series(series["greet"], theirs.latencies, greeter.rss_bytes(), reference=True)
        control.expect_records("visits", 4, ours.answered)
    found = ratio(series["minikafka"].per_s("requests"), series["greet"].per_s("requests"))
    by_cpu = ratio(series["minikafka"].per_cpu_s("requests"), series["greet"].per_cpu_s("requests"))
    result.check(
        "minikafka, connect-produce-close, of connect-answer-close",
        found.best,
        0.5,
        note=f"medians {found.median:.2f}; by CPU second {by_cpu.best:.2f}",
    )
    result.notes.append("one client that connects for every message; greet: a uvloop server that answers and no more")


# --------------------------------------------------------------------------------------------------------------- reads


def _numbered(offset: int, size: int) -> bytes:
    """A value that says where it is, and that packs to about half."""
    return (f"{offset:012d}" + random.Random(offset).randbytes(size // 2).hex())[:size].encode()


def fill_for_reads(server: Server, topic: str, batches: int, per_batch: int, compression: int) -> int:
    """Batches of numbered records; gives the size of the largest batch."""
    control = Control(server.address)
    control.create_topic(topic)
    largest = 0
    for start in range(0, batches * per_batch, per_batch):
        values = [_numbered(start + i, RECORD_BYTES) for i in range(per_batch)]
        batch = wire.batch_of(values, compression=compression)
        control.produce(topic, batch)
        largest = max(largest, len(batch))
    control.close()
    return largest


def reads(run: Run, result: Result) -> None:
    parts, per_large, per_small = 2 * CONNECTIONS, 18_000, 10
    place = run.directory("reads")
    with ExitStack() as stack:
        server = stack.enter_context(dialect_broker(place / "data", "os", "leader", *LISTENERS))
        total = (100_000 if run.quick else 400_000) // per_small
        fill_for_reads(server, "small", total, per_small, wire.PLAIN)
        largest = fill_for_reads(server, "large", parts, per_large, wire.ZSTD)
        lengths = {"small": total * per_small, "large": parts * per_large}
        swarms: dict[str, Swarm] = {}
        subjects = []
        for frames in FRAMES:
            echo = stack.enter_context(_echo(place, frames, frames.found(0, _numbered(0, RECORD_BYTES))))
            address = server.addresses[frames.listener]
            for name, at, pid, topic in (
                (f"{frames.name}, small plain", address, server.pid, "small"),
                (f"{frames.name}, 1 MB zstd", address, server.pid, "large"),
                (f"E for {frames.name}", echo.address, echo.pid, "small"),
            ):
                swarms[name] = readers(at, frames, topic, lengths[topic], check=pid == server.pid)
                subjects.append(Subject(name, pid, swarms[name].run))
        series = alternate(subjects, TOGETHER_SLICES * run.slices, run.slice_s)
        for name, swarm in swarms.items():
            is_broker = not name.startswith("E for ")
            rss = server.rss_bytes() if is_broker else None
            result.add_series(series[name], swarm.latencies, rss, reference=not is_broker)
            swarm.close()
        for frames in FRAMES:
            small, large = series[f"{frames.name}, small plain"], series[f"{frames.name}, 1 MB zstd"]
            limit = series[f"E for {frames.name}"]
            _compare(result, small, limit, f"{frames.name}, single reads, 16 connections", 0.3)
            cost = ratio(small.per_cpu_s("requests"), large.per_cpu_s("requests"))
            result.check(
                f"{frames.name}, single reads of 1 MB zstd batches, broker CPU, of small plain ones",
                cost.best,
                2.0,
                at_least=False,
                note=f"medians {cost.median:.2f}",
            )
    result.notes.append("records of 100 B, each connection reads its part of the log in order, one record a request")
    result.notes.append("all dialects and their E take turns: a slow minute of the machine hits all of them")
    result.notes.append(f"small: {per_small} records a batch; large: {per_large:,}, {largest / 1e6:.2f} MB packed")


def readers(address: Address, frames: Frames, topic: str, length: int, *, check: bool = True) -> Swarm:
    """Each connection has a part of the log; a value says whether it is of the right one."""
    step = length // CONNECTIONS

    def checked(frame: memoryview, index: int) -> None:
        offset = int(frames.value_of(frame)[:12])
        if not index * step <= offset < (index + 1) * step:
            raise wire.WireError(f"{frames.name} read the record of offset {offset}, not one of part {index}")

    def unchecked(frame: memoryview, index: int) -> None:
        frames.value_of(frame)

    turns = [
        [frames.read(topic, offset, RECORD_BYTES) for offset in range(index * step, (index + 1) * step)]
        for index in range(CONNECTIONS)
    ]
    return Swarm(address, turns, Work(1, 1, RECORD_BYTES), checked if check else unchecked, frames.receive)


# ---------------------------------------------------------------------------------------------------------------- JSON


class JsonLoop:
    """Parse a request, print its answer, and nothing else."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._count = SEVEN_DIGITS

    def run(self, seconds: float) -> Work:
        clock = time.perf_counter_ns
        end = clock() + int(seconds * 1e9)
        decode = msgspec.json.Decoder(JsonRequest).decode
        encode = msgspec.json.Encoder().encode
        payload, first = self._payload, self._count
        while clock() < end:
            for _ in range(100):
                request = decode(payload)
                encode(JsonAnswer(Offsets([self._count])))
                self._count += len(request.Produce.records)
        done = self._count - first
        return Work(done, done, done * RECORD_BYTES)


def rustlog_json(run: Run, result: Result) -> None:
    value = value_of_size()
    place = run.directory("json")
    windows = (100, 1_000)
    with (
        dialect_broker(place / "data", "os", "leader", "rustlog") as server,
        reference("json", place, str(SEVEN_DIGITS)) as limit,
    ):
        stored = prefill(server, "json", 1)
        request = json_produce("json", value)
        work = Work(1, 1, len(value))
        ours: dict[int, Pipeline] = {}
        pipelines: dict[str, Pipeline] = {}
        subjects = []
        for window in windows:
            requests = [request] * window
            ours[window] = Pipeline(server.addresses["rustlog"], requests, work, check_json)
            theirs = Pipeline(limit.address, requests, work, check_json)
            for name, pid, pipeline in (
                (f"rustlog, window of {window:,}", server.pid, ours[window]),
                (f"msgspec server, window of {window:,}", limit.pid, theirs),
            ):
                pipelines[name] = pipeline
                subjects.append(Subject(name, pid, pipeline.run))
        loop = JsonLoop(request[4:])
        subjects.append(Subject("msgspec loop", os.getpid(), loop.run))
        series = alternate(subjects, run.slices, run.slice_s)
        for name, pipeline in pipelines.items():
            is_broker = name.startswith("rustlog")
            rss = server.rss_bytes() if is_broker else None
            result.add_series(series[name], pipeline.latencies, rss, reference=not is_broker)
        result.add_series(series["msgspec loop"], reference=True)
        answered = sum(pipeline.answered for pipeline in ours.values())
        Control(server.address).expect_records("json", 1, stored + answered)
        for pipeline in pipelines.values():
            pipeline.close()
    for window in windows:
        broker = series[f"rustlog, window of {window:,}"]
        served, bare = series[f"msgspec server, window of {window:,}"], series["msgspec loop"]
        what = f"rustlog JSON, produce, window of {window:,}"
        of_server = ratio(broker.per_s("requests"), served.per_s("requests"))
        result.check(
            f"{what}, of a server that parses and prints", of_server.best, 0.5, note=f"medians {of_server.median:.2f}"
        )
        of_loop = ratio(broker.per_s("requests"), bare.per_s("requests"))
        by_cpu = ratio(broker.per_cpu_s("requests"), bare.per_cpu_s("requests"))
        note = f"medians {of_loop.median:.2f}; by CPU second {by_cpu.best:.2f}"
        result.check(f"{what}, of a loop without a socket", of_loop.best, 0.5, note=note)
    result.notes.append(
        f"one record of 100 B a request, which is {len(request) - 4} bytes of JSON; acks=leader, flush=os"
    )
    result.notes.append(
        "msgspec server: a uvloop server that parses each request into structs and prints its answer; "
        "msgspec loop: the same in one process, without a socket"
    )
