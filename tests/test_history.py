"""The checker is itself checked: sound histories pass, and each fault, put into a sound one, is found and named."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history import History, Outcome


def sound(seed: int, count: int = 30, partitions: int = 2) -> History:
    """Three producers, one reader from the start, one that begins late, one failed and one unknown send."""
    dice = random.Random(seed)
    history = History()
    ends = [0] * partitions
    logs: list[list[tuple[int, str]]] = [[] for _ in range(partitions)]
    for n in range(count):
        partition = dice.randrange(partitions)
        value = f"v{n}"
        history.sent(f"p{dice.randrange(3)}", partition, value, Outcome.OK, ends[partition])
        logs[partition].append((ends[partition], value))
        ends[partition] += 1
    history.sent("p0", 0, "refused", Outcome.FAILED)
    history.sent("p0", 0, "who knows", Outcome.UNKNOWN)
    for partition, log in enumerate(logs):
        middle = len(log) // 2
        history.polled("reader", partition, log[:middle])
        history.polled("reader", partition, log[middle:])
        history.polled("late reader", partition, log[middle:])
        history.polled("late reader", partition, log, assignment=1)
    return history


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 4))
def test_a_sound_history_passes(seed: int, count: int, partitions: int) -> None:
    verdict = sound(seed, count, partitions).check()
    assert verdict, str(verdict)


def test_an_unknown_send_may_be_read_once() -> None:
    history = History()
    history.sent("p", 0, "a", Outcome.UNKNOWN)
    history.polled("c", 0, [(0, "a")])
    assert history.check()


def anomalies(history: History) -> set[str]:
    return {name for name, count in history.check().figures().items() if count}


def test_a_refused_value_that_is_read_is_an_aborted_read() -> None:
    history = sound(1)
    history.polled("other", 0, [(1_000, "refused")])
    assert anomalies(history) == {"aborted_reads"}


def test_a_value_that_nobody_sent_is_unexplained() -> None:
    history = sound(1)
    history.polled("other", 0, [(1_000, "alien")])
    assert anomalies(history) == {"unexplained_reads"}


def test_two_values_at_one_offset_are_inconsistent() -> None:
    history = sound(1)
    taken = next(send for send in history.sends if send.offset == 3)
    history.sent("p9", taken.partition, "usurper", Outcome.OK, 3)
    assert "inconsistent_offsets" in anomalies(history)


def test_an_acknowledged_value_that_nobody_read_is_lost() -> None:
    history = History()
    for offset in range(5):
        history.sent("p", 0, offset, Outcome.OK, offset)
    history.polled("c", 0, [(0, 0), (1, 1), (3, 3), (4, 4)])
    verdict = history.check()
    assert verdict.figures()["lost_writes"] == 1
    assert verdict.lost_writes == ["2 at 0:2 by p, in the middle"]
    assert len(verdict.poll_skips) == 1


def test_an_acknowledged_value_past_all_that_was_read_is_unseen() -> None:
    history = sound(1)
    history.sent("p0", 0, "last", Outcome.OK, 10_000)
    assert anomalies(history) == {"unseen"}


def test_one_value_at_two_offsets_is_a_duplicate() -> None:
    history = History()
    history.sent("p", 0, "a", Outcome.OK, 0)
    history.polled("c", 0, [(0, "a"), (1, "a")])
    assert anomalies(history) == {"duplicates"}


@pytest.mark.parametrize(("offsets", "kind"), [((0, 2), "poll_skips"), ((0, 1, 1), "non_monotonic_polls")])
def test_a_consumer_that_leaves_its_line_is_seen(offsets: tuple[int, ...], kind: str) -> None:
    history = History()
    for offset in range(3):
        history.sent("p", 0, offset, Outcome.OK, offset)
    history.polled("other", 0, [(0, 0), (1, 1), (2, 2)])
    history.polled("c", 0, [(offset, offset) for offset in offsets])
    assert anomalies(history) == {kind}


def test_a_new_assignment_may_go_back() -> None:
    history = History()
    history.sent("p", 0, "a", Outcome.OK, 0)
    history.polled("c", 0, [(0, "a")], assignment=0)
    history.polled("c", 0, [(0, "a")], assignment=1)
    assert history.check()


def test_offsets_of_a_producer_that_fall_are_seen() -> None:
    history = History()
    history.sent("p", 0, "a", Outcome.OK, 1)
    history.sent("p", 0, "b", Outcome.OK, 0)
    history.polled("c", 0, [(0, "b"), (1, "a")])
    assert anomalies(history) == {"non_monotonic_sends"}


@given(st.integers(0, 2**32), st.sampled_from(["drop", "double", "swap", "replace"]))
def test_damage_to_any_log_is_found(seed: int, damage: str) -> None:
    """A log that lost, doubled, moved or changed one acknowledged record never passes."""
    dice = random.Random(seed)
    history = History()
    log = [(offset, f"v{offset}") for offset in range(20)]
    for offset, value in log:
        history.sent("p", 0, value, Outcome.OK, offset)
    at = dice.randrange(1, 18)
    values = [value for _, value in log]
    match damage:
        case "drop":
            del values[at]
        case "double":
            values.insert(at, values[at])
        case "swap":
            values[at], values[at + 1] = values[at + 1], values[at]
        case "replace":
            values[at] = "other"
    history.polled("c", 0, enumerate(values))
    assert not history.check()
