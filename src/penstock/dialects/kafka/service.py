"""What all Kafka connections of a listener share: the engine, the address to name, and the handlers by API key.

A handler is a function `(service, body, version) -> description | Pending[description]`: kio's request in, the fields of the
answer out, in the names of the newest version. ApiVersions announces just the keys that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.broker.embedded import EmbeddedEngine
from penstock.dialects.kafka import configs, lookups, topics
from penstock.dialects.kafka.api_versions import ApiVersionsAnswers, software_is_valid
from penstock.dialects.kafka.apis import ApiKey, advertised
from penstock.dialects.kafka.metadata import BrokerAddress, TopicsKept
from penstock.model import limits
from penstock.model.errors import Fault

if TYPE_CHECKING:
    from penstock.dialects.kafka.session import Call, KafkaSession

Handler = Callable[["KafkaService", Any, int], Any]

HANDLERS: Mapping[int, Handler] = {
    ApiKey.LIST_OFFSETS: lookups.list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lookups.offset_for_leader_epoch,
    ApiKey.INIT_PRODUCER_ID: lookups.init_producer_id,
    ApiKey.FIND_COORDINATOR: lookups.find_coordinator,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_RECORDS: topics.delete_records,
    ApiKey.DESCRIBE_CLUSTER: topics.describe_cluster,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
}
_SPECIAL = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS})
"""Encoded by hand, not by way of a description."""


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
        self._api_versions = ApiVersionsAnswers(advertised(self.handled))

    def perform(self, call: Call, session: KafkaSession) -> Any:
        if call.key == ApiKey.API_VERSIONS:
            return self._answer_api_versions(call)
        if call.key == ApiKey.METADATA:
            return lookups.metadata(self, call.body, call.version, call.correlation_id)
        return HANDLERS[call.key](self, call.body, call.version)

    def _answer_api_versions(self, call: Call) -> bytes:
        body = call.body
        if call.version >= 3 and body is not None:
            if not software_is_valid(body.client_software_name, body.client_software_version):
                return self._api_versions.refusal(call.version, call.correlation_id, Fault.INVALID_REQUEST)
        return self._api_versions.answer(call.version, call.correlation_id)
