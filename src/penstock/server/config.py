"""Finding the configuration: defaults, then the YAML file, then the environment, then flags; the last word counts.

`load` gives one checked `Config` or raises StartError with one line that names the key, what is wrong with it and where
it came from. Nothing is ignored: an unknown key is an error, with the nearest known one. What the keys are is in
`config_schema`.

Listeners are taken together: a file's `listeners` replace the default ones, a variable `PENSTOCK_LISTENERS__KAFKA`
replaces those of one dialect, and `--listen` flags replace all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.model import topic_config
from penstock.model.errors import BrokerError, StartError
from penstock.model.listeners import ACKS_NAMES, DEFAULTS
from penstock.model.topic_config import nearest
from penstock.server.config_schema import (
    DIALECTS,
    ENV_PREFIX,
    KEYS,
    SECTIONS,
    Config,
    ConfigKey,
    Listener,
    address,
    env_name,
)
from penstock.server.deadlines import FIELDS, deadlines_of

__all__ = ["Config", "Listener", "Source", "load", "sources"]

DEFAULT = "default"
FLAG = "command line"
_TOP_LEVEL = ("data_dir", "listeners", *SECTIONS, "topic_defaults")


class Source(NamedTuple):
    """One effective value, and who said so: "default", "file ...", "environment ..." or "command line"."""

    key: str
    value: Any
    origin: str


def load(file: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration. `flags` are by key (`data_dir`, `storage.flush`); `listeners` is a list of DIALECT=HOST:PORT."""
    found = _Found()
    if file is not None:
        found.take_file(file)
    found.take_environment(env)
    found.take_flags(flags)
    return found.config()


def sources(config: Config) -> list[Source]:
    """Every effective value with its origin, in the order of the docs."""

    def source(key: str, value: Any, origin_key: str | None = None) -> Source:
        return Source(key, value, config.origins.get(origin_key or key, DEFAULT))

    rows = [source("data_dir", str(config.data_dir))]
    for dialect, listeners in config.listeners.items():
        name = f"listeners.{dialect}"
        for listener in listeners:
            rows.append(source(name, str(listener)))
            for field, value in _beside_the_address(dialect, listener, config):
                said = getattr(listener, field) is not None
                rows.append(source(f"{name}.{field}", value, name if said else None))
    rows.extend(source(key.name, getattr(getattr(config, key.section), key.field)) for key in KEYS.values())
    for name, key in topic_config.KEYS.items():
        rows.append(source(f"topic_defaults.{name}", config.topic_defaults.get(name, key.default)))
    return rows


def _beside_the_address(dialect: str, listener: Listener, config: Config) -> Iterator[tuple[str, Any]]:
    """What a dialect's protocol cannot say, and the deadlines that the listener has though `net` has others."""
    default = DEFAULTS.get(dialect)
    if default is not None:
        names = {"acks": ACKS_NAMES[default.acks], "creates_topics": default.creates_topics}
        for field, value in {**names, "partitions": default.partitions}.items():
            said = getattr(listener, field)
            yield field, value if said is None else said
    deadlines = deadlines_of(dialect, listener, config)
    for field in FIELDS:
        if getattr(deadlines, field) != getattr(config.net, field) or getattr(listener, field) is not None:
            yield field, getattr(deadlines, field)


class _Found:
    """What has been found so far; each source overrides the one before."""

    def __init__(self) -> None:
        self._data_dir: Path | None = None
        self._values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        self._topic_defaults: dict[str, str] = {}
        self._origins: dict[str, str] = {}

    def take_file(self, file: Path) -> None:
        # Only who has a file pays for the parser.
        from penstock.server.config_file import read_yaml

        origin = f"file {file}"
        for name, value in read_yaml(file).items():
            if name == "data_dir":
                self._set_data_dir(value, origin)
            elif name == "listeners":
                for dialect, written in _mapping(name, value, origin).items():
                    self._set_listeners(dialect, written, origin)
            elif name == "topic_defaults":
                for key, written in _mapping(name, value, origin).items():
                    self._set_topic_default(key, written, origin)
            elif name in SECTIONS:
                for field, written in _mapping(name, value, origin).items():
                    self._set(f"{name}.{field}", written, origin, strict=True)
            else:
                raise StartError(f"{origin}: unknown key {name}{nearest(str(name), _TOP_LEVEL)}")

    def take_environment(self, env: Mapping[str, str]) -> None:
        keys = {key.env: key for key in KEYS.values()}
        topic_keys = {env_name("topic_defaults", name): name for name in topic_config.KEYS}
        dialects = {env_name("listeners", dialect): dialect for dialect in DIALECTS}
        data_dir = ENV_PREFIX + "DATA_DIR"
        for variable in sorted(env):
            if not variable.startswith(ENV_PREFIX):
                continue
            origin = f"environment {variable}"
            value = env[variable]
            if variable == data_dir:
                self._set_data_dir(value, origin)
            elif variable in keys:
                self._set(keys[variable].name, value, origin, strict=False)
            elif variable in topic_keys:
                self._set_topic_default(topic_keys[variable], value, origin)
            elif variable in dialects:
                self._set_listeners(dialects[variable], value.split(","), origin)
            elif variable.startswith(env_name("listeners", "")):
                self._set_listeners(variable.removeprefix(env_name("listeners", "")).lower(), value, origin)
            else:
                _refuse_variable(variable, [data_dir, *keys, *topic_keys, *dialects])

    def take_flags(self, flags: Mapping[str, object]) -> None:
        for name, value in flags.items():
            if name == "data_dir":
                self._set_data_dir(value, FLAG)
            elif name == "listeners":
                self._take_listen_flags(value)
            elif name.startswith("topic_defaults."):
                self._set_topic_default(name.removeprefix("topic_defaults."), value, FLAG)
            else:
                self._set(name, value, FLAG, strict=False)

    def _take_listen_flags(self, flags: Any) -> None:
        if not flags:
            return
        self._listeners.clear()
        by_dialect: dict[str, list[str]] = {}
        for flag in flags:
            dialect, equals, where = flag.partition("=")
            if not equals:
                raise StartError(f"--listen {flag}: expected DIALECT=HOST:PORT, such as kafka=127.0.0.1:9092")
            by_dialect.setdefault(dialect, []).append(where)
        for dialect, written in by_dialect.items():
            self._set_listeners(dialect, written, FLAG)

    def _set(self, name: str, value: Any, origin: str, *, strict: bool) -> None:
        key = KEYS.get(name)
        if key is None:
            raise StartError(f"{origin}: unknown key {name}{nearest(name, KEYS)}")
        self._values[key.section][key.field] = _convert(key, value, origin, strict=strict)
        self._origins[name] = origin

    def _set_data_dir(self, value: Any, origin: str) -> None:
        if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
            raise StartError(f"{origin}: data_dir must be a path, not {value!r}")
        try:
            self._data_dir = Path(str(value)).expanduser()
        except RuntimeError as error:  # ~name, and nobody is called so
            raise StartError(f"{origin}: data_dir = {str(value)!r}: {error}") from None
        self._origins["data_dir"] = origin

    def _set_listeners(self, dialect: Any, written: Any, origin: str) -> None:
        if dialect not in DIALECTS:
            raise StartError(f"{origin}: unknown dialect {dialect}; expected one of {', '.join(DIALECTS)}")
        name = f"listeners.{dialect}"
        parts = written if isinstance(written, list) else [written]
        if not parts:
            raise StartError(f"{origin}: {name} has no address")
        self._listeners[dialect] = tuple(_listener(name, part, origin) for part in parts)
        for field in _NOT_FOR_KAFKA if dialect == "kafka" else ():
            if any(getattr(listener, field) is not None for listener in self._listeners[dialect]):
                raise StartError(f"{origin}: {name}.{field} is not supported for kafka: producers set it themselves")
        self._origins[name] = origin

    def _set_topic_default(self, name: Any, value: Any, origin: str) -> None:
        key = f"topic_defaults.{name}"
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, list):
            value = ",".join(str(part) for part in value)
        elif not isinstance(value, (str, int, float)):
            raise StartError(f"{origin}: {key} must be a single value, not {value!r}")
        try:
            topic_config.parse({str(name): str(value)}, {})
        except BrokerError as error:
            raise StartError(f"{origin}: topic_defaults: {error.text}") from None
        self._topic_defaults[name] = str(value)
        self._origins[key] = origin

    def config(self) -> Config:
        sections = {name: struct(**self._values[name]) for name, struct in SECTIONS.items()}
        order = {dialect: self._listeners[dialect] for dialect in DIALECTS if dialect in self._listeners}
        config = Config(
            data_dir=self._data_dir or Config().data_dir,
            listeners=order or Config().listeners,
            topic_defaults=self._topic_defaults,
            origins=self._origins,
            **sections,  # type: ignore[arg-type]
        )
        _check_together(config)
        return config


def _check_together(config: Config) -> None:
    """What is right for each key alone and wrong for several."""
    try:
        topic_config.parse({}, config.topic_defaults)
    except BrokerError as error:
        raise StartError(f"topic_defaults: {error.text}") from None
    if config.net.in_flight_bytes_max < config.net.frame_bytes_max:
        raise StartError(
            f"net.in_flight_bytes_max = {config.net.in_flight_bytes_max} is less than net.frame_bytes_max = "
            f"{config.net.frame_bytes_max}: the largest request could never be received"
        )
    groups = config.groups
    if groups.session_timeout_max_ms < groups.session_timeout_min_ms:
        raise StartError(
            f"groups.session_timeout_max_ms = {groups.session_timeout_max_ms} is less than "
            f"groups.session_timeout_min_ms = {groups.session_timeout_min_ms}: no member could join"
        )
    if groups.consumer_session_timeout_ms <= groups.consumer_heartbeat_interval_ms:
        raise StartError(
            f"groups.consumer_session_timeout_ms = {groups.consumer_session_timeout_ms} is not greater than "
            f"groups.consumer_heartbeat_interval_ms = {groups.consumer_heartbeat_interval_ms}: every member would time out"
        )
    taken: set[tuple[str, int]] = set()
    for listeners in config.listeners.values():
        for listener in listeners:
            if listener.port and (listener.host, listener.port) in taken:
                raise StartError(f"listeners: duplicate address {address(listener.host, listener.port)}")
            taken.add((listener.host, listener.port))


def _convert(key: ConfigKey, value: Any, origin: str, *, strict: bool) -> Any:
    """The value in the key's type; `strict` where the source has types of its own (YAML)."""
    if key.choices and value not in key.choices:
        raise StartError(f"{origin}: {key.name} = {value!r} is not one of {', '.join(key.choices)}")
    if value is None and key.default is not None:
        raise StartError(f"{origin}: {key.name} has no value")
    try:
        return msgspec.convert(value, key.type, strict=strict)
    except msgspec.ValidationError:
        raise StartError(f"{origin}: {key.name} = {value!r} is invalid (expected: {key.takes})") from None


_NOT_FOR_KAFKA = ("acks", "creates_topics", "partitions")


def _listener(name: str, written: Any, origin: str) -> Listener:
    if isinstance(written, str):
        return _parse_address(name, written.strip(), origin)
    if not isinstance(written, dict):
        raise StartError(f"{origin}: {name} = {written!r}: expected HOST:PORT or a mapping with host and port")
    fields = Listener.__struct_fields__
    for field in written:
        if field not in fields:
            raise StartError(f"{origin}: unknown key {name}.{field}{nearest(str(field), fields)}")
    if written.get("acks") == "none":
        raise StartError(
            f"{origin}: {name}.acks = none is not supported: records are written before they are acknowledged; "
            "use leader, with storage.flush: os to leave flushing to the operating system"
        )
    try:
        return msgspec.convert(written, Listener)
    except msgspec.ValidationError as error:
        raise StartError(f"{origin}: {name}: {_plain(error)}") from None


def _parse_address(name: str, text: str, origin: str) -> Listener:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise StartError(f"{origin}: {name} = {text!r}: write an IPv6 address in brackets, such as [::1]:9092")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{origin}: {name} = {text!r} is not HOST:PORT with a port from 0 to 65535")
    return Listener(host, int(port))


def _plain(error: msgspec.ValidationError) -> str:
    """msgspec's sentence without its markup: "Expected `int`, got `str` - at `$.port`"."""
    return str(error).replace("`", "").replace(" - at $.", " for ")


def _mapping(name: str, value: Any, origin: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise StartError(f"{origin}: {name} must be a mapping of keys to values, not {value!r}")
    return value


def _refuse_variable(variable: str, known: list[str]) -> None:
    """A variable with a section's double underscore is ours; without it only when it is nearly one of ours."""
    names = [name.removeprefix(ENV_PREFIX) for name in known]
    cutoff = 0.6 if "__" in variable else 0.85
    near = difflib.get_close_matches(variable.removeprefix(ENV_PREFIX), names, n=1, cutoff=cutoff)
    if "__" in variable or near:
        hint = f"; did you mean {ENV_PREFIX}{near[0]}?" if near else ""
        raise StartError(f"environment: {variable} matches no key{hint}")
