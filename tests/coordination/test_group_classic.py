"""Classic groups: joining, assigning, leaving, static members, sessions, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.coordination.classic_states import TRANSITIONS, State
from penstock.coordination.group_commands import (
    NAME_CHARS_MAX,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    DropTopics,
    GroupSettings,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetToCommit,
)
from penstock.model import limits
from penstock.model.errors import Fault
from tests.coordination.group_driver import Driver, join_command


@pytest.fixture
def driver() -> Driver:
    return Driver()


def heartbeat(driver: Driver, member_id: str, generation: int, instance_id: str | None = None) -> Fault:
    fault: Fault = driver.ask(Heartbeat("g", member_id, instance_id, generation)).fault
    return fault


def commit(driver: Driver, member_id: str, generation: int, instance_id: str | None = None) -> Fault:
    offsets = (OffsetToCommit("t", 0, 5, 0, ""),)
    fault: Fault = driver.ask(CommitOffsets("g", member_id, instance_id, generation, offsets)).fault
    return fault


def state(driver: Driver) -> str:
    text: str = driver.ask(DescribeGroup("g")).state
    return text


def leave(driver: Driver, *members: tuple[str, str | None]) -> list[Fault]:
    result = driver.ask(LeaveGroup("g", tuple(LeavingMember(*member) for member in members)))
    assert result.fault is Fault.NONE
    return [fault for _, fault in result.members]


def test_a_lone_member_joins_assigns_and_is_stable(driver: Driver) -> None:
    joined = driver.answers[driver.join()]
    assert joined.fault is Fault.NONE
    assert (joined.generation, joined.protocol_type, joined.protocol) == (1, "consumer", "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("c-")
    assert [member.metadata for member in joined.members] == [b"m"]
    assert state(driver) == "CompletingRebalance"
    synced = driver.answers[driver.sync(joined.member_id, 1, {joined.member_id: b"all"})]
    assert (synced.fault, synced.assignment, synced.protocol) == (Fault.NONE, b"all", "range")
    assert state(driver) == "Stable"
    assert heartbeat(driver, joined.member_id, 1) is Fault.NONE


def test_a_second_member_does_not_expel_the_first(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    second = driver.join()
    assert second not in driver.answers, "it waits for the first to rejoin"
    assert heartbeat(driver, first, 1) is Fault.REBALANCE_IN_PROGRESS
    rejoined = driver.answers[driver.join(first)]
    assert rejoined.member_id == first
    assert rejoined.generation == 2
    assert {member.member_id for member in rejoined.members} == {first, driver.answers[second].member_id}
    assert driver.answers[second].members == (), "only the leader sees the members"


def test_a_new_dynamic_member_comes_back_with_the_id_it_was_given(driver: Driver) -> None:
    refused = driver.answers[driver.join(needs_member_id=True)]
    assert refused.fault is Fault.MEMBER_ID_REQUIRED
    assert refused.member_id
    joined = driver.answers[driver.join(refused.member_id, needs_member_id=True)]
    assert (joined.fault, joined.member_id) == (Fault.NONE, refused.member_id)


def test_an_id_that_was_given_out_holds_the_rebalance_up_until_it_expires(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    driver.join(needs_member_id=True)
    rejoined = driver.join(first)
    assert rejoined not in driver.answers
    driver.wait(10_000)
    assert driver.answers[rejoined].generation == 2


def test_an_id_that_nobody_came_back_with_leaves_no_group_behind(driver: Driver) -> None:
    driver.join(needs_member_id=True)
    assert [group.group for group in driver.ask(ListGroups()).groups] == ["g"]
    driver.wait(10_000)
    assert driver.ask(ListGroups()).groups == ()


def test_unknown_members_and_groups_are_unknown(driver: Driver) -> None:
    assert driver.answers[driver.join("nobody")].fault is Fault.UNKNOWN_MEMBER_ID
    assert heartbeat(driver, "nobody", 1) is Fault.UNKNOWN_MEMBER_ID
    assert leave(driver, ("nobody", None)) == [Fault.UNKNOWN_MEMBER_ID]
    assert driver.answers[driver.sync("nobody", 1)].fault is Fault.UNKNOWN_MEMBER_ID
    driver.stable(1)
    assert driver.answers[driver.join("nobody")].fault is Fault.UNKNOWN_MEMBER_ID
    assert heartbeat(driver, "nobody", 1) is Fault.UNKNOWN_MEMBER_ID
    assert driver.answers[driver.sync("nobody", 1)].fault is Fault.UNKNOWN_MEMBER_ID


def test_a_group_needs_a_name(driver: Driver) -> None:
    assert driver.answers[driver.join(group="")].fault is Fault.INVALID_GROUP_ID
    assert driver.answers[driver.join(group="g" * 40_000)].fault is Fault.INVALID_GROUP_ID
    assert driver.ask(Heartbeat("", "m", None, 1)).fault is Fault.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("session_timeout_ms", "fault"),
    [
        (5_999, Fault.INVALID_SESSION_TIMEOUT),
        (6_000, Fault.NONE),
        (1_800_000, Fault.NONE),
        (1_800_001, Fault.INVALID_SESSION_TIMEOUT),
    ],
)
def test_the_session_timeout_has_a_range(driver: Driver, session_timeout_ms: int, fault: Fault) -> None:
    assert driver.answers[driver.join(session_timeout_ms=session_timeout_ms)].fault is fault


def test_the_first_members_wait_for_each_other() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = driver.join()
    driver.wait(2_000)
    second = driver.join()
    driver.wait(1_000)
    assert first not in driver.answers, "a newcomer prolongs the wait"
    driver.wait(3_000)
    assert driver.answers[first].generation == driver.answers[second].generation == 1


def test_the_first_wait_ends_with_the_rebalance_timeout() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = driver.join(rebalance_timeout_ms=7_000)
    for _ in range(6):
        driver.wait(1_000)
        driver.join(rebalance_timeout_ms=7_000)
    assert first not in driver.answers
    driver.wait(1_000)
    assert driver.answers[first].fault is Fault.NONE


def test_members_that_do_not_rejoin_in_time_are_out(driver: Driver) -> None:
    ids, _ = driver.stable(2, session_timeout_ms=1_000_000)
    rejoined = driver.join(ids[0], session_timeout_ms=1_000_000)
    driver.wait(59_999)
    assert rejoined not in driver.answers
    driver.wait(1)
    assert [member.member_id for member in driver.answers[rejoined].members] == [ids[0]]
    assert heartbeat(driver, ids[1], 3) is Fault.UNKNOWN_MEMBER_ID


def test_when_the_leader_does_not_rejoin_another_leads(driver: Driver) -> None:
    ids, _ = driver.stable(2)
    rejoined = driver.join(ids[1], protocols=(("range", b"changed"),))
    driver.wait(60_000)
    assert driver.answers[rejoined].leader == ids[1]
    assert driver.answers[rejoined].members


def test_a_member_without_heartbeats_loses_its_session_and_the_others_rebalance(driver: Driver) -> None:
    ids, generation = driver.stable(2)
    driver.wait(9_000)
    assert heartbeat(driver, ids[0], generation) is Fault.NONE
    driver.wait(1_000)
    assert heartbeat(driver, ids[0], generation) is Fault.REBALANCE_IN_PROGRESS
    assert heartbeat(driver, ids[1], generation) is Fault.UNKNOWN_MEMBER_ID
    assert driver.answers[driver.join(ids[0])].fault is Fault.NONE


def test_a_parked_member_keeps_its_session_but_a_new_one_must_return(driver: Driver) -> None:
    (first,), _ = driver.stable(1, rebalance_timeout_ms=10_000_000)
    new = driver.join(rebalance_timeout_ms=10_000_000)
    for _ in range(33):
        driver.wait(9_000)
        heartbeat(driver, first, 1)
    driver.wait(3_000)
    assert driver.answers[new].fault is Fault.UNKNOWN_MEMBER_ID, "after five minutes it may have hung up"


def test_a_leader_that_does_not_assign_is_out_and_nobody_waits_for_ever(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    second = driver.join()
    driver.join(first)
    follower = driver.answers[second].member_id
    synced = driver.sync(follower, 2)
    for _ in range(7):
        driver.wait(9_000)
        heartbeat(driver, first, 2)
    assert driver.answers[synced].fault is Fault.REBALANCE_IN_PROGRESS
    assert heartbeat(driver, first, 2) is Fault.UNKNOWN_MEMBER_ID


def test_a_member_that_never_syncs_is_out(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    second = driver.join()
    driver.join(first)
    lazy = driver.answers[second].member_id
    driver.sync(first, 2, {})
    for _ in range(7):
        driver.wait(9_000)
        heartbeat(driver, first, 2)
        heartbeat(driver, lazy, 2)
    assert heartbeat(driver, lazy, 2) is Fault.UNKNOWN_MEMBER_ID
    assert heartbeat(driver, first, 2) is Fault.REBALANCE_IN_PROGRESS


def test_old_and_future_generations_are_illegal(driver: Driver) -> None:
    (first,), generation = driver.stable(1)
    for wrong in (generation - 1, generation + 1):
        assert heartbeat(driver, first, wrong) is Fault.ILLEGAL_GENERATION
        assert driver.answers[driver.sync(first, wrong)].fault is Fault.ILLEGAL_GENERATION
        assert commit(driver, first, wrong) is Fault.ILLEGAL_GENERATION


def test_sync_says_which_protocol_is_meant(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    assert driver.answers[driver.sync(first, 1, protocol="sticky")].fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.answers[driver.sync(first, 1, protocol_type="connect")].fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    right = driver.answers[driver.sync(first, 1, protocol_type="consumer", protocol="range")]
    assert (right.fault, right.assignment) == (Fault.NONE, first.encode())


def test_the_protocol_that_most_members_prefer_among_the_common_ones_wins(driver: Driver) -> None:
    a, b, c = b"a", b"b", b"c"
    first = driver.join(protocols=(("x", a), ("y", b), ("z", c)))
    member_id = driver.answers[first].member_id
    second = driver.join(protocols=(("y", b), ("z", c)))
    third = driver.join(protocols=(("z", c), ("y", b)))
    rejoined = driver.join(member_id, protocols=(("x", a), ("y", b), ("z", c)))
    for ticket in (second, third, rejoined):
        assert driver.answers[ticket].protocol == "y", "x is not common; y has two votes, z one"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocols": (("other", b""),)},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_members_that_share_no_protocol_do_not_fit(driver: Driver, changes: dict[str, Any]) -> None:
    driver.stable(1)
    assert driver.answers[driver.join(**changes)].fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert state(driver) == "Stable"


def test_a_follower_that_joins_again_unchanged_gets_the_running_generation(driver: Driver) -> None:
    ids, generation = driver.stable(2)
    again = driver.answers[driver.join(ids[1])]
    assert (again.fault, again.generation, again.members) == (Fault.NONE, generation, ())
    assert state(driver) == "Stable"


def test_a_leader_that_joins_again_or_a_member_with_news_starts_a_rebalance(driver: Driver) -> None:
    ids, generation = driver.stable(2)
    driver.join(ids[0])
    assert state(driver) == "PreparingRebalance"
    assert driver.answers[driver.join(ids[1])].generation == generation + 1
    driver.sync(ids[0], generation + 1)
    driver.join(ids[1], protocols=(("range", b"owned partitions changed"),))
    assert state(driver) == "PreparingRebalance"


def test_a_repeated_join_takes_over_the_parked_one(driver: Driver) -> None:
    ids, _ = driver.stable(2)
    first_try = driver.join(ids[0])
    second_try = driver.join(ids[0])
    assert driver.answers[first_try].fault is Fault.REBALANCE_IN_PROGRESS
    driver.join(ids[1])
    assert driver.answers[second_try].fault is Fault.NONE


def test_leaving_rebalances_the_rest_and_the_last_one_leaves_an_empty_group(driver: Driver) -> None:
    ids, _ = driver.stable(2)
    assert leave(driver, (ids[0], None)) == [Fault.NONE]
    joined = driver.answers[driver.join(ids[1])]
    assert joined.leader == ids[1]
    assert leave(driver, (ids[1], None), ("nobody", None)) == [Fault.NONE, Fault.UNKNOWN_MEMBER_ID]
    assert state(driver) == "Empty"


def test_an_id_that_was_given_out_may_leave_before_it_joined(driver: Driver) -> None:
    given = driver.answers[driver.join(needs_member_id=True)].member_id
    assert leave(driver, (given, None)) == [Fault.NONE]
    assert driver.answers[driver.join(given)].fault is Fault.UNKNOWN_MEMBER_ID


def test_a_group_has_a_greatest_size() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, group_size_max=2))
    ids, generation = driver.stable(2)
    assert driver.answers[driver.join()].fault is Fault.GROUP_MAX_SIZE_REACHED
    assert heartbeat(driver, ids[0], generation) is Fault.NONE


def test_the_metadata_of_a_group_has_a_greatest_size(driver: Driver) -> None:
    most = limits.GROUP_METADATA_BYTES_MAX
    first = driver.answers[driver.join(protocols=(("p", bytes(most - 1)),))].member_id
    assert driver.answers[driver.join(protocols=(("p", b"xx"),))].fault is Fault.GROUP_MAX_SIZE_REACHED
    again = driver.join(first, protocols=(("p", bytes(most)),))
    assert driver.answers[again].fault is Fault.NONE, "in place of what it had"
    assert driver.answers[driver.join(first, protocols=(("p", bytes(most + 1)),))].fault is Fault.GROUP_MAX_SIZE_REACHED


def test_ids_of_members_that_have_not_joined_are_limited() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, group_size_max=2))
    given = [driver.answers[driver.join(needs_member_id=True)] for _ in range(3)]
    assert [answer.fault for answer in given] == [*[Fault.MEMBER_ID_REQUIRED] * 2, Fault.GROUP_MAX_SIZE_REACHED]
    driver.join(given[0].member_id)
    assert driver.answers[driver.join(needs_member_id=True)].fault is Fault.MEMBER_ID_REQUIRED


# ------------------------------------------------------------------------------------------------------ static members


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance(driver: Driver) -> None:
    first = driver.answers[driver.join(instance_id="i1")].member_id
    second_ticket = driver.join(instance_id="i2")
    driver.join(first, instance_id="i1")
    second = driver.answers[second_ticket].member_id
    driver.sync(second, 2)
    driver.sync(first, 2, {first: b"one", second: b"two"})
    back = driver.answers[driver.join(instance_id="i2")]
    assert back.fault is Fault.NONE
    assert back.member_id != second
    assert back.generation == 2
    assert driver.answers[driver.sync(back.member_id, 2, instance_id="i2")].assignment == b"two"
    assert heartbeat(driver, first, 2, "i1") is Fault.NONE


def test_the_new_id_of_a_static_member_survives_a_restart(driver: Driver) -> None:
    old = driver.answers[driver.join(instance_id="i")].member_id
    driver.sync(old, 1, {old: b"x"})
    new = driver.answers[driver.join(instance_id="i")].member_id
    driver.restart()
    assert heartbeat(driver, new, 1, "i") is Fault.NONE
    assert driver.answers[driver.sync(new, 1, instance_id="i")].assignment == b"x"


def test_the_old_process_of_a_static_member_is_fenced(driver: Driver) -> None:
    old = driver.answers[driver.join(instance_id="i")].member_id
    driver.sync(old, 1)
    driver.join(instance_id="i")
    assert heartbeat(driver, old, 1, "i") is Fault.FENCED_INSTANCE_ID
    assert commit(driver, old, 1, "i") is Fault.FENCED_INSTANCE_ID
    assert driver.answers[driver.sync(old, 1, instance_id="i")].fault is Fault.FENCED_INSTANCE_ID
    assert driver.answers[driver.join(old, instance_id="i")].fault is Fault.FENCED_INSTANCE_ID
    assert leave(driver, (old, "i")) == [Fault.FENCED_INSTANCE_ID]


def test_a_parked_process_is_fenced_when_its_place_is_taken(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    parked = driver.join(instance_id="i")
    taker = driver.join(instance_id="i")
    assert driver.answers[parked].fault is Fault.FENCED_INSTANCE_ID
    driver.join(first)
    assert driver.answers[taker].fault is Fault.NONE


def test_a_static_leader_that_comes_back_need_not_assign(driver: Driver) -> None:
    old = driver.answers[driver.join(instance_id="i")].member_id
    driver.sync(old, 1, {old: b"x"})
    new_client = driver.answers[driver.join(instance_id="i", may_skip_assignment=True)]
    assert new_client.skip_assignment
    assert new_client.leader == new_client.member_id
    assert [member.member_id for member in new_client.members] == [new_client.member_id]
    old_client = driver.answers[driver.join(instance_id="i")]
    assert not old_client.skip_assignment
    assert old_client.leader == new_client.member_id, "an old client would assign if it saw itself as the leader"
    assert old_client.members == ()


def test_a_static_member_that_changes_the_elected_protocol_rebalances(driver: Driver) -> None:
    both = (("range", b"m"), ("sticky", b"m"))
    old = driver.answers[driver.join(instance_id="i", protocols=both)].member_id
    driver.sync(old, 1)
    back = driver.answers[driver.join(instance_id="i", protocols=both[::-1])]
    assert (back.generation, back.protocol) == (2, "sticky")


def test_a_static_member_that_comes_back_during_assignment_rebalances(driver: Driver) -> None:
    old = driver.answers[driver.join(instance_id="i")].member_id
    assert state(driver) == "CompletingRebalance"
    back = driver.answers[driver.join(instance_id="i")]
    assert back.generation == 2
    assert heartbeat(driver, old, 2, "i") is Fault.FENCED_INSTANCE_ID


def test_an_absent_static_member_keeps_its_place_until_its_session_ends(driver: Driver) -> None:
    away = driver.answers[driver.join(instance_id="i", session_timeout_ms=100_000)].member_id
    driver.sync(away, 1)
    other = driver.join(session_timeout_ms=100_000)
    driver.wait(60_000)
    joined = driver.answers[other]
    assert joined.fault is Fault.NONE, "the rebalance timeout passed"
    assert {member.instance_id for member in joined.members} == {None, "i"}
    driver.sync(joined.member_id, 2, {away: b"kept"})
    assert driver.ask(DescribeGroup("g")).members[0].assignment == b"kept"
    driver.wait(40_000)
    assert heartbeat(driver, joined.member_id, 2) is Fault.REBALANCE_IN_PROGRESS


def test_static_members_that_are_all_away_end_with_their_sessions(driver: Driver) -> None:
    ids = [driver.answers[driver.join(instance_id="i1", session_timeout_ms=100_000)].member_id]
    driver.sync(ids[0], 1)
    newcomer = driver.answers[driver.join(needs_member_id=True, session_timeout_ms=6_000)]
    driver.join(newcomer.member_id)
    leave(driver, (newcomer.member_id, None))
    assert state(driver) == "PreparingRebalance"
    driver.wait(100_000)
    assert state(driver) == "Empty"


def test_an_administrator_removes_a_static_member_by_its_instance_id(driver: Driver) -> None:
    member_id = driver.answers[driver.join(instance_id="i")].member_id
    driver.sync(member_id, 1)
    assert leave(driver, ("", "other"), ("", "i")) == [Fault.UNKNOWN_MEMBER_ID, Fault.NONE]
    assert state(driver) == "Empty"


# ---------------------------------------------------------------------------------------------------- commits, restarts


def test_members_commit_in_their_generation_only(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    assert commit(driver, first, 1) is Fault.NONE
    assert commit(driver, "", -1) is Fault.UNKNOWN_MEMBER_ID, "while there are members only they commit"
    assert commit(driver, "nobody", 1) is Fault.UNKNOWN_MEMBER_ID
    driver.join()
    assert commit(driver, first, 1) is Fault.NONE, "a member may commit while it is asked to rejoin"
    driver.join(first)
    assert commit(driver, first, 1) is Fault.ILLEGAL_GENERATION
    assert commit(driver, first, 2) is Fault.REBALANCE_IN_PROGRESS, "before it has its new assignment"


def test_a_commit_keeps_the_session_alive(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    driver.wait(9_000)
    commit(driver, first, 1)
    driver.wait(9_000)
    assert heartbeat(driver, first, 1) is Fault.NONE


def test_a_stable_group_survives_a_restart_and_everybody_has_a_fresh_session(driver: Driver) -> None:
    ids, generation = driver.stable(2)
    driver.wait(9_000)
    driver.restart()
    driver.wait(9_000)
    for member_id in ids:
        assert heartbeat(driver, member_id, generation) is Fault.NONE
        assert driver.answers[driver.sync(member_id, generation)].assignment == member_id.encode()
    described = driver.ask(DescribeGroup("g"))
    assert (described.state, described.protocol) == ("Stable", "range")
    driver.wait(10_000)
    assert state(driver) == "Empty", "who does not come back is out"


def test_the_leader_is_still_the_leader_after_a_restart(driver: Driver) -> None:
    ids, _ = driver.stable(2)
    driver.restart()
    parked = driver.join(ids[0])
    driver.join(ids[1])
    assert driver.answers[parked].members


def test_a_rebalance_that_a_restart_interrupts_is_done_again(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    driver.join()
    driver.restart()
    assert heartbeat(driver, first, 1) is Fault.NONE
    assert state(driver) == "Stable"


def test_whoever_waits_is_answered_when_the_shard_goes(driver: Driver) -> None:
    driver.stable(1)
    parked = driver.join()
    driver.take(driver.coordinator.unload(Fault.NOT_COORDINATOR))
    assert driver.answers[parked].fault is Fault.NOT_COORDINATOR


# -------------------------------------------------------------------------------------------------- list, describe, delete


def test_a_description_shows_members_and_what_they_hold(driver: Driver) -> None:
    (first,), _ = driver.stable(1, instance_id=None)
    described = driver.ask(DescribeGroup("g"))
    assert (described.fault, described.state) == (Fault.NONE, "Stable")
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    (member,) = described.members
    assert member == (first, None, "c", "/127.0.0.1", b"m", first.encode())


def test_a_group_that_does_not_exist_is_dead(driver: Driver) -> None:
    described = driver.ask(DescribeGroup("nothing"))
    assert (described.fault, described.state) == (Fault.GROUP_ID_NOT_FOUND, "Dead")


def test_groups_are_listed_by_state_and_type_whatever_the_case(driver: Driver) -> None:
    driver.stable(1)
    driver.ask(CommitOffsets("simple", "", None, -1, (OffsetToCommit("t", 0, 1, 0, ""),)))
    everything = {group.group: group for group in driver.ask(ListGroups()).groups}
    assert everything["g"] == ("g", "consumer", "Stable", "classic")
    assert everything["simple"] == ("simple", "", "Empty", "classic")

    def names(**filters: tuple[str, ...]) -> set[str]:
        return {group.group for group in driver.ask(ListGroups(**filters)).groups}

    assert names(states=("stable",)) == {"g"}
    assert names(states=("EMPTY", "Dead")) == {"simple"}
    assert names(types=("Classic",)) == {"g", "simple"}
    assert names(types=("consumer",)) == set()


def test_only_an_empty_group_is_deleted_and_its_offsets_go_with_it(driver: Driver) -> None:
    (first,), _ = driver.stable(1)
    commit(driver, first, 1)
    assert driver.ask(DeleteGroup("g")).fault is Fault.NON_EMPTY_GROUP
    leave(driver, (first, None))
    assert driver.ask(DeleteGroup("g")).fault is Fault.NONE
    assert driver.ask(DeleteGroup("g")).fault is Fault.GROUP_ID_NOT_FOUND
    assert driver.ask(ListGroups()).groups == ()
    driver.restart()
    assert driver.ask(ListGroups()).groups == ()


def test_every_state_is_in_the_table_and_dead_is_the_end() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert not TRANSITIONS[State.DEAD]


def test_names_that_no_record_could_hold_are_refused(driver: Driver) -> None:
    assert driver.answers[driver.join(client_id="c" * 40_000)].fault is Fault.INVALID_REQUEST
    assert driver.answers[driver.join(instance_id="c" * 40_000)].fault is Fault.INVALID_REQUEST
    assert driver.answers[driver.send(join_command(protocols=(("p" * 40_000, b""),)))].fault is Fault.INVALID_REQUEST


@pytest.mark.parametrize("too_long", [0, 1])
def test_length_of_names_is_limited(driver: Driver, too_long: int) -> None:
    name = "n" * (NAME_CHARS_MAX // 2 + too_long)
    fault = Fault.INVALID_REQUEST if too_long else Fault.NONE
    protocols = ((name, b""), ("range", b""))
    for changes in ({"client_id": name}, {"instance_id": name}, {"protocol_type": name}, {"protocols": protocols}):
        joined = driver.send(join_command(group=f"g{sorted(changes)}", **changes))
        assert driver.answers[joined].fault is fault, changes
    group = "g" * (NAME_CHARS_MAX + too_long)
    fault = Fault.INVALID_GROUP_ID if too_long else Fault.NONE
    assert driver.answers[driver.send(join_command(group=group))].fault is fault
    offsets = (OffsetToCommit("t", 0, 5, 0, ""),)
    assert driver.ask(CommitOffsets(group.upper(), "", None, -1, offsets)).fault is fault


@pytest.mark.parametrize("how", ["leaves", "falls silent", "its offsets are deleted", "its topic is deleted"])
def test_without_members_and_offsets_a_group_is_dead_at_once(driver: Driver, how: str) -> None:
    (member,), generation = driver.stable(1, protocol_type="own")
    if how == "falls silent":
        driver.wait(10_000)
    else:
        if how != "leaves":
            commit(driver, member, generation)
        leave(driver, (member, None))
    if how.startswith("its"):
        assert state(driver) == "Empty"
        drop = DeleteOffsets("g", (("t", 0),)) if "offsets" in how else DropTopics(frozenset({"t"}))
        driver.ask(drop)
    assert state(driver) == "Dead"
    assert heartbeat(driver, member, generation) is Fault.UNKNOWN_MEMBER_ID
    driver.restart()
    assert driver.ask(ListGroups()).groups == ()
    assert driver.answers[driver.join(protocol_type="own")].generation == 1


def test_a_group_of_kafkas_consumers_stays_empty_until_the_next_look(driver: Driver) -> None:
    (member,), _ = driver.stable(1)
    leave(driver, (member, None))
    assert state(driver) == "Empty"
    driver.wait(GroupSettings().offsets_retention_check_interval_ms)
    assert state(driver) == "Dead"
