from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.buckets import Bucketing
from penstock.lake.columns import RECORD
from penstock.lake.ranges import RANGES_A_WORKER_MAX, Backlog, plan

_BACKLOGS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7), st.floats(0.1, 10**6)), max_size=6).map(
    lambda rows: [Backlog(at, start, start + count, size) for at, (start, count, size) in enumerate(rows)]
)


@given(_BACKLOGS, st.integers(1, 16), st.none() | st.integers(1, 10**6))
def test_ranges_follow_one_another_from_where_the_table_is(
    backlogs: list[Backlog], workers: int, records_max: int | None
) -> None:
    offsets = {one.partition: one.start for one in backlogs}
    made = plan(offsets, backlogs, workers, records_max=records_max)
    waiting = [one for one in backlogs if one.offsets]
    assert bool(made.ranges) == bool(waiting)
    assert len(made.ranges) <= max(workers * RANGES_A_WORKER_MAX, len(waiting))
    for one in backlogs:
        at = one.start
        for piece in (piece for piece in made.ranges if piece.partition == one.partition):
            assert piece.start == at < piece.end <= one.end
            at = piece.end
        assert made.after()[one.partition] == at
        assert at > one.start or not one.offsets
    if records_max is not None:
        assert sum(piece.end - piece.start for piece in made.ranges) <= records_max + len(backlogs)


def test_a_large_partition_is_shared_among_the_workers() -> None:
    made = plan({0: 0}, [Backlog(0, 0, 1_000_000, 100.0)], 4)
    assert len(made.ranges) == 4


def test_a_huge_backlog_is_committed_in_pieces() -> None:
    made = plan({0: 0}, [Backlog(0, 0, 10**9, 1_000.0)], 2)
    assert len(made.ranges) == 2 * RANGES_A_WORKER_MAX
    assert all(250_000 < one.end - one.start < 280_000 for one in made.ranges)


def test_partitions_that_were_never_seen_are_part_of_the_plan() -> None:
    made = plan({0: 5}, [Backlog(0, 5, 9, 1.0)], 1, starts={0: 0, 1: 7, 2: 0})
    assert made.after() == {0: 9, 1: 7, 2: 0}


_TIMES_US = st.integers(-(2**62), 2**62) | st.integers(0, 4_102_444_800_000_000)


@given(st.lists(_TIMES_US, min_size=1, max_size=20), st.sampled_from([Bucketing.DAY, Bucketing.HOUR]))
def test_every_row_lies_in_the_bucket_of_its_time(times: list[int], bucketing: Bucketing) -> None:
    columns = {
        "timestamp": pa.array(np.array(times, np.int64)).cast(RECORD.field("timestamp").type),
        "offset": pa.array(range(len(times)), pa.int64()),
    }
    arrays = [columns.get(field.name, pa.nulls(len(times), field.type)) for field in RECORD]
    seen: dict[int, str] = {}
    for label, rows in bucketing.split(pa.RecordBatch.from_arrays(arrays, schema=RECORD)):
        offsets = rows.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        seen |= dict.fromkeys(offsets, label)
    assert seen == {at: bucketing.label_of(time) for at, time in enumerate(times)}


@given(st.datetimes(timezones=st.just(datetime.UTC)))
def test_labels_are_days_and_hours_in_utc(moment: datetime.datetime) -> None:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    microseconds = (moment - epoch) // datetime.timedelta(microseconds=1)
    assert Bucketing.DAY.label_of(microseconds) == moment.date().isoformat()
    assert Bucketing.HOUR.label_of(microseconds) == f"{moment.date().isoformat()}-{moment.hour:02d}"
    assert Bucketing.NONE.label_of(microseconds) == ""
