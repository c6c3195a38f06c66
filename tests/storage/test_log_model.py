"""The log against a list of records: whatever is appended, rolled, flushed, cut and asked, both say the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.records.batch import Batch
from penstock.records.record import read_records
from penstock.storage.files import Disk
from penstock.storage.flush_job import FlushJob
from penstock.storage.log import PartitionLog
from penstock.storage.retention import expired_segments
from tests.storage.logs import NOW_MS, StoredRecord, batch, config, new_log, read, read_all, records_of

times = st.integers(0, 2000)
one_batch = st.lists(st.tuples(times, st.binary(max_size=40)), min_size=1, max_size=5)


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-log-"))
        self.disk = Disk()
        self.records: list[StoredRecord] = []
        self.starts: list[int] = []
        """Base offset of each batch."""
        self.start = 0
        self.flushed = 0
        self.job: FlushJob | None = None
        self.log: PartitionLog

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(segment_bytes=st.sampled_from([200, 700, 5000]), interval=st.sampled_from([0, 150, 4096]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.log = new_log(
            self.folder / "t-0", self.disk, 3, segment_bytes=segment_bytes, index_interval_bytes=interval
        )

    @property
    def end(self) -> int:
        return len(self.records)

    @rule(run=st.lists(one_batch, min_size=1, max_size=4))
    def append(self, run: list[list[tuple[int, bytes]]]) -> None:
        batches = []
        for rows in run:
            base = self.end
            made = batch([value for _, value in rows], [NOW_MS + time for time, _ in rows], offset=base)
            self.starts.append(base)
            self.records.extend((base + at, NOW_MS + time, value) for at, (time, value) in enumerate(rows))
            batches.append(made)
        assert self.log.append(batches, NOW_MS) == len(batches)

    @rule()
    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    @rule()
    def begin_flush(self) -> None:
        job = self.log.begin_flush()
        assert (job is None) == (self.job is not None or self.flushed == self.end)
        self.job = job or self.job

    @rule()
    def end_flush(self) -> None:
        if self.job is not None:
            self.job.run(self.disk)
            self.log.end_flush(self.job)
            self.flushed = self.job.offset
            self.job = None

    @rule()
    def store_index(self) -> None:
        self.log.active.store_indexes(self.log.flushed_offset)

    @rule(part=st.floats(0, 1))
    def advance_start(self, part: float) -> None:
        self.log.advance_start(int(part * self.flushed))
        self.start = max(self.start, int(part * self.flushed))

    @rule(keep_bytes=st.integers(0, 3000))
    def retain_by_size(self, keep_bytes: int) -> None:
        before = list(self.log.segments)
        count = expired_segments(self.log, config(retention_bytes=keep_bytes, retention_ms=-1), self.flushed, NOW_MS)
        self.log.drop_segments(count)
        dropped = len(before) - len(self.log.segments)
        assert self.log.segments == before[dropped:]
        assert dropped == count
        self.start = max(self.start, before[dropped].base_offset)

    @rule()
    def delete_files(self) -> None:
        self.log.delete_dropped(self.start, NOW_MS)
        self.log.sweep_doomed(NOW_MS + 10**9)

    @rule(offset=st.floats(0, 1), upper=st.floats(0, 1), max_bytes=st.integers(0, 3000), whole=st.booleans())
    def read(self, offset: float, upper: float, max_bytes: int, *, whole: bool) -> None:
        boundaries = [start for start in self.starts if start >= self.start] + [self.end, self.flushed]
        limit = boundaries[int(upper * (len(boundaries) - 1))]
        wanted = self.start + int(offset * (self.end - self.start))
        data = read(self.log, self.disk, wanted, max_bytes, limit, one_batch=whole)
        if wanted >= limit:
            assert data == b""
            return
        first = self.holder(wanted)
        got = records_of(data)
        assert got == self.records[first : first + len(got)], "right records in order from the batch that holds it"
        assert all(row[0] < limit for row in got)
        if whole:
            assert got, "at least one batch"
            assert got[-1][0] >= wanted
        else:
            assert len(data) <= max_bytes

    @rule()
    def read_at_every_offset(self) -> None:
        for offset in range(self.start, self.end):
            got = records_of(read(self.log, self.disk, offset, 1, self.end))
            first = self.holder(offset)
            assert got
            assert got == self.records[first : first + len(got)]

    @rule(time=times)
    def find_timestamp(self, time: int) -> None:
        late = [row for row in self.records[self.start :] if row[1] >= NOW_MS + time]
        assert self.first_record_at(NOW_MS + time) == (late[0] if late else None)

    def first_record_at(self, timestamp: int) -> StoredRecord | None:
        offset = self.start
        while (found := self.log.find_timestamp(timestamp, offset)) is not None:
            segment, place = found
            for record in read_records(Batch(memoryview(segment.read_batch(place)))):
                if record.timestamp >= timestamp and record.offset >= offset:
                    return record.offset, record.timestamp, record.value
            offset = place.last_offset + 1
        return None

    def holder(self, offset: int) -> int:
        return max(start for start in self.starts if start <= offset)

    @invariant()
    def bounds_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (self.start, self.flushed, self.end)
        assert log.log_start_offset <= log.flushed_offset <= log.log_end_offset

    @invariant()
    def everything_is_there(self) -> None:
        assert read_all(self.log, self.disk) == self.records[self.start :]


LogAgainstList.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestLogAgainstList = LogAgainstList.TestCase
