"""Consumer groups (KIP-848): epochs, revoke before assign, fencing, static members, patterns, restarts."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock.coordination.group_commands import (
    NAME_CHARS_MAX,
    CommitOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DeleteGroup,
    DeleteOffsets,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    GroupSettings,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetToCommit,
)
from penstock.model import limits
from penstock.model.errors import Fault
from tests.coordination.group_driver import Driver, join_command

Owned = dict[uuid.UUID, frozenset[int]]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def topic(driver: Driver) -> uuid.UUID:
    return driver.create_topic("t", 4)


def beat(driver: Driver, member_id: str, epoch: int, /, **changes: Any) -> ConsumerHeartbeatResult:
    result: ConsumerHeartbeatResult = driver.ask(ConsumerHeartbeat("g", member_id, epoch)._replace(**changes))
    return result


def join(driver: Driver, member_id: str, /, *names: str, **changes: Any) -> ConsumerHeartbeatResult:
    changes = {"subscribed_names": names or ("t",), "rebalance_timeout_ms": 60_000, "owned": {}, **changes}
    return beat(driver, member_id, 0, **changes)


def commit(driver: Driver, member_id: str, epoch: int, **changes: Any) -> Fault:
    command = CommitOffsets("g", member_id, None, epoch, (OffsetToCommit("t", 0, 5, 0, ""),))
    fault: Fault = driver.ask(command._replace(**changes)).fault
    return fault


def state(driver: Driver) -> str:
    text: str = driver.ask(DescribeConsumerGroup("g")).state
    return text


def test_a_lone_member_gets_everything_at_once(driver: Driver, topic: uuid.UUID) -> None:
    joined = join(driver, "a")
    assert joined == (Fault.NONE, None, "a", 1, 5_000, {topic: frozenset({0, 1, 2, 3})})
    assert state(driver) == "Stable"


def test_an_unchanged_assignment_is_not_repeated(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    quiet = beat(driver, "a", 1)
    assert (quiet.fault, quiet.assignment, quiet.heartbeat_interval_ms) == (Fault.NONE, None, 5_000)
    owned = {topic: frozenset({0, 1, 2, 3})}
    full = beat(driver, "a", 1, subscribed_names=("t",), rebalance_timeout_ms=60_000, owned=owned)
    assert full.assignment == owned, "who says everything is told everything"


def test_partitions_move_only_after_the_old_owner_gave_them_up(driver: Driver, topic: uuid.UUID) -> None:
    everything = join(driver, "a").assignment
    waiting = join(driver, "b")
    assert (waiting.epoch, waiting.assignment) == (2, {})
    assert state(driver) == "Reconciling"
    told = beat(driver, "a", 1, owned=everything)
    assert told.epoch == 1, "it stays in its epoch until it has given up"
    assert told.assignment is not None
    keeps = told.assignment[topic]
    assert len(keeps) == 2
    assert beat(driver, "b", 2).assignment is None, "not free yet"
    done = beat(driver, "a", 1, owned={topic: keeps})
    assert (done.epoch, done.assignment) == (2, None)
    given = beat(driver, "b", 2)
    assert given.assignment == {topic: frozenset(range(4)) - keeps}
    assert state(driver) == "Stable"


def test_a_heartbeat_that_does_not_say_what_it_owns_releases_nothing(driver: Driver, topic: uuid.UUID) -> None:
    everything = join(driver, "a").assignment
    join(driver, "b")
    beat(driver, "a", 1, owned=everything)
    for _ in range(3):
        assert beat(driver, "a", 1).epoch == 1
        assert beat(driver, "b", 2).assignment is None


def test_who_does_not_give_up_within_its_rebalance_timeout_is_out(driver: Driver, topic: uuid.UUID) -> None:
    everything = join(driver, "a", rebalance_timeout_ms=20_000).assignment
    join(driver, "b")
    beat(driver, "a", 1, owned=everything)
    for _ in range(2):
        driver.wait(9_999)
        assert beat(driver, "a", 1, owned=everything).fault is Fault.NONE
        beat(driver, "b", 2)
    driver.wait(2)
    assert beat(driver, "a", 1).fault is Fault.UNKNOWN_MEMBER_ID
    assert beat(driver, "b", 2).assignment == {topic: frozenset(range(4))}


def test_a_member_without_heartbeats_is_out_after_the_session(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    driver.wait(44_999)
    assert beat(driver, "a", 1).fault is Fault.NONE
    driver.wait(45_000)
    assert beat(driver, "a", 1).fault is Fault.UNKNOWN_MEMBER_ID
    assert state(driver) == "Empty"


def test_other_epochs_than_the_members_are_fenced(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    for epoch in (1, 2):
        driver.create_topic(f"more-{epoch}", 1)
        beat(driver, "a", epoch, subscribed_names=("t", f"more-{epoch}"), owned={})
    for wrong in (1, 2, 4):
        assert beat(driver, "a", wrong).fault is Fault.FENCED_MEMBER_EPOCH
    assert beat(driver, "a", 3).fault is Fault.NONE


def test_the_previous_epoch_is_accepted_when_the_answer_may_have_been_lost(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    join(driver, "b")
    keeps = beat(driver, "a", 1, owned={topic: frozenset(range(4))}).assignment
    assert beat(driver, "a", 1, owned=keeps).epoch == 2
    again = beat(driver, "a", 1, owned=keeps)
    assert (again.fault, again.epoch, again.assignment) == (Fault.NONE, 2, keeps)
    assert beat(driver, "a", 1, owned={topic: frozenset(range(4))}).fault is Fault.FENCED_MEMBER_EPOCH
    assert beat(driver, "a", 1).fault is Fault.FENCED_MEMBER_EPOCH


def test_a_member_that_joins_again_gets_its_assignment_again(driver: Driver, topic: uuid.UUID) -> None:
    first = join(driver, "a")
    again = join(driver, "a")
    assert (again.fault, again.epoch, again.assignment) == (Fault.NONE, 1, first.assignment)


def test_leaving_frees_everything(driver: Driver, topic: uuid.UUID) -> None:
    everything = join(driver, "a").assignment
    join(driver, "b")
    left = beat(driver, "a", -1)
    assert (left.fault, left.epoch) == (Fault.NONE, -1)
    assert beat(driver, "b", 2).assignment == everything
    assert beat(driver, "a", -1).fault is Fault.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "changes",
    [
        {"group": ""},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": {uuid.UUID(int=9): frozenset({0})}},
        {"subscribed_names": None},
        {"subscribed_names": ()},
        {"instance_id": ""},
        {"rack_id": ""},
        {"epoch": -3},
        {"epoch": -2},
        {"epoch": -1, "member_id": ""},
        {"member_id": "m" * 40_000},
    ],
)
def test_heartbeats_that_no_group_could_accept_are_invalid(driver: Driver, changes: dict[str, Any]) -> None:
    result = join(driver, "a", **changes)
    assert result.fault is Fault.INVALID_REQUEST
    assert result.text
    assert driver.ask(ListGroups()).groups == ()


@pytest.mark.parametrize("too_long", [0, 1])
@pytest.mark.parametrize("field", ["group", "member_id", "instance_id", "rack_id", "client_id", "subscribed_regex"])
def test_length_of_names_is_limited(driver: Driver, field: str, too_long: int) -> None:
    result = join(driver, "a", **{field: "n" * (NAME_CHARS_MAX + too_long)})
    assert result.fault is (Fault.INVALID_REQUEST if too_long else Fault.NONE)


def test_the_broker_names_members_that_bring_no_id(driver: Driver, topic: uuid.UUID) -> None:
    joined = join(driver, "")
    assert joined.member_id
    assert beat(driver, joined.member_id, 1).fault is Fault.NONE


def test_a_member_of_a_group_that_is_gone_may_join_again(driver: Driver, topic: uuid.UUID) -> None:
    """GROUP_ID_NOT_FOUND would end librdkafka's and Java's consumers."""
    assert beat(driver, "a", 1).fault is Fault.UNKNOWN_MEMBER_ID
    join(driver, "a")
    driver.wait(1_000_000)
    assert driver.ask(ListGroups()).groups == ()
    assert beat(driver, "a", 1).fault is Fault.UNKNOWN_MEMBER_ID
    assert join(driver, "a").fault is Fault.NONE


def test_a_group_has_a_greatest_size(topic: uuid.UUID) -> None:
    driver = Driver(GroupSettings(consumer_group_size_max=1))
    driver.create_topic("t", 1)
    join(driver, "a")
    assert join(driver, "b").fault is Fault.GROUP_MAX_SIZE_REACHED
    assert join(driver, "a").fault is Fault.NONE


def test_the_default_size_of_a_group_is_limited(driver: Driver) -> None:
    driver.create_topic("t", 1)
    for number in range(limits.GROUP_MEMBERS_MAX):
        assert join(driver, f"m{number}").fault is Fault.NONE
    assert join(driver, "more").fault is Fault.GROUP_MAX_SIZE_REACHED


def test_the_names_that_a_group_subscribes_to_are_limited(driver: Driver) -> None:
    half = limits.CONSUMER_GROUP_NAMES_MAX // 2
    first, second = ([f"{letter}{number}" for number in range(half)] for letter in "ab")
    assert join(driver, "a", *first).fault is Fault.NONE
    assert join(driver, "b", *second).fault is Fault.NONE
    assert join(driver, "c", *second).fault is Fault.NONE, "the same subscription counts once"
    before = repr(driver.coordinator.durable_state())
    refused = join(driver, "d", "one")
    assert (refused.fault, str(2 * half + 1) in (refused.text or "")) == (Fault.INVALID_REQUEST, True)
    assert repr(driver.coordinator.durable_state()) == before


@pytest.mark.parametrize("too_many", [0, 1])
def test_the_topics_and_partitions_of_a_group_are_limited(driver: Driver, too_many: int) -> None:
    driver.create_topic("wide", limits.CONSUMER_GROUP_PARTITIONS_MAX)
    driver.create_topic("narrow", 1)
    assert join(driver, "a", "wide", *["narrow"] * too_many).fault is (
        Fault.INVALID_REQUEST if too_many else Fault.NONE
    )
    many = [f"t{number}" for number in range(limits.CONSUMER_GROUP_TOPICS_MAX + too_many)]
    for name in many:
        driver.create_topic(name, 1)
    result = driver.ask(ConsumerHeartbeat("g2", "b", 0, subscribed_names=tuple(many), rebalance_timeout_ms=1, owned={}))
    assert result.fault is (Fault.INVALID_REQUEST if too_many else Fault.NONE)


def test_group_whose_topics_exceed_the_limit_gets_an_error(driver: Driver) -> None:
    driver.create_topic("t", limits.CONSUMER_GROUP_PARTITIONS_MAX)
    assert join(driver, "a").fault is Fault.NONE
    driver.create_topic("t", limits.CONSUMER_GROUP_PARTITIONS_MAX + 1)
    assert beat(driver, "a", 1).fault is Fault.INVALID_REQUEST


def test_the_patterns_of_a_group_are_limited(driver: Driver) -> None:
    for number in range(limits.CONSUMER_GROUP_PATTERNS_MAX):
        assert join(driver, f"m{number}", subscribed_names=(), subscribed_regex=f"p{number}").fault is Fault.NONE
    assert join(driver, "same", subscribed_names=(), subscribed_regex="p0").fault is Fault.NONE
    assert join(driver, "other", subscribed_names=(), subscribed_regex="x").fault is Fault.INVALID_REQUEST
    assert join(driver, "m1", subscribed_names=(), subscribed_regex="x").fault is Fault.NONE, "in place of its own"


def test_the_assignor_that_most_ask_for_is_used(driver: Driver) -> None:
    first, second = driver.create_topic("t", 2), driver.create_topic("u", 2)
    assert join(driver, "a", assignor="sideways").fault is Fault.UNSUPPORTED_ASSIGNOR
    join(driver, "a", "t", "u", assignor="range")
    join(driver, "b", "t", "u", assignor="range")
    described = driver.ask(DescribeConsumerGroup("g"))
    assert described.assignor == "range"
    assert {m.member_id: m.target for m in described.members} == {
        "a": {first: frozenset({0}), second: frozenset({0})},
        "b": {first: frozenset({1}), second: frozenset({1})},
    }


# ----------------------------------------------------------------------------------------------- topics and patterns


def test_a_topic_that_grows_or_appears_reaches_its_subscribers(driver: Driver) -> None:
    assert join(driver, "a").assignment == {}
    topic = driver.create_topic("t", 1)
    grown = beat(driver, "a", 1)
    assert (grown.epoch, grown.assignment) == (2, {topic: frozenset({0})})
    driver.topics["t"] = driver.topics["t"]._replace(partitions=3)
    driver.coordinator.topics_changed(driver.topics)
    assert beat(driver, "a", 2).assignment == {topic: frozenset({0, 1, 2})}


def test_a_topic_of_no_interest_changes_nothing(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    driver.create_topic("u", 1)
    assert beat(driver, "a", 1).epoch == 1


def test_a_deleted_topic_is_given_up(driver: Driver, topic: uuid.UUID) -> None:
    everything = join(driver, "a").assignment
    driver.topics = {}
    driver.coordinator.topics_changed({})
    assert beat(driver, "a", 1, owned=everything).assignment == {}
    assert beat(driver, "a", 1, owned={}).epoch == 2
    recreated = driver.create_topic("t", 1)
    assert beat(driver, "a", 2).assignment == {recreated: frozenset({0})}


def test_another_subscription_is_another_epoch(driver: Driver, topic: uuid.UUID) -> None:
    other = driver.create_topic("u", 1)
    everything = join(driver, "a").assignment
    told = beat(driver, "a", 1, subscribed_names=("u",), owned=everything)
    assert (told.epoch, told.assignment) == (1, {})
    assert beat(driver, "a", 1, owned={}).assignment == {other: frozenset({0})}


def test_a_pattern_stands_for_the_topics_that_match_it_now_and_later(driver: Driver) -> None:
    first = driver.create_topic("log-1", 1)
    joined = join(driver, "a", subscribed_names=None, subscribed_regex="log-.*")
    assert joined.assignment == {first: frozenset({0})}
    second = driver.create_topic("log-2", 1)
    driver.create_topic("other", 1)
    assert beat(driver, "a", 1).assignment == {first: frozenset({0}), second: frozenset({0})}
    driver.restart()
    assert beat(driver, "a", 2).epoch == 2, "nothing changed while the broker was away"
    driver.create_topic("log-3", 1)
    assert beat(driver, "a", 2).epoch == 3


def test_a_pattern_adds_to_names_and_an_empty_one_takes_it_back(driver: Driver, topic: uuid.UUID) -> None:
    log = driver.create_topic("log", 1)
    joined = join(driver, "a", subscribed_regex="lo.")
    assert joined.assignment is not None
    assert joined.assignment.keys() == {topic, log}
    without = beat(driver, "a", 1, subscribed_regex="", owned=joined.assignment)
    assert without.assignment is not None
    assert without.assignment.keys() == {topic}


def test_a_pattern_that_reaches_a_topic_of_another_member_shares_it(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a", "t")
    join(driver, "b", "nothing-yet")
    epoch = driver.ask(DescribeConsumerGroup("g")).epoch
    beat(driver, "b", 2, subscribed_regex="t")
    described = driver.ask(DescribeConsumerGroup("g"))
    assert described.epoch == epoch + 1
    assert all(len(member.target[topic]) == 2 for member in described.members)


def test_a_wrong_pattern_is_refused_and_changes_nothing(driver: Driver, topic: uuid.UUID) -> None:
    assert join(driver, "a", subscribed_regex="(").fault is Fault.INVALID_REGULAR_EXPRESSION
    assert driver.ask(ListGroups()).groups == ()
    join(driver, "a")
    assert beat(driver, "a", 1, subscribed_regex="(").fault is Fault.INVALID_REGULAR_EXPRESSION
    assert beat(driver, "a", 1).fault is Fault.NONE


# ------------------------------------------------------------------------------------------------------ static members


def test_a_static_member_that_comes_back_takes_its_old_place(driver: Driver, topic: uuid.UUID) -> None:
    held = join(driver, "a", instance_id="i").assignment
    left = beat(driver, "a", -2, instance_id="i")
    assert (left.fault, left.epoch) == (Fault.NONE, -2)
    driver.wait(40_000)
    back = join(driver, "a2", instance_id="i")
    assert (back.fault, back.epoch, back.assignment) == (Fault.NONE, 1, held), "no rebalance"
    assert beat(driver, "a", 1, instance_id="i").fault is Fault.FENCED_INSTANCE_ID
    assert beat(driver, "a", 1).fault is Fault.UNKNOWN_MEMBER_ID


def test_nobody_gets_the_partitions_of_a_static_member_that_is_away(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a", instance_id="i")
    beat(driver, "a", -2, instance_id="i")
    join(driver, "b")
    driver.wait(44_000)
    assert beat(driver, "b", 2).assignment is None
    driver.wait(1_000)
    assert beat(driver, "b", 2).assignment == {topic: frozenset(range(4))}, "its session ended"


def test_a_static_member_that_is_still_here_is_not_replaced(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a", instance_id="i")
    assert join(driver, "a2", instance_id="i").fault is Fault.UNRELEASED_INSTANCE_ID
    assert beat(driver, "a", 1, instance_id="i").fault is Fault.NONE
    assert beat(driver, "x", 1, instance_id="i").fault is Fault.FENCED_INSTANCE_ID
    assert beat(driver, "x", 1, instance_id="j").fault is Fault.UNKNOWN_MEMBER_ID
    assert beat(driver, "x", -2, instance_id="i").fault is Fault.FENCED_INSTANCE_ID


def test_a_static_member_may_come_back_under_the_same_id_or_leave_for_good(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a", instance_id="i")
    beat(driver, "a", -2, instance_id="i")
    assert beat(driver, "a", 1, instance_id="i").fault is Fault.FENCED_MEMBER_EPOCH
    assert join(driver, "a", instance_id="i").epoch == 1
    beat(driver, "a", -1, instance_id="i")
    assert state(driver) == "Empty"


# ------------------------------------------------------------------------------------------------ offsets and restarts


def test_members_commit_and_fetch_in_their_epoch_only(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    assert commit(driver, "a", 1) is Fault.NONE
    assert commit(driver, "a", 0) is Fault.STALE_MEMBER_EPOCH
    assert commit(driver, "a", 2) is Fault.STALE_MEMBER_EPOCH
    assert commit(driver, "b", 1) is Fault.UNKNOWN_MEMBER_ID
    assert commit(driver, "", -1) is Fault.UNKNOWN_MEMBER_ID
    assert commit(driver, "a", 1, knows_consumer_groups=False) is Fault.UNSUPPORTED_VERSION

    def fetch(member_id: str | None, epoch: int) -> Fault:
        fault: Fault = driver.ask(FetchOffsets("g", None, member_id=member_id, member_epoch=epoch)).fault
        return fault

    assert fetch("a", 1) is fetch(None, -1) is Fault.NONE
    assert fetch("a", 2) is Fault.STALE_MEMBER_EPOCH
    assert fetch("b", 1) is Fault.UNKNOWN_MEMBER_ID


def test_anybody_commits_to_an_empty_consumer_group(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    beat(driver, "a", -1)
    assert commit(driver, "", -1) is Fault.NONE


def test_offsets_of_subscribed_topics_are_not_deleted(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    commit(driver, "a", 1)
    result = driver.ask(DeleteOffsets("g", (("t", 0),)))
    assert result.refused == {("t", 0): Fault.GROUP_SUBSCRIBED_TO_TOPIC}


def test_offsets_expire_when_the_group_is_empty_for_the_retention_even_over_a_restart(
    driver: Driver, topic: uuid.UUID
) -> None:
    join(driver, "a")
    commit(driver, "a", 1)
    beat(driver, "a", -1)
    driver.wait(6 * 24 * 3_600_000)
    driver.restart()
    assert driver.ask(FetchOffsets("g", None)).offsets
    driver.wait(24 * 3_600_000 + 600_000)
    assert not driver.ask(FetchOffsets("g", None)).offsets
    assert driver.ask(ListGroups()).groups == ()


def test_the_retention_counts_from_the_emptiness_not_from_the_commit() -> None:
    day_ms = 24 * 3_600_000
    driver = Driver(GroupSettings(consumer_session_timeout_ms=20 * day_ms))
    driver.create_topic("t", 1)
    join(driver, "a")
    commit(driver, "a", 1)
    driver.wait(5 * day_ms)
    beat(driver, "a", -1)
    driver.restart()
    driver.wait(6 * day_ms)
    assert driver.ask(FetchOffsets("g", None)).offsets
    driver.wait(day_ms + 600_000)
    assert not driver.ask(FetchOffsets("g", None)).offsets


def test_a_group_survives_a_restart_with_fresh_sessions(driver: Driver, topic: uuid.UUID) -> None:
    everything = join(driver, "a").assignment
    join(driver, "b")
    beat(driver, "a", 1, owned=everything)
    driver.wait(40_000)
    driver.restart()
    driver.wait(40_000)
    keeps = beat(driver, "a", 1, owned=everything, rebalance_timeout_ms=60_000).assignment
    assert keeps is not None, "it is still asked to give up"
    beat(driver, "a", 1, owned=keeps)
    assert beat(driver, "b", 2).assignment
    driver.restart()
    driver.wait(45_000)
    assert state(driver) == "Empty"


# ------------------------------------------------------------------------------------------------- the two kinds


def test_members_of_both_kinds_do_not_meet(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a")
    assert driver.ask(join_command()).fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.ask(LeaveGroup("g", (LeavingMember("a", None),))).members[0][1] is Fault.UNKNOWN_MEMBER_ID
    driver.ask(join_command(group="classic"))
    assert join(driver, "a", group="classic").fault is Fault.GROUP_ID_NOT_FOUND
    assert driver.ask(DescribeGroup("g")).fault is Fault.GROUP_ID_NOT_FOUND
    assert driver.ask(DescribeConsumerGroup("classic")).fault is Fault.GROUP_ID_NOT_FOUND


def test_an_empty_group_becomes_the_other_kind_and_keeps_its_offsets(driver: Driver, topic: uuid.UUID) -> None:
    (member,), _ = driver.stable(1)
    commit(driver, member, 1)
    driver.ask(LeaveGroup("g", (LeavingMember(member, None),)))
    assert join(driver, "a").fault is Fault.NONE
    assert [group.type for group in driver.ask(ListGroups()).groups] == ["consumer"]
    assert driver.replayed().durable_state() == driver.coordinator.durable_state()
    beat(driver, "a", -1)
    assert driver.ask(join_command()).fault is Fault.NONE
    assert [group.type for group in driver.ask(ListGroups()).groups] == ["classic"]
    assert driver.replayed().durable_state() == driver.coordinator.durable_state()
    assert driver.ask(FetchOffsets("g", None)).offsets["t"][0].value.offset == 5


def test_groups_are_listed_and_described(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a", client_id="c", client_host="/h", rack_id="r")
    assert driver.ask(ListGroups(types=("Consumer",))).groups == (("g", "consumer", "Stable", "consumer"),)
    described = driver.ask(DescribeConsumerGroup("g"))
    assert (described.epoch, described.assignment_epoch, described.assignor) == (1, 1, "uniform")
    assert described.topic_names == {topic: "t"}
    everything = {topic: frozenset(range(4))}
    assert described.members[0] == ("a", None, "r", 1, "c", "/h", ("t",), None, everything, everything)


def test_only_an_empty_group_is_deleted(driver: Driver, topic: uuid.UUID) -> None:
    join(driver, "a", subscribed_regex="t")
    commit(driver, "a", 1)
    assert driver.ask(DeleteGroup("g")).fault is Fault.NON_EMPTY_GROUP
    beat(driver, "a", -1)
    assert driver.ask(DeleteGroup("g")).fault is Fault.NONE
    assert driver.ask(ListGroups()).groups == ()
    driver.restart()
    assert driver.ask(ListGroups()).groups == ()
