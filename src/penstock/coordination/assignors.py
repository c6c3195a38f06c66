"""Assignors on the broker's side: who of a group's members reads which partitions.

    range        each topic by itself, a contiguous run for each member: the same partition of equally cut topics goes to
                 the same member
    round robin  all partitions in a row, dealt one by one
    uniform      as equal as the subscriptions allow, and whoever has a partition keeps it if equality permits

Two promises hold for all: each partition of a topic that somebody subscribes to has exactly one owner, who subscribes to it;
and the result depends on the arguments alone. Topics are named by whatever the caller uses (name or id), as long as it
sorts.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

Topic = TypeVar("Topic", str, int)
Held = dict[Topic, frozenset[int]]


class Subscriber(NamedTuple, Generic[Topic]):
    """A member as an assignor sees it: what it subscribes to, and what it holds now."""

    topics: frozenset[Topic]
    held: Mapping[Topic, frozenset[int]]
    instance_id: str | None = None


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


def _readers(
    members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int], order: list[str]
) -> dict[Topic, list[int]]:
    """For each topic, the positions in `order` of the members that subscribe to it.

    Equal subscriptions are visited once, and topics with the same readers share a list. So the cost is the size of the
    distinct subscriptions, not members times topics.
    """
    alike: dict[frozenset[Topic], list[int]] = {}
    for place, member in enumerate(order):
        alike.setdefault(members[member].topics, []).append(place)
    classes_of: dict[Topic, list[int]] = {topic: [] for topic in topics}
    for number, subscribed in enumerate(alike):
        for topic in subscribed & topics.keys():
            classes_of[topic].append(number)
    classes = list(alike.values())
    joined: dict[tuple[int, ...], list[int]] = {}
    readers = {}
    for topic, numbers in classes_of.items():
        key = tuple(numbers)
        if key not in joined:
            joined[key] = sorted(place for number in numbers for place in classes[number])
        readers[topic] = joined[key]
    return readers


def assign_range(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    shares: dict[str, dict[Topic, set[int]]] = {member: {} for member in members}
    order = _order(members)
    for topic, readers in _readers(members, topics, order).items():
        if not readers:
            continue
        each, more = divmod(topics[topic], len(readers))
        start = 0
        for number, place in enumerate(readers if each else readers[:more]):
            end = start + each + (number < more)
            shares[order[place]][topic] = set(range(start, end))
            start = end
    return _result(members, shares)


def assign_round_robin(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    shares: dict[str, dict[Topic, set[int]]] = {member: {} for member in members}
    order = _order(members)
    readers = _readers(members, topics, order)
    after = 0
    for topic in sorted(topics):
        places = readers[topic]
        if not places:
            continue
        number = bisect_left(places, after)
        for partition in range(topics[topic]):
            place = places[number % len(places)]
            _give(shares[order[place]], topic, partition)
            number += 1
            after = place + 1
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
    """Remove `count` partitions from a share, the last ones first, always from its largest topic."""
    largest = [(-len(partitions), _Reversed(topic), sorted(partitions)) for topic, partitions in share.items()]
    heapq.heapify(largest)
    shed: list[tuple[Topic, int]] = []
    for _ in range(count):
        size, at, partitions = largest[0]
        partition = partitions.pop()
        share[at.topic].discard(partition)
        shed.append((at.topic, partition))
        heapq.heapreplace(largest, (size + 1, at, partitions))
    return shed


class _Reversed(Generic[Topic]):
    """A string that sorts in reverse: among topics of equal size the last comes first."""

    __slots__ = ("topic",)

    def __init__(self, topic: Topic) -> None:
        self.topic: Topic = topic

    def __lt__(self, other: _Reversed[Topic]) -> bool:
        return bool(other.topic < self.topic)


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
    wanted = frozenset().union(*{member.topics for member in members.values()})
    free = [
        (topic, partition)
        for topic in topics
        if topic in wanted
        for partition in range(topics[topic])
        if partition not in taken[topic]
    ]
    return shares, free


def _uniform_mixed(members: Mapping[str, Subscriber[Topic]], topics: Mapping[Topic, int]) -> dict[str, Held[Topic]]:
    """Subscriptions differ: give what is free to the poorest reader, then move from rich to poor while it helps."""
    shares, free = _kept(members, topics)
    order = _order(members)
    readers = _readers(members, topics, order)
    sizes = [sum(map(len, shares[member].values())) for member in order]
    free.sort(key=lambda place: (len(readers[place[0]]), place))
    poorest: dict[int, list[tuple[int, int]]] = {}
    """Heaps of the readers' sizes, by the id of their list; an outdated size is corrected at the top of its heap."""
    for topic, partition in free:
        heap = poorest.get(id(readers[topic]))
        if heap is None:
            heap = poorest[id(readers[topic])] = [(sizes[reader], reader) for reader in readers[topic]]
            heapq.heapify(heap)
        while heap[0][0] != sizes[heap[0][1]]:
            heapq.heapreplace(heap, (sizes[heap[0][1]], heap[0][1]))
        size, reader = heap[0]
        _give(shares[order[reader]], topic, partition)
        sizes[reader] = size + 1
        heapq.heapreplace(heap, (size + 1, reader))
    _Balance([shares[member] for member in order], readers, sizes).level()
    return _result(members, shares)


class _Balance(Generic[Topic]):
    """Moves partitions from members to poorer ones, while they differ by two partitions or more.

    Members are numbers here: their positions in the order, which also breaks ties.
    """

    def __init__(
        self, shares: list[dict[Topic, set[int]]], readers: Mapping[Topic, list[int]], sizes: list[int]
    ) -> None:
        self._shares: list[dict[Topic, set[int]]] = shares
        self._readers: Mapping[Topic, list[int]] = readers
        self._sizes = sizes
        self._last: dict[tuple[int, Topic], list[int]] = {}
        """Heaps of the partitions, negated, that a member may have of a topic; its share shows which ones it still has."""
        self._direct: dict[int, list[Topic]] = {}
        """Heaps of the topics of which a member may have a partition to give to a poor reader."""
        self._not_poor: dict[int, int] = {}
        """Number of readers at the start of a list that are not poor, by the id of the list. They never become poor: only
        the size of the richest member falls."""
        self._hopeless: set[int] = set()
        """Members from which no chain leads to a poorer one. They were reached from a member at least as rich without a
        chain, so no chain of a poorer member will ever touch them."""

    def level(self) -> None:
        richest = [(-size, member) for member, size in enumerate(self._sizes)]
        heapq.heapify(richest)
        while richest:
            size, member = richest[0]
            path = []
            if member not in self._hopeless and -size == self._sizes[member]:
                path = self._path_to_poorer(member)
            if not path:
                heapq.heappop(richest)
                continue
            for giver, topic, taker in path:
                self._hand_over(giver, topic, taker)
            self._sizes[member] -= 1
            self._sizes[taker] += 1
            heapq.heapreplace(richest, (-self._sizes[member], member))
            heapq.heappush(richest, (-self._sizes[taker], taker))

    def _hand_over(self, giver: int, topic: Topic, taker: int) -> None:
        partition = self._last_partition(giver, topic)
        self._shares[giver][topic].discard(partition)
        _give(self._shares[taker], topic, partition)
        if (taker, topic) in self._last:
            heapq.heappush(self._last[taker, topic], -partition)
        if taker in self._direct and len(self._shares[taker][topic]) == 1:
            heapq.heappush(self._direct[taker], topic)

    def _last_partition(self, member: int, topic: Topic) -> int:
        partitions = self._shares[member][topic]
        last = self._last.get((member, topic))
        if last is None:
            last = self._last[member, topic] = sorted(-partition for partition in partitions)
        while -last[0] not in partitions:
            heapq.heappop(last)
        return -last[0]

    def _poor_reader(self, topic: Topic, poor: int) -> int | None:
        """The first reader of a topic that has at most `poor` partitions."""
        readers = self._readers[topic]
        first = self._not_poor.get(id(readers), 0)
        while first < len(readers) and self._sizes[readers[first]] > poor:
            first += 1
        self._not_poor[id(readers)] = first
        return readers[first] if first < len(readers) else None

    def _path_to_poorer(self, start: int) -> list[tuple[int, Topic, int]]:
        """The shortest chain of moves to a member with at least two partitions fewer; empty if there is none.

        Each chain lowers the sum of the squares of the sizes, so the search terminates.
        """
        poor = self._sizes[start] - 2
        direct = self._direct.get(start)
        if direct is None:
            direct = self._direct[start] = sorted(self._shares[start])
        while direct:
            topic = direct[0]
            taker = self._poor_reader(topic, poor) if self._shares[start][topic] else None
            if taker is not None:
                return [(start, topic, taker)]
            heapq.heappop(direct)

        came_from: dict[int, tuple[int, Topic]] = {}
        reached: set[int] = set()
        """Ids of the lists of readers whose members have all been reached."""
        waiting = deque([start])
        while waiting:
            giver = waiting.popleft()
            for topic in sorted(topic for topic, partitions in self._shares[giver].items() if partitions):
                readers = self._readers[topic]
                if id(readers) in reached:
                    continue
                reached.add(id(readers))
                taker = self._poor_reader(topic, poor)
                if taker is not None:
                    came_from[taker] = (giver, topic)
                    return _walk_back(came_from, start, taker)
                for reader in readers:
                    if reader != start and reader not in came_from:
                        came_from[reader] = (giver, topic)
                        waiting.append(reader)
        self._hopeless.add(start)
        self._hopeless.update(came_from)
        return []


def _walk_back(came_from: Mapping[int, tuple[int, Topic]], start: int, end: int) -> list[tuple[int, Topic, int]]:
    path = []
    while end != start:
        giver, topic = came_from[end]
        path.append((giver, topic, end))
        end = giver
    path.reverse()
    return path


Assignor = Callable[[Mapping[str, Subscriber[int]], Mapping[int, int]], dict[str, dict[int, frozenset[int]]]]

CONSUMER_ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""What consumer groups may ask for (KIP-848); the first is the default."""
