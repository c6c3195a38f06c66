"""Assignors: each partition has one owner who subscribes to it; equal shares; and nothing moves without need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination import assignors
from penstock.coordination.assignors import Subscriber, assign_range, assign_round_robin, assign_uniform
from tests.coordination import plain_assignors

if TYPE_CHECKING:
    from _typeshed import TraceFunction

Result = dict[str, dict[str, frozenset[int]]]
Assign = Callable[[dict[str, Subscriber[str]], dict[str, int]], Result]

TOPICS = ("a", "b", "c")
topic_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
held = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 8), min_size=1, max_size=4), max_size=3)
mixed = st.dictionaries(
    st.sampled_from("uvwxyz"),
    st.builds(Subscriber, st.frozensets(st.sampled_from(TOPICS)), held, st.none() | st.sampled_from(["i", "j"])),
    max_size=5,
)


def member(*topics: str, **has: set[int]) -> Subscriber[str]:
    return Subscriber(frozenset(topics), {topic: frozenset(partitions) for topic, partitions in has.items()})


def size(share: dict[str, frozenset[int]]) -> int:
    return sum(map(len, share.values()))


@pytest.mark.parametrize("assign", [assign_range, assign_round_robin, assign_uniform])
@given(members=mixed, topics=topic_counts)
def test_each_partition_has_exactly_one_owner_who_subscribes_to_it(
    assign: Assign, members: dict[str, Subscriber[str]], topics: dict[str, int]
) -> None:
    result = assign(members, topics)
    assert result.keys() == members.keys()
    owned = [(t, p) for share in result.values() for t, partitions in share.items() for p in partitions]
    read = {topic for subscriber in members.values() for topic in subscriber.topics}
    assert sorted(owned) == sorted((t, p) for t, count in topics.items() if t in read for p in range(count))
    for name, share in result.items():
        assert share.keys() <= members[name].topics
        assert all(share.values()), "no topic with an empty share"
    assert assign(members, topics) == result


MORE_TOPICS = "abcdefgh"
crowds = st.dictionaries(
    st.integers(0, 40).map("m{:02}".format),
    st.builds(
        Subscriber,
        st.sampled_from(
            [frozenset(), frozenset("a"), frozenset("ab"), frozenset("bcd"), frozenset("h"), frozenset(MORE_TOPICS)]
        )
        | st.frozensets(st.sampled_from(MORE_TOPICS)),
        st.dictionaries(st.sampled_from(MORE_TOPICS), st.frozensets(st.integers(0, 20), min_size=1)),
        st.none() | st.sampled_from(["i", "j", "k"]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("name", ["assign_range", "assign_round_robin", "assign_uniform"])
@given(members=crowds, topics=st.dictionaries(st.sampled_from(MORE_TOPICS), st.integers(0, 20)))
def test_the_result_is_that_of_the_plain_algorithm(
    name: str, members: dict[str, Subscriber[str]], topics: dict[str, int]
) -> None:
    expected: Result = getattr(plain_assignors, name)(members, topics)
    result: Result = getattr(assignors, name)(members, topics)
    assert result == expected
    again = {member: members[member]._replace(held=result[member]) for member in list(members)[1:]}
    assert getattr(assignors, name)(again, topics) == getattr(plain_assignors, name)(again, topics)


@given(st.integers(1, 6), topic_counts, st.lists(held, min_size=6, max_size=6))
def test_uniform_gives_equal_subscribers_equal_shares(
    count: int, topics: dict[str, int], holdings: list[dict[str, frozenset[int]]]
) -> None:
    members = {f"m{n}": Subscriber(frozenset(TOPICS), holdings[n]) for n in range(count)}
    sizes = [size(share) for share in assign_uniform(members, topics).values()]
    assert max(sizes) - min(sizes) <= 1


@given(mixed, topic_counts)
def test_uniform_leaves_no_partition_that_a_poorer_subscriber_could_have(
    members: dict[str, Subscriber[str]], topics: dict[str, int]
) -> None:
    result = assign_uniform(members, topics)
    for rich, share in result.items():
        for poor, subscriber in members.items():
            if size(result[poor]) + 1 < size(share):
                assert not share.keys() & subscriber.topics, f"{rich} could give to {poor}"


@given(mixed, topic_counts)
def test_uniform_moves_nothing_when_nothing_changed(
    members: dict[str, Subscriber[str]], topics: dict[str, int]
) -> None:
    result = assign_uniform(members, topics)
    again = {name: members[name]._replace(held=result[name]) for name in members}
    assert assign_uniform(again, topics) == result


def kept(before: Result, after: Result) -> int:
    return sum(len(before[m].get("a", frozenset()) & after[m].get("a", frozenset())) for m in before.keys() & after)


@given(st.integers(1, 6), st.integers(1, 20), st.sampled_from(["a-first", "z-last"]))
def test_uniform_moves_only_what_a_newcomer_needs(count: int, partitions: int, newcomer: str) -> None:
    topics = {"a": partitions}
    before = assign_uniform({f"m{n}": member("a") for n in range(count)}, topics)
    members = {name: Subscriber(frozenset({"a"}), share) for name, share in before.items()}
    after = assign_uniform({**members, newcomer: member("a")}, topics)
    assert kept(before, after) == partitions - partitions // (count + 1), "the odd ones stay where they are"


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 5))
def test_uniform_leaves_everybody_what_it_has_when_one_goes(count: int, partitions: int, gone: int) -> None:
    topics = {"a": partitions}
    before = assign_uniform({f"m{n}": member("a") for n in range(count)}, topics)
    lost = before.pop(f"m{gone % count}")
    after = assign_uniform({m: Subscriber(frozenset({"a"}), share) for m, share in before.items()}, topics)
    assert kept(before, after) == partitions - size(lost)


def test_uniform_shares_what_a_member_leaves_and_the_others_keep_theirs() -> None:
    members = {"m1": member("a", a={0, 1}), "m2": member("a", a={2, 3})}
    after = assign_uniform(members, {"a": 6})
    assert after["m1"]["a"] >= {0, 1}
    assert after["m2"]["a"] >= {2, 3}


def test_uniform_hands_over_through_a_third_member_when_only_that_balances() -> None:
    members = {
        "rich": member("a", a={0, 1, 2}),
        "middle": member("a", "b", b={0, 1}),
        "poor": member("b", b={2}),
    }
    sizes = {name: size(share) for name, share in assign_uniform(members, {"a": 3, "b": 3}).items()}
    assert sizes == {"rich": 2, "middle": 2, "poor": 2}


def test_range_gives_runs_and_equal_partitions_of_equal_topics_to_one_member() -> None:
    members = {"m1": member("a", "b"), "m2": member("a", "b"), "m3": member("a", "b")}
    result = assign_range(members, {"a": 7, "b": 7})
    assert result["m1"] == {"a": frozenset({0, 1, 2}), "b": frozenset({0, 1, 2})}
    assert result["m2"] == {"a": frozenset({3, 4}), "b": frozenset({3, 4})}
    assert result["m3"] == {"a": frozenset({5, 6}), "b": frozenset({5, 6})}


def test_static_members_keep_their_place_in_the_order_under_another_id() -> None:
    def assign(first_id: str) -> dict[str, dict[str, frozenset[int]]]:
        subscribers = {
            first_id: Subscriber(frozenset({"a"}), {}, "i1"),
            "k": Subscriber(frozenset({"a"}), {}, "i2"),
        }
        return assign_range(subscribers, {"a": 4})

    assert assign("b")["b"] == assign("z")["z"] == {"a": frozenset({0, 1})}


def test_round_robin_deals_partitions_in_turn() -> None:
    result = assign_round_robin({"m1": member("a", "b"), "m2": member("a", "b")}, {"a": 3, "b": 3})
    assert result["m1"] == {"a": frozenset({0, 2}), "b": frozenset({1})}
    assert result["m2"] == {"a": frozenset({1}), "b": frozenset({0, 2})}


# ---- work --------------------------------------------------------------------------------------------------------------


def steps(work: Callable[[], object]) -> int:
    """How many lines the work runs, and how many times a loop in one line goes round."""
    count = 0

    def trace(_frame: FrameType, _event: str, _arg: object) -> TraceFunction:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def crowd(size: int, kind: str) -> tuple[dict[str, Subscriber[str]], dict[str, int]]:
    """`size` members and `size` topics of two partitions."""
    topics = {f"t{number:04}": 2 for number in range(size)}
    everything, half = frozenset(topics), frozenset(sorted(topics)[::2])
    members = {}
    for number in range(size):
        subscribed = half if kind == "mixed" and number % 2 else everything
        # One member holds all: the others get their shares by handing over.
        has = {topic: frozenset({0, 1}) for topic in subscribed} if kind != "new" and number == 0 else {}
        members[f"m{number:04}"] = Subscriber(subscribed, has)
    return members, topics


@pytest.mark.parametrize("kind", ["alike", "mixed", "new"])
@pytest.mark.parametrize("assign", [assign_range, assign_round_robin, assign_uniform])
def test_the_work_does_not_grow_with_members_times_topics(assign: Assign, kind: str) -> None:
    small, large = (steps(lambda n=size: assign(*crowd(n, kind))) for size in (20, 200))  # type: ignore[misc]
    assert large < 20 * small, "ten times as many of both: at most twenty times the work, not a hundred times"
