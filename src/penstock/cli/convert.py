"""`penstock config convert`: a config file of FluxGo or FlyMQ made into one of ours.

Each of their settings has a rule: where its value goes here, or why it goes nowhere. What they do when a setting is not in
the file is written out where we would do something else, so that a broker started with the result behaves as theirs did.
Whatever has no counterpart is named, in the file and on stderr; nothing is dropped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.failure import Misused
from penstock.cli.output import counted, note

INT_MAX = 2**31 - 1
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)")
_UNIT_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3, "h": 3_600e3}
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LOG_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}


class Unusable(ValueError):
    """A value that the other broker would not take either; the text goes on after "KEY = VALUE"."""


@dataclass(slots=True)
class Result:
    """Our config as it grows, and what to tell about the way there."""

    dialect: str
    config: dict[str, Any] = field(default_factory=dict)
    listener: dict[str, Any] = field(default_factory=dict)
    without_counterpart: list[tuple[str, Any, str]] = field(default_factory=list)
    """Key, value, and why it has none."""
    remarks: list[str] = field(default_factory=list)

    def set(self, section: str, key: str, value: Any) -> None:
        self.config.setdefault(section, {})[key] = value


Rule = Callable[[Any, Result], None] | str
"""What takes the value over, or why nothing does."""


@dataclass(frozen=True, slots=True)
class Broker:
    name: str
    rules: Mapping[str, Rule]
    """By dotted key. A key with a rule of the form "section.*" covers the whole section."""
    defaults: Mapping[str, Any]
    """What holds when the file does not say, where ours would be another."""
    read: Callable[[Path], Mapping[str, Any]]


def converted(theirs: Mapping[str, Any], dialect: str) -> Result:
    """Raises Misused for a value that is of no use in either broker."""
    broker = BROKERS[dialect]
    result = Result(dialect)
    written = dict(_flat(theirs))
    for key, value in {**broker.defaults, **written}.items():
        rule = broker.rules.get(key) or broker.rules.get(key.partition(".")[0] + ".*")
        if rule is None:
            result.without_counterpart.append((key, value, f"not a setting of {broker.name}"))
        elif isinstance(rule, str):
            result.without_counterpart.append((key, value, rule))
        else:
            try:
                rule(value, result)
            except Unusable as error:
                raise Misused(f"{key} = {value!r} {error}") from None
    result.config["listeners"] = {dialect: [result.listener]}
    # Neither broker deletes by age; ours does after a week when nothing is said.
    result.config.setdefault("topic_defaults", {}).setdefault("retention.ms", -1)
    return result


def _flat(theirs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in theirs.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


# ----------------------------------------------------------------------------------------------------------- values


def _integer(value: Any, lowest: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise Unusable(f"is not a number of {lowest} or more")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unusable("is neither true nor false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Unusable("is not a text")
    return value


def _address(value: Any, default_host: str) -> tuple[str, int]:
    """Go's form: [host]:port, and no host for all addresses."""
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise Unusable("is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]") or default_host, int(port)


def _duration_ms(value: Any) -> int:
    """Go's form: 30s, 1m30s, 1.5h, 250ms."""
    parts = _DURATION.findall(value) if isinstance(value, str) else []
    if value == "0":
        return 0
    if not parts or "".join(parts) != value:
        raise Unusable('is not a duration such as "30s" or "1m30s"')
    total = 0.0
    for part in parts:
        unit = part.lstrip("0123456789.")
        total += float(part.removesuffix(unit)) * _UNIT_MS[unit]
    return max(1, round(total)) if total else 0


def _listen(value: Any, result: Result) -> None:
    result.listener["host"], result.listener["port"] = _address(value, "0.0.0.0")


def _data_dir(value: Any, result: Result) -> None:
    result.config["data_dir"] = _text(value)
    result.remarks.append("records that are in data_dir already are left alone and not read")


def _segment_bytes(value: Any, result: Result) -> None:
    size = _integer(value, 14)
    if size > INT_MAX:
        result.remarks.append(f"segment.bytes is at most {INT_MAX}, not {size}")
    result.set("topic_defaults", "segment.bytes", min(size, INT_MAX))


def _retention_bytes(value: Any, result: Result) -> None:
    result.set("topic_defaults", "retention.bytes", _integer(value) or -1)


# ----------------------------------------------------------------------------------------------------------- FluxGo


def _read_timeout(value: Any, result: Result) -> None:
    """FluxGo sets it before each frame: it is the time for a frame and the time between two frames."""
    timeout_ms = _duration_ms(value)
    if not timeout_ms:
        result.without_counterpart.append(("server.read_timeout", value, "there is always a deadline"))
        return
    result.listener["frame_deadline_ms"] = result.listener["idle_deadline_ms"] = timeout_ms


def _write_timeout(value: Any, result: Result) -> None:
    timeout_ms = _duration_ms(value)
    if timeout_ms:
        result.listener["write_deadline_ms"] = timeout_ms
    else:
        result.without_counterpart.append(("server.write_timeout", value, "there is always a deadline"))


def _file_sync(value: Any, result: Result) -> None:
    if _boolean(value):
        result.listener["acks"] = "all"
        result.set("storage", "flush", "acks")
    else:
        result.listener["acks"] = "leader"
        result.set("storage", "flush", "os")


def _read_yaml(file: Path) -> Mapping[str, Any]:
    from penstock.server.config_file import read_yaml

    return read_yaml(file)


_FLUXGO = Broker(
    "FluxGo",
    {
        "server.listen_address": _listen,
        "server.read_timeout": _read_timeout,
        "server.write_timeout": _write_timeout,
        "log.data_dir": _data_dir,
        "log.max_segment_bytes": _segment_bytes,
        "log.max_log_bytes": _retention_bytes,
        "log.file_sync": _file_sync,
        "server.max_frame_bytes": "of FluxGo's second protocol; the first has 10 MiB, here too",
    },
    {
        "server.listen_address": "127.0.0.1:9898",
        "server.read_timeout": "30s",
        "server.write_timeout": "30s",
        "log.data_dir": "./fluxgo-data/",
        "log.max_segment_bytes": 16 * 1024 * 1024,
        "log.max_log_bytes": 1024 * 1024 * 1024,
        "log.file_sync": True,
    },
    _read_yaml,
)

# ------------------------------------------------------------------------------------------------------------ FlyMQ


def _advertise(value: Any, result: Result) -> None:
    if value:
        result.listener["advertised_host"], result.listener["advertised_port"] = _address(value, "127.0.0.1")


def _log_level(value: Any, result: Result) -> None:
    level = _LOG_LEVELS.get(str(value).lower())
    if level is None:
        raise Unusable(f"is not one of {', '.join(_LOG_LEVELS)}")
    result.set("log", "level", level)


def _log_json(value: Any, result: Result) -> None:
    result.set("log", "format", "json" if _boolean(value) else "text")


def _acks(value: Any, result: Result) -> None:
    flush = {"all": "acks", "leader": "interval", "none": "os"}.get(value)
    if flush is None:
        raise Unusable("is not one of all, leader, none")
    result.listener["acks"] = value
    result.set("storage", "flush", flush)


def _sync_interval(value: Any, result: Result) -> None:
    result.set("storage", "flush_interval_ms", _integer(value, 1))


def _zero_copy(value: Any, result: Result) -> None:
    result.set("net", "sendfile", _boolean(value))


def _partitions(value: Any, result: Result) -> None:
    result.listener["partitions"] = _integer(value, 1)


def _default_ttl(value: Any, result: Result) -> None:
    result.set("topic_defaults", "retention.ms", _integer(value) * 1_000 or -1)


def _ttl_interval(value: Any, result: Result) -> None:
    result.set("storage", "retention_check_interval_ms", _integer(value, 1) * 1_000)


def _cluster_id(value: Any, result: Result) -> None:
    if not value:
        return
    if _CLUSTER_ID.fullmatch(str(value)):
        result.set("broker", "cluster_id", str(value))
    else:
        result.without_counterpart.append(("discovery.cluster_id", value, "ids are of letters, digits, - and _ here"))


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        content = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise Misused(f"cannot read config file {file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise Misused(f"file {file}: {error}") from None
    if not isinstance(content, dict):
        raise Misused(f"file {file}: a JSON object is expected")
    return content


_ONE_BROKER = "there is one broker"
_NOT_SERVED = "not served here"

_FLYMQ = Broker(
    "FlyMQ",
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
        "performance.*": "the engine chooses by itself",
        "partition.default_partitions": _partitions,
        "partition.*": _ONE_BROKER,
        "ttl.default_ttl": _default_ttl,
        "ttl.cleanup_interval": _ttl_interval,
        "discovery.cluster_id": _cluster_id,
        "discovery.*": _ONE_BROKER,
        "cluster_addr": _ONE_BROKER,
        "advertise_cluster": _ONE_BROKER,
        "peers": _ONE_BROKER,
        "node_id": "a broker's id is a number here (broker.node_id)",
        "transaction.enabled": "transactions are always there",
        "transaction.timeout": "the timeout of FlyMQ's transactions is fixed",
        "security.*": _NOT_SERVED,
        "auth.*": _NOT_SERVED,
        "schema.*": _NOT_SERVED,
        "dlq.*": _NOT_SERVED,
        "delayed.*": _NOT_SERVED,
        "observability.*": _NOT_SERVED,
        "grpc.*": _NOT_SERVED,
        "ws.*": _NOT_SERVED,
        "mqtt.*": _NOT_SERVED,
        "audit.*": _NOT_SERVED,
    },
    {
        "bind_addr": ":9092",
        "segment_bytes": 64 * 1024 * 1024,
        "log_json": True,
        "performance.acks": "leader",
        "performance.sync_interval_ms": 5,
    },
    _read_json,
)

BROKERS: Mapping[str, Broker] = {"fluxgo": _FLUXGO, "flymq": _FLYMQ}

# ---------------------------------------------------------------------------------------------------------- command

_ORDER = ("data_dir", "listeners", "broker", "storage", "net", "topic_defaults", "log")


def as_yaml(result: Result, file: Path) -> str:
    """The file, with what could not be taken over as comments at its end."""
    import yaml

    name = BROKERS[result.dialect].name
    ordered = {section: result.config[section] for section in _ORDER if section in result.config}
    lines = [f"# Made of {name}'s {file.name} by `penstock config convert`."]
    lines += yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True).splitlines()
    lines += [f"# Mind: {remark}." for remark in result.remarks]
    if result.without_counterpart:
        lines.append(f"# Settings of {name} without a counterpart:")
        for key, value, why in result.without_counterpart:
            lines.append(f"#   {key} = {_one_line(value)} ({why})")
    return "\n".join(lines) + "\n"


def _one_line(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Their config: FluxGo's YAML or FlyMQ's JSON.")],
    source: Annotated[str, typer.Option("--from", metavar="DIALECT", help="Whose it is: fluxgo or flymq.")],
) -> None:
    """Print a Penstock config that does what another broker's config does.

    Settings that have no counterpart are named on stderr and in comments of the file.
    """
    broker = BROKERS.get(source)
    if broker is None:
        raise Misused(f"--from {source}: configs of {' and '.join(BROKERS)} can be converted")
    result = converted(broker.read(file), source)
    print(as_yaml(result, file), end="")
    for remark in result.remarks:
        note(f"mind: {remark}")
    left = result.without_counterpart
    if left:
        note(f"{counted(len(left), 'setting')} without a counterpart: {', '.join(key for key, _, _ in left)}")
