"""The embedded engine: our own storage and coordination in this process, on this event loop.

It owns the data directory, the flusher and the partitions, and gives the engine port its meaning. Everything that changes
a log happens on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.broker import internal_topics, offsets, runs
from penstock.broker.appends import append_in_slices, append_many, refused
from penstock.broker.catalogue import TopicEntry
from penstock.broker.cleaning import Cleaning
from penstock.broker.clock import Clock
from penstock.broker.engine import (
    Append,
    Appended,
    Bytes,
    EpochEnd,
    Isolation,
    NewTopic,
    OffsetFound,
    RunAppended,
    TopicInfo,
    TopicResult,
)
from penstock.broker.flush_wait import once_safe
from penstock.broker.gathering import Gathering
from penstock.broker.groups import OFFSETS_TOPIC, Groups
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.internal_log import NO_ROOM
from penstock.broker.opening import open_partitions
from penstock.broker.partition import Partition
from penstock.broker.partition_infos import PartitionInfos
from penstock.broker.pauses import Pauses, result_of
from penstock.broker.preparing import Light, Preparing
from penstock.broker.producer_ids import ProducerIds
from penstock.broker.reads import Reads
from penstock.broker.record_reads import RecordReads
from penstock.broker.topics import Topics
from penstock.broker.transactional import TransactionalAppends
from penstock.broker.transactions import TRANSACTIONS_TOPIC, Transactions
from penstock.broker.unpacking import Unpacking
from penstock.coordination.consumer_group_records import SubscribedTopic
from penstock.coordination.group_commands import GroupSettings
from penstock.coordination.producers import ProducerTable
from penstock.coordination.transaction_commands import TransactionSettings
from penstock.model.errors import Fault
from penstock.model.ids import INTERNAL_TOPICS, TopicPartition, is_internal
from penstock.model.pending import Pending, in_turn, when
from penstock.model.slices import Slices, Work
from penstock.records.builder import NewRecord
from penstock.storage.data_directory import DataDirectory, Identity
from penstock.storage.flusher import Flusher
from penstock.storage.log import PartitionLog
from penstock.storage.room import Room

logger = logging.getLogger(__name__)

T = TypeVar("T")

READER_THREADS = 4


@dataclass(slots=True, frozen=True)
class EngineSettings:
    node_id: int = 0
    cluster_id: str | None = None
    num_partitions: int = 1
    auto_create_topics: bool = True
    delete_topics: bool = True
    transaction_max_timeout_ms: int = 900_000
    flush: str = "acks"
    flush_interval_ms: int = 1_000
    flush_threads: int = 4
    checkpoint_interval_ms: int = 5_000
    retention_check_interval_ms: int = 300_000
    topic_defaults: Mapping[str, str] | None = None
    internal_partitions: int = 4
    """Of `__consumer_offsets` and `__transaction_state`, when they are made."""
    groups: GroupSettings = field(default_factory=GroupSettings)


class EmbeddedEngine:
    """Made and used on one running event loop: `start`, then calls, then `stop`."""

    def __init__(self, directory: DataDirectory, settings: EngineSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        clock = clock or Clock()
        self.now_ms = clock.now_ms
        self.directory = directory
        cluster_id = settings.cluster_id or uuid.uuid4().hex[:22]
        self.identity = directory.identity(Identity(cluster_id, settings.node_id))
        self.leader_epoch = directory.leader_epoch
        self._loop = asyncio.get_running_loop()
        slices = Slices(self._loop.call_soon)
        self.in_slices = slices.run
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="penstock-read")
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._flusher = Flusher(
            directory.disk,
            settings.flush_threads,
            self._loop.call_soon_threadsafe,
            self._log_flushed,
            directory.shared_sync,
            lambda: directory.files.is_crowded,
        )
        self._by_log: dict[PartitionLog, Partition] = {}
        self._reads = Reads(self._loop, self._find, self._readers, directory.disk, slices)
        self.read = self._reads.read
        self.read_in_slices = self._reads.read_in_slices
        self.unpacking = Unpacking(self._loop, self.in_slices)
        self._record_reads = RecordReads(
            self._loop, self._reads, self._readers, self._partitions, directory.disk, self.unpacking
        )
        self.read_records = self._record_reads.read
        self._producer_ids = ProducerIds(directory)
        self._producer_ids_lock = asyncio.Lock()
        self._internal_lock = asyncio.Lock()
        self._topics = Topics(directory, settings, self._publish, self._withdraw, self._reconfigure)
        self._topics.on_change = self._topics_changed
        self._gathering = Gathering()
        self.preparing = Preparing(self.unpacking, self._gathering)
        self.groups = Groups(
            settings.groups,
            self._topics.existing,
            self.now_ms,
            self._readers,
            self._make_offsets_topic,
            self._gathering,
        )
        self.transactions = Transactions(
            TransactionSettings(transaction_timeout_ms_max=settings.transaction_max_timeout_ms),
            directory.leader_epoch,
            self._take_producer_id,
            self._find,
            self.groups,
            self.now_ms,
            self._readers,
            self._make_transactions_topic,
        )
        self._transactional = TransactionalAppends(
            self.transactions, self._find, self.append_many, self.append_in_slices
        )
        self.append_transactional = self._transactional.append
        self.append_transactional_in_slices = self._transactional.append_in_slices
        self.behind_appends = self._transactional.behind
        self.housekeeping = Housekeeping(
            directory,
            self._partitions.values,
            clock,
            checkpoint_interval_ms=settings.checkpoint_interval_ms,
            retention_interval_ms=settings.retention_check_interval_ms,
            flush_interval_ms=settings.flush_interval_ms,
        )
        self.cleaning = Cleaning(directory, self._partitions.values, self.now_ms)
        self._work: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """Open every log that the catalogue names; damaged ones stay offline, the others are served."""
        began = time.monotonic()
        opened = open_partitions(
            self.directory,
            self._topics.entries(),
            self._topics.config_of,
            self.settings.flush,
            self.leader_epoch,
            self._request_flush,
            self.now_ms(),
        )
        for partition in opened.partitions:
            self._add(partition)
        for stray in self.directory.strays(map(str, (p.id for p in opened.partitions))):
            logger.warning("folder %s belongs to no topic of the catalogue and is left alone", stray)
        took_ms = (time.monotonic() - began) * 1000
        logger.info(
            "%d partitions opened in %.0f ms, %s; leader epoch %d",
            len(opened.partitions),
            took_ms,
            self.directory.history,
            self.leader_epoch,
        )
        self.groups.topics_changed(dict(map(_subscribed, self._topics.entries())), ())
        self.groups.open(self._partitions_of(OFFSETS_TOPIC))
        self.transactions.open(self._partitions_of(TRANSACTIONS_TOPIC), self.groups.loaded)
        if self._topics.get(TRANSACTIONS_TOPIC) is not None:
            self.spawn(self._reserve_more(), lambda _: None)
        self.housekeeping.start()
        self.cleaning.start()

    def release_waiters(self) -> None:
        """Answer every long poll with what there is, and who waits in a rebalance: the first step of stopping."""
        self._reads.stopping = True
        self.groups.stop()
        for partition in list(self._partitions.values()):
            partition.wake()

    async def stop(self) -> None:
        """Flush everything and leave the marker of a clean stop."""
        for partition in self._partitions.values():
            if partition.lane is not None:
                partition.lane.close(Fault.NOT_LEADER)  # producers look up the leader and retry
        self.unpacking.stop()
        await self.cleaning.stop()
        await self.housekeeping.stop()
        self.transactions.stop()
        self.groups.stop()
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.housekeeping.written()  # the last checkpoint is the one that is written below
        self._flusher.stop()
        online = [partition for partition in self._partitions.values() if partition.log is not None]
        whole = all(partition.online for partition in self._partitions.values())
        try:
            for partition in online:
                self.housekeeping.store_snapshot(partition)
            self.directory.close([p.log for p in online if p.log is not None], clean=whole)
        except OSError as error:
            logger.error("no marker of a clean stop is left, the next start will look through the logs: %s", error)
            self.directory.close((), clean=False)
        for partition in self._partitions.values():
            partition.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def spawn(self, work: Coroutine[Any, Any, T], failed: Callable[[Exception], T]) -> Pending[T]:
        """Run a slow request as a task; its result completes the pending, an unexpected error becomes `failed`."""
        pending: Pending[T] = Pending()

        async def run() -> None:
            try:
                result = await work
            except Exception as error:
                logger.exception("request failed")
                result = failed(error)
            pending.complete(result)

        task = self._loop.create_task(run())
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return pending

    # ------------------------------------------------------------------------------------------------ records

    def gather(self) -> None:
        self._gathering.active = True

    def settle(self) -> None:
        self._gathering.settle(time.time_ns() // 1_000_000)

    def append(
        self, topic: str, partition: int, batches: Sequence[memoryview], acks: int
    ) -> list[Appended] | Pending[list[Appended]]:
        found = self._partitions.get((topic, partition))
        if found is None or topic in INTERNAL_TOPICS:
            return [refused(topic)] * len(batches)
        looked = self.preparing.look(found, batches, Light()) if found.staged else None
        if looked is None and found.staged:
            return self.preparing.append(found, batches, acks)
        if self._gathering.active:
            return self._gathering.add_batches(found, batches, acks, looked)
        results, safe_offset = found.append(batches, time.time_ns() // 1_000_000, looked)
        if safe_offset and found.durable:
            return once_safe(found, results, safe_offset, acks)
        return results

    def append_many(self, appends: Sequence[Append], acks: int) -> list[Appended] | Pending[list[Appended]]:
        return append_many(self._partitions, self.preparing, appends, acks)

    def append_in_slices(self, appends: Sequence[Append], acks: int) -> Work[list[Appended] | Pending[list[Appended]]]:
        """`append_many` for any number of batches; their bytes are borrowed until the work is done."""
        return append_in_slices(self._partitions, self.preparing, appends, acks)

    def append_run(
        self,
        topic: str,
        partition: int,
        values: Sequence[Bytes],
        keys: Sequence[Bytes | None] | None,
        acks: int,
        timestamp_ms: int = 0,
    ) -> RunAppended | Pending[RunAppended]:
        found = self._partitions.get((topic, partition))
        if found is None or topic in INTERNAL_TOPICS:
            refusal = refused(topic)
            return RunAppended(refusal.fault, text=refusal.text or refusal.fault.value)
        if timestamp_ms > 0:
            error = found.timestamp_refusal(timestamp_ms, timestamp_ms, time.time_ns() // 1_000_000)
            if error is not None:
                return RunAppended(error.fault, text=error.text)
        if found.staged and found.lane is not None:
            now_ms = time.time_ns() // 1_000_000
            made = runs.made_of_run(found, values, keys, timestamp_ms, now_ms)
            return made if isinstance(made, RunAppended) else self.append_made(found, made, acks)
        if self._gathering.active and not found.compacts:  # there, one record can spoil a whole run
            return self._gathering.add_run(found, values, keys, acks, timestamp_ms)
        return runs.append_run(found, values, keys, acks, timestamp_ms, time.time_ns() // 1_000_000)

    def append_new(
        self, topic: str, partition: int, records: Sequence[NewRecord], acks: int, compression: int = 0
    ) -> RunAppended | Pending[RunAppended]:
        found = self._partitions.get((topic, partition))
        if found is None or topic in INTERNAL_TOPICS:
            refusal = refused(topic)
            return RunAppended(refusal.fault, text=refusal.text or refusal.fault.value)
        now_ms = time.time_ns() // 1_000_000
        stamps = [record.timestamp for record in records]
        error = found.timestamp_refusal(min(stamps), max(stamps), now_ms)
        if error is not None:
            return RunAppended(error.fault, text=error.text)
        if found.staged and found.lane is not None:
            made = runs.made_of_new(found, records, compression)
            return made if isinstance(made, RunAppended) else self.append_made(found, made, acks)
        return runs.append_new(found, records, acks, compression, now_ms)

    def append_made(
        self, partition: Partition, made: Sequence[bytearray], acks: int
    ) -> RunAppended | Pending[RunAppended]:
        """Append batches that the broker built, in one write, after all earlier appends."""
        if partition.lane is not None:
            return self.preparing.append_made(partition, made, acks)
        now_ms = time.time_ns() // 1_000_000
        self._gathering.settle_one(partition, now_ms)
        return runs.append_made(partition, made, acks, now_ms)

    def list_offset(
        self, topic: str, partition: int, timestamp: int, isolation: int, leader_epoch: int = -1
    ) -> OffsetFound | Pending[OffsetFound]:
        found = self._partitions.get((topic, partition))
        if found is None:
            return OffsetFound(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        if found.log is None:
            return OffsetFound(Fault.STORAGE_ERROR)
        fault = offsets.epoch_fault(found, leader_epoch)
        if fault is not Fault.NONE:
            return OffsetFound(fault)
        if timestamp == offsets.LATEST:
            # whoever was told that his record is written finds it below the end that he asks for next
            end = found.end(committed=isolation == Isolation.READ_COMMITTED)
            return when(end, lambda offset: OffsetFound(Fault.NONE, offset, -1, found.leader_epoch))
        place = offsets.place_of(found, found.log, timestamp)
        if place is not None:
            return place
        log = found.log

        def find(_: None) -> Pending[OffsetFound]:
            looking = offsets.find_timestamp(
                found, log, timestamp, isolation, self._readers, self.directory.disk, self.unpacking
            )
            return self.spawn(looking, lambda _: OffsetFound(Fault.UNKNOWN))

        return in_turn(found.once_readable(lambda: None), find)

    def epoch_end(self, topic: str, partition: int, current_leader_epoch: int, leader_epoch: int) -> EpochEnd:
        found = self._partitions.get((topic, partition))
        if found is None:
            return EpochEnd(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        return offsets.epoch_end(found, current_leader_epoch, leader_epoch)

    def delete_records(self, topic: str, partition: int, offset: int) -> tuple[Fault, int] | Pending[tuple[Fault, int]]:
        found = self._partitions.get((topic, partition))
        written = None if found is None else found.once_readable(lambda: None)
        return in_turn(
            written,
            lambda _: self.spawn(self._delete_records(topic, partition, offset), lambda _: (Fault.UNKNOWN, -1)),
        )

    async def _delete_records(self, topic: str, partition: int, offset: int) -> tuple[Fault, int]:
        result = self._advance_start(topic, partition, offset)
        if result[0] is Fault.NONE and not await self._starts_are_safe():
            return Fault.STORAGE_ERROR, -1
        return result

    def _advance_start(self, topic: str, partition: int, offset: int) -> tuple[Fault, int]:
        """Move the log start offset. The next checkpoint makes it durable."""
        if is_internal(topic):
            return internal_topics.refusal(topic).fault, -1
        found = self._partitions.get((topic, partition))
        if found is None:
            return Fault.UNKNOWN_TOPIC_OR_PARTITION, -1
        log = found.log
        if log is None:
            return Fault.STORAGE_ERROR, -1
        if not found.config.deletes:
            return Fault.POLICY_VIOLATION, -1
        if offset == -1:
            offset = found.high_watermark
        if not 0 <= offset <= found.high_watermark:
            return Fault.OFFSET_OUT_OF_RANGE, -1
        log.advance_start(offset)
        found.log_start_moved()
        return Fault.NONE, log.log_start_offset

    def delete_records_in_slices(self, places: Iterable[tuple[str, int, int]]) -> Work[list[tuple[Fault, int]]]:
        """`delete_records` for many partitions (topic, partition, offset), with one checkpoint for all."""
        results: list[tuple[Fault, int]] = []
        yield self._next_turn()
        for topic, partition, offset in places:
            found = self._partitions.get((topic, partition))
            if found is not None:
                written = found.once_readable(lambda: None)
                if isinstance(written, Pending):
                    yield written
                    yield self._next_turn()
            results.append(self._advance_start(topic, partition, offset))
            yield None
        if any(fault is Fault.NONE for fault, _ in results):
            safe: bool = yield self.spawn(self._starts_are_safe(), lambda _: False)
            if not safe:
                return [(Fault.STORAGE_ERROR if fault is Fault.NONE else fault, -1) for fault, _ in results]
        return results

    def _next_turn(self) -> Pending[None]:
        """Completes after earlier lookups have started, so that they still find the records that are deleted now."""
        turned: Pending[None] = Pending()
        self._loop.call_soon(turned.complete, None)
        return turned

    async def _starts_are_safe(self) -> bool:
        """Store the log start offsets that have moved."""
        try:
            await self.housekeeping.checkpoint()
        except OSError as error:
            logger.error("cannot store log start offsets: %s", error)
            return False
        return True

    async def new_producer_id(self) -> int:
        """An id that no other producer has or will have."""
        async with self._producer_ids_lock:
            await self._reserve_producer_ids()
            return self._producer_ids.take()

    def _take_producer_id(self) -> int | None:
        """One of the reserved ids; None when there is none, and then the next block is on its way."""
        if self._producer_ids.exhausted:
            self.spawn(self._reserve_more(), lambda _: None)
            return None
        return self._producer_ids.take()

    async def _reserve_more(self) -> None:
        """Reserve producer ids in advance. If that fails, the first request that needs one retries."""
        async with self._producer_ids_lock:
            try:
                await self._reserve_producer_ids()
            except OSError as error:
                logger.error("cannot reserve producer ids, will be retried: %s", error)

    async def _reserve_producer_ids(self) -> None:
        if self._producer_ids.exhausted:
            end = await self._loop.run_in_executor(None, self._producer_ids.reserve)
            self._producer_ids.reserved(end)

    def once_loaded(self, ask: Callable[[], Pending[Any] | Fault]) -> Pending[Any] | Fault:
        """What a group's coordinator answers. Right after the start it is waited for, where a Kafka client would come again
        and those of other dialects would take it for a failure."""
        asked = ask()
        if asked is not Fault.COORDINATOR_LOADING:
            return asked
        loading: Pending[Any] = self.spawn(self.groups.loaded(), lambda _: None)
        return in_turn(loading, lambda _: ask())

    # ------------------------------------------------------------------------------------------------ topics

    def topic(self, name: str) -> TopicInfo | None:
        entry = self._topics.get(name)
        if entry is None:
            return None
        partitions = PartitionInfos(self._partitions, name, entry.partitions, self.leader_epoch)
        return TopicInfo(entry.name, entry.id, is_internal(name), partitions)

    def topic_names(self) -> Sequence[str]:
        """Sorted; the returned list never changes."""
        return self._topics.names()

    def topic_name_of(self, topic_id: bytes) -> str | None:
        return self._topics.name_of(topic_id)

    def topics(self) -> list[TopicInfo]:
        return [info for name in self._topics.names() if (info := self.topic(name)) is not None]

    @property
    def catalogue_version(self) -> int:
        """Rises with every change of a topic: what cached descriptions are keyed by."""
        return self._topics.version

    def partition(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get((topic, partition))

    def partitions(self) -> Iterable[Partition]:
        return self._partitions.values()

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool) -> Pending[list[TopicResult]]:
        return self.spawn(
            self._topics.create(topics, validate_only=validate_only),
            lambda _: [TopicResult(topic.name, Fault.UNKNOWN) for topic in topics],
        )

    def delete_topics(self, names: Sequence[str]) -> Pending[list[TopicResult]]:
        return self.spawn(self._topics.delete(names), lambda _: [TopicResult(name, Fault.UNKNOWN) for name in names])

    def add_partitions(self, topics: Sequence[tuple[str, int]], *, validate_only: bool) -> Pending[list[TopicResult]]:
        return self.spawn(
            self._topics.add_partitions(topics, validate_only=validate_only),
            lambda _: [TopicResult(name, Fault.UNKNOWN) for name, _ in topics],
        )

    def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool
    ) -> Pending[list[TopicResult]]:
        return self.spawn(
            self._topics.alter_configs(changes, validate_only=validate_only),
            lambda _: [TopicResult(name, Fault.UNKNOWN) for name in changes],
        )

    def topic_configs(self, name: str) -> Mapping[str, str] | None:
        """The overrides of a topic."""
        entry = self._topics.get(name)
        return None if entry is None else entry.configs

    # ------------------------------------------------------------------------------------------------ internal topics

    @property
    def coordination_problem(self) -> str | None:
        """Why no coordinator can store anything now, not even create its topic, or None."""
        if self.directory.disk.room is Room.CRITICAL:
            return NO_ROOM
        return None

    def _make_offsets_topic(self) -> Pending[Fault]:
        return self._make_internal(OFFSETS_TOPIC, self.groups.open)

    def _make_transactions_topic(self) -> Pending[Fault]:
        return self._make_internal(TRANSACTIONS_TOPIC, self.transactions.open)

    def _make_internal(self, name: str, opened: Callable[[list[Partition]], None]) -> Pending[Fault]:
        """Create an internal topic and hand its partitions over, once however many ask for it."""
        return self.spawn(self._made_internal(name, opened), lambda _: Fault.COORDINATOR_NOT_AVAILABLE)

    async def _made_internal(self, name: str, opened: Callable[[list[Partition]], None]) -> Fault:
        async with self._internal_lock:
            if self._topics.get(name) is None:
                result = await self._topics.create_internal(name, self.settings.internal_partitions)
                if result.fault is not Fault.NONE:
                    logger.error("internal topic %s cannot be made: %s", name, result.text)
                    return Fault.COORDINATOR_NOT_AVAILABLE
                await self._reserve_more()
                opened(self._partitions_of(name))
                await self.groups.loaded()
                await self.transactions.loaded()
            return Fault.NONE

    def _partitions_of(self, name: str) -> list[Partition]:
        entry = self._topics.get(name)
        return [] if entry is None else [self._partitions[name, at] for at in range(entry.partitions)]

    async def _topics_changed(self, changed: Iterable[TopicEntry], gone: Collection[str]) -> None:
        pauses = Pauses()
        came: dict[str, SubscribedTopic] = {}
        for entry in changed:
            came[entry.name] = SubscribedTopic(entry.id, entry.partitions)
            if pauses.due:
                await pauses.pause()
        self.groups.topics_changed(came, gone)
        if gone:
            dropped = self.in_slices(self.groups.drop_topics(frozenset(gone)))
            if isinstance(dropped, Pending):
                await result_of(dropped)

    # ------------------------------------------------------------------------------------------------ inside

    def _find(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get((topic, partition))

    def _publish(self, partition_id: TopicPartition, log: PartitionLog) -> None:
        self.directory.adopt(log)
        self._add(
            Partition(
                partition_id,
                log,
                log.config,
                self.settings.flush,
                self.leader_epoch,
                ProducerTable(self.now_ms()),
                self._request_flush,
            )
        )

    def _add(self, partition: Partition) -> None:
        self._partitions[(partition.id.topic, partition.id.partition)] = partition
        log = partition.log
        if log is not None:
            self._by_log[log] = partition
            log.on_roll = lambda: self.housekeeping.retain_log(partition, self.now_ms())

    def _withdraw(self, partition_id: TopicPartition) -> None:
        partition = self._partitions.pop((partition_id.topic, partition_id.partition), None)
        if partition is not None:
            if partition.log is not None:
                self._by_log.pop(partition.log, None)
                partition.log.withdrawn = True
                partition.log.retire()
            partition.close()

    def _reconfigure(self, partition_id: TopicPartition) -> None:
        partition = self._partitions.get((partition_id.topic, partition_id.partition))
        if partition is not None:
            partition.configure(self._topics.config_of(partition_id.topic), self.settings.flush)

    def _request_flush(self, log: PartitionLog) -> None:
        self._flusher.request(log)

    def _log_flushed(self, log: PartitionLog) -> None:
        partition = self._by_log.get(log)
        if partition is None:  # its topic was deleted meanwhile
            return
        partition.flushed()


def _subscribed(entry: TopicEntry) -> tuple[str, SubscribedTopic]:
    return entry.name, SubscribedTopic(entry.id, entry.partitions)
