"""What all Kafka connections of a listener share: the engine, the address to name, and the handlers by API key.

A handler is a function `(service, body, version, caller) -> description | Pending[description]`: kio's request in, the
fields of the answer out, in the names of the newest version. A handler whose cost grows with a count in the request, or with
the number of topics or groups, is a generator that can pause after each element (model/slices.py). ApiVersions announces
exactly the keys that have a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.embedded import EmbeddedEngine
from penstock.dialects.kafka import (
    cluster,
    configs,
    consumer_groups,
    coordinators,
    groups,
    kio_bridge,
    kio_reader,
    lookups,
    offsets,
    topics,
    transactions,
)
from penstock.dialects.kafka.api_versions import ApiVersionsAnswers, Feature, software_is_valid
from penstock.dialects.kafka.apis import ApiKey, advertised, is_served
from penstock.dialects.kafka.metadata import BrokerAddress, TopicsKept
from penstock.model import limits
from penstock.model.errors import Fault
from penstock.model.slices import Work, at_once

if TYPE_CHECKING:
    from penstock.dialects.kafka.session import Call, KafkaSession


class Caller(NamedTuple):
    """Who asks, as it calls itself and as it is seen."""

    client_id: str
    client_host: str


Handler = Callable[["KafkaService", Any, int, Caller], Any]

HANDLERS: Mapping[int, Handler] = {
    ApiKey.LIST_OFFSETS: lookups.list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lookups.offset_for_leader_epoch,
    ApiKey.FIND_COORDINATOR: coordinators.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.consumer_group_describe,
    ApiKey.OFFSET_COMMIT: offsets.offset_commit,
    ApiKey.OFFSET_FETCH: offsets.offset_fetch,
    ApiKey.OFFSET_DELETE: offsets.offset_delete,
    ApiKey.TXN_OFFSET_COMMIT: offsets.txn_offset_commit,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.END_TXN: transactions.end_txn,
    ApiKey.WRITE_TXN_MARKERS: transactions.write_txn_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_RECORDS: topics.delete_records,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: cluster.list_config_resources,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: cluster.describe_topic_partitions,
    ApiKey.ELECT_LEADERS: cluster.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
}
FEATURES = (Feature("group.version", 0, 1, finalized=1), Feature("transaction.version", 0, 2, finalized=2))
"""Consumer groups of KIP-848, and transactions that add partitions by themselves and raise the epoch (KIP-890)."""

_SPECIAL = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS})
"""Encoded by hand, not by way of a description."""


READING = frozenset(
    {
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
)
"""Requests that change nothing: they are dropped when their connection closes."""
AT_ONCE_BYTES_MAX = 16 * 1024
"""Bodies up to this size are decoded at once, in at most 2 ms; larger ones in slices."""


_API_VERSIONS, _METADATA = int(ApiKey.API_VERSIONS), int(ApiKey.METADATA)


class KafkaService:
    def __init__(
        self,
        engine: EmbeddedEngine,
        advertised_host: str,
        advertised_port: int,
        frame_bytes_max: int = limits.FRAME_BYTES_MAX,
    ) -> None:
        self.engine = engine
        self.address = BrokerAddress(engine.identity.node_id, advertised_host, advertised_port)
        self.frame_bytes_max = frame_bytes_max
        self.handled = frozenset(HANDLERS) | _SPECIAL
        self.topics_kept = TopicsKept()
        self._api_versions = ApiVersionsAnswers(advertised(self.handled), FEATURES)

    def perform(self, call: Call, session: KafkaSession) -> Any:
        key, version, view, start = call.key, call.version, call.view, call.body_start
        if key == _API_VERSIONS:
            return self._answer_api_versions(call)
        # Kafka stores and shows the address as Java prints one.
        caller = Caller(call.client_id or "", f"/{session.client_host}")
        if len(view) - start > AT_ONCE_BYTES_MAX:
            work = self._decoded_in_slices(call, caller)
            return self._in_slices(call, work, borrows=True)
        result = self._handle(call, kio_bridge.decode_request(key, version, view, start), caller)
        if type(result) is GeneratorType:
            return self._in_slices(call, result, borrows=False)
        return result

    def _handle(self, call: Call, body: Any, caller: Caller) -> Any:
        if call.key == _METADATA:
            return lookups.metadata(self, body, call.version, call.correlation_id)
        return HANDLERS[call.key](self, body, call.version, caller)

    def _decoded_in_slices(self, call: Call, caller: Caller) -> Work[Any]:
        body = yield from kio_reader.decode_in_slices(call.key, call.version, call.view, call.body_start)
        result = self._handle(call, body, caller)
        return (yield from result) if type(result) is GeneratorType else result

    def _in_slices(self, call: Call, work: Work[Any], *, borrows: bool) -> Any:
        finish: Callable[[Any], Work[Any]] | None = None
        if call.key != ApiKey.METADATA:  # which is encoded by hand
            finish = partial(kio_bridge.answer_in_slices, call.key, call.version, call.correlation_id)
        return self.engine.in_slices(work, drop=call.key in READING, borrows=borrows, finish=finish)

    def _answer_api_versions(self, call: Call) -> bytes:
        if is_served(call.key, call.version):
            body = at_once(kio_reader.decode_in_slices(call.key, call.version, call.view, call.body_start))
            if call.version >= 3 and not software_is_valid(body.client_software_name, body.client_software_version):
                return self._api_versions.refusal(call.version, call.correlation_id, Fault.INVALID_REQUEST)
        return self._api_versions.answer(call.version, call.correlation_id)
