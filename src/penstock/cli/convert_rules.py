"""The settings of FluxGo and FlyMQ, and the rule of each: where its value goes here, or why it goes nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli.convert_protection import (
    Detail,
    KeyPath,
    Protection,
    is_empty,
    is_one_copy,
    list_of_text,
    number_of_text,
)
from penstock.cli.convert_text import value_text
from penstock.cli.failure import Misused
from penstock.model.topic_config import LONG_MAX

INT_MAX = 2**31 - 1
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3, "h": 3_600e3}
_DURATION_MS_MAX = LONG_MAX // 1_000_000
"""Go counts nanoseconds in 64 bits."""
_PORT = re.compile(r"[0-9]{1,5}")
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLUSTER_MODE_PARTITIONS = 6
_LOG_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}


NOT_SERVED = "not supported"


class Unusable(ValueError):
    """A value that cannot be taken over; the text goes on after "KEY = VALUE"."""


class WithoutCounterpart(Exception):
    """A value that means something there and nothing here; the text says why."""


class Weakened(Exception):
    """A value that protects data or access in the other broker only; the text says what would be lost."""


@dataclass(slots=True)
class Result:
    """Our config as it grows, and what to tell about the way there."""

    dialect: str
    config: dict[str, Any] = field(default_factory=dict)
    listener: dict[str, Any] = field(default_factory=dict)
    without_counterpart: list[tuple[KeyPath, Any, str]] = field(default_factory=list)
    """Key, value, and why it has none."""
    losses: list[str] = field(default_factory=list)
    """Settings that protect something and cannot be kept, one line each. If there are any, there is no result."""
    remarks: list[str] = field(default_factory=list)

    def set(self, section: str, key: str, value: Any) -> None:
        self.config.setdefault(section, {})[key] = value


Rule = Callable[[Any, Result], None] | Protection | Detail | str
"""What takes the value over, or why nothing does."""


@dataclass(frozen=True)
class Broker:
    name: str
    rules: Mapping[KeyPath, Rule]
    """A rule for (section, "*") is that of every setting of the section that has none."""
    defaults: Mapping[KeyPath, Any]
    """What holds when the file does not say, where ours would be another. The address is first: a config is tried after
    each setting, and without an address there is none."""
    read: Callable[[Path], Mapping[Any, Any]]
    variables: Mapping[str, KeyPath] = field(default_factory=dict)
    """The broker's environment variables that turn protection on."""
    folds_case: bool = False
    """Whether keys are case-insensitive."""

    def rule(self, path: KeyPath) -> Rule | None:
        return self.rules.get(path) or self.rules.get((path[0], "*"))

    def is_section(self, path: KeyPath) -> bool:
        return any(known[:-1] == path for known in self.rules if len(known) > 1)

    def is_known(self, path: KeyPath) -> bool:
        """Whether the path is a setting, or belongs to a part of the broker that Penstock does not have."""
        return path in self.rules or self.rule(path) == NOT_SERVED

    def spelled(self, path: KeyPath) -> KeyPath:
        """The path as in the rules, if only the case of its last name differs."""
        name = path[-1]
        if not self.folds_case or not isinstance(name, str):
            return path
        folded = (*path[:-1], name.casefold())
        return folded if folded in self.rules or self.is_section(folded) else path


def _by_path(dotted: Mapping[str, Any]) -> Mapping[KeyPath, Any]:
    return {tuple(key.split(".")): value for key, value in dotted.items()}


# ----------------------------------------------------------------------------------------------------------- values


def _integer(value: Any, lowest: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise Unusable(f"is not an integer of at least {lowest}")
    if value > LONG_MAX:
        raise Unusable("exceeds 64 bits")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unusable("is neither true nor false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Unusable("is not a non-empty string")
    return value


def _address(value: Any, default_host: str) -> tuple[str, int]:
    """Go's form: [host]:port, and no host for all addresses."""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65_535:
        raise Unusable("is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]") or default_host, int(port)


def _duration_ms(value: Any) -> int:
    """Go's form: 30s, +30s, 1m30s, 1.5h, 250ms. A number without a unit is refused, as yaml.v3 refuses it."""
    text = value.removeprefix("+") if isinstance(value, str) else ""
    if text == "0":
        return 0
    parts = _DURATION.findall(text)
    if not parts or "".join(parts) != text:
        raise Unusable('is not a duration such as "30s" or "1m30s"')
    total = 0.0
    for part in parts:
        unit = part.lstrip("0123456789.")
        total += float(part.removesuffix(unit)) * _UNIT_MS[unit]
    if total > _DURATION_MS_MAX:
        raise Unusable("exceeds the maximum duration")
    return max(1, round(total)) if total else 0


def _listen(value: Any, result: Result) -> None:
    result.listener["host"], result.listener["port"] = _address(value, "0.0.0.0")


def _data_dir(value: Any, result: Result) -> None:
    result.config["data_dir"] = _text(value)
    result.remarks.append("existing records in data_dir are neither read nor changed")


def _segment_bytes(value: Any, result: Result) -> None:
    size = _integer(value, 14)
    if size > INT_MAX:
        result.remarks.append(f"segment.bytes is limited to {INT_MAX}, instead of {size}")
    result.set("topic_defaults", "segment.bytes", min(size, INT_MAX))


def _retention_bytes(value: Any, result: Result) -> None:
    result.set("topic_defaults", "retention.bytes", _integer(value) or -1)


# ----------------------------------------------------------------------------------------------------------- FluxGo


def _read_timeout(value: Any, result: Result) -> None:
    """FluxGo sets it before each frame: it is the time for a frame and the time between two frames."""
    result.listener["frame_deadline_ms"] = result.listener["idle_deadline_ms"] = _deadline_ms(value)


def _write_timeout(value: Any, result: Result) -> None:
    result.listener["write_deadline_ms"] = _deadline_ms(value)


def _deadline_ms(value: Any) -> int:
    timeout_ms = _duration_ms(value)
    if not timeout_ms:
        raise WithoutCounterpart("the deadline cannot be disabled")
    return timeout_ms


def _file_sync(value: Any, result: Result) -> None:
    if _boolean(value):
        result.listener["acks"] = "all"
        result.set("storage", "flush", "acks")
    else:
        result.listener["acks"] = "leader"
        result.set("storage", "flush", "os")


def _read_yaml(file: Path) -> Mapping[Any, Any]:
    from penstock.server.config_file import read_yaml

    return read_yaml(file)


_FLUXGO = Broker(
    "FluxGo",
    _by_path(
        {
            "server.listen_address": _listen,
            "server.read_timeout": _read_timeout,
            "server.write_timeout": _write_timeout,
            "log.data_dir": _data_dir,
            "log.max_segment_bytes": _segment_bytes,
            "log.max_log_bytes": _retention_bytes,
            "log.file_sync": _file_sync,
            "server.max_frame_bytes": "only for FluxGo's second protocol; the first is limited to 10 MiB, as here",
        }
    ),
    _by_path(
        {
            "server.listen_address": "127.0.0.1:9898",
            "server.read_timeout": "30s",
            "server.write_timeout": "30s",
            "log.data_dir": "./fluxgo-data/",
            "log.max_segment_bytes": 16 * 1024 * 1024,
            "log.max_log_bytes": 1024 * 1024 * 1024,
            "log.file_sync": True,
        }
    ),
    _read_yaml,
)

# ------------------------------------------------------------------------------------------------------------ FlyMQ


def _advertise(value: Any, result: Result) -> None:
    if value != "":
        result.listener["advertised_host"], result.listener["advertised_port"] = _address(value, "127.0.0.1")


def _log_level(value: Any, result: Result) -> None:
    level = _LOG_LEVELS.get(value.lower()) if isinstance(value, str) else None
    if level is None:
        raise Unusable(f"is not one of {', '.join(_LOG_LEVELS)}")
    result.set("log", "level", level)


def _log_json(value: Any, result: Result) -> None:
    result.set("log", "format", "json" if _boolean(value) else "text")


def _acks(value: Any, result: Result) -> None:
    """With `none`, FlyMQ writes at once and syncs when a log is closed, like `storage.flush: os`."""
    ours = {"all": ("all", "acks"), "leader": ("leader", "interval"), "none": ("leader", "os")}
    if not isinstance(value, str) or value not in ours:
        raise Unusable("is not one of all, leader, none")
    result.listener["acks"], flush = ours[value]
    result.set("storage", "flush", flush)


def _sync_interval(value: Any, result: Result) -> None:
    result.set("storage", "flush_interval_ms", _integer(value, 1))


def _zero_copy(value: Any, result: Result) -> None:
    result.set("net", "sendfile", _boolean(value))


def _cluster_addr(value: Any, result: Result) -> None:
    """Any address means cluster mode, even for a single node. A topic that a produce creates has six partitions in cluster
    mode, and one otherwise. `default_partitions`, which is applied later, overrides both."""
    if value == "":
        return
    _text(value)
    result.listener["partitions"] = _CLUSTER_MODE_PARTITIONS
    raise WithoutCounterpart(_ONE_BROKER)


def _partitions(value: Any, result: Result) -> None:
    result.listener["partitions"] = _integer(value, 1)


def _default_ttl(value: Any, result: Result) -> None:
    ttl_ms = _integer(value) * 1_000
    if ttl_ms > LONG_MAX:
        result.remarks.append(f"retention.ms is limited to {LONG_MAX}, instead of {ttl_ms}")
    result.set("topic_defaults", "retention.ms", min(ttl_ms, LONG_MAX) or -1)


def _ttl_interval(value: Any, result: Result) -> None:
    result.set("storage", "retention_check_interval_ms", _integer(value, 1) * 1_000)


def _cluster_id(value: Any, result: Result) -> None:
    if value == "":
        return
    if not _CLUSTER_ID.fullmatch(_text(value)):
        raise WithoutCounterpart("cluster ids may only contain letters, digits, - and _")
    result.set("broker", "cluster_id", value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys. Go ignores the case of keys and merges duplicates; which value would win is not guessed."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name.casefold() in seen:
            raise ValueError(f"duplicate key {value_text(name)}")
        seen.add(name.casefold())
    return dict(pairs)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _read_json(file: Path) -> Mapping[Any, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_distinct, parse_constant=_no_number)
    except OSError as error:
        raise Misused(f"cannot read config file {file}: {error.strerror}") from None
    except ValueError as error:  # of the text's encoding too
        raise Misused(f"file {file}: {error}") from None
    if not isinstance(content, dict):
        raise Misused(f"file {file}: expected a JSON object")
    return content


_ONE_BROKER = "only a single broker is supported"
_AUTH = Detail(("auth", "enabled"), "FLYMQ_AUTH_ENABLED", NOT_SERVED)
_TLS = Detail(("security", "tls_enabled"), "FLYMQ_TLS_ENABLED", NOT_SERVED)

_FLYMQ = Broker(
    "FlyMQ",
    _by_path(
        {
            "bind_addr": _listen,
            "advertise_addr": _advertise,
            "data_dir": _data_dir,
            "retention_bytes": _retention_bytes,
            "segment_bytes": _segment_bytes,
            "log_level": _log_level,
            "log_json": _log_json,
            "performance.acks": _acks,
            "performance.sync_interval_ms": _sync_interval,
            "performance.zero_copy": _zero_copy,
            "performance.*": "chosen by the engine",
            "partition.default_partitions": _partitions,
            "partition.default_replication_factor": Protection(
                "each record would have only one copy", _ONE_BROKER, is_one_copy, number_of_text
            ),
            "partition.distribution_strategy": _ONE_BROKER,
            "partition.auto_rebalance_enabled": _ONE_BROKER,
            "partition.auto_rebalance_interval": _ONE_BROKER,
            "partition.rebalance_threshold": _ONE_BROKER,
            "ttl.default_ttl": _default_ttl,
            "ttl.cleanup_interval": _ttl_interval,
            "discovery.cluster_id": _cluster_id,
            "discovery.enabled": Protection(
                "the broker would run alone and ignore other brokers that it discovers", _ONE_BROKER
            ),
            "cluster_addr": _cluster_addr,
            "advertise_cluster": _ONE_BROKER,
            "peers": Protection("the broker would run without its peers", _ONE_BROKER, is_empty, list_of_text),
            "node_id": "node ids are numbers (broker.node_id)",
            "transaction.enabled": "transactions are always enabled",
            "transaction.timeout": "the timeout of FlyMQ's transactions is fixed",
            "security.tls_enabled": Protection("clients would connect without TLS", NOT_SERVED),
            "security.tls_cert_file": _TLS,
            "security.tls_key_file": _TLS,
            "security.tls_ca_file": _TLS,
            "security.encryption_enabled": Protection("records would be stored unencrypted", NOT_SERVED),
            "auth.enabled": Protection("clients would not have to authenticate", NOT_SERVED),
            "auth.rbac_enabled": NOT_SERVED,
            "auth.allow_anonymous": NOT_SERVED,
            "auth.default_public": NOT_SERVED,
            "auth.user_file": _AUTH,
            "auth.acl_file": _AUTH,
            "auth.admin_username": NOT_SERVED,
            "auth.admin_password": _AUTH,
            "schema.*": NOT_SERVED,
            "dlq.*": NOT_SERVED,
            "delayed.*": NOT_SERVED,
            "observability.*": NOT_SERVED,
            "grpc.*": NOT_SERVED,
            "ws.*": NOT_SERVED,
            "mqtt.*": NOT_SERVED,
            "audit.*": NOT_SERVED,
        }
    ),
    _by_path(
        {
            "bind_addr": ":9092",
            "cluster_addr": ":9093",
            "segment_bytes": 64 * 1024 * 1024,
            "log_json": True,
            "performance.acks": "leader",
            "performance.sync_interval_ms": 5,
        }
    ),
    _read_json,
    {
        "FLYMQ_AUTH_ENABLED": ("auth", "enabled"),
        "FLYMQ_TLS_ENABLED": ("security", "tls_enabled"),
        "FLYMQ_ENCRYPTION_ENABLED": ("security", "encryption_enabled"),
        "FLYMQ_PEERS": ("peers",),
        "FLYMQ_DEFAULT_REPLICATION_FACTOR": ("partition", "default_replication_factor"),
    },
    folds_case=True,
)

BROKERS: Mapping[str, Broker] = {"fluxgo": _FLUXGO, "flymq": _FLYMQ}
