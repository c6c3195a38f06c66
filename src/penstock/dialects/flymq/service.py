"""What all FlyMQ connections of a listener share: the engine, its settings and the handlers; and what those of all FlyMQ
listeners of a broker share: who subscribed, and transactions.

A handler is a function `(service, session, reader) -> payload | Pending[payload]`; it raises BrokerError, or its pending
completes with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from penstock.broker.embedded import EmbeddedEngine
from penstock.dialects.flymq import groups, offsets, reading, topics, transactions
from penstock.dialects.flymq.api_frames import ApiKey
from penstock.dialects.flymq.opcode_frames import Opcode
from penstock.dialects.flymq.placing import Placing
from penstock.dialects.flymq.transactions import FlyMQTransactions
from penstock.dialects.flymq.wire import U32, Reader, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.listeners import ListenerSettings

if TYPE_CHECKING:
    from penstock.dialects.flymq.session import FlyMQSession

Handler = Callable[["FlyMQService", "FlyMQSession", Reader], Any]


def _security_is_off(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    raise BrokerError(Fault.SECURITY_DISABLED)


def _whoami(service: FlyMQService, session: FlyMQSession, reader: Reader) -> bytes:
    """Not logged in, no name, no roles, no error: what the original answers to a connection without AUTH."""
    return b"\x00" + string("") + U32.pack(0) + string("")


OPCODES: Mapping[int, Handler] = {
    Opcode.CONSUME: reading.consume,
    Opcode.CREATE_TOPIC: topics.create_topic,
    Opcode.METADATA: topics.metadata,
    Opcode.SUBSCRIBE: reading.subscribe,
    Opcode.COMMIT: offsets.commit,
    Opcode.FETCH: reading.fetch,
    Opcode.LIST_TOPICS: topics.list_topics,
    Opcode.DELETE_TOPIC: topics.delete_topic,
    Opcode.CONSUME_ZERO_COPY: reading.consume,
    Opcode.FETCH_BINARY: reading.fetch,
    Opcode.TXN_BEGIN: transactions.txn_begin,
    Opcode.TXN_COMMIT: transactions.txn_commit,
    Opcode.TXN_ABORT: transactions.txn_abort,
    Opcode.TXN_PRODUCE: transactions.txn_produce,
    Opcode.CLUSTER_METADATA: topics.cluster_metadata,
    Opcode.GET_OFFSET: offsets.get_offset,
    Opcode.RESET_OFFSET: offsets.reset_offset,
    Opcode.LIST_GROUPS: offsets.list_groups,
    Opcode.DESCRIBE_GROUP: offsets.describe_group,
    Opcode.GET_LAG: offsets.get_lag,
    Opcode.DELETE_GROUP: offsets.delete_group,
    Opcode.AUTH: _security_is_off,
    Opcode.WHOAMI: _whoami,
}
"""PRODUCE is the session's own."""

HOLDING = frozenset(
    {
        Opcode.CREATE_TOPIC,
        Opcode.DELETE_TOPIC,
        Opcode.DELETE_GROUP,
        Opcode.RESET_OFFSET,
        Opcode.TXN_BEGIN,
        Opcode.TXN_COMMIT,
        Opcode.TXN_ABORT,
    }
)
"""They take several steps, and what the same connection asks behind them has to find them done. TXN_PRODUCE holds by
itself, when it has to."""

API_KEYS: Mapping[int, Handler] = {
    ApiKey.FETCH: reading.api_fetch,
    ApiKey.LIST_OFFSETS: reading.api_list_offsets,
    ApiKey.METADATA: topics.api_metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_FETCH: groups.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
}
"""Produce is the session's own."""


class Shared:
    """By all FlyMQ listeners of a broker."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.transactions = FlyMQTransactions(engine)
        self.subscribers: dict[tuple[str, str], set[FlyMQSession]] = {}


_SHARED: WeakValueDictionary[int, Shared] = WeakValueDictionary()
"""By the id of the engine, which lives as long as what is here."""


def _shared_by(engine: EmbeddedEngine) -> Shared:
    shared = _SHARED.get(id(engine))
    if shared is None:
        shared = _SHARED[id(engine)] = Shared(engine)
    return shared


class FlyMQService:
    def __init__(self, engine: EmbeddedEngine, settings: ListenerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.frame_bytes_max = settings.frame_bytes_max
        self.placing = Placing(engine, settings)
        self._shared = _shared_by(engine)
        self.transactions = self._shared.transactions
        self._subscribers = self._shared.subscribers

    @property
    def address(self) -> str:
        host = self.settings.advertised_host
        return f"[{host}]:{self.settings.advertised_port}" if ":" in host else f"{host}:{self.settings.advertised_port}"

    def check_partition(self, topic: str, partition: int) -> None:
        count = self.placing.partitions(topic)
        if not count:
            raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"topic not found: {topic}")
        if not 0 <= partition < count:
            raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} not found")

    # ------------------------------------------------------------------------------------------------ subscribers

    def subscribers(self, topic: str, group: str) -> int:
        """Connections that subscribed and are still there."""
        return len(self._subscribers.get((topic, group), ()))

    def subscribed_pairs(self) -> Iterable[tuple[str, str]]:
        return self._subscribers.keys()

    def subscribe(self, pair: tuple[str, str], session: FlyMQSession) -> None:
        self._subscribers.setdefault(pair, set()).add(session)

    def unsubscribe(self, pair: tuple[str, str], session: FlyMQSession) -> None:
        sessions = self._subscribers.get(pair)
        if sessions is not None:
            sessions.discard(session)
            if not sessions:
                del self._subscribers[pair]

    def unsubscribe_all(self, topic: str, group: str) -> None:
        """The pair is deleted: whoever subscribed is no member any more."""
        self._subscribers.pop((topic, group), None)
