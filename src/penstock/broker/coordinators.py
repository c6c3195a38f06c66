"""What the coordinators of groups and of transactions have in common: an internal topic, a machine for each partition.

A `Shard` is one partition with its machine: it replays the log into the machine, gives it commands, and calls it when it
asked to be called. `Shards` are all partitions of the topic: they are made with the first question, and a name always goes
to the same one, the one Kafka would choose.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from penstock.broker.internal_log import InternalLog
from penstock.broker.partition import Partition
from penstock.coordination.record_fields import FieldError
from penstock.model.errors import Fault
from penstock.model.pending import Pending, gather
from penstock.records.batch import Batch, BatchError

logger = logging.getLogger(__name__)

SLEEP_S_MAX = 3_600.0
RETRY_S = 1.0
"""Pause after an unexpected error."""
RELOAD_DELAY_S = 0.25
RELOAD_DELAY_S_MAX = 60.0
"""Delay before a log that could not be read is read again: starts at the first value and doubles up to the second."""


class Machine(Protocol):
    @property
    def next_deadline_ms(self) -> int: ...


M = TypeVar("M", bound=Machine)
S = TypeVar("S", bound="Shard[Any]")


class Shard(ABC, Generic[M]):
    def __init__(
        self, partition: Partition, now_ms: Callable[[], int], readers: Executor, make_machine: Callable[[], M]
    ) -> None:
        self.partition = partition
        self._make_machine = make_machine
        self.log = InternalLog(partition)
        self.now_ms = now_ms
        self.machine: M | None = None
        """None while loading or offline; `fault` says which."""
        self.fault = Fault.COORDINATOR_LOADING
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._work: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None
        self._reload: asyncio.TimerHandle | None = None
        self._reload_delay_s = RELOAD_DELAY_S

    @abstractmethod
    def take(self, machine: M, batch: Batch) -> Iterator[None]:
        """Replay a batch of the log, one record per step."""

    @abstractmethod
    def serve(self, machine: M) -> None:
        """The log is replayed."""

    @abstractmethod
    def ask(self, command: Any) -> Pending[Any] | Fault:
        """The machine's answer, when what it rests on is flushed."""

    @abstractmethod
    def tick(self, machine: M) -> None:
        """The machine's deadline has come."""

    # ------------------------------------------------------------------------------------------------ loading

    def load(self, after: Awaitable[None] | None = None) -> None:
        """Make the state from the log, once `after` is done."""
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        self.fault = Fault.COORDINATOR_LOADING
        self.machine = None
        self._loading = self.begin(self._load(after))

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(self._guarded(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run background work. If it fails, load the state again, so that no transaction or group stays unfinished."""
        try:
            await work
        except Exception:
            logger.exception("%s: background work failed, reloading the state in %d s", self.log.id, RETRY_S)
            self.fault = Fault.COORDINATOR_LOADING
            self.machine = None
            self._reload = self._loop.call_later(RETRY_S, self.load)

    async def _load(self, after: Awaitable[None] | None) -> None:
        machine = self._make_machine()
        try:
            await self.log.replay(lambda batch: self.take(machine, batch), self._readers)
        except (BatchError, FieldError) as error:
            logger.error("%s cannot be loaded, what it coordinates is not served: %s", self.log.id, error)
            self.fault = Fault.COORDINATOR_NOT_AVAILABLE
            return
        except OSError as error:
            delay_s = self._reload_delay_s
            logger.error("%s cannot be loaded, will be retried in %g s: %s", self.log.id, delay_s, error)
            self.fault = Fault.COORDINATOR_NOT_AVAILABLE
            if after is not None:
                await after
            self._reload_delay_s = min(2 * delay_s, RELOAD_DELAY_S_MAX)
            self._reload = self._loop.call_later(delay_s, self.load)
            return
        self._reload_delay_s = RELOAD_DELAY_S
        if after is not None:
            await after
        if not self.partition.online:
            self.fault = Fault.COORDINATOR_NOT_AVAILABLE
            return
        self.machine = machine
        self.serve(machine)
        self.schedule()

    async def loaded(self) -> None:
        if self._loading is not None:
            await self._loading

    # ------------------------------------------------------------------------------------------------ time

    def schedule(self) -> None:
        """Wake up when the machine wants it."""
        machine = self.machine
        if machine is None:
            return
        due_ms = machine.next_deadline_ms
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_s = max(0.0, (due_ms - self.now_ms()) / 1000)
        self._timer = self._loop.call_later(min(delay_s, SLEEP_S_MAX), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.machine is None:
            return
        if self.log.problem is not None:  # the changes that a deadline causes cannot be stored now
            self._timer_ms = self.now_ms()
            self._timer = self._loop.call_later(RETRY_S, self._tick)
            return
        try:
            self.tick(self.machine)
        except Exception:
            logger.exception("%s: handling a deadline failed, will be retried in %d s", self.log.id, RETRY_S)
            self._timer_ms = self.now_ms()
            self._timer = self._loop.call_later(RETRY_S, self._tick)
            return
        self.schedule()

    def stop(self) -> None:
        for timer in (self._timer, self._reload):
            if timer is not None:
                timer.cancel()
        for task in self._work:
            task.cancel()
        self.machine = None
        self.fault = Fault.NOT_COORDINATOR


class Shards(Generic[S]):
    def __init__(self, make_shard: Callable[[Partition], S], make_topic: Callable[[], Pending[Fault]]) -> None:
        self._make_shard = make_shard
        self._make_topic = make_topic
        self.shards: dict[int, S] = {}

    def open(self, partitions: list[Partition], after: Callable[[], Awaitable[None]] | None = None) -> None:
        """The topic's partitions are there, at start or just made: load them."""
        for partition in partitions:
            shard = self.shards[partition.id.partition] = self._make_shard(partition)
            shard.load(None if after is None else after())

    def ensure(self) -> Pending[Fault]:
        """Make the topic if this is the first time that anybody asks."""
        if not self.shards:
            return self._make_topic()
        done: Pending[Fault] = Pending()
        done.complete(Fault.NONE)
        return done

    @property
    def is_open(self) -> bool:
        """Whether the topic exists."""
        return bool(self.shards)

    def problem_of(self, name: str) -> str | None:
        """Why the coordinator of that name cannot store anything now, or None."""
        return self.shards[self.index_of(name)].log.problem if self.shards else None

    def index_of(self, name: str) -> int:
        return java_hash(name) % len(self.shards)

    def ask(self, name: str, command: Any) -> Pending[Any] | Fault:
        """The machine's answer; a Fault, now or in the pending, when it cannot serve."""
        if self.shards:
            return self.shards[self.index_of(name)].ask(command)
        answer: Pending[Any] = Pending()

        def made(fault: Fault) -> None:
            asked = self.ask(name, command) if fault is Fault.NONE and self.shards else Fault.COORDINATOR_NOT_AVAILABLE
            if isinstance(asked, Pending):
                asked.then(answer.complete)
            else:
                answer.complete(asked)

        self.ensure().then(made)
        return answer

    def ask_all(self, command: Any) -> Pending[list[Any]] | Fault:
        """A result from each machine."""
        parts: list[Any] = []
        for shard in self.shards.values():
            part = shard.ask(command)
            if isinstance(part, Fault):
                return part
            parts.append(part)
        gathered = gather(parts)
        if isinstance(gathered, Pending):
            return gathered
        done: Pending[list[Any]] = Pending()
        done.complete(gathered)
        return done

    async def loaded(self) -> None:
        for shard in self.shards.values():
            await shard.loaded()

    def stop(self) -> None:
        for shard in self.shards.values():
            shard.stop()


@lru_cache(4_096)
def java_hash(text: str) -> int:
    """Java's String.hashCode without its sign: how Kafka spreads groups and transactional ids over partitions."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
