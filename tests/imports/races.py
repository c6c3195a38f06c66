"""Files as Day1 and MiniKafka leave them when several producers write at once.

Both are models of the original write paths, run step by step in an order drawn from a seed. They also say which records
are readable in the end, so that a test can ask for every one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.imports.directories import day1_record, minikafka_record

Written = list[tuple[bytes, bytes]]
"""Key and value of every readable record, in file order."""


def day1_race(seed: int, producers: int, requests: int, records_max: int = 3) -> tuple[bytes, Written]:
    """A log that several Day1 connections wrote to.

    A request takes the log out of the map, or opens the file again while another request has it. Each handle counts
    offsets on its own; a record is one write at the end of the file. The last handle put back stays.
    """
    dice = random.Random(seed)
    file: list[tuple[int, bytes, bytes]] = []
    handles: list[list[int]] = []

    def produce(producer: int) -> Iterator[None]:
        for number in range(requests):
            handle = handles.pop() if handles else [file[-1][0] + 1 if file else 0]
            yield
            for at in range(dice.randint(1, records_max)):
                value = b"producer %d request %d record %d" % (producer, number, at)
                file.append((handle[0], b"key-%d" % producer, value))
                handle[0] += 1
                yield
            handles[:] = [handle]
            yield

    _run(dice, [produce(producer) for producer in range(producers)])
    return b"".join(day1_record(*record) for record in file), [record[1:] for record in file]


def minikafka_race(seed: int, producers: int, records: int, pause: float) -> tuple[bytes, Written, Written]:
    """A segment that several MiniKafka connections wrote to, the records that are whole in it, and all that were sent.

    Threads share one file position. An id is read and raised in two steps, the end of the file is asked for and sought in
    two, and every field is a write of its own. `pause` is how likely a thread is interrupted between two steps.
    """
    dice = random.Random(seed)
    data = bytearray()
    owners: list[tuple[int, int]] = []
    """Of every byte of the file: which record it belongs to, and which of its bytes it is."""
    written: list[tuple[bytes, bytes, int]] = []
    state = {"id": 0, "position": 0}

    def put(record: int, start: int, piece: bytes) -> None:
        at = state["position"]
        data[at : at + len(piece)] = piece
        owners[at : at + len(piece)] = [(record, start + n) for n in range(len(piece))]
        state["position"] = at + len(piece)

    def produce(producer: int) -> Iterator[None]:
        for number in range(records):
            key, payload = b"k%d" % producer, b"producer %d record %d" % (producer, number)
            record_id = state["id"]
            if dice.random() < pause / 4:
                yield
            state["id"] = record_id + 1
            whole = minikafka_record(record_id, 1_700_000_000_000 + len(written), key, payload)
            record = len(written)
            written.append((key, payload, len(whole)))
            if dice.random() < pause:
                yield
            end = len(data)
            if dice.random() < pause / 8:
                yield
            state["position"] = end
            start = 0
            for field_bytes in (4, 4, 8, 8, 4, len(key), 4, len(payload)):
                if dice.random() < pause / 8:
                    yield
                put(record, start, whole[start : start + field_bytes])
                start += field_bytes
            if dice.random() < pause:
                yield

    _run(dice, [produce(producer) for producer in range(producers)])
    return bytes(data), _whole(owners, written), [record[:2] for record in written]


def _whole(owners: list[tuple[int, int]], written: list[tuple[bytes, bytes, int]]) -> Written:
    found: Written = []
    for at, (record, byte) in enumerate(owners):
        key, payload, size = written[record]
        if byte == 0 and owners[at : at + size] == [(record, n) for n in range(size)]:
            found.append((key, payload))
    return found


def _run(dice: random.Random, tasks: list[Iterator[None]]) -> None:
    while tasks:
        task = dice.choice(tasks)
        if next(task, tasks) is tasks:
            tasks.remove(task)
