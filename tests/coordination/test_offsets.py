"""Committed offsets: kept as given, fetched, deleted, expired; and those of transactions, pending until the marker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.group_commands import (
    CommitOffsets,
    CommitResult,
    DeleteGroup,
    DeleteOffsets,
    DeleteResult,
    DropTopics,
    FetchedOffset,
    FetchOffsets,
    GroupSettings,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetToCommit,
    Producer,
)
from penstock.coordination.group_records import CommittedOffset, OffsetRecord
from penstock.coordination.offsets import Offsets
from penstock.model import limits
from penstock.model.errors import Fault
from tests.coordination.group_driver import Driver, subscription

DAY_MS = 24 * 3_600_000


@pytest.fixture
def driver() -> Driver:
    return Driver()


def commit(
    driver: Driver,
    offset: int,
    *,
    group: str = "g",
    member: tuple[str, int] = ("", -1),
    place: tuple[str, int] = ("t", 0),
    metadata: str | None = "",
    **changes: Any,
) -> CommitResult:
    offsets = (OffsetToCommit(*place, offset, 3, metadata),)
    command = CommitOffsets(group, member[0], None, member[1], offsets)._replace(**changes)
    result: CommitResult = driver.ask(command)
    return result


def fetch(
    driver: Driver, place: tuple[str, int] = ("t", 0), *, group: str = "g", stable: bool = False
) -> FetchedOffset:
    result = driver.ask(FetchOffsets(group, {place[0]: (place[1],)}, require_stable=stable))
    assert result.fault is Fault.NONE
    fetched: FetchedOffset = result.offsets[place[0]][place[1]]
    return fetched


def offset(driver: Driver, place: tuple[str, int] = ("t", 0), *, group: str = "g") -> int | None:
    value = fetch(driver, place, group=group).value
    return None if value is None else value.offset


def group_names(driver: Driver) -> set[str]:
    return {group.group for group in driver.ask(ListGroups()).groups}


@pytest.mark.parametrize("metadata", [None, "", "mé"])
def test_metadata_and_leader_epoch_come_back_as_they_were_given(driver: Driver, metadata: str | None) -> None:
    assert commit(driver, 42, metadata=metadata) == CommitResult(Fault.NONE, {})
    expected = CommittedOffset(42, driver.now_ms, 3, metadata)
    assert fetch(driver) == FetchedOffset(expected)
    driver.restart()
    assert fetch(driver) == FetchedOffset(expected)


def test_partitions_without_an_offset_have_none(driver: Driver) -> None:
    commit(driver, 1)
    assert fetch(driver, ("t", 1)) == FetchedOffset(None)
    assert fetch(driver, ("other", 0)) == FetchedOffset(None)
    assert fetch(driver, group="never seen") == FetchedOffset(None)


def test_all_offsets_of_a_group_can_be_asked_for(driver: Driver) -> None:
    commit(driver, 1, place=("t", 0))
    commit(driver, 2, place=("t", 5))
    commit(driver, 3, place=("u", 0))
    commit(driver, 4, group="other")
    found = driver.ask(FetchOffsets("g", None)).offsets
    offsets = {(t, p): value.value.offset for t, ps in found.items() for p, value in ps.items()}
    assert offsets == {("t", 0): 1, ("t", 5): 2, ("u", 0): 3}


def test_metadata_has_a_greatest_size_and_only_that_partition_is_refused(driver: Driver) -> None:
    offsets = tuple(OffsetToCommit("t", p, 1, 0, "m" * (4_096 + p)) for p in range(2))
    result = driver.ask(CommitOffsets("g", "", None, -1, offsets))
    assert result == CommitResult(Fault.NONE, {("t", 1): Fault.OFFSET_METADATA_TOO_LARGE})
    assert offset(driver, ("t", 0)) == 1
    assert offset(driver, ("t", 1)) is None


def test_a_commit_of_a_generation_needs_its_group(driver: Driver) -> None:
    assert commit(driver, 1, member=("m", 3), knows_consumer_groups=False).fault is Fault.ILLEGAL_GENERATION
    assert commit(driver, 1, member=("m", 3), knows_consumer_groups=True).fault is Fault.GROUP_ID_NOT_FOUND
    assert commit(driver, 1, member=("m", 3), producer=Producer(1, 0)).fault is Fault.ILLEGAL_GENERATION
    assert group_names(driver) == set()


# ------------------------------------------------------------------------------------------------------------ deleting


def test_deleting_offsets_of_an_empty_group(driver: Driver) -> None:
    commit(driver, 1, place=("t", 0))
    commit(driver, 1, place=("t", 1))
    result = driver.ask(DeleteOffsets("g", (("t", 0), ("t", 9))))
    assert (result.fault, result.refused) == (Fault.NONE, {})
    assert offset(driver, ("t", 0)) is None
    assert offset(driver, ("t", 1)) == 1
    assert driver.ask(DeleteOffsets("nothing", (("t", 0),))).fault is Fault.GROUP_ID_NOT_FOUND


def test_offsets_of_topics_that_members_read_are_not_deleted(driver: Driver) -> None:
    (member,), generation = driver.stable(1, protocols=(("range", subscription("t")),))
    commit(driver, 1, member=(member, generation), place=("t", 0))
    commit(driver, 1, member=(member, generation), place=("u", 0))
    result = driver.ask(DeleteOffsets("g", (("t", 0), ("u", 0))))
    assert result.refused == {("t", 0): Fault.GROUP_SUBSCRIBED_TO_TOPIC}
    assert offset(driver, ("t", 0)) == 1
    assert offset(driver, ("u", 0)) is None


def test_offsets_of_a_live_group_that_is_no_consumer_group_are_not_deleted(driver: Driver) -> None:
    (member,), generation = driver.stable(1, protocol_type="connect")
    commit(driver, 1, member=(member, generation))
    assert driver.ask(DeleteOffsets("g", (("t", 0),))).fault is Fault.NON_EMPTY_GROUP


def test_a_deleted_topic_takes_its_offsets_along_in_every_group(driver: Driver) -> None:
    for group in ("g", "h"):
        commit(driver, 1, group=group, place=("t", 0))
        commit(driver, 2, group=group, place=("u", 0))
    commit(driver, 9, group="h", place=("t", 7), producer=Producer(1, 0))
    assert driver.coordinator.has_offsets_of({"t", "x"})
    driver.ask(DropTopics(frozenset({"t"})))
    driver.mark(1, committed=True)
    for group in ("g", "h"):
        assert offset(driver, ("t", 0), group=group) is None
        assert offset(driver, ("u", 0), group=group) == 2
    assert offset(driver, ("t", 7), group="h") is None, "what was pending is gone too"
    assert not driver.coordinator.has_offsets_of({"t", "x"})
    assert driver.coordinator.has_offsets_of({"u"})


def test_offsets_of_a_deleted_topic_are_removed_in_parts(driver: Driver) -> None:
    for group in ("g", "h"):
        for partition in range(5):
            commit(driver, 1, group=group, place=("t", partition))
    commit(driver, 9, group="h", place=("t", 7), producer=Producer(1, 0))
    left = []
    while driver.coordinator.has_offsets_of({"t"}):
        left.append(driver.ask(DropTopics(frozenset({"t"}), 4)))
    assert left == [True, True, False]
    assert group_names(driver) == set()


def test_a_group_of_offsets_alone_ends_with_its_last_offset(driver: Driver) -> None:
    commit(driver, 1)
    assert group_names(driver) == {"g"}
    driver.ask(DeleteOffsets("g", (("t", 0),)))
    assert group_names(driver) == set()


# ------------------------------------------------------------------------------------------------------------- expiry


def _empty_group_with_an_offset(driver: Driver) -> None:
    (member,), generation = driver.stable(1)
    commit(driver, 1, member=(member, generation))
    driver.ask(LeaveGroup("g", (LeavingMember(member, None),)))


def test_offsets_expire_when_a_group_that_had_members_is_empty_for_the_retention(driver: Driver) -> None:
    _empty_group_with_an_offset(driver)
    driver.wait(7 * DAY_MS - 1)
    assert offset(driver) == 1
    driver.wait(600_001)
    assert offset(driver) is None
    assert group_names(driver) == set(), "with its last offset the group goes"
    driver.restart()
    assert group_names(driver) == set()


def test_many_offsets_expire_in_several_ticks(driver: Driver) -> None:
    (member,), generation = driver.stable(1)
    offsets = tuple(OffsetToCommit("t", partition, 1, 0, "") for partition in range(401))
    driver.ask(CommitOffsets("g", member, None, generation, offsets))
    driver.ask(LeaveGroup("g", (LeavingMember(member, None),)))
    driver.now_ms += 8 * DAY_MS
    for _ in range(2):
        assert len(driver.take(driver.coordinator.tick(driver.now_ms)).records) == 200, "a tick is short"
        driver.now_ms += 1
    driver.wait(1)
    assert group_names(driver) == set()


def test_groups_are_checked_in_several_ticks(driver: Driver) -> None:
    for number in range(2_500):
        driver.ask(CommitOffsets(f"g{number}", "", None, -1, (OffsetToCommit("t", 0, 1, 0, ""),), retention_ms=0))
    (member,), generation = driver.stable(1)
    driver.ask(CommitOffsets("g", member, None, generation, (OffsetToCommit("t", 0, 1, 0, ""),)))
    driver.ask(LeaveGroup("g", (LeavingMember(member, None),)))
    driver.now_ms += 8 * DAY_MS
    ticks = 0
    while driver.coordinator.next_deadline_ms <= driver.now_ms:
        driver.take(driver.coordinator.tick(driver.now_ms))
        driver.now_ms += 1
        ticks += 1
    assert ticks >= 3
    assert "g" not in group_names(driver)


def test_a_large_group_is_deleted_in_parts(driver: Driver) -> None:
    offsets = tuple(OffsetToCommit("t", partition, 1, 0, "") for partition in range(5))
    driver.ask(CommitOffsets("g", "", None, -1, offsets))
    driver.ask(CommitOffsets("g", "", None, -1, (OffsetToCommit("t", 7, 1, 0, ""),), producer=Producer(1, 0)))
    deleted = [driver.ask(DeleteGroup("g", 2)) for _ in range(4)]
    assert deleted == [
        *[DeleteResult(Fault.NONE, is_partial=True)] * 2,
        DeleteResult(Fault.NONE),
        DeleteResult(Fault.GROUP_ID_NOT_FOUND),
    ]
    driver.restart()
    assert group_names(driver) == set()


def test_a_transaction_commits_a_limited_number_of_offsets(driver: Driver) -> None:
    def commit(first: int, count: int) -> Fault:
        offsets = tuple(OffsetToCommit("t", partition, 1, 0, "") for partition in range(first, first + count))
        fault: Fault = driver.ask(CommitOffsets("g", "", None, -1, offsets, producer=Producer(1, 0))).fault
        return fault

    assert commit(0, limits.TRANSACTION_OFFSETS_MAX) is Fault.NONE
    assert commit(limits.TRANSACTION_OFFSETS_MAX, 1) is Fault.POLICY_VIOLATION
    driver.coordinator.end_transaction(1, committed=True)
    assert commit(limits.TRANSACTION_OFFSETS_MAX, 1) is Fault.NONE


def test_pending_offsets_of_many_producers_are_removed_in_write_order(driver: Driver) -> None:
    place = OffsetToCommit("t", 0, 1, 0, "")
    for producer_id in (1, 2, 3, 1):
        driver.ask(
            CommitOffsets("g", "", None, -1, (place._replace(offset=producer_id),), producer=Producer(producer_id, 0))
        )
    driver.coordinator.end_transaction(3, committed=True)
    assert offset(driver) == 3
    driver.coordinator.end_transaction(2, committed=True)
    assert offset(driver) == 3, "written before it, and dropped"
    driver.coordinator.end_transaction(1, committed=True)
    assert offset(driver) == 1, "written after it"


def test_the_time_of_becoming_empty_survives_a_restart(driver: Driver) -> None:
    _empty_group_with_an_offset(driver)
    driver.wait(6 * DAY_MS)
    driver.restart()
    driver.wait(DAY_MS + 600_000)
    assert offset(driver) is None


def test_the_retention_counts_from_the_emptiness_not_from_the_commit() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_max=24 * DAY_MS))
    (member,), generation = driver.stable(1, session_timeout_ms=20 * DAY_MS)
    commit(driver, 1, member=(member, generation))
    driver.wait(5 * DAY_MS)
    driver.ask(LeaveGroup("g", (LeavingMember(member, None),)))
    driver.wait(6 * DAY_MS)
    assert offset(driver) == 1
    driver.wait(DAY_MS + 600_000)
    assert offset(driver) is None


def test_a_later_commit_counts_from_its_own_time(driver: Driver) -> None:
    _empty_group_with_an_offset(driver)
    driver.wait(6 * DAY_MS)
    commit(driver, 2, place=("t", 1))
    driver.wait(2 * DAY_MS)
    assert offset(driver, ("t", 0)) is None
    assert offset(driver, ("t", 1)) == 2


def test_offsets_of_groups_that_never_had_members_do_not_expire(driver: Driver) -> None:
    commit(driver, 1)
    driver.wait(100 * DAY_MS)
    assert offset(driver) == 1


def test_offsets_of_groups_with_members_do_not_expire() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_max=100 * DAY_MS))
    (member,), generation = driver.stable(1, session_timeout_ms=24 * DAY_MS)
    commit(driver, 1, member=(member, generation))
    driver.wait(20 * DAY_MS)
    assert offset(driver) == 1


def test_a_retention_that_the_client_asked_for_is_used_instead(driver: Driver) -> None:
    (member,), generation = driver.stable(1)
    commit(driver, 1, member=(member, generation), retention_ms=3_600_000)
    driver.ask(LeaveGroup("g", (LeavingMember(member, None),)))
    driver.restart()
    driver.wait(3_000_000)
    assert offset(driver) == 1
    driver.wait(1_300_000)
    assert offset(driver) is None


def test_the_longest_retention_that_a_client_can_ask_for_never_ends(driver: Driver) -> None:
    commit(driver, 1, retention_ms=2**63 - 1)
    driver.restart()
    driver.wait(100 * DAY_MS)
    assert offset(driver) == 1


# ------------------------------------------------------------------------------------------------------ transactions

TXN = Producer(7, 0)


def test_an_offset_in_a_transaction_counts_when_it_commits(driver: Driver) -> None:
    commit(driver, 1)
    commit(driver, 2, producer=TXN)
    assert offset(driver) == 1
    driver.mark(7, committed=True)
    assert offset(driver) == 2


def test_an_offset_in_an_aborted_transaction_never_was(driver: Driver) -> None:
    commit(driver, 2, producer=TXN)
    assert group_names(driver) == {"g"}
    driver.mark(7, committed=False)
    assert offset(driver) is None
    assert group_names(driver) == set()


def test_who_wants_stable_offsets_is_told_to_ask_again(driver: Driver) -> None:
    commit(driver, 1)
    commit(driver, 2, producer=TXN)
    assert fetch(driver, stable=True) == FetchedOffset(None, is_unstable=True)
    assert fetch(driver, stable=False).value is not None
    assert fetch(driver, ("t", 1), stable=True) == FetchedOffset(None)
    driver.mark(7, committed=True)
    assert not fetch(driver, stable=True).is_unstable


def test_pending_offsets_survive_a_restart(driver: Driver) -> None:
    commit(driver, 2, producer=TXN)
    driver.restart()
    assert fetch(driver, stable=True).is_unstable
    driver.mark(7, committed=True)
    assert offset(driver) == 2


def test_the_records_of_a_transaction_carry_its_producer(driver: Driver) -> None:
    command = CommitOffsets("g", "", None, -1, (OffsetToCommit("t", 0, 1, 0, ""),), TXN)
    effects = driver.coordinator.handle(command, driver.now_ms, 99)
    assert effects.producer == TXN
    assert len(effects.records) == 1


def test_a_transaction_is_checked_against_the_generation_when_it_names_one(driver: Driver) -> None:
    (member,), generation = driver.stable(1)
    assert commit(driver, 1, producer=TXN).fault is Fault.NONE, "older producers cannot say for whom they commit"
    assert commit(driver, 1, member=(member, generation), producer=TXN).fault is Fault.NONE
    assert commit(driver, 1, member=(member, generation - 1), producer=TXN).fault is Fault.ILLEGAL_GENERATION
    assert commit(driver, 1, member=("nobody", generation), producer=TXN).fault is Fault.UNKNOWN_MEMBER_ID


def test_deleting_a_group_drops_what_is_pending(driver: Driver) -> None:
    commit(driver, 2, producer=TXN)
    assert driver.ask(DeleteGroup("g")).fault is Fault.NONE
    driver.mark(7, committed=True)
    assert offset(driver) is None


def test_a_partition_with_something_pending_does_not_expire(driver: Driver) -> None:
    _empty_group_with_an_offset(driver)
    commit(driver, 2, producer=TXN)
    driver.wait(8 * DAY_MS)
    assert offset(driver) == 1
    driver.mark(7, committed=False)
    driver.wait(600_000)
    assert offset(driver) is None


def test_of_two_transactions_the_later_write_wins_whichever_ends_first(driver: Driver) -> None:
    for first, second in ((1, 2), (2, 1)):
        commit(driver, 10, producer=Producer(1, 0))
        commit(driver, 20, producer=Producer(2, 0))
        driver.mark(first, committed=True)
        driver.mark(second, committed=True)
        assert offset(driver) == 20


events = st.one_of(
    st.tuples(st.just("plain"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("pending"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("tombstone"), st.integers(0, 1), st.just(0)),
    st.tuples(st.sampled_from(["commit", "abort"]), st.just(0), st.integers(1, 3)),
)


@given(st.lists(events, max_size=25))
def test_the_latest_record_that_counts_wins(history: list[tuple[str, int, int]]) -> None:
    """Against a model that looks at the whole log: the last write of a partition whose transaction has committed, unless
    a tombstone came after it."""
    offsets = Offsets()
    for end, (kind, partition, producer_id) in enumerate(history):
        if kind in ("commit", "abort"):
            offsets.end_transaction(producer_id, committed=kind == "commit")
        else:
            value = None if kind == "tombstone" else CommittedOffset(end, 0)
            offsets.replay(OffsetRecord("g", "t", partition, value), producer_id or None)
        for where in range(2):
            expected = _expected(history[: end + 1], where)
            fetched = offsets.fetch("g", {"t": (where,)}, require_stable=False)["t"][where].value
            assert (None if fetched is None else fetched.offset) == expected


def _expected(history: list[tuple[str, int, int]], partition: int) -> int | None:
    for place in reversed(range(len(history))):
        kind, where, producer_id = history[place]
        if where != partition or kind in ("commit", "abort"):
            continue
        if kind == "tombstone":
            return None
        if kind == "plain":
            return place
        ends = [k for k, _, p in history[place:] if k in ("commit", "abort") and p == producer_id]
        if ends and ends[0] == "commit":
            return place
    return None
