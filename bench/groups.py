"""Scenarios of groups and transactions: what read_committed, consumers and commits cost, and how long offsets load."""

from __future__ import annotations

import time
from functools import partial

from confluent_kafka import Producer

from bench import group_wire, wire
from bench.consumers import Consumers
from bench.load import FETCH_BYTES, Control, Fetches, Pipeline, Swarm
from bench.method import Latencies, Subject, Work, alternate, ratio
from bench.processes import Server, apart, broker
from bench.result import Measure, Result
from bench.scenario import Run

WITHIN = 0.75
"""Within 25 %."""
CONNECTIONS = 16
GROUPS, MEMBERS = 50, 10
OFFSET_LOGS = 4
"""Partitions of __consumer_offsets."""
TRANSACTION_RECORDS = 1_000
DEADLINE_S = 120.0


# ------------------------------------------------------------------------------------------------------ read_committed


def read_committed(run: Run, result: Result) -> None:
    size = (64 if run.quick else 256) * FETCH_BYTES
    place = run.directory("committed")
    with broker(place / "data", flush="os") as server:
        Control(server.address).create_topic("transactions")
        transactions = _fill_by_transactions(server, "transactions", size)
        offsets = _walk(server, "transactions")
        fetches = {
            name: Fetches(
                server.address, "transactions", offsets, 0, window=1, smallest=1, isolation=isolation, check=_checked
            )
            for isolation, name in enumerate(("read_uncommitted", "read_committed"))
        }
        for one in fetches.values():
            one.run(60.0, requests=len(offsets))
            one.latencies.clear()
        subjects = [Subject(name, server.pid, one.run) for name, one in fetches.items()]
        with apart(server):
            series = alternate(subjects, run.slices, run.slice_s)
        for name, one in fetches.items():
            result.add_series(series[name], one.latencies, server.rss_bytes(), unit="bytes", by_cpu=True)
    before, after = series["read_uncommitted"], series["read_committed"]
    found = ratio(after.per_cpu_s("bytes"), before.per_cpu_s("bytes"))
    by_wall = ratio(after.per_s("bytes"), before.per_s("bytes"))
    result.check(
        "bulk fetch, read_committed, per broker CPU second, of read_uncommitted",
        found.best,
        WITHIN,
        note=f"medians {found.median:.2f}; by wall second {by_wall.best:.2f}",
    )
    result.notes.append(
        f"{transactions} transactions of {TRANSACTION_RECORDS:,} records of 1 KB, every tenth aborted; "
        f"fetches of 1 MiB, one in flight"
    )


def _fill_by_transactions(server: Server, topic: str, size: int) -> int:
    """A log of about `size` bytes; gives the number of transactions."""
    host, port = server.address
    producer = Producer(
        {
            "bootstrap.servers": f"{host}:{port}",
            "transactional.id": "bench",
            "linger.ms": 5,
            "batch.size": FETCH_BYTES // 8,
        }
    )
    producer.init_transactions(DEADLINE_S)
    count = max(20, size // (TRANSACTION_RECORDS * 1_000))
    value = bytes(range(33, 127)) * 11
    for number in range(count):
        producer.begin_transaction()
        for _ in range(TRANSACTION_RECORDS):
            producer.produce(topic, value[:1_000], partition=0)
        producer.flush(DEADLINE_S)
        if number % 10 == 9:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    return count


def _walk(server: Server, topic: str) -> list[int]:
    """Where each fetch of a walk through the log begins."""
    control = Control(server.address)
    end = control.latest_offsets(topic, 1)[0]
    offsets = [0]
    while True:
        at = offsets[-1]
        frame, asked = control.ask(partial(wire.fetch, topic=topic, partition=0, offset=at, max_bytes=FETCH_BYTES))
        following = wire.fetched(frame, asked, at).next_offset()
        if following <= at:
            raise wire.WireError(f"a fetch at {at} of {end} gave nothing")
        if following >= end:
            control.close()
            return offsets
        offsets.append(following)


def _checked(frame: memoryview, correlation_id: int, offset: int) -> None:
    wire.check_fetch(frame, correlation_id, offset)


# ----------------------------------------------------------------------------------------------------------- consumers


def consumers(run: Run, result: Result) -> None:
    batch = wire.batch(1, 100)
    frames = [wire.produce(i, "load", {0: batch}, 1) for i in range(100)]
    work = Work(1, 1, len(batch))
    place = run.directory("consumers")
    with broker(place / "with", flush="os") as crowded, broker(place / "without", flush="os") as alone:
        Control(crowded.address).create_topic("quiet", MEMBERS)
        pipelines = {}
        for name, server in ((f"{GROUPS * MEMBERS} consumers", crowded), ("none", alone)):
            Control(server.address).create_topic("load")
            pipelines[name] = (server, Pipeline(server.address, frames, work))
        with Consumers(crowded.address, "quiet", GROUPS, MEMBERS) as crowd:
            begin = time.monotonic()
            subjects = [Subject(name, server.pid, pipeline.run) for name, (server, pipeline) in pipelines.items()]
            series = alternate(subjects, run.slices, run.slice_s)
            took = time.monotonic() - begin
        for name, (server, pipeline) in pipelines.items():
            result.add_series(series[name], pipeline.latencies, server.rss_bytes(), by_cpu=True)
            Control(server.address).expect_records("load", 1, pipeline.answered)
    found = ratio(series[f"{GROUPS * MEMBERS} consumers"].per_cpu_s("requests"), series["none"].per_cpu_s("requests"))
    result.check(
        f"produce beside {GROUPS * MEMBERS} consumers in {GROUPS} groups, per broker CPU second, of without",
        found.best,
        WITHIN,
        note=f"medians {found.median:.2f}",
    )
    rates = ", ".join(f"{count / took:,.0f} {what}" for what, count in crowd.counts.items())
    result.notes.append("single records of 100 B, window of 100, acks=1, flush=os, to a topic that nobody reads")
    result.notes.append(f"the consumers, a second: {rates}; a broker of their own, whose CPU includes them")


# ------------------------------------------------------------------------------------------------------------- commits


def _logs(count: int) -> str:
    return "1 log" if count == 1 else f"{count} logs"


def commits(run: Run, result: Result) -> None:
    batch = wire.batch(1, 100)
    place = run.directory("commits")
    with broker(place / "data", flush="acks") as server:
        control = Control(server.address)
        control.create_topic("commits", CONNECTIONS)
        swarms: dict[str, Swarm] = {}
        for logs, groups in ((1, 1), (OFFSET_LOGS, CONNECTIONS)):
            produces = [wire.produce(i, "commits", {i % logs: batch}, wire.ACKS_ALL) for i in range(CONNECTIONS)]
            swarms[f"produce, {_logs(logs)}"] = Swarm(server.address, produces, Work(1, 1, len(batch)))
            offsets = [
                group_wire.offset_commit(i, f"group-{i % groups:02d}", "commits", {i: i}) for i in range(CONNECTIONS)
            ]
            work = Work(1, 1, len(offsets[0]))
            swarms[f"commit, {_logs(logs)}"] = Swarm(server.address, offsets, work, group_wire.check_commit)
        subjects = [Subject(name, server.pid, swarm.run) for name, swarm in swarms.items()]
        series = alternate(subjects, run.slices, run.slice_s)
        for name, swarm in swarms.items():
            result.add_series(series[name], swarm.latencies, server.rss_bytes(), by_cpu=True)
        produced = sum(swarm.answered for name, swarm in swarms.items() if name.startswith("produce"))
        control.expect_records("commits", CONNECTIONS, produced)
    for logs in (1, OFFSET_LOGS):
        produce, commit = series[f"produce, {_logs(logs)}"], series[f"commit, {_logs(logs)}"]
        found = ratio(produce.per_cpu_s("requests"), commit.per_cpu_s("requests"))
        to_one = ratio(series["produce, 1 log"].per_cpu_s("requests"), commit.per_cpu_s("requests"))
        by_wall = ratio(commit.per_s("requests"), produce.per_s("requests"))
        result.check(
            f"commits into {_logs(logs)}, 16 connections, broker CPU, of acks=all single-record Produces",
            found.best,
            2.0,
            at_least=False,
            note=f"medians {found.median:.2f}; of Produces to one log {to_one.best:.2f}; rate {by_wall.best:.2f} of theirs",
        )
    result.notes.append("flush=acks; commits of one partition without membership (OffsetCommit v8)")
    result.notes.append("those of one group go to one log, those of 16 groups to the four of __consumer_offsets")


# ------------------------------------------------------------------------------------------------------------- loading


PARTITIONS_PER_COMMIT = 100


def offset_loading(run: Run, result: Result) -> None:
    groups, partitions = (100 if run.quick else 1_000), 1_000
    data = run.directory("offsets") / "data"
    with broker(data, flush="os") as server:
        control = Control(server.address)
        control.create_topic("committed", partitions)
        control.create_topic("plain")
        begin = time.perf_counter()
        _commit_all(control, groups, partitions)
        took = time.perf_counter() - begin
        control.close()
    stored = sum(path.stat().st_size for path in data.glob("__consumer_offsets-*/*.log"))
    result.measures.append(Measure("committing", records_s=groups * partitions / took, mb_s=stored / took / 1e6))
    with broker(data, flush="os") as server:
        seconds, refused, produces = _watch_loading(server, groups, partitions)
        p50, p99, slowest = produces.percentiles_ms(0.5, 0.99, 1.0)
        cpu_s = server.cpu_ns() / 1e9
        result.measures.append(
            Measure(
                "produces meanwhile",
                requests_s=len(produces.values_ns) / seconds,
                p50_ms=p50,
                p99_ms=p99,
                p999_ms=slowest,
                cpu_cores=cpu_s / seconds,
                rss_mb=server.rss_bytes() / 1e6,
            )
        )
    result.check(
        f"start with {groups * partitions:,} committed offsets, until every group is served",
        seconds,
        10.0,
        unit="s",
        at_least=False,
        note=f"{refused} OffsetFetches were told to wait; slowest produce beside them {slowest:.1f} ms; CPU {cpu_s:.1f} s",
    )
    result.notes.append(
        f"{groups} groups with {partitions:,} partitions each, {stored / 1e6:.0f} MB of records, from the exec on"
    )


def _commit_all(control: Control, groups: int, partitions: int) -> None:
    for group in range(groups):
        for first in range(0, partitions, PARTITIONS_PER_COMMIT):
            offsets = {index: group + index for index in range(first, first + PARTITIONS_PER_COMMIT)}
            name = f"group-{group:04d}"
            frame, asked = control.ask(
                partial(group_wire.offset_commit, group=name, topic="committed", offsets=offsets)
            )
            group_wire.check_commit(frame, asked)


def _watch_loading(server: Server, groups: int, partitions: int) -> tuple[float, int, Latencies]:
    """Seconds from the exec until every group has its offsets; how often one had to wait; the produces beside that."""
    begin = time.perf_counter() - server.start_s
    control = Control(server.address)
    batch = wire.batch(1, 100)
    produces = Latencies()
    refused = 0
    left = list(range(0, groups, max(1, groups // 32)))
    while left:
        start = time.perf_counter_ns()
        control.produce("plain", batch)
        produces.add(time.perf_counter_ns() - start)
        group = left[-1]
        index = group % partitions
        name = f"group-{group:04d}"
        frame, asked = control.ask(partial(group_wire.offset_fetch, group=name, topic="committed", partition=index))
        error, offset = group_wire.fetched_offset(frame, asked)
        if error == group_wire.LOADING:
            refused += 1
        elif error or offset != group + index:
            raise wire.WireError(f"{name}: error {error}, offset {offset} instead of {group + index}")
        else:
            left.pop()
        if time.perf_counter() - begin > DEADLINE_S:
            raise TimeoutError(f"{len(left)} groups were not loaded in {DEADLINE_S:.0f} s")
    took = time.perf_counter() - begin
    control.close()
    return took, refused, produces
