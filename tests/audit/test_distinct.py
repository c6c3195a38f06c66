from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.comparing import cut, subtract
from penstock.audit.distinct import EXACT_MAX, Distinct


def test_few_keys_are_counted_exactly_and_many_nearly() -> None:
    few, many = Distinct(), Distinct()
    few.add(b"%d" % (n % 500) for n in range(2_000))
    assert (few.count(), few.is_exact) == (500, True)
    many.add(b"%d" % n for n in range(60_000))
    assert not many.is_exact
    assert abs(many.count() - 60_000) < 60_000 * 0.06


def test_sketches_put_together_count_what_one_would() -> None:
    whole, parts = Distinct(), Distinct()
    for start in (0, 15_000, 30_000):
        part = Distinct()
        keys = [b"%d" % n for n in range(start, start + 20_000)]
        part.add(keys)
        whole.add(keys)
        parts.merge(*part.packed())
    small = Distinct()
    small.add([b"%d" % n for n in range(100)])
    parts.merge(*small.packed())
    assert parts.count() == whole.count()
    assert EXACT_MAX < 20_000


_OFFSETS = st.sets(st.integers(0, 60), max_size=40)


def _runs(offsets: set[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] + 1 == offset:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs


def _offsets(runs: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in runs for offset in range(first, last + 1)}


@given(some=_OFFSETS, others=_OFFSETS, start=st.integers(0, 60), end=st.integers(0, 61))
def test_runs_are_subtracted_and_cut_like_sets(some: set[int], others: set[int], start: int, end: int) -> None:
    assert _offsets(subtract(_runs(some), _runs(others))) == some - others
    assert _offsets(cut(_runs(some), start, end)) == {one for one in some if start <= one < end}
