"""Topics: making them, and how they are configured."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from penstock.client.kafka_apis import Api
from penstock.client.kafka_cluster import KafkaCluster
from penstock.client.kafka_errors import KafkaError, check


class ConfigKind(enum.IntEnum):
    TOPIC = 2
    BROKER = 4


class ConfigEntry(NamedTuple):
    value: str | None
    """None when it is a secret."""
    is_read_only: bool
    is_sensitive: bool
    source: int
    """Kafka's number of where the value comes from; 1 is the topic itself, 5 the default."""


class TopicRequests(KafkaCluster):
    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        exists_ok: bool = False,
    ) -> None:
        """Make a topic and wait until it has leaders; -1 is the cluster's default. Raises TOPIC_ALREADY_EXISTS unless
        `exists_ok`, which does not look at how the topic is made."""

        def attempt() -> None:
            info = self._metadata([])
            connection = self.connection(info.controller) if info.controller in info.brokers else self.any_connection()
            answer = connection.request(
                Api.CREATE_TOPICS,
                {
                    "topics": [
                        {
                            "name": name,
                            "num_partitions": partitions,
                            "replication_factor": replication_factor,
                            "assignments": (),
                            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
                        }
                    ],
                    "timeout": self.settings.request_timeout_ms,
                    "validate_only": False,
                },
            )
            (row,) = answer.topics
            if row.error_code == ErrorCode.topic_already_exists and (exists_ok or answer_was_lost):
                return
            check(row.error_code, row.error_message, where="CreateTopics", topic=name)

        answer_was_lost = False

        def tracked() -> None:
            # A try after a lost answer may find what the one before it made.
            nonlocal answer_was_lost
            try:
                attempt()
            except KafkaError as error:
                answer_was_lost |= error.error_code in (ErrorCode.network_exception, ErrorCode.request_timed_out)
                raise

        self.retrying(tracked)
        self.retrying(lambda: self._check_led(name))

    def _check_led(self, name: str) -> None:
        topic = self._metadata([name]).topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, topic=name)
        if not topic.partitions or any(row.leader < 0 for row in topic.partitions.values()):
            raise KafkaError(ErrorCode.leader_not_available, topic=name)

    def describe_configs(self, kind: ConfigKind, name: str) -> dict[str, ConfigEntry]:
        """Every setting of a topic, or of the broker with that number."""

        def attempt() -> dict[str, ConfigEntry]:
            if kind is ConfigKind.BROKER:
                self._metadata([])
                connection = self.connection(int(name))
            else:
                connection = self.any_connection()
            answer = connection.request(
                Api.DESCRIBE_CONFIGS,
                {
                    "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
                    "include_synonyms": False,
                    "include_documentation": False,
                },
            )
            (result,) = answer.results
            topic = name if kind is ConfigKind.TOPIC else None
            check(result.error_code, result.error_message, where="DescribeConfigs", topic=topic)
            return {
                row.name: ConfigEntry(row.value, row.read_only, row.is_sensitive, row.config_source)
                for row in result.configs
            }

        return self.retrying(attempt)
