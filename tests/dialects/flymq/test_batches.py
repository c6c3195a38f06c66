"""Messages and batches: what is written is read again, and an answer stays within its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.flymq.batches import MESSAGE_OVERHEAD_BYTES, batches_of, message_of, read_batch, read_message
from penstock.dialects.flymq.wire import Reader, repeated
from penstock.model.errors import BrokerError, Fault
from penstock.records.record import Record

BATCH_HEAD_BYTES = 17
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)
fields = st.tuples(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=10), st.binary(max_size=10), headers)


@given(fields)
def test_a_message_is_read_as_it_was_written(row):
    timestamp, key, value, some = row
    data = message_of(Record(0, timestamp, key, value, some))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert read_message(data[4:]) == (key or None, value, some, timestamp)
    if not some:
        assert len(data) == MESSAGE_OVERHEAD_BYTES + len(key) + len(value)


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=30)), min_size=1, max_size=20), st.integers(1, 600))
def test_batches_hold_what_fits_and_at_least_one_record(rows, bytes_max):
    """Offsets with gaps: each run of consecutive ones is a batch."""
    offset = 0
    records = []
    for step, value in rows:
        offset += step
        records.append(Record(offset, 1, b"", value, ()))
    batches, taken = batches_of(records, bytes_max, 10_000)
    assert taken >= 1
    size = sum(map(len, batches))
    assert size <= bytes_max or taken == 1
    if taken < len(records):
        more, _ = batches_of(records[: taken + 1], 10_000, 10_000)
        assert sum(map(len, more)) > bytes_max
    read = []
    for data in batches:
        first = int.from_bytes(data[:8], "big")
        messages = read_batch(Reader(data), 10_000)
        assert int.from_bytes(data[8:12], "big") == len(messages) - 1
        read += [(first + at, message.value) for at, message in enumerate(messages)]
    assert read == [(record.offset, record.value) for record in records[:taken]]


def test_a_record_that_exceeds_the_hard_bound_is_an_error():
    fits = 1_000 - BATCH_HEAD_BYTES - MESSAGE_OVERHEAD_BYTES
    assert batches_of([Record(7, 1, b"", b"x" * fits, ())], 1, 1_000)[1] == 1
    try:
        batches_of([Record(7, 1, b"", b"x" * (fits + 1), ())], 1, 1_000)
    except BrokerError as error:
        assert error.fault is Fault.MESSAGE_TOO_LARGE
        assert "offset 7" in error.text
    else:
        raise AssertionError("it fits")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_batch_or_a_documented_error(data):
    try:
        assert read_batch(Reader(data), 1_000)
    except BrokerError as error:
        assert error.fault in (
            Fault.INVALID_REQUEST,
            Fault.INVALID_RECORD,
            Fault.CORRUPT_MESSAGE,
            Fault.UNSUPPORTED_COMPRESSION_TYPE,
        )


@given(st.binary(min_size=8, max_size=30), st.integers(0, 22), st.integers(0, 2**63), st.integers(1, 300))
def test_repeated_templates_differ_in_their_rising_number_only(template, at, first, count):
    at = min(at, len(template) - 8)
    expected = b"".join(template[:at] + (first + n).to_bytes(8, "big") + template[at + 8 :] for n in range(count))
    assert repeated(template, at, first, count) == expected
