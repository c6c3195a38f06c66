"""Batches for tests: any records, in any form that a log may hold them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

from penstock.arrow.ways import Way
from penstock.records.batch import Batch
from penstock.records.builder import NewRecord, build_batch, rebuild_batch
from penstock.records.compression import CODECS
from penstock.records.record import read_records

WAYS = [
    Way.PURE,
    Way.NUMPY,
    pytest.param(
        Way.NUMBA,
        marks=pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="the extra `fast` is not installed"),
    ),
]
"""For parametrize."""

_BYTES = st.none() | st.binary(max_size=12) | st.integers(60, 9_000).map(bytes)
_NAMES = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("n" * 70)
_TIMES_MS = st.integers(0, 200).map(lambda delta: 1_700_000_000_000 + delta) | st.integers(-(10**15), 10**15)


@st.composite
def new_records(draw: st.DrawFn) -> NewRecord:
    headers = draw(st.just(()) | st.lists(st.tuples(_NAMES, _BYTES), max_size=4).map(tuple))
    return NewRecord(draw(_TIMES_MS), draw(_BYTES), draw(_BYTES), headers)


class Made(NamedTuple):
    """Batches as they follow one another in a log."""

    view: memoryview
    batches: list[Batch]


def made(parts: Sequence[bytes | bytearray]) -> Made:
    view = memoryview(b"".join(parts))
    batches, at = [], 0
    for part in parts:
        batches.append(Batch(view[at : at + len(part)]))
        at += len(part)
    return Made(view, batches)


@st.composite
def logs(draw: st.DrawFn) -> Made:
    """Batches of any codec and either kind of time, some with records cleaned out of them."""
    parts: list[bytearray] = []
    offset = draw(st.integers(0, 10_000))
    for _ in range(draw(st.integers(1, 6))):
        records = draw(st.lists(new_records(), min_size=1, max_size=5))
        # Many alike: wide offset deltas, and the steps that run over all records at once.
        records = records * draw(st.sampled_from([1, 1, 1, 40]))
        built = build_batch(
            records,
            base_offset=offset,
            compression=draw(st.sampled_from(sorted(CODECS))),
            append_time_ms=draw(st.none() | st.integers(0, 10**13)),
        )
        offset += len(records) + draw(st.integers(0, 3))
        if draw(st.booleans()):
            batch = Batch(memoryview(built))
            kept = [record for record in read_records(batch) if draw(st.booleans())]
            built = rebuild_batch(batch, kept)
        parts.append(built)
    return made(parts)
