"""Which day or hour, in UTC, a record belongs to: what a table is partitioned by.

A time that no calendar of the lake formats has (microseconds sent as milliseconds are the year 55,000) goes to the last or
first day there is. Only the folder is meant by that: the row keeps its timestamp, and a filter by time that anybody can
write finds it, because it lies on the right side of every day.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

_SECOND_US: Final = 1_000_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST_S: Final = -62_135_596_800
"""0001-01-01T00:00:00Z"""
_LAST_S: Final = 253_402_300_799
"""9999-12-31T23:59:59Z"""


class Bucketing(enum.Enum):
    DAY = "day"
    HOUR = "hour"
    NONE = "none"

    @property
    def seconds(self) -> int:
        return 3_600 if self is Bucketing.HOUR else 86_400

    @property
    def column(self) -> str | None:
        """The column that folders stand for."""
        return None if self is Bucketing.NONE else self.value

    def label(self, number: int) -> str:
        """What the folder of a bucket is called."""
        if self is Bucketing.NONE:
            return ""
        moment = _EPOCH + datetime.timedelta(seconds=number * self.seconds)
        date = moment.date().isoformat()
        return f"{date}-{moment.hour:02d}" if self is Bucketing.HOUR else date

    def number_of(self, microseconds: int) -> int:
        """Days or hours since 1970."""
        second = min(max(microseconds // _SECOND_US, _FIRST_S), _LAST_S)
        return second // self.seconds

    def label_of(self, microseconds: int) -> str:
        return self.label(self.number_of(microseconds))

    def before(self, moment_s: float) -> int:
        """The second at which the bucket of a moment begins: what is older lies in buckets that are wholly past."""
        return int(moment_s // self.seconds) * self.seconds

    def folder(self, label: str) -> str:
        return f"{self.value}={label}/" if label else ""

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The label and the rows of each bucket, in their order; most batches have one."""
        if self is Bucketing.NONE:
            yield "", rows
            return
        microseconds = rows.column("timestamp").cast(pa.int64()).to_numpy()
        numbers = np.clip(microseconds // _SECOND_US, _FIRST_S, _LAST_S) // self.seconds
        if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
            yield self.label(int(numbers[0])), rows
            return
        for number in np.unique(numbers):
            yield self.label(int(number)), rows.filter(pa.array(numbers == number))
