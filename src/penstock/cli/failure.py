"""How a command ends badly: one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

from penstock.model.errors import BrokerError
from penstock.model.ids import topic_name


class Failed(Exception):
    """It was tried and did not work."""

    exit_code = 1


class Misused(Failed):
    """The command was not called as it can be."""

    exit_code = 2


class Interrupted(Failed):
    """Ctrl-C or SIGTERM came before all was done."""

    exit_code = 130


def checked_topic(name: str) -> str:
    """The name, if a topic can be called that."""
    try:
        return topic_name(name)
    except BrokerError as error:
        raise Misused(error.text) from None


def checked_group(name: str) -> str:
    """The name, if one can ask for it. What a group may be called is the broker's to say."""
    try:
        if name.encode():
            return name
    except UnicodeEncodeError:
        raise Misused(f"group name {name!r} is not UTF-8") from None
    raise Misused("group name is empty")


def key_values(pairs: list[str], option: str) -> dict[str, str]:
    """The `KEY=VALUE` of an option that can be given several times."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Misused(f"{option} {pair}: expected KEY=VALUE")
        values[key] = value
    return values
