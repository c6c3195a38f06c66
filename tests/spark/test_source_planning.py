"""Dividing offsets: every offset in exactly one range, and limits that are kept and shared out fairly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source.offsets import place
from penstock.spark.source.planning import Range, divided, limited, ranges_between

_SIZES = st.lists(st.integers(1, 10_000), min_size=1, max_size=8)


def _ranges(sizes: list[int]) -> list[Range]:
    return [Range("t", number, number * 7, number * 7 + size) for number, size in enumerate(sizes)]


@given(_SIZES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 5_000))
def test_pieces_cover_each_range_exactly_and_in_order(sizes: list[int], least: int | None, most: int | None) -> None:
    ranges = _ranges(sizes)
    pieces = divided(ranges, least, most)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(piece.size > 0 for piece in own)
        assert all(one.end == following.start for one, following in pairwise(own))
    if most is not None:
        assert max(piece.size for piece in pieces) <= most
    if least is not None:
        assert len(pieces) >= min(least, sum(sizes))


@given(_SIZES, st.integers(1, 60))
def test_a_least_number_of_partitions_is_met_and_not_exceeded(sizes: list[int], least: int) -> None:
    pieces = divided(_ranges(sizes), least)
    assert len(pieces) == max(len(sizes), min(least, sum(sizes)))


@given(st.integers(1, 30), st.integers(2, 30))
def test_equal_partitions_are_divided_alike(partitions: int, factor: int) -> None:
    pieces = divided(_ranges([1_000] * partitions), partitions * factor)
    counts = {number: sum(piece.partition == number for piece in pieces) for number in range(partitions)}
    assert set(counts.values()) == {factor}


_BACKLOGS = st.dictionaries(st.builds(place, st.just("t"), st.integers(0, 9)), st.integers(0, 100_000), min_size=1)


@given(_BACKLOGS, st.integers(1, 200_000))
def test_a_limit_is_shared_by_backlog_and_starves_nobody(backlogs: dict, most: int) -> None:
    start = dict.fromkeys(backlogs, 5)
    end = {where: 5 + size for where, size in backlogs.items()}
    ends = limited(start, end, most)
    total = sum(backlogs.values())
    taken = {where: ends[where] - 5 for where in ends}
    assert all(0 <= taken[where] <= backlogs[where] for where in backlogs)
    assert all(taken[where] >= 1 for where, size in backlogs.items() if size)
    if total <= most:
        assert ends == end
    else:
        # One each beyond the limit at most: what nobody may be starved of.
        assert sum(taken.values()) <= most + len(backlogs)
        for where, size in backlogs.items():
            share = most * size / total
            assert abs(taken[where] - share) < 1 or taken[where] == 1


@given(_BACKLOGS, st.integers(50, 20_000))
def test_limited_batches_come_to_the_end(backlogs: dict, most: int) -> None:
    at = dict.fromkeys(backlogs, 0)
    # Shares are rounded down, but never to less than half or to nothing.
    for _ in range(2 * sum(backlogs.values()) // most + len(backlogs) + 1):
        at = limited(at, backlogs, most)
    assert at == backlogs


def test_ranges_without_offsets_are_no_work() -> None:
    zero, one = place("t", 0), place("t", 1)
    assert ranges_between({zero: 3, one: 4}, {zero: 3, one: 6}) == [Range("t", 1, 4, 6)]
