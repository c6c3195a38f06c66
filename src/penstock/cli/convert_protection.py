"""Settings of another broker that protect data or access, and what would be lost without them.

A conversion that silently drops one of these would open a broker to everyone, or leave one copy of records that had three.
So it is refused. In doubt a setting counts as protection: a switch that is not clearly off is on, and an unknown key is
judged by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[Any, ...]
"""The names of a setting, from the outermost section on; in YAML they need not be strings."""

_SOUNDS_LIKE = re.compile(
    r"tls|ssl|auth|secur|crypt|cipher|cert|password|secret|token|credential|acl|rbac|permission|user|allow|deny"
    r"|whitelist|blacklist|firewall|replic|isr|in_?sync|quorum|peer",
    re.IGNORECASE,
)
_OFF_WORDS = frozenset({"", "0", "false", "no", "off", "none", "disabled"})


def sounds_like_protection(path: KeyPath) -> bool:
    return any(isinstance(part, str) and _SOUNDS_LIKE.search(part) for part in path)


def says_off(value: Any) -> bool:
    """Words of an unknown key or an environment variable that indicate protection."""
    return not value or (isinstance(value, str) and value.strip().lower() in _OFF_WORDS)


def switch_is_off(value: Any) -> bool:
    """Whether a switch is on. The broker accepts only true and false; any other value is not meant as false."""
    return value is None or value is False


def is_empty(value: Any) -> bool:
    return value is None or value == []


def is_one_copy(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value <= 1)


def switch_of_text(text: str) -> Any:
    return False if says_off(text) else text


def list_of_text(text: str) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()]


def number_of_text(text: str) -> Any:
    return int(text) if re.fullmatch(r"\s*[0-9]{1,9}\s*", text) else (text or None)


@dataclass(frozen=True)
class Protection:
    """The rule of a setting that protects something while it is on."""

    loss: str
    """The consequence of losing it."""
    reason: str
    """Why it has no counterpart when it is off."""
    is_off: Callable[[Any], bool] = switch_is_off
    of_text: Callable[[str], Any] = switch_of_text
    """The value of an environment variable."""


@dataclass(frozen=True)
class Detail:
    """The rule of a setting that matters only while a switch is on. The switch must be in the file: otherwise an environment
    variable of the broker, which is unknown here, may turn it on."""

    switch: KeyPath
    variable: str
    """The environment variable that turns the switch on."""
    reason: str


Loss = tuple[KeyPath, Any, str]
"""Key, value, and what would be lost."""


def losses_by_environment(
    rules: Mapping[KeyPath, Any], variables: Mapping[str, KeyPath], environment: Mapping[str, str]
) -> list[tuple[str, Loss]]:
    """Protection that environment variables of the broker turn on, by the name of the variable."""
    found = []
    for name, path in variables.items():
        rule = rules[path]
        assert isinstance(rule, Protection)
        value = rule.of_text(environment.get(name, ""))
        if not rule.is_off(value):
            found.append((name, (path, value, rule.loss)))
    return found
