"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: topic configs with their sources, broker configs read-only.

A broker's configs are told in Kafka's names, because tools look for them there; they are changed in the config file.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import is_internal
from penstock.model.slices import Work
from penstock.model.topic_config import KEYS, KeyType

if TYPE_CHECKING:
    from penstock.broker.engine import TopicResult
    from penstock.coordination.group_commands import GroupSettings
    from penstock.dialects.kafka.service import Caller, KafkaService

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8

_SOURCE_TOPIC = 1
_SOURCE_STATIC_BROKER = 4
_SOURCE_DEFAULT = 5
_TYPES = {
    KeyType.BOOLEAN: 1,
    KeyType.STRING: 2,
    KeyType.INT: 3,
    KeyType.LONG: 5,
    KeyType.DOUBLE: 6,
    KeyType.LIST: 7,
}

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)

# Kafka's broker-wide names of topic configs, for synonyms and for DescribeConfigs of the broker.
BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}


def describe_configs(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    documented = getattr(body, "include_documentation", False)
    shown: dict[Hashable, list[dict[str, Any]]] = {}
    """Encoded configs that can be reused: thousands of topics may have the same."""
    results = []
    for resource in body.resources:
        yield None
        result: dict[str, Any] = {
            "error_code": Fault.NONE,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [],
        }
        results.append(result)
        try:
            key, entries = _entries(service, resource.resource_type, resource.resource_name)
        except BrokerError as error:
            result.update(error_code=error.fault, error_message=error.text)
            continue
        if key not in shown:
            shown[key] = [_shown(entry, synonyms=body.include_synonyms, documented=documented) for entry in entries]
        configs = shown[key]
        if resource.configuration_keys is not None:
            keys = set(resource.configuration_keys)
            configs = [entry for entry in configs if entry["name"] in keys]
        result["configs"] = configs
    return {"results": results}


def _shown(entry: dict[str, Any], *, synonyms: bool, documented: bool) -> dict[str, Any]:
    return {
        **entry,
        "synonyms": entry["synonyms"] if synonyms else [],
        "documentation": entry["documentation"] if documented else None,
    }


def _entries(service: KafkaService, resource_type: int, name: str) -> tuple[Hashable, Iterable[dict[str, Any]]]:
    """The values that the configs depend on, and the configs."""
    if resource_type == TOPIC:
        overrides = service.engine.topic_configs(name)
        if overrides is None:
            raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        read_only = is_internal(name)
        entries = topic_entries(service, overrides, read_only=read_only)
        return (TOPIC, read_only, frozenset(overrides.items())), entries
    if resource_type == BROKER:
        if name not in ("", str(service.address.node_id)):
            raise BrokerError(Fault.INVALID_REQUEST, f"this is broker {service.address.node_id}, not {name!r}")
        return BROKER, broker_entries(service)
    if resource_type == BROKER_LOGGER:
        return BROKER_LOGGER, ()
    raise BrokerError(Fault.INVALID_REQUEST, f"resource type {resource_type} has no configs here")


def topic_entries(
    service: KafkaService, overrides: Mapping[str, str], *, read_only: bool = False
) -> Iterable[dict[str, Any]]:
    """Every topic config with its value, where it comes from, and what would hold without that."""
    defaults = service.engine.settings.topic_defaults or {}
    for key in KEYS.values():
        synonyms = []
        if key.name in overrides:
            synonyms.append({"name": key.name, "value": overrides[key.name], "source": _SOURCE_TOPIC})
        broker_name = BROKER_NAMES.get(key.name, key.name)
        if key.name in defaults:
            synonyms.append({"name": broker_name, "value": defaults[key.name], "source": _SOURCE_STATIC_BROKER})
        if key.default is not None or not synonyms:
            synonyms.append({"name": broker_name, "value": key.default, "source": _SOURCE_DEFAULT})
        yield {
            "name": key.name,
            "value": synonyms[0]["value"],
            "read_only": read_only,
            "config_source": synonyms[0]["source"],
            "is_sensitive": False,
            "synonyms": synonyms,
            "config_type": _TYPES[key.type],
            "documentation": key.doc,
        }


def broker_entries(service: KafkaService) -> Iterable[dict[str, Any]]:
    settings = service.engine.settings
    own: list[tuple[str, str, KeyType, str]] = [
        ("broker.id", str(service.address.node_id), KeyType.INT, "The broker's id."),
        ("node.id", str(service.address.node_id), KeyType.INT, "The broker's id."),
        (
            "num.partitions",
            str(settings.num_partitions),
            KeyType.INT,
            "Partitions of a topic whose creator does not say.",
        ),
        ("default.replication.factor", "1", KeyType.INT, "There is one broker."),
        (
            "auto.create.topics.enable",
            str(settings.auto_create_topics).lower(),
            KeyType.BOOLEAN,
            "Whether asking for a topic may make it.",
        ),
        (
            "delete.topic.enable",
            str(settings.delete_topics).lower(),
            KeyType.BOOLEAN,
            "Whether clients may delete topics.",
        ),
        (
            "transaction.max.timeout.ms",
            str(settings.transaction_max_timeout_ms),
            KeyType.INT,
            "The longest transaction timeout that a producer may ask for.",
        ),
        *_group_entries(settings.groups),
        ("socket.request.max.bytes", str(service.frame_bytes_max), KeyType.INT, "The largest request."),
        ("log.dirs", str(service.engine.directory.path.absolute()), KeyType.STRING, "Where the logs are."),
    ]
    for name, value, kind, doc in own:
        yield _broker_entry(name, value, kind, doc, _SOURCE_STATIC_BROKER)
    defaults = settings.topic_defaults or {}
    for key in KEYS.values():
        if key.name in BROKER_NAMES:
            source = _SOURCE_STATIC_BROKER if key.name in defaults else _SOURCE_DEFAULT
            yield _broker_entry(BROKER_NAMES[key.name], defaults.get(key.name, key.default), key.type, key.doc, source)


def _group_entries(groups: GroupSettings) -> Iterable[tuple[str, str, KeyType, str]]:
    for name, value, doc in (
        (
            "group.initial.rebalance.delay.ms",
            groups.initial_rebalance_delay_ms,
            "How long the first rebalance of an empty group waits for more members.",
        ),
        ("group.min.session.timeout.ms", groups.session_timeout_ms_min, "The shortest session timeout of a member."),
        ("group.max.session.timeout.ms", groups.session_timeout_ms_max, "The longest session timeout of a member."),
        (
            "group.consumer.session.timeout.ms",
            groups.consumer_session_timeout_ms,
            "The session timeout of members of the consumer protocol.",
        ),
        (
            "group.consumer.heartbeat.interval.ms",
            groups.consumer_heartbeat_interval_ms,
            "The heartbeat interval of members of the consumer protocol.",
        ),
        (
            "offsets.retention.minutes",
            groups.offsets_retention_ms // 60_000,
            "How long the offsets of a group are kept once its members have left.",
        ),
    ):
        yield name, str(value), KeyType.INT, doc


def _broker_entry(name: str, value: str | None, kind: KeyType, doc: str, source: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [{"name": name, "value": value, "source": source}],
        "config_type": _TYPES[kind],
        "documentation": doc,
    }


def incremental_alter_configs(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    return _alter(service, body, _changes)


def alter_configs(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """What is not named goes back to its default; Kafka has deprecated this request for that reason."""
    return _alter(service, body, _replacement)


Overrides = Mapping[str, str]
Changes = dict[str, str | None]
"""Values to set or, with None, to unset."""


def _alter(
    service: KafkaService, body: Any, changes_of: Callable[[Overrides, Overrides, Any], Work[Changes]]
) -> Work[dict[str, Any]]:
    refused: dict[int, BrokerError] = {}
    changes: dict[str, Changes] = {}
    for at, resource in enumerate(body.resources):
        yield None
        try:
            if resource.resource_type != TOPIC:
                raise BrokerError(
                    Fault.INVALID_REQUEST, "only topic configs change at run time; the broker's are in its config file"
                )
            if resource.resource_name in changes:
                raise BrokerError(Fault.INVALID_REQUEST, f"topic {resource.resource_name!r} is named twice")
            overrides = service.engine.topic_configs(resource.resource_name)
            if overrides is None:
                raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.resource_name!r} does not exist")
            defaults = service.engine.settings.topic_defaults or {}
            changes[resource.resource_name] = yield from changes_of(overrides, defaults, resource.configs)
        except BrokerError as error:
            refused[at] = error
    by_name: dict[str, TopicResult] = {}
    if changes:
        results: list[TopicResult] = yield service.engine.alter_configs(changes, validate_only=body.validate_only)
        by_name = {result.name: result for result in results}
    rows = []
    for at, resource in enumerate(body.resources):
        refusal = refused.get(at)
        if refusal is None:
            result = by_name[resource.resource_name]
            fault, text = result.fault, result.text
        else:
            fault, text = refusal.fault, refusal.text
        rows.append(
            {
                "error_code": fault,
                "error_message": None if fault is Fault.NONE else text or fault.value,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
        yield None
    return {"responses": rows}


def _changes(overrides: Overrides, defaults: Overrides, configs: Any) -> Work[Changes]:
    """What the operations come to."""
    changes: Changes = {}
    for config in configs:
        yield None
        key = KEYS.get(config.name)
        operation = config.config_operation
        if config.name in changes:
            raise BrokerError(Fault.INVALID_REQUEST, f"{config.name} is named twice")
        if operation == _DELETE:
            changes[config.name] = None
        elif config.value is None:
            raise BrokerError(Fault.INVALID_CONFIG, f"{config.name} has no value")
        elif operation == _SET:
            changes[config.name] = config.value
        elif operation in (_APPEND, _SUBTRACT):
            if key is None or key.type is not KeyType.LIST:
                raise BrokerError(Fault.INVALID_CONFIG, f"{config.name} is not a list: it cannot be added to")
            current = overrides.get(key.name, defaults.get(key.name, key.default)) or ""
            items = dict.fromkeys(item for item in current.split(",") if item)
            given = dict.fromkeys(item for item in config.value.split(",") if item)
            if operation == _APPEND:
                items.update(given)
            else:
                items = {item: None for item in items if item not in given}
            changes[config.name] = ",".join(items)
        else:
            raise BrokerError(Fault.INVALID_REQUEST, f"config operation {operation} is not known")
    return changes


def _replacement(overrides: Overrides, defaults: Overrides, configs: Any) -> Work[Changes]:
    """Everything that is set now is unset, but for what is named."""
    named: Changes = {}
    for config in configs:
        yield None
        if config.name in named:
            raise BrokerError(Fault.INVALID_REQUEST, f"{config.name} is named twice")
        if config.value is None:
            raise BrokerError(Fault.INVALID_CONFIG, f"{config.name} has no value")
        named[config.name] = config.value
    return {**dict.fromkeys(overrides), **named}
