"""A broker that says what it is told to say, and a client that asks it in any version by way of a whole session.

A request is built by kio, sent through a `KafkaSession`, and its answer read by kio, every byte of it; on the way the
handler's description is checked for names that no version has.
"""

from __future__ import annotations

import struct
import types
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kio.index import load_request_schema

from penstock.broker.engine import PartitionInfo, TopicInfo, TopicResult
from penstock.broker.groups import OFFSETS_TOPIC
from penstock.broker.transactions import TRANSACTIONS_TOPIC
from penstock.coordination.group_commands import ListGroups
from penstock.coordination.transaction_commands import ListTransactions, TransactionList
from penstock.dialects.kafka.apis import APIS, ApiKey
from penstock.dialects.kafka.kio_bridge import unknown_names
from penstock.dialects.kafka.service import KafkaService
from penstock.dialects.kafka.session import KafkaSession
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.pending import Pending, gather
from penstock.model.slices import Slices, Work
from tests.dialects.kafka.oracle import decode_answer, encode, entity_of

NODE = 3
CLIENT_ID = "tester"
CLIENT_HOST = "10.1.2.3"
TOPICS = {"alpha": 3, "beta": 1, OFFSETS_TOPIC: 4, TRANSACTIONS_TOPIC: 4}
IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in TOPICS}
STRANGE_ID = uuid.UUID(int=77)
OFFSETS_PARTITION = TopicPartition(TopicName(OFFSETS_TOPIC), 2)


class Coordinators:
    """Groups or transactions: each command is answered by what `answers` has for its type, but not before `settle`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ensured = 0
        self.problems: dict[str, str] = {}
        self.answers: dict[type[Any], Any] = {}
        self.fault_at_once: Fault | None = None
        self.made = Fault.NONE
        self._open: list[tuple[Pending[Any], Any]] = []

    def ask(self, name: str, command: Any) -> Pending[Any] | Fault:
        self.asked.append(command)
        if self.fault_at_once is not None:
            return self.fault_at_once
        return self._later(self._answer(command))

    def ask_all(self, command: Any) -> Any:
        self.asked.append(command)
        if self.fault_at_once is not None:
            return self.fault_at_once
        answer = self._answer(command)
        parts = answer if isinstance(answer, list) else [answer]
        return gather([self._later(part) for part in parts]) if parts else self._later([])

    def partitions_of(self, group: str) -> dict[str, list[int]]:
        return {}

    def list_in_slices(self, *asked: Any) -> Work[Any]:
        command = asked[0] if isinstance(asked[0], ListTransactions) else ListGroups(*asked)
        results = self.ask_all(command)
        results = (yield results) if isinstance(results, Pending) else results
        if isinstance(results, Fault):
            return results
        fault = next((result for result in results if isinstance(result, Fault)), None)
        if fault is not None:
            return fault
        if isinstance(command, ListGroups):
            return [group for result in results for group in result.groups]
        return TransactionList(
            tuple({status for result in results for status in result.unknown_statuses}),
            tuple(row for result in results for row in result.transactions),
        )

    def _answer(self, command: Any) -> Any:
        answer = self.answers[type(command)]
        return answer(command) if isinstance(answer, types.FunctionType) else answer

    def find_topics(self, group: str, pattern: str | None) -> Work[None]:
        yield from ()

    def ensure(self) -> Pending[Fault]:
        self.ensured += 1
        return self._later(self.made)

    is_open = True

    def problem_of(self, name: str) -> str | None:
        return self.problems.get(name)

    def partition_of(self, group: str) -> TopicPartition:
        assert self.ensured, "the topic must be there"
        return OFFSETS_PARTITION

    def write_markers_in_slices(self, markers: Any) -> Work[Any]:
        self.asked.append(markers)
        yield None
        return {place: self._later(fault) for place, fault in self._answer(markers).items()}

    def _later(self, result: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        self._open.append((pending, result))
        return pending

    def settle(self) -> bool:
        """Answer what is open; whether there was anything."""
        waiting, self._open = self._open, []
        for pending, result in waiting:
            pending.complete(result)
        return bool(waiting)


class StandIn:
    """As much of an engine as the handlers use."""

    def __init__(self, topics: Mapping[str, int] = TOPICS) -> None:
        self.identity = types.SimpleNamespace(node_id=NODE, cluster_id="cluster")
        self.settings = types.SimpleNamespace(topic_defaults={"retention.ms": "1000"})
        self.directory = types.SimpleNamespace(path=Path("/data"))
        self.catalogue_version = 1
        self.turns: deque[Callable[[], None]] = deque()
        """What waits for the next turn of the loop."""
        self.in_slices = Slices(self.turns.append, lambda: 0.0).run  # no time passes: nothing is long
        self.coordination_problem: str | None = None
        self.groups = Coordinators()
        self.transactions = Coordinators()
        self.overrides: dict[str, dict[str, str]] = {"alpha": {"retention.ms": "5", "segment.bytes": "7"}, "beta": {}}
        self.altered: dict[str, dict[str, str | None]] = {}
        self._partitions = {
            (name, at): types.SimpleNamespace(
                id=TopicPartition(TopicName(name), at),
                online=True,
                reason="",
                log=types.SimpleNamespace(size_bytes=100 + at),
                producers=types.SimpleNamespace(ids=list),
            )
            for name, count in topics.items()
            for at in range(count)
        }
        self._topics = dict(topics)

    def take_offline(self, topic: str, partition: int) -> None:
        found = self._partitions[topic, partition]
        found.online, found.log, found.reason = False, None, "no disk"

    @staticmethod
    def behind_appends(_name: str, ask: Callable[[], Any]) -> Any:
        return ask()  # no appends wait here

    def partition(self, topic: str, partition: int) -> Any:
        return self._partitions.get((topic, partition))

    def partitions(self) -> Any:
        return self._partitions.values()

    def topic_name_of(self, topic_id: bytes) -> str | None:
        return next((name for name in self._topics if IDS[name].bytes == topic_id), None)

    def topic(self, name: str) -> TopicInfo | None:
        if name not in self._topics:
            return None
        partitions = [PartitionInfo(at, self._partitions[name, at].online, 6) for at in range(self._topics[name])]
        return TopicInfo(name, IDS.get(name, STRANGE_ID), name.startswith("__"), partitions)

    def topic_names(self) -> list[str]:
        return sorted(self._topics)

    def topics(self) -> list[TopicInfo]:
        return [info for name in sorted(self._topics) if (info := self.topic(name)) is not None]

    def topic_configs(self, name: str) -> dict[str, str] | None:
        return self.overrides.get(name)

    def alter_configs(self, changes: dict[str, dict[str, str | None]], *, validate_only: bool) -> Any:
        if not validate_only:
            self.altered.update(changes)
        done: Pending[list[TopicResult]] = Pending()
        done.complete([TopicResult(name, Fault.NONE) for name in changes])
        return done

    async def new_producer_id(self) -> int:
        return 4_711

    def spawn(self, work: Any, failed: Any) -> Pending[Any]:
        try:
            work.send(None)
        except StopIteration as stop:
            done: Pending[Any] = Pending()
            done.complete(stop.value)
            return done
        raise AssertionError("the work waits")


class Client:
    def __init__(self, topics: Mapping[str, int] = TOPICS) -> None:
        self.engine = StandIn(topics)
        self.groups = self.engine.groups
        self.transactions = self.engine.transactions
        self.service = KafkaService(self.engine, "broker.test", 9_092)  # type: ignore[arg-type]
        self.session = KafkaSession(self.service, CLIENT_HOST)

    def ask(self, key: ApiKey, version: int, tree: dict[str, Any]) -> Any:
        """The answer, as kio reads it. The tree is for all versions: fields that the asked one lacks are left out."""
        entity = load_request_schema(int(key), version)
        name = CLIENT_ID.encode()
        head = struct.pack(">hhih", int(key), version, 9, len(name)) + name + (b"\x00" if entity.__flexible__ else b"")
        frame = head + encode(entity_of(entity, tree))
        fed = self.session.feed(memoryview(bytearray(struct.pack(">i", len(frame)) + frame)))
        assert fed.fatal is None, fed.fatal
        (request,) = fed.requests
        result = self.session.perform(request)
        while isinstance(result, Pending) and not result.done:
            went_on = self.groups.settle() | self.transactions.settle() | bool(self.engine.turns)
            for _ in range(len(self.engine.turns)):
                self.engine.turns.popleft()()
            assert went_on, "nobody answers"
        description = result.result if isinstance(result, Pending) else result
        assert unknown_names(int(key), description) == set()
        (answer,) = self.session.answer(request, description)
        assert isinstance(answer, bytes)
        return decode_answer(int(key), version, answer)


def versions(key: ApiKey, first: int = 0) -> range:
    api = APIS[int(key)]
    return range(max(first, api.version_min), api.version_max + 1)
