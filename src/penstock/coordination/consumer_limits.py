"""How much a consumer group may subscribe to, because a heartbeat that changes something assigns all of it in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.coordination.consumer_group_records import SubscribedTopic
from penstock.model import limits


class Topics:
    """The topics that exist, and what patterns stand for. `version` rises with every change."""

    __slots__ = ("by_name", "resolve", "version")

    def __init__(self, resolve: Callable[[str], frozenset[str]]) -> None:
        self.by_name: Mapping[str, SubscribedTopic] = {}
        self.resolve = resolve
        self.version = 0


class Subscription:
    """What some members of a group subscribe to."""

    __slots__ = ("members", "names", "regex")

    def __init__(self, names: tuple[str, ...], regex: str | None) -> None:
        self.names = names
        self.regex = regex
        self.members = 0


def too_many(subscriptions: Sequence[Subscription], topics: Topics) -> str | None:
    """What these subscriptions have too many of, for the client's log. Raises BrokerError for a bad pattern."""
    patterns = {each.regex for each in subscriptions if each.regex is not None}
    if len(patterns) > limits.CONSUMER_GROUP_PATTERNS_MAX:
        return f"The group subscribes to {len(patterns)} patterns; {limits.CONSUMER_GROUP_PATTERNS_MAX} are allowed."
    written = sum(len(each.names) for each in subscriptions)
    if written > limits.CONSUMER_GROUP_NAMES_MAX:
        return f"The group subscribes to {written} names; {limits.CONSUMER_GROUP_NAMES_MAX} are allowed."
    names = set().union(*(each.names for each in subscriptions), *map(topics.resolve, patterns))
    exist = topics.by_name
    found = [exist[name].partitions for name in names if name in exist]
    if len(found) > limits.CONSUMER_GROUP_TOPICS_MAX:
        return f"The group subscribes to {len(found)} topics; {limits.CONSUMER_GROUP_TOPICS_MAX} are allowed."
    if sum(found) > limits.CONSUMER_GROUP_PARTITIONS_MAX:
        most = limits.CONSUMER_GROUP_PARTITIONS_MAX
        return f"The topics of the group have {sum(found)} partitions; {most} are allowed."
    return None
