"""Creating, changing and deleting topics: checked, saved, then made visible, one request after the other.

The order is what makes it crash-safe. Creating: folders, then the catalogue, then visible. Deleting: out of the catalogue,
out of sight, then the folders go to the trash. A crash in between leaves a folder that the catalogue does not name (it is
replaced when the name comes back) and never a topic without its folders.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.broker import catalogue, internal_topics
from penstock.broker.catalogue import TopicEntry
from penstock.broker.engine import NewTopic, TopicResult
from penstock.model import limits, topic_config
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition, is_internal, new_topic_id, topic_name
from penstock.model.topic_config import TopicConfig
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log import PartitionLog

if TYPE_CHECKING:
    from penstock.broker.embedded import EngineSettings

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

MAKERS = 16
"""Threads that make partitions, each of which waits for the disk twice."""


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
        self._entries = internal_topics.repair_configs(catalogue.decode(saved))
        self._names_by_id = {entry.id.bytes: entry.name for entry in self._entries.values()}
        self._configs: dict[str, TopicConfig] = {}
        self._lock = asyncio.Lock()
        self.version = 0
        self.on_change: Callable[[], None] | None = None

    # ------------------------------------------------------------------------------------------------ asking

    def get(self, name: str) -> TopicEntry | None:
        return self._entries.get(TopicName(name))

    def names(self) -> Iterable[str]:
        return self._entries.keys()

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

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics whose whole name fits a client's RE2 pattern; raises BrokerError when it is none."""
        import re2

        try:
            fits = re2.compile(pattern).fullmatch
        except re2.error as error:
            raise BrokerError(Fault.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from None
        return frozenset(name for name in self._entries if not is_internal(name) and fits(name))

    @property
    def partition_count(self) -> int:
        return sum(entry.partitions for entry in self._entries.values())

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
            asked = [topic.name for topic in topics]
            planned: dict[TopicName, TopicEntry] = {}
            results: list[TopicResult] = []
            room = limits.PARTITIONS_MAX - self.partition_count
            for topic in topics:
                try:
                    if asked.count(topic.name) > 1:
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
                logs = await self._off_loop(lambda: self._make_logs(planned.values(), 0))
                await self._save({**self._entries, **planned})
            except OSError as error:
                return _failed(results, planned, error)
            for partition_id, log in logs:
                self._publish(partition_id, log)
            return results

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

    def _make_logs(self, entries: Iterable[TopicEntry], first: int) -> list[tuple[TopicPartition, PartitionLog]]:
        """Folders and files of new partitions, safe on disk. Runs off the loop."""
        wanted = []
        for entry in entries:
            config = topic_config.parse(entry.configs, self._defaults)
            wanted += [(TopicPartition(entry.name, at), entry.id, config) for at in range(first, entry.partitions)]

        def make(one: tuple[TopicPartition, uuid.UUID, TopicConfig]) -> tuple[TopicPartition, PartitionLog]:
            partition_id, topic_id, config = one
            return partition_id, self._directory.create_log(str(partition_id), topic_id, config)

        # File systems sync many small files together when many wait for it.
        with ThreadPoolExecutor(MAKERS, thread_name_prefix="penstock-make") as makers:
            logs = list(makers.map(make, wanted))
        self._directory.sync()
        return logs

    async def delete(self, names: Sequence[str]) -> list[TopicResult]:
        async with self._lock:
            results = []
            gone: dict[TopicName, TopicEntry] = {}
            for name in names:
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
                return _failed(results, gone, error)
            folders = []
            for entry in gone.values():
                for at in range(entry.partitions):
                    partition_id = TopicPartition(entry.name, at)
                    self._withdraw(partition_id)
                    folders.append(str(partition_id))
            await self._off_loop(lambda: self._throw_away(folders))
            return results

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
            results = []
            grown: dict[TopicName, TopicEntry] = {}
            for name, count in topics:
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
                else:
                    grown[entry.name] = entry.with_partitions(count)
                    results.append(TopicResult(name, Fault.NONE, None, entry.id, count))
            if validate_only or not grown:
                return results
            try:
                logs = await self._off_loop(
                    lambda: [
                        made
                        for entry in grown.values()
                        for made in self._make_logs([entry], self._entries[entry.name].partitions)
                    ]
                )
                await self._save({**self._entries, **grown})
            except OSError as error:
                return _failed(results, grown, error)
            for partition_id, log in logs:
                self._publish(partition_id, log)
            return results

    async def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool
    ) -> list[TopicResult]:
        async with self._lock:
            results = []
            changed: dict[TopicName, TopicEntry] = {}
            for name, values in changes.items():
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
                return _failed(results, changed, error)
            for entry in changed.values():
                self._configs.pop(entry.name, None)
                for at in range(entry.partitions):
                    self._reconfigure(TopicPartition(entry.name, at))
            return results

    async def _save(self, entries: dict[TopicName, TopicEntry]) -> None:
        payload, before = catalogue.encode(entries), catalogue.encode(self._entries)
        await self._off_loop(lambda: self._write(payload, before))
        self._entries = entries
        self._names_by_id = {entry.id.bytes: entry.name for entry in entries.values()}
        self._configs = {name: config for name, config in self._configs.items() if name in entries}
        self.version += 1
        if self.on_change is not None:
            self.on_change()

    def _write(self, payload: bytes, before: bytes) -> None:
        """Write the catalogue; after an error the file is as it was."""
        try:
            self._directory.write_state(catalogue.FILE_NAME, payload)
        except OSError:
            # The error may have come after the file was replaced. Then the next start would find a change that was
            # refused: a topic gone to which records were written since.
            try:
                self._directory.write_state(catalogue.FILE_NAME, before)
            except OSError as error:
                logger.error("the catalogue may hold a change that was refused, until the next one is saved: %s", error)
            raise

    @staticmethod
    def _off_loop(work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.get_running_loop().run_in_executor(None, work)


def _refused(name: str) -> TopicResult:
    refusal = internal_topics.refusal(name)
    return TopicResult(name, refusal.fault, refusal.text)


def _failed(results: list[TopicResult], touched: Iterable[str], error: OSError) -> list[TopicResult]:
    names = set(touched)
    return [
        TopicResult(result.name, Fault.STORAGE_ERROR, f"the change could not be saved: {error}")
        if result.name in names
        else result
        for result in results
    ]
