"""The records of a range of offsets, over the wire: what was committed, as rows of the table.

While one answer is decoded the broker works at the next.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from kio.schema.errors import ErrorCode

from penstock.arrow.decode import decode_batches
from penstock.client.kafka import Isolation, KafkaClient, KafkaError
from penstock.lake.columns import DECODED, RECORD
from penstock.lake.errors import ArchiveError
from penstock.lake.ranges import OffsetRange
from penstock.records.batch import whole_batches
from penstock.records.visibility import visible_batches

EMPTY_ANSWERS_MAX = 20
"""Below the last stable offset there is always something; an answer may be empty while a broker restarts."""


class Gone(ArchiveError):
    """Offsets that the broker has no longer."""


def fetch_range(client: KafkaClient, topic: str, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Raises Gone when the broker deleted a part of the range meanwhile, and KafkaError."""
    spot = (topic, wanted.partition)
    offset, empty = wanted.start, 0
    call = client.begin_fetch({spot: offset}, isolation=Isolation.READ_COMMITTED)
    while True:
        try:
            (fetched,) = call.wait().values()
        except KafkaError as error:
            if error.error_code is ErrorCode.offset_out_of_range:
                raise Gone(
                    f"the broker deleted offsets from {offset} of partition {wanted.partition} of {topic} "
                    f"before they were archived"
                ) from None
            raise
        batches = list(whole_batches(fetched.records))
        if batches:
            offset, empty = batches[-1].last_offset + 1, 0
        else:
            empty += 1
            if empty > EMPTY_ANSWERS_MAX:
                raise ArchiveError(f"the broker returns no records of {topic}-{wanted.partition} at offset {offset}")
        is_last = offset >= wanted.end
        if not is_last:
            call = client.begin_fetch({spot: offset}, isolation=Isolation.READ_COMMITTED)
        for rows in decode_batches(
            visible_batches(batches, fetched.aborted),
            topic,
            wanted.partition,
            columns=DECODED,
            start=wanted.start,
            end=wanted.end,
        ):
            yield pa.RecordBatch.from_arrays(rows.columns, schema=RECORD)
        if is_last:
            return
