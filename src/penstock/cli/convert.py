"""`penstock config convert`: a config file of FluxGo or FlyMQ made into one of ours.

What they do when a setting is not in the file is written out where we would do something else, so that a broker started
with the result behaves as theirs did. Whatever has no counterpart is named, in the file and on stderr; nothing is dropped
in silence. The result is one that the broker takes: each setting is tried with its config loader.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.convert_protection import (
    Detail,
    KeyPath,
    Protection,
    losses_by_environment,
    says_off,
    sounds_like_protection,
)
from penstock.cli.convert_rules import BROKERS, Broker, Result, Unusable, Weakened, WithoutCounterpart
from penstock.cli.convert_text import is_secret, key_text, one_line, value_text
from penstock.cli.failure import Failed, Misused
from penstock.cli.output import OutputClosed, counted, note, write_lines
from penstock.model.errors import StartError
from penstock.server.config import load

_ORDER = ("data_dir", "listeners", "broker", "storage", "net", "topic_defaults", "log")


def converted(theirs: Mapping[Any, Any], dialect: str, environment: Mapping[str, str]) -> Result:
    """Raises Misused for a value that is invalid in either broker. `Result.losses` lists settings that protect data or
    access and cannot be kept."""
    broker = BROKERS[dialect]
    result = Result(dialect)
    # Neither broker deletes by age; ours does after a week when nothing is said.
    result.set("topic_defaults", "retention.ms", -1)
    said = dict(_settings(broker, theirs))
    for path, value in {**broker.defaults, **said}.items():
        try:
            _convert(broker, path, value, said, result)
        except WithoutCounterpart as why:
            if path in said:
                result.without_counterpart.append((path, value, str(why)))
        except Weakened as why:
            result.losses.append(_lost(path, value, str(why)))
        except Unusable as error:
            raise Misused(f"{key_text(path)} = {value_text(value)} {error}") from None
    for name, (path, value, loss) in losses_by_environment(broker.rules, broker.variables, environment):
        result.losses.append(_lost(path, value, loss, name))
    return result


def _convert(broker: Broker, path: KeyPath, value: Any, said: Mapping[KeyPath, Any], result: Result) -> None:
    rule = broker.rule(path) or f"unknown setting of {broker.name}"
    if not broker.is_known(path) and sounds_like_protection(path) and not says_off(value):
        raise Weakened(f"unknown setting of {broker.name} that may protect data or access; remove it if it does not")
    match rule:
        case str():
            raise WithoutCounterpart(rule)
        case Protection():
            if not rule.is_off(value):
                raise Weakened(rule.loss)
            raise WithoutCounterpart(rule.reason)
        case Detail():
            if value and rule.switch not in said:
                switch = key_text(rule.switch)
                raise Weakened(f"{rule.variable} may enable it; set {switch}: false if it is off")
            raise WithoutCounterpart(rule.reason)
        case _:
            rule(value, result)
            _check(result)


def _settings(broker: Broker, theirs: Mapping[Any, Any], inside: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """What is written, section by section. Null is what Go's decoders take it for: nothing said about what they know."""
    for name, value in theirs.items():
        path = broker.spelled((*inside, name))
        if broker.is_section(path):
            if value is not None and not isinstance(value, Mapping):
                raise Misused(f"{key_text(path)}: expected a section of settings, not a single value")
            yield from _settings(broker, value or {}, path)
        elif isinstance(value, Mapping) and value and path not in broker.rules:
            yield from _settings(broker, value, path)
        elif value is not None or not callable(broker.rule(path)):
            yield path, value


def _check(result: Result) -> None:
    """Raises Unusable for what the broker would not take."""
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
            file = Path(directory, "penstock.yaml")
            file.write_text(_dumped(result), encoding="utf-8")
            try:
                load(file, {}, {})
            except StartError as error:
                raise Unusable(f"cannot be converted: {str(error).removeprefix(f'file {file}: ')}") from None
    except OSError as error:
        raise Failed(f"cannot check the converted config: {error}") from None


# ------------------------------------------------------------------------------------------------------------- text


def as_yaml(result: Result, file: Path) -> str:
    """The file, with what could not be taken over as comments at its end."""
    import yaml

    name = BROKERS[result.dialect].name
    comments = [f"Note: {remark}." for remark in result.remarks]
    if result.without_counterpart:
        comments.append(f"Settings of {name} without a counterpart:")
        comments += [f"  {_named(*left)}" for left in result.without_counterpart]
    text = _comment(f"Converted from {name}'s {file.name} by `penstock config convert`.") + _dumped(result)
    text += "".join(map(_comment, comments))
    assert yaml.safe_load(text) == _ordered(result), "a comment is not one"
    return text


def _lost(path: KeyPath, value: Any, loss: str, variable: str = "") -> str:
    shown = " (value hidden)" if is_secret(path) else f" = {value_text(value)}"
    return one_line(f"{key_text(path)}{shown}{f' (from {variable})' if variable else ''}: {loss}")


def _named(path: KeyPath, value: Any, why: str) -> str:
    if is_secret(path):
        return f"{key_text(path)} ({why}; value hidden)"
    return f"{key_text(path)} = {value_text(value)} ({why})"


def _comment(text: str) -> str:
    return f"# {one_line(text)}\n"


def _dumped(result: Result) -> str:
    import yaml

    text = yaml.safe_dump(_ordered(result), sort_keys=False, allow_unicode=True)
    if text.replace("\n", "").isprintable():
        return text
    return yaml.safe_dump(_ordered(result), sort_keys=False)


def _ordered(result: Result) -> dict[str, Any]:
    config = {**result.config, "listeners": {result.dialect: [result.listener]}}
    return {section: config[section] for section in _ORDER if section in config}


# ---------------------------------------------------------------------------------------------------------- command


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Config file: YAML of FluxGo or JSON of FlyMQ.")],
    source: Annotated[
        str, typer.Option("--from", metavar="DIALECT", help="Broker that the file is for: fluxgo or flymq.")
    ],
) -> None:
    """Convert another broker's config and print the result.

    Settings without a counterpart are listed on stderr and in comments at the end of the output. If a setting that
    protects data or access has no counterpart, nothing is converted: the exit code is 1 and stderr lists the settings.
    """
    broker = BROKERS.get(source)
    if broker is None:
        raise Misused(f"--from {source}: unknown broker; expected {' or '.join(BROKERS)}")
    try:
        result = converted(broker.read(file), source, os.environ)
        if result.losses:
            what = counted(len(result.losses), "setting")
            lines = "".join(f"\n  {line}" for line in result.losses)
            raise Failed(
                f"cannot convert {one_line(str(file))}, protection would be lost: {what} without a counterpart{lines}"
            )
        text = as_yaml(result, file)
    except RecursionError:
        raise Misused(f"file {file}: nested too deeply or self-referencing") from None
    try:
        write_lines([text.encode()])
    except OutputClosed:
        return
    for remark in result.remarks:
        note(f"note: {remark}")
    left = result.without_counterpart
    if left:
        keys = ", ".join(key_text(path) for path, _, _ in left)
        note(f"{counted(len(left), 'setting')} without a counterpart: {keys}")
