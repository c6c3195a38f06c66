"""The assignors in their plainest form, whose cost is a product of members, topics and partitions.

The broker's assignors must give the same results.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping
from typing import TypeVar

from penstock.coordination.assignors import Held, Subscriber

Topic = TypeVar("Topic", str, uuid.UUID)


def _order(members: Mapping[str, Subscriber[Topic]]) -> list[str]:
    """Static members first and by instance id, so that a restart under another member id moves nothing."""
    return sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m, m))


def _result(
    members: Mapping[str, Subscriber[Topic]], shares: dict[str, dict[Topic, set[int]]]
) -> dict[str, Held[Topic]]:
    return {
        member: {topic: frozenset(partitions) for topic, partitions in shares[member].items() if partitions}
        for member in members
    }


def _give(share: dict[Topic, set[int]], topic: Topic, partition: int) -> None:
    partitions = share.get(topic)
    if partitions is None:
        share[topic] = {partition}
    else:
        partitions.add(partition)


def assign_range(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    shares: dict[str, dict[Topic, set[int]]] = {member: {} for member in members}
    order = _order(members)
    for topic, partitions in topics.items():
        readers = [member for member in order if topic in members[member].topics]
        if not readers:
            continue
        each, more = divmod(partitions, len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + each + (place < more)
            shares[member][topic] = set(range(start, end))
            start = end
    return _result(members, shares)


def assign_round_robin(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    shares: dict[str, dict[Topic, set[int]]] = {member: {} for member in members}
    order = _order(members)
    place = 0
    for topic in sorted(topics):
        if not any(topic in members[member].topics for member in order):
            continue
        for partition in range(topics[topic]):
            while topic not in members[order[place % len(order)]].topics:
                place += 1
            _give(shares[order[place % len(order)]], topic, partition)
            place += 1
    return _result(members, shares)


def assign_uniform(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _uniform_alike(members, {topic: topics[topic] for topic in topics if topic in next(iter(subscriptions))})
    return _uniform_mixed(members, topics)


def _uniform_alike(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    """Everybody subscribes to the same: each gets the quota, and some one more."""
    total = sum(topics.values())
    quota, more = divmod(total, len(members))
    shares, free = _kept(members, topics)
    order = _order(members)
    sizes = {member: sum(map(len, shares[member].values())) for member in order}
    # Who holds most keeps the odd partition: nothing moves that need not.
    takers = set(sorted(order, key=lambda member: -sizes[member])[:more])
    for member in order:
        surplus = sizes[member] - quota - (member in takers)
        if surplus > 0:
            free.extend(_shed(shares[member], surplus))
            sizes[member] -= surplus
    free.sort(reverse=True)
    for member in order:
        for _ in range(quota + (member in takers) - sizes[member]):
            topic, partition = free.pop()
            _give(shares[member], topic, partition)
    return _result(members, shares)


def _shed(share: dict[Topic, set[int]], count: int) -> list[tuple[Topic, int]]:
    """Take `count` partitions out of a share, always from its largest topic."""
    shed = []
    for _ in range(count):
        topic = max(share, key=lambda topic: (len(share[topic]), topic))
        partition = max(share[topic])
        share[topic].discard(partition)
        shed.append((topic, partition))
    return shed


def _kept(
    members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]
) -> tuple[dict[str, dict[Topic, set[int]]], list[tuple[Topic, int]]]:
    """What each member holds and may go on holding, and the partitions that nobody holds."""
    shares: dict[str, dict[Topic, set[int]]] = {member: {} for member in members}
    taken: dict[Topic, set[int]] = {topic: set() for topic in topics}
    for member in _order(members):
        subscriber = members[member]
        for topic, partitions in subscriber.held.items():
            if topic not in taken or topic not in subscriber.topics:
                continue
            keeps = {partition for partition in partitions if 0 <= partition < topics[topic]} - taken[topic]
            if keeps:
                shares[member][topic] = keeps
                taken[topic] |= keeps
    free = [
        (topic, partition)
        for topic in topics
        for partition in range(topics[topic])
        if partition not in taken[topic] and any(topic in member.topics for member in members.values())
    ]
    return shares, free


def _uniform_mixed(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    """Subscriptions differ: give what is free to the poorest reader, then move from rich to poor while it helps."""
    shares, free = _kept(members, topics)
    order = _order(members)
    readers = {topic: [member for member in order if topic in members[member].topics] for topic in topics}
    sizes = {member: sum(map(len, shares[member].values())) for member in order}
    for topic, partition in sorted(free, key=lambda place: (len(readers[place[0]]), place)):
        poorest = min(readers[topic], key=lambda member: sizes[member])
        _give(shares[poorest], topic, partition)
        sizes[poorest] += 1
    while path := _path_to_poorer(order, readers, shares, sizes):
        for giver, topic, taker in path:
            partition = max(shares[giver][topic])
            shares[giver][topic].discard(partition)
            _give(shares[taker], topic, partition)
        sizes[path[0][0]] -= 1
        sizes[path[-1][2]] += 1
    return _result(members, shares)


def _path_to_poorer(
    order: list[str],
    readers: Mapping[Topic, list[str]],
    shares: Mapping[str, dict[Topic, set[int]]],
    sizes: Mapping[str, int],
) -> list[tuple[str, Topic, str]]:
    """The shortest chain of hand-overs from a member to one with at least two partitions less; empty when there is none.

    Each chain lowers the sum of the squares of the sizes, so they come to an end.
    """
    for richest in sorted(order, key=lambda member: -sizes[member]):
        came_from: dict[str, tuple[str, Topic]] = {}
        waiting = deque([richest])
        while waiting:
            giver = waiting.popleft()
            for topic in sorted(topic for topic, partitions in shares[giver].items() if partitions):
                for taker in readers[topic]:
                    if taker == richest or taker in came_from:
                        continue
                    came_from[taker] = (giver, topic)
                    if sizes[taker] + 2 <= sizes[richest]:
                        return _walk_back(came_from, richest, taker)
                    waiting.append(taker)
    return []


def _walk_back(came_from: Mapping[str, tuple[str, Topic]], start: str, end: str) -> list[tuple[str, Topic, str]]:
    path = []
    while end != start:
        giver, topic = came_from[end]
        path.append((giver, topic, end))
        end = giver
    path.reverse()
    return path
