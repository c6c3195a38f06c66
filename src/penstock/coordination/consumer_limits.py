"""Limits of what a consumer group subscribes to: a heartbeat that changes something assigns all of it in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.coordination.consumer_group_records import SubscribedTopic
from penstock.model import limits


class Topics:
    """The existing topics and the topics that match a pattern. `version` rises with every change."""

    __slots__ = ("by_name", "resolve", "version")

    def __init__(self, resolve: Callable[[str], frozenset[str]]) -> None:
        self.by_name: Mapping[str, SubscribedTopic] = {}
        self.resolve = resolve
        self.version = 0


class Subscription:
    """The names and the pattern that some members of a group subscribe to."""

    __slots__ = ("members", "names", "regex")

    def __init__(self, names: tuple[str, ...], regex: str | None) -> None:
        self.names = names
        self.regex = regex
        self.members = 0


def too_many(subscriptions: Sequence[Subscription], topics: Topics) -> str | None:
    """The limit that these subscriptions exceed, as text for the client's log. Raises BrokerError for an invalid pattern."""
    patterns = {each.regex for each in subscriptions if each.regex is not None}
    if len(patterns) > limits.CONSUMER_GROUP_PATTERNS_MAX:
        return f"The group subscribes to {len(patterns)} patterns; the limit is {limits.CONSUMER_GROUP_PATTERNS_MAX}."
    written = sum(len(each.names) for each in subscriptions)
    if written > limits.CONSUMER_GROUP_NAMES_MAX:
        return f"The group subscribes to {written} names; the limit is {limits.CONSUMER_GROUP_NAMES_MAX}."
    names = set().union(*(each.names for each in subscriptions), *map(topics.resolve, patterns))
    exist = topics.by_name
    found = [exist[name].partitions for name in names if name in exist]
    if len(found) > limits.CONSUMER_GROUP_TOPICS_MAX:
        return f"The group subscribes to {len(found)} topics; the limit is {limits.CONSUMER_GROUP_TOPICS_MAX}."
    if sum(found) > limits.CONSUMER_GROUP_PARTITIONS_MAX:
        most = limits.CONSUMER_GROUP_PARTITIONS_MAX
        return f"The topics of the group have {sum(found)} partitions; the limit is {most}."
    return None
