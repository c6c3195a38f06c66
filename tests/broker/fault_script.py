"""What a broker does to its data directory, on a disk where one call fails, and what clients were told meanwhile.

`Ledger` is what clients know: what was acknowledged must be there, what was refused may be. `run` is two lives of a broker
in one directory, each of which goes on after any error; `check` starts it once more, on a disk that works, and compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from penstock.broker import offsets
from penstock.broker.cleaner_child import CleaningFailed
from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Acks, Isolation, NewTopic, Read, ReadResult
from penstock.broker.partition import Partition
from penstock.coordination.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from penstock.model.errors import BrokerError, Fault, StartError
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.records.record import Record, read_records
from penstock.storage.cleaner import Cleaner, CleaningJob, CleaningResult, DamagedLog
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.reserve import BYTES_MIN
from penstock.storage.room import Room
from penstock.storage.sparse_index import OffsetIndex, TimeIndex
from penstock.storage.system import SystemCalls
from tests.broker.compacted import clean_on_request
from tests.broker.failing_disk import answer_of, until
from tests.storage.failing_calls import FailingCalls

PLENTY = 1 << 20
NOW_MS = 1_700_000_000_000
SMALL = {"segment.bytes": "450", "index.interval.bytes": "100", "file.delete.delay.ms": "0", "retention.ms": "-1"}
TOPICS = {
    "d": SMALL,
    "c": {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "a": SMALL,
    "x": SMALL,
}
GROUP = "g"


class Ledger:
    """What clients were told, by topic."""

    def __init__(self) -> None:
        self.created: set[str] = set()
        """Topics that exist for sure."""
        self.deleted: set[str] = set()
        """Topics whose deletion was asked for; they are not in `created` then."""
        self.values: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        """Acknowledged records by offset."""
        self.tried: defaultdict[str, set[bytes]] = defaultdict(set)
        self.start_asked: defaultdict[str, int] = defaultdict(int)
        """The largest offset that a client wanted to delete records below."""
        self.start_told: defaultdict[str, int] = defaultdict(int)
        self.keys: dict[bytes, list[bytes]] = {}
        """Of the compacted topic: the last acknowledged value of each key, then those that were tried since."""
        self.commits: list[int] = []
        """The last acknowledged offset of the group, then those that were tried since."""
        self.aborted: list[tuple[int, int]] = []
        """Producer and first offset of transactions whose abort was acknowledged."""
        self.taken_back: set[bytes] = set()
        """Records of transactions that were not committed."""
        self.number = 0
        self.sequence: int | None = 0
        """Of the idempotent producer; None after it gave up."""

    def next_value(self, topic: str, size: int | None = None) -> bytes:
        self.number += 1
        value = b"%s/%d/" % (topic.encode(), self.number) + b"." * (self.number * 7 % 40 if size is None else size)
        self.tried[topic].add(value)
        return value

    def forget(self, topic: str) -> None:
        for kept in (self.values, self.start_asked, self.start_told):
            kept.pop(topic, None)  # type: ignore[attr-defined]
        self.created.discard(topic)


class Life:
    """One run of a broker."""

    def __init__(self, engine: EmbeddedEngine, ledger: Ledger) -> None:
        self.engine = engine
        self.ledger = ledger

    async def room(self) -> None:
        """Records are refused while the disk is full; the one call that failed was the only one that found it so."""
        directory = self.engine.directory
        if directory.disk.room is not Room.AMPLE and directory.reserve is not None:
            await asyncio.get_running_loop().run_in_executor(None, directory.reserve.restore)
            assert directory.disk.room is Room.AMPLE

    async def create(self, *names: str) -> None:
        await self.room()
        topics = [NewTopic(name, 1, 1, TOPICS[name]) for name in names if self.engine.topic(name) is None]
        for result in await answer_of(self.engine.create_topics(topics, validate_only=False)):
            if result.fault is Fault.NONE:
                self.ledger.created.add(result.name)

    async def delete(self, name: str) -> None:
        self.ledger.forget(name)
        self.ledger.deleted.add(name)
        await answer_of(self.engine.delete_topics([name]))
        if self.engine.topic(name) is not None:  # it could not be deleted: what is written from now on must stay
            self.ledger.created.add(name)

    async def produce(
        self, topic: str, batches: int, keys: Sequence[bytes | None] = (None,), size: int | None = None
    ) -> None:
        """Batches of two records, in one request; the keys take turns."""
        await self.room()
        ledger = self.ledger
        made = [
            [(keys[(2 * at + n) % len(keys)], ledger.next_value(topic, size)) for n in range(2)]
            for at in range(batches)
        ]
        for pairs in made:
            for key, value in pairs:
                if key is not None:
                    ledger.keys.setdefault(key, []).append(value)
        views = [
            memoryview(build_batch([NewRecord(NOW_MS + ledger.number, key, value) for key, value in pairs]))
            for pairs in made
        ]
        results = await answer_of(self.engine.append(topic, 0, views, Acks.ALL))
        for pairs, result in zip(made, results, strict=True):
            if result.fault is not Fault.NONE:
                continue
            for at, (key, value) in enumerate(pairs):
                ledger.values[topic][result.base_offset + at] = value
                if key is not None:
                    ledger.keys[key] = ledger.keys[key][ledger.keys[key].index(value) :]

    async def produce_once(self) -> None:
        """What an idempotent producer does: it sends a batch again when it was refused."""
        ledger = self.ledger
        if ledger.sequence is None:
            return
        value = ledger.next_value("d")
        fields: Any = {"producer_id": 77, "producer_epoch": 0, "base_sequence": ledger.sequence}
        for _ in range(3):
            await self.room()
            view = memoryview(build_batch([NewRecord(NOW_MS + ledger.number, None, value)], **fields))
            (result,) = await answer_of(self.engine.append("d", 0, [view], Acks.ALL))
            if result.fault is Fault.NONE:
                ledger.values["d"][result.base_offset] = value
                ledger.sequence += 1
                return
        ledger.sequence = None

    async def commit(self, offset: int) -> bool:
        self.ledger.commits.append(offset)
        command = CommitOffsets(GROUP, "", None, -1, (OffsetToCommit("d", 0, offset, -1, None),))
        answer = await answer_of(self.engine.once_loaded(lambda: self.engine.groups.ask(GROUP, command)))
        if isinstance(answer, Fault) or answer.fault is not Fault.NONE:
            return False
        self.ledger.commits = [offset]
        return True

    async def abort(self, producer_id: int) -> None:
        """A transaction that is taken back."""
        partition = self.engine.partition("a", 0)
        if partition is None or partition.log is None:
            return
        value = self.ledger.next_value("a")
        self.ledger.taken_back.add(value)
        fields: Any = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        first = partition.log.log_end_offset
        try:
            partition.append_own(build_batch([NewRecord(NOW_MS, None, value)], **fields), NOW_MS)
        except BrokerError:
            return
        for _ in range(2):  # as the coordinator does, which tries until it succeeds
            try:
                end = partition.append_marker(Marker(MarkerKind.ABORT, 0), producer_id, 0, 1, NOW_MS)
            except BrokerError:
                continue
            if await self._flushed(partition, end):
                self.ledger.aborted.append((producer_id, first))
            return

    @staticmethod
    async def _flushed(partition: Partition, offset: int) -> bool:
        told: list[Fault] = []
        if not partition.when_flushed(offset, told.append):
            return True
        await until(lambda: told)
        return told[0] is Fault.NONE

    async def delete_records(self, topic: str, offset: int) -> None:
        ledger = self.ledger
        ledger.start_asked[topic] = max(ledger.start_asked[topic], offset)
        fault, _ = await answer_of(self.engine.delete_records(topic, 0, offset))
        if fault is Fault.NONE:
            ledger.start_told[topic] = max(ledger.start_told[topic], offset)

    async def fetch(self, topic: str, offset: int, isolation: int = 0) -> list[Record] | None:
        """The records from `offset` on, as a client reads them; None when the broker answers with an error."""
        (found,) = await answer_of(self.engine.read([Read(topic, 0, offset, 300)], PLENTY, 0, 0, isolation))
        assert isinstance(found, ReadResult)
        if found.fault is not Fault.NONE:
            return None
        if found.records is None:
            return []
        data = os.pread(found.records.file.fileno(), found.records.length, found.records.position)
        hidden = set(found.aborted or ())
        records: list[Record] = []
        for batch in whole_batches(memoryview(data)):
            assert batch.crc_is_right()
            if batch.is_control or any(batch.producer_id == producer_id for producer_id, _ in hidden):
                continue
            records += [record for record in read_records(batch) if record.offset >= offset]
        return records

    async def read_all(self, topic: str, isolation: int = 0) -> dict[int, Record] | None:
        """Every record of a topic; None when the broker answers a read with an error."""
        partition = self.engine.partition(topic, 0)
        if partition is None or partition.log is None:
            return None
        found: dict[int, Record] = {}
        offset = partition.log.log_start_offset
        while offset < partition.high_watermark:
            records = await self.fetch(topic, offset, isolation)
            if records is None:
                return None
            assert all(record.offset not in found for record in records)
            found |= {record.offset: record for record in records}
            # what was compacted away, and markers, have no records
            offset = max(records[-1].offset + 1, offset + 1) if records else offset + 1
        return found

    async def read_singly(self, topic: str) -> None:
        """Every record of a topic, as a dialect of single records reads them, up to the first error."""
        partition = self.engine.partition(topic, 0)
        if partition is None or partition.log is None:
            return
        acknowledged = self.ledger.values[topic]
        offset = partition.log.log_start_offset
        while offset < partition.high_watermark:
            found = await answer_of(self.engine.read_records(topic, 0, offset, 3, PLENTY))
            if found.fault is not Fault.NONE:
                assert found.fault is Fault.STORAGE_ERROR
                return
            assert found.next_offset > offset
            values = {record.offset: record.value for record in found.records}
            for at in range(offset, found.next_offset):
                assert at not in acknowledged or values.pop(at, None) == acknowledged[at], f"{topic}: offset {at}"
            assert set(values.values()) <= self.ledger.tried[topic]
            offset = found.next_offset

    async def look_up(self, topic: str) -> None:
        """Offsets by place and time, and where a leader epoch ended."""
        if self.engine.topic(topic) is None:
            return
        for timestamp in (offsets.EARLIEST, offsets.LATEST, offsets.MAX_TIMESTAMP, NOW_MS + 5):
            found = await answer_of(self.engine.list_offset(topic, 0, timestamp, Isolation.READ_UNCOMMITTED))
            assert found.fault in (Fault.NONE, Fault.STORAGE_ERROR), f"{topic}: {timestamp} is {found}"
        ended = self.engine.epoch_end(topic, 0, -1, 0)
        assert ended.fault in (Fault.NONE, Fault.STORAGE_ERROR), f"{topic}: epoch 0 is {ended}"

    async def clean(self) -> None:
        await self.room()
        while await self.engine.cleaning.clean_one():
            pass

    async def lose_indexes(self, topic: str) -> None:
        """Reads that find damaged indexes, and have to walk over the segments to build new ones."""
        partition = self.engine.partition(topic, 0)
        if partition is None or partition.log is None:
            return
        for segment in partition.log.segments:
            segment.offsets = OffsetIndex(self.engine.directory.disk, segment.offsets.path)
            segment.times = TimeIndex(self.engine.directory.disk, segment.times.path)
            for index in (segment.offsets, segment.times):
                index.path.write_bytes(b"garbage")
        partition.log._places.clear()
        await self.read_all(topic)


async def run(path: Path, calls: FailingCalls, ledger: Ledger) -> None:
    """Two lives on a disk where a call may fail; no error ends the script."""
    async with life(path, calls, ledger, crashes=True) as first:
        if first is not None:
            await _first_life(first)
            await check_writable(first, calls)
    calls.forget_lost()
    async with life(path, calls, ledger, crashes=False) as second:
        if second is not None:
            await _second_life(second)
            await check_writable(second, calls)
    calls.forget_lost()


async def _first_life(one: Life) -> None:
    keys = [b"k%d" % n for n in range(5)]
    await one.create("d", "c", "a", "x")
    await one.look_up("x")
    await one.produce("d", 3)
    await one.produce_once()
    await one.produce("x", 2)
    await one.commit(1)
    for _ in range(3):
        await one.produce("c", 3, keys)
    await one.abort(9)
    await tolerate(one.engine.housekeeping.checkpoint())
    await one.produce("d", 3)
    await one.read_all("d")
    await one.read_singly("d")
    await one.look_up("d")
    await one.delete("x")
    await one.create("x")
    await one.produce("x", 1)
    await one.delete_records("d", 4)
    await one.commit(5)
    await one.clean()
    for size in (1, 250, 1):  # the large one needs a new segment, the next one does not if there is none
        await one.produce("d", 1, size=size)
    await one.lose_indexes("d")
    await one.produce("c", 2, keys[:2])
    await one.produce("d", 2)
    await one.produce_once()
    await check_live(one)


async def _second_life(one: Life) -> None:
    await one.look_up("d")
    await one.read_singly("d")
    await check_live(one)
    await one.create(*(name for name in TOPICS if name in one.ledger.created))
    await one.produce_once()
    await one.produce("d", 2)
    await one.commit(7)
    await one.abort(11)
    await one.produce("c", 3, [b"k1", b"k7"])
    await one.clean()
    await one.delete_records("d", 9)
    await tolerate(one.engine.housekeeping.checkpoint())
    await tolerate(one.engine.housekeeping.retain())
    await one.produce("d", 1)
    await check_live(one)


async def tolerate(work: Awaitable[object]) -> None:
    """What the broker does in the background, where an error means another try later."""
    with contextlib.suppress(OSError):
        await work


class life:  # noqa: N801 (used as a function)
    """A started broker, or None when it does not start; killed or stopped at the end."""

    def __init__(self, path: Path, calls: SystemCalls, ledger: Ledger, *, crashes: bool) -> None:
        self._path = path
        self._disk = Disk(calls)
        self._ledger = ledger
        self._crashes = crashes
        self._engine: EmbeddedEngine | None = None

    async def __aenter__(self) -> Life | None:
        settings = EngineSettings(
            internal_partitions=1,
            flush_threads=1,
            flush_interval_ms=5,
            checkpoint_interval_ms=10**9,
            retention_check_interval_ms=10**9,
        )
        directory: DataDirectory | None = None
        try:
            directory = DataDirectory(self._path, self._disk, open_files_max=6, reserve_bytes=BYTES_MIN)
            directory.shared_sync = None
            self._engine = EmbeddedEngine(directory, settings)
            self._engine.start()
            clean_in_process(self._engine)
            await self._engine.groups.loaded()
            await self._engine.transactions.loaded()
        except (StartError, OSError):
            if self._engine is not None:
                await kill(self._engine)
            elif directory is not None:
                directory.close((), clean=False)
            self._engine = None
            return None
        return Life(self._engine, self._ledger)

    async def __aexit__(self, *_: object) -> None:
        if self._engine is not None:
            await (kill(self._engine) if self._crashes else self._engine.stop())


async def kill(engine: EmbeddedEngine) -> None:
    """End without a trace of an end, as far as the files go."""
    await engine.cleaning.stop()
    await engine.housekeeping.stop()
    engine.transactions.stop()
    engine.groups.stop()
    for task in list(engine._work):
        task.cancel()
    await asyncio.gather(*engine._work, return_exceptions=True)
    engine._flusher.stop()
    for partition in engine.partitions():
        partition.close()
    engine.directory.close((), clean=False)
    engine._readers.shutdown(wait=True, cancel_futures=True)


def clean_in_process(engine: EmbeddedEngine) -> None:
    """Clean logs in a thread of this process, so that the calls of the cleaner can fail too."""

    def clean(job: CleaningJob) -> CleaningResult:
        try:
            return Cleaner(job, engine.directory.disk).run()
        except (OSError, DamagedLog) as error:
            raise CleaningFailed(str(error)) from error

    async def ask(job: CleaningJob) -> CleaningResult:
        return await asyncio.get_running_loop().run_in_executor(None, clean, job)

    clean_on_request(engine)
    engine.cleaning.child.clean = ask  # type: ignore[method-assign]
    hours = itertools.count()
    engine.cleaning._clock = lambda: 3600.0 * next(hours)  # a failed cleaning is due again at once


async def check_live(one: Life) -> None:
    """What a partition that is online serves is right, and all that was acknowledged is among it."""
    for topic in TOPICS:
        partition = one.engine.partition(topic, 0)
        if partition is not None and partition.online:
            await _check_topic(one, topic)


async def check_writable(one: Life, calls: FailingCalls) -> None:
    """A broker whose disk works again takes records and commits, unless the error made a log read-only; and only an error
    that the disk is to blame for does that."""
    calls.paused = True
    for topic in TOPICS:
        partition = one.engine.partition(topic, 0)
        if partition is None or partition.log is None:
            continue
        if partition.log.failure is not None:
            assert calls.blames_the_disk, f"{topic} is read-only after {calls.failed}: {partition.log.failure}"
            continue
        before = len(one.ledger.values[topic])
        await one.produce(topic, 1, [b"k0"] if topic == "c" else [None])
        assert len(one.ledger.values[topic]) == before + 2, f"{topic} cannot be written after {calls.failed}"
    stored = one.engine.partition("__consumer_offsets", 0)
    if stored is None or (stored.log is not None and stored.log.failure is None):
        for _ in range(100):  # a coordinator whose log could not be read tries again
            if await one.commit(8):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(f"no offset can be committed after {calls.failed}")
    calls.paused = False


async def check(path: Path, ledger: Ledger) -> None:
    """On a disk that works, everything is served again, and can be written."""
    async with life(path, SystemCalls(), ledger, crashes=False) as one:
        assert one is not None
        for topic in ledger.created:
            assert one.engine.topic(topic) is not None, f"topic {topic} is gone"
            partition = one.engine.partition(topic, 0)
            assert partition is not None
            assert partition.online, f"{topic} is offline: {partition.reason}"
            await _check_topic(one, topic)
        await _check_commits(one)
        for topic in ledger.created:
            before = len(ledger.values[topic])
            await one.produce(topic, 1, [b"k0"] if topic == "c" else [None])
            assert len(ledger.values[topic]) == before + 2, f"{topic} cannot be written"


async def _check_topic(one: Life, topic: str) -> None:
    ledger = one.ledger
    partition = one.engine.partition(topic, 0)
    assert partition is not None
    assert partition.log is not None
    found = await one.read_all(topic)
    if found is None:
        found = await one.read_all(topic)  # it is one call that fails
    assert found is not None, f"{topic} cannot be read"
    start = partition.log.log_start_offset
    assert ledger.start_told[topic] <= start <= ledger.start_asked[topic] or topic == "c", f"{topic} starts at {start}"
    assert len({record.value for record in found.values()}) == len(found), f"{topic} has a record twice"
    for record in found.values():
        assert record.value in ledger.tried[topic], f"{topic} has {record.value!r} at {record.offset}"
    if topic == "c":
        last = {record.key: record.value for record in sorted(found.values(), key=lambda record: record.offset)}
        for key, values in ledger.keys.items():
            assert last.get(key) in values or not _is_acknowledged(ledger, values), f"{key!r} has {last.get(key)!r}"
        return
    for offset, value in ledger.values[topic].items():
        if offset >= ledger.start_asked[topic]:
            record = found.get(offset)
            assert record is not None, f"{topic}: offset {offset} is lost"
            assert record.value == value, f"{topic}: offset {offset} is {record.value!r}, not {value!r}"
    if topic == "a":
        ranges = {(producer_id, first) for producer_id, first, _ in partition.aborted.ranges()}
        assert set(ledger.aborted) <= ranges, f"aborted transactions are {ranges}, not {ledger.aborted}"
        for record in (await one.read_all("a", Isolation.READ_COMMITTED) or {}).values():
            assert record.value not in ledger.taken_back, f"a record of an aborted transaction is served: {record}"


def _is_acknowledged(ledger: Ledger, values: list[bytes]) -> bool:
    return values[0] in ledger.values["c"].values()


async def _check_commits(one: Life) -> None:
    command = FetchOffsets(GROUP, {"d": (0,)}, require_stable=False)
    found = await answer_of(one.engine.once_loaded(lambda: one.engine.groups.ask(GROUP, command)))
    assert not isinstance(found, Fault), f"the group's coordinator answers {found}"
    value = found.offsets["d"][0].value
    committed = None if value is None else value.offset
    assert committed in one.ledger.commits, f"committed is {committed}, not one of {one.ledger.commits}"
