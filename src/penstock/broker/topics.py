"""Creating, changing and deleting topics: checked, saved, then made visible, one request after the other.

The order is what makes it crash-safe. Creating: folders, then the catalogue, then visible. Deleting: out of the catalogue,
out of sight, then the folders go to the trash. A crash in between leaves a folder that the catalogue does not name (it is
replaced when the name comes back) and never a topic without its folders. If the disk has no space for a new catalogue, a
topic is deleted by a rename (`_mark_deleted`).

One request may name thousands of topics, so every loop here pauses (`Pauses`). The lock keeps other changes out meanwhile,
and the visible state changes in one step.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from penstock.broker import catalogue, internal_topics
from penstock.broker.catalogue import TopicEntry
from penstock.broker.engine import NewTopic, TopicResult
from penstock.broker.pauses import Pauses
from penstock.model import limits, topic_config
from penstock.model.errors import BrokerError, Fault, StartError
from penstock.model.ids import TopicName, TopicPartition, is_internal, new_topic_id, topic_name
from penstock.model.topic_config import TopicConfig
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import public_reason
from penstock.storage.log import PartitionLog
from penstock.storage.room import FULL, Room

if TYPE_CHECKING:
    from penstock.broker.embedded import EngineSettings

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

MAKERS = 8
"""Partitions that are made at once, by a thread each, which waits for the disk twice. Each takes some 2 ms of CPU time, and
the event loop competes with all of these threads, so it gets its turn after each round."""

_NewPartition = tuple[TopicPartition, uuid.UUID, TopicConfig]
_NewLog = tuple[TopicPartition, PartitionLog]


class Topics:
    def __init__(
        self,
        directory: DataDirectory,
        settings: EngineSettings,
        publish: Callable[[TopicPartition, PartitionLog], None],
        withdraw: Callable[[TopicPartition], None],
        reconfigure: Callable[[TopicPartition], None],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._publish = publish
        self._withdraw = withdraw
        self._reconfigure = reconfigure
        self._defaults = dict(settings.topic_defaults or {})
        saved = directory.read_state(catalogue.FILE_NAME)
        if saved is None:
            directory.refuse_lost_catalogue(catalogue.FILE_NAME)
        self._entries = self._without_deleted(internal_topics.repair_configs(catalogue.decode(saved)))
        self._saved = catalogue.encode(self._entries)
        """The catalogue as stored on disk, or as owed (`Disk.owe`)."""
        self._names_by_id = {entry.id.bytes: entry.name for entry in self._entries.values()}
        self._sorted_names: list[str] = sorted(self._entries)
        self.partition_count = sum(entry.partitions for entry in self._entries.values())
        self._configs: dict[str, TopicConfig] = {}
        self._lock = asyncio.Lock()
        self.version = 0
        self.on_change: Callable[[Iterable[TopicEntry], Collection[str]], Awaitable[None]] | None = None
        """Called with the new or changed entries and the names of deleted topics."""

    def _without_deleted(self, entries: dict[TopicName, TopicEntry]) -> dict[TopicName, TopicEntry]:
        """Complete deletions whose catalogue could not be written, at start (`_mark_deleted`)."""
        deleted = self._directory.marked_deleted()
        if not deleted:
            return entries
        left = {name: entry for name, entry in entries.items() if entry.id not in deleted}
        self._throw_away([folder for entry in entries.values() if entry.id in deleted for folder in _folders(entry)])
        if len(left) < len(entries):
            self._directory.write_or_owe_state(catalogue.FILE_NAME, catalogue.encode(left))
        self._empty_deleted()
        return left

    # ------------------------------------------------------------------------------------------------ asking

    def get(self, name: str) -> TopicEntry | None:
        return self._entries.get(TopicName(name))

    def names(self) -> Sequence[str]:
        """Sorted; the returned list never changes."""
        return self._sorted_names

    def entries(self) -> list[TopicEntry]:
        return list(self._entries.values())

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names_by_id.get(topic_id)

    def config_of(self, name: str) -> TopicConfig:
        config = self._configs.get(name)
        if config is None:
            entry = self._entries[TopicName(name)]
            config = self._configs[name] = topic_config.parse(entry.configs, self._defaults)
        return config

    def existing(self) -> Collection[str]:
        """A live view of the names of all topics, in no particular order."""
        return self._entries.keys()

    # ------------------------------------------------------------------------------------------------ changing

    async def create(self, topics: Sequence[NewTopic], *, validate_only: bool) -> list[TopicResult]:
        """Create topics for a client."""
        return await self._create(topics, validate_only=validate_only, by_client=True)

    async def create_internal(self, name: str, partitions: int) -> TopicResult:
        """Create an internal topic for its coordinators."""
        topic = NewTopic(name, partitions, 1, internal_topics.CONFIGS)
        [result] = await self._create([topic], validate_only=False, by_client=False)
        return result

    async def _create(self, topics: Sequence[NewTopic], *, validate_only: bool, by_client: bool) -> list[TopicResult]:
        async with self._lock:
            pauses = Pauses()
            asked = Counter([topic.name for topic in topics])
            planned: dict[TopicName, TopicEntry] = {}
            results: list[TopicResult] = []
            room = limits.PARTITIONS_MAX - self.partition_count
            for topic in topics:
                if pauses.due:
                    await pauses.pause()
                try:
                    if asked[topic.name] > 1:
                        raise BrokerError(Fault.INVALID_REQUEST, f"topic {topic.name!r} is named twice")
                    if by_client and is_internal(topic.name):
                        raise internal_topics.refusal(topic.name)
                    entry = self._planned(topic, room)
                except BrokerError as error:
                    results.append(TopicResult(topic.name, error.fault, error.text))
                    continue
                room -= entry.partitions
                planned[entry.name] = entry
                results.append(
                    TopicResult(topic.name, Fault.NONE, None, entry.id, entry.partitions, dict(entry.configs))
                )
            if validate_only or not planned:
                return results
            try:
                endures = Room.AMPLE if by_client else Room.TIGHT
                logs = await self._make_logs([(entry, 0) for entry in planned.values()], endures)
                await self._save({**self._entries, **planned})
            except OSError as error:
                await self._off_loop(lambda: self._unmake(planned.values()))
                return self._failed(results, planned, error)
            await self._publish_all(logs)
            await self._show(planned.values(), {})
            return results

    async def _publish_all(self, logs: Iterable[tuple[TopicPartition, PartitionLog]]) -> None:
        pauses = Pauses()
        for partition_id, log in logs:
            self._publish(partition_id, log)
            if pauses.due:
                await pauses.pause()

    def _planned(self, topic: NewTopic, room: int) -> TopicEntry:
        name = topic_name(topic.name)
        if name in self._entries:
            raise BrokerError(Fault.TOPIC_EXISTS, f"topic {name!r} exists")
        count = self._settings.num_partitions if topic.partitions == -1 else topic.partitions
        if not 1 <= count <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise BrokerError(
                Fault.INVALID_PARTITIONS, f"a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX} partitions, not {count}"
            )
        if count > room:
            raise BrokerError(Fault.INVALID_PARTITIONS, f"the broker has room for {room} more partitions")
        if topic.replication_factor not in (-1, 1):
            raise BrokerError(
                Fault.INVALID_REPLICATION_FACTOR,
                f"replication factor {topic.replication_factor} needs as many brokers; there is one",
            )
        configs = dict(topic.configs)
        self._check_configs(configs)
        return TopicEntry(name, new_topic_id(), count, configs)

    def _check_configs(self, configs: Mapping[str, str]) -> TopicConfig:
        return topic_config.parse(configs, self._defaults)

    async def _make_logs(self, entries: Iterable[tuple[TopicEntry, int]], endures: Room = Room.AMPLE) -> list[_NewLog]:
        """Folders and files of new partitions, from the given one of each topic on, safe on disk."""
        pauses = Pauses()
        wanted: list[_NewPartition] = []
        for entry, first in entries:
            config = topic_config.parse(entry.configs, self._defaults)
            wanted += [(TopicPartition(entry.name, at), entry.id, config) for at in range(first, entry.partitions)]
            if pauses.due:
                await pauses.pause()
        logs: list[_NewLog] = []
        makers = ThreadPoolExecutor(MAKERS, thread_name_prefix="penstock-make")
        try:
            for at in range(0, len(wanted), MAKERS):
                some = wanted[at : at + MAKERS]
                logs += await self._off_loop(functools.partial(self._make_some, makers, some, endures))
        finally:
            makers.shutdown(wait=False)
        await self._off_loop(self._directory.sync)
        return logs

    def _make_some(self, makers: ThreadPoolExecutor, some: Iterable[_NewPartition], endures: Room) -> list[_NewLog]:
        """Runs off the loop."""

        def make(one: _NewPartition) -> _NewLog:
            partition_id, topic_id, config = one
            return partition_id, self._directory.create_log(str(partition_id), topic_id, config, endures)

        # File systems sync small files together when several threads wait for it.
        waiting = [makers.submit(make, one) for one in some]
        wait(waiting)  # none is left at work when one has failed
        return [made.result() for made in waiting]

    def _unmake(self, entries: Iterable[TopicEntry]) -> None:
        """Remove the folders of partitions whose creation could not be saved, because they take disk space. They are kept if
        the catalogue could not be restored either and may list the partitions. Runs off the loop."""
        if not self._is_as_saved():
            return
        names = []
        for entry in entries:
            first = self._entries[entry.name].partitions if entry.name in self._entries else 0
            names += [str(TopicPartition(entry.name, at)) for at in range(first, entry.partitions)]
        try:
            self._directory.discard(names)
        except OSError as error:
            logger.error("cannot remove the folders of topics that were not created: %s", error)

    async def delete(self, names: Sequence[str]) -> list[TopicResult]:
        async with self._lock:
            pauses = Pauses()
            results = []
            gone: dict[TopicName, TopicEntry] = {}
            for name in names:
                if pauses.due:
                    await pauses.pause()
                entry = self._entries.get(TopicName(name))
                if is_internal(name):
                    results.append(_refused(name))
                elif not self._settings.delete_topics:
                    results.append(TopicResult(name, Fault.TOPIC_DELETION_DISABLED))
                elif entry is None:
                    results.append(TopicResult(name, Fault.UNKNOWN_TOPIC_OR_PARTITION))
                else:
                    gone[entry.name] = entry
                    results.append(TopicResult(name, Fault.NONE, None, entry.id))
            if not gone:
                return results
            try:
                await self._save({name: entry for name, entry in self._entries.items() if name not in gone})
            except OSError as error:
                marked = await self._mark_deleted(gone, error)
                results = self._failed(results, gone.keys() - marked.keys(), error)
                gone = marked
            if not gone:
                return results
            await self._show((), gone)
            folders = []
            for entry in gone.values():
                for at in range(entry.partitions):
                    partition_id = TopicPartition(entry.name, at)
                    self._withdraw(partition_id)
                    folders.append(str(partition_id))
                    if pauses.due:
                        await pauses.pause()
            await self._off_loop(lambda: self._throw_away(folders))
            await self._off_loop(self._empty_deleted)
            return results

    async def _mark_deleted(self, gone: dict[TopicName, TopicEntry], error: OSError) -> dict[TopicName, TopicEntry]:
        """Delete topics although the catalogue cannot be saved. Returns the topics of `gone` that were deleted.

        If the disk has no space for a new catalogue, one folder of each topic is renamed to a mark that the next start
        recognizes. The rename is the moment of deletion: a crash before it leaves the topic, and a crash after it leaves a
        catalogue with a topic that the next start removes. The catalogue is owed, and is written into the space that the
        topics free.
        """
        if error.errno not in FULL or not self._directory.disk.may_owe:
            return {}
        marked = {}
        for name, entry in gone.items():
            mark = functools.partial(self._directory.mark_deleted, entry.id, _folders(entry))
            try:
                if await self._off_loop(mark):
                    marked[name] = entry
            except OSError as failed:
                logger.error("cannot delete topic %s: %s", name, failed)
        if marked:
            left = await self._encoded({name: entry for name, entry in self._entries.items() if name not in marked})
            await self._off_loop(lambda: self._directory.owe_state(catalogue.FILE_NAME, left))
            self._saved = left
        return marked

    def _empty_deleted(self) -> None:
        try:
            self._directory.empty_deleted()
        except OSError as error:
            logger.error("cannot save the catalogue without the deleted topics, will be retried: %s", error)
        if self._directory.reserve is not None:
            self._directory.reserve.restore()

    def _throw_away(self, folders: list[str]) -> None:
        """The topics are gone with their entries in the catalogue; folders that stay are a nuisance, not a fault."""
        for folder in folders:
            try:
                if self._directory.disk.exists(self._directory.path / folder):
                    self._directory.trash(folder)
            except OSError as error:
                logger.error("folder %s of a deleted topic cannot be removed: %s", folder, error)
        try:
            self._directory.empty_trash()
        except OSError as error:
            logger.error("folders of deleted topics cannot be removed: %s", error)

    async def add_partitions(self, topics: Sequence[tuple[str, int]], *, validate_only: bool) -> list[TopicResult]:
        async with self._lock:
            pauses = Pauses()
            results = []
            grown: dict[TopicName, TopicEntry] = {}
            room = limits.PARTITIONS_MAX - self.partition_count
            for name, count in topics:
                if pauses.due:
                    await pauses.pause()
                entry = self._entries.get(TopicName(name))
                if is_internal(name):
                    results.append(_refused(name))
                elif entry is None:
                    results.append(TopicResult(name, Fault.UNKNOWN_TOPIC_OR_PARTITION))
                elif count <= entry.partitions:
                    text = f"topic {name!r} has {entry.partitions} partitions; {count} is not more"
                    results.append(TopicResult(name, Fault.INVALID_PARTITIONS, text))
                elif count > limits.PARTITIONS_PER_TOPIC_MAX:
                    text = f"a topic has at most {limits.PARTITIONS_PER_TOPIC_MAX} partitions"
                    results.append(TopicResult(name, Fault.INVALID_PARTITIONS, text))
                elif count - entry.partitions > room:
                    text = f"the broker has room for {room} more partitions"
                    results.append(TopicResult(name, Fault.INVALID_PARTITIONS, text))
                else:
                    room -= count - entry.partitions
                    grown[entry.name] = entry.with_partitions(count)
                    results.append(TopicResult(name, Fault.NONE, None, entry.id, count))
            if validate_only or not grown:
                return results
            try:
                logs = await self._make_logs(
                    [(entry, self._entries[entry.name].partitions) for entry in grown.values()]
                )
                await self._save({**self._entries, **grown})
            except OSError as error:
                await self._off_loop(lambda: self._unmake(grown.values()))
                return self._failed(results, grown, error)
            await self._publish_all(logs)
            await self._show(grown.values(), {})
            return results

    async def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool
    ) -> list[TopicResult]:
        async with self._lock:
            pauses = Pauses()
            results = []
            changed: dict[TopicName, TopicEntry] = {}
            for name, values in changes.items():
                if pauses.due:
                    await pauses.pause()
                entry = self._entries.get(TopicName(name))
                if is_internal(name):
                    results.append(_refused(name))
                    continue
                if entry is None:
                    results.append(TopicResult(name, Fault.UNKNOWN_TOPIC_OR_PARTITION))
                    continue
                configs = dict(entry.configs)
                for key, value in values.items():
                    if value is None:
                        configs.pop(key, None)
                    else:
                        configs[key] = value
                try:
                    self._check_configs(configs)
                except BrokerError as error:
                    results.append(TopicResult(name, error.fault, error.text))
                    continue
                changed[entry.name] = entry.with_configs(configs)
                results.append(TopicResult(name, Fault.NONE, None, entry.id, entry.partitions, configs))
            if validate_only or not changed:
                return results
            try:
                await self._save({**self._entries, **changed})
            except OSError as error:
                return self._failed(results, changed, error)
            await self._show(changed.values(), {})
            for entry in changed.values():
                for at in range(entry.partitions):
                    self._reconfigure(TopicPartition(entry.name, at))
                    if pauses.due:
                        await pauses.pause()
            return results

    async def _save(self, entries: dict[TopicName, TopicEntry]) -> None:
        """Store the new catalogue on disk."""
        payload = await self._encoded(entries)
        await self._off_loop(lambda: self._write(payload))

    @staticmethod
    async def _encoded(entries: Mapping[TopicName, TopicEntry]) -> bytes:
        pauses = Pauses()
        parts = []
        for part in catalogue.encode_in_parts(entries):
            parts.append(part)
            if pauses.due:
                await pauses.pause()
        return b"".join(parts)

    async def _show(self, changed: Collection[TopicEntry], gone: Mapping[TopicName, TopicEntry]) -> None:
        """Make the saved changes visible, all at once."""
        pauses = Pauses()
        entries = dict(self._entries)
        partition_count = self.partition_count
        replaced: list[str] = []
        for entry in changed:
            before = entries.get(entry.name)
            if before is not None:
                partition_count -= before.partitions
                replaced.append(entry.name)
            partition_count += entry.partitions
            entries[entry.name] = entry
            self._names_by_id[entry.id.bytes] = entry.name  # nobody knows the id yet
            if pauses.due:
                await pauses.pause()
        names = self._sorted_names
        if gone:
            for entry in gone.values():
                del entries[entry.name]
                partition_count -= entry.partitions
                if pauses.due:
                    await pauses.pause()
            names = [name for name in names if name not in gone]
        elif len(entries) > len(names):
            names = sorted([*names, *(entry.name for entry in changed if entry.name not in self._entries)])
        self._entries, self._sorted_names, self.partition_count = entries, names, partition_count
        for name in replaced:
            self._configs.pop(name, None)
        self.version += 1
        for entry in gone.values():  # an id leads to a name that is gone until then
            self._names_by_id.pop(entry.id.bytes, None)
            self._configs.pop(entry.name, None)
            if pauses.due:
                await pauses.pause()
        if self.on_change is not None:
            await self.on_change(changed, gone)

    def _write(self, payload: bytes) -> None:
        """Write the catalogue. After an error the file is unchanged. Runs off the loop."""
        try:
            self._directory.write_state(catalogue.FILE_NAME, payload)
        except OSError:
            # The error may have come after the file was replaced. Then the next start would find a change that was
            # refused: a topic gone to which records were written since.
            if self._is_as_saved():
                raise
            try:
                self._directory.write_or_owe_state(catalogue.FILE_NAME, self._saved)
            except OSError as error:
                logger.error("the catalogue may hold a change that was refused, until the next one is saved: %s", error)
            raise
        self._saved = payload

    def _is_as_saved(self) -> bool:
        """Whether the next start would read the last saved catalogue. Runs off the loop."""
        try:
            found = self._directory.read_state(catalogue.FILE_NAME)
        except StartError:
            return False
        return found is None or found == self._saved

    def _failed(self, results: list[TopicResult], touched: Iterable[str], error: OSError) -> list[TopicResult]:
        names = set(touched)
        if not names:
            return results
        some = ", ".join(sorted(names)[:10])
        if error.errno in FULL:  # clients retry many times
            self._directory.disk.refusals.note(f"the catalogue ({some})", str(error))
        else:
            logger.error("change of %s could not be saved: %s", some, error)
        return [
            TopicResult(result.name, Fault.STORAGE_ERROR, f"the change could not be saved: {public_reason(error)}")
            if result.name in names
            else result
            for result in results
        ]

    @staticmethod
    def _off_loop(work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.get_running_loop().run_in_executor(None, work)


def _folders(entry: TopicEntry) -> Iterator[str]:
    return (str(TopicPartition(entry.name, at)) for at in range(entry.partitions))


def _refused(name: str) -> TopicResult:
    refusal = internal_topics.refusal(name)
    return TopicResult(name, refusal.fault, refusal.text)
