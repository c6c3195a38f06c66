"""The header: what it says, what it refuses, and what the broker writes into it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER_BYTES,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Batch,
    BatchError,
    batches,
    whole_batches,
)
from penstock.records.builder import NewRecord, build_batch, build_run, rebuild_batch
from penstock.records.record import read_records


def built(*values: bytes, **fields: int) -> Batch:
    return Batch(memoryview(build_batch([NewRecord(1_000, None, value) for value in values], **fields)))


def test_a_batch_says_what_its_header_holds() -> None:
    batch = Batch(
        memoryview(
            build_batch(
                [NewRecord(5, b"k", b"v"), NewRecord(3), NewRecord(9)],
                base_offset=100,
                leader_epoch=7,
                compression=1,
                producer_id=42,
                producer_epoch=2,
                base_sequence=10,
                transactional=True,
            )
        )
    )
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (100, 102, 103)
    assert (batch.base_timestamp, batch.max_timestamp) == (5, 9)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (42, 2, 10, 12)
    assert (batch.leader_epoch, batch.magic, batch.count, batch.compression) == (7, 2, 3, 1)
    assert batch.is_transactional
    assert not batch.is_control
    assert not batch.has_log_append_time
    assert batch.delete_horizon_ms is None
    assert batch.crc_is_right()


@pytest.mark.parametrize(
    ("base", "records", "last"),
    [
        (0, 1, 0),
        (2**31 - 1, 1, 2**31 - 1),
        (2**31 - 1, 2, 0),
        (2**31 - 2, 4, 1),
        (NO_SEQUENCE, 3, NO_SEQUENCE),
    ],
)
def test_sequences_wrap_to_zero_and_no_sequence_stays_none(base: int, records: int, last: int) -> None:
    assert built(*[b""] * records, base_sequence=base).last_sequence == last


def test_placing_a_batch_leaves_its_crc_right_and_moves_every_record() -> None:
    batch = built(b"a", b"b")
    batch.place(2**40, 6)
    again = Batch(batch.view)
    assert again.crc_is_right()
    assert again.leader_epoch == 6
    assert [record.offset for record in read_records(again)] == [2**40, 2**40 + 1]


def test_stamping_a_batch_gives_every_record_the_append_time_and_a_right_crc() -> None:
    batch = built(b"a", b"b")
    batch.stamp(77)
    again = Batch(batch.view)
    assert again.crc_is_right()
    assert again.has_log_append_time
    assert again.max_timestamp == 77
    assert again.base_timestamp == 1_000
    assert [record.timestamp for record in read_records(again)] == [77, 77]


def test_a_batch_cut_anywhere_is_refused() -> None:
    whole = build_run([b"value"], 1)
    for size in range(len(whole)):
        with pytest.raises(BatchError):
            Batch(memoryview(whole)[:size])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, HEADER_BYTES - 13])
def test_a_length_below_the_header_is_refused(length: int) -> None:
    whole = build_run([b"value"], 1)
    struct.pack_into(">i", whole, 8, length)
    view = memoryview(whole)
    with pytest.raises(BatchError, match="too small"):
        Batch(view)
    with pytest.raises(BatchError, match="too small"):
        list(batches(view))
    with pytest.raises(BatchError, match="too small"):
        list(whole_batches(view))


def test_what_follows_a_batch_is_not_part_of_it() -> None:
    first = build_run([b"one"], 1)
    batch = Batch(memoryview(first + b"tail"))
    assert batch.size == len(first)
    assert batch.view == first
    assert batch.crc_is_right()


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=3), max_size=4), st.data())
def test_batches_are_found_one_after_the_other_and_a_torn_last_one_is_left_out(
    runs: list[list[bytes]], data: st.DataObject
) -> None:
    whole = [build_run(run, 1) for run in runs]
    view = memoryview(b"".join(whole))
    assert [bytes(batch.view) for batch in batches(view)] == whole
    end = data.draw(st.integers(0, len(view)))
    ends = [sum(map(len, whole[: n + 1])) for n in range(len(whole))]
    complete = [batch for batch, stop in zip(whole, ends, strict=True) if stop <= end]
    assert [bytes(batch.view) for batch in whole_batches(view[:end])] == complete
    if end not in (0, *ends):
        with pytest.raises(BatchError):
            list(batches(view[:end]))


def test_every_flipped_bit_that_the_crc_covers_is_seen() -> None:
    sound = build_batch([NewRecord(1, b"key", b"value", (("h", b"x"),))])
    for at in range(CRC_START - 4, len(sound)):
        for bit in range(8):
            sound[at] ^= 1 << bit
            assert not Batch(memoryview(sound)).crc_is_right(), (at, bit)
            sound[at] ^= 1 << bit


def test_kinds_of_a_batch_are_attribute_bits() -> None:
    batch = built(b"", control=True)
    assert batch.attributes == CONTROL_BIT
    assert batch.is_control
    assert built(b"", transactional=True).attributes == TRANSACTIONAL_BIT


def test_a_delete_horizon_is_the_base_timestamp() -> None:
    batch = built(b"")
    kept = Batch(memoryview(rebuild_batch(batch, list(read_records(batch)), delete_horizon_ms=5_000)))
    assert kept.delete_horizon_ms == 5_000
