"""The promises of ProducerTable one by one, and the bytes of its files."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.producer_records import (
    ABORTED_BYTES,
    AbortedTransaction,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from penstock.coordination.producers import Duplicate, ProducerRow, ProducerTable
from penstock.model.errors import Fault
from penstock.records.batch import CONTROL_BIT, HEADER, TRANSACTIONAL_BIT, Batch, BatchError
from penstock.records.control import Marker, MarkerKind, build_marker


def data(
    sequence: int,
    *,
    count: int = 1,
    producer_id: int = 7,
    epoch: int = 0,
    txn: bool = False,
    offset: int = 0,
    ts: int = 1,
) -> Batch:
    attributes = TRANSACTIONAL_BIT if txn else 0
    fields = (offset, 49, 0, 2, 0, attributes, count - 1, ts, ts, producer_id, epoch, sequence, count)
    return Batch(memoryview(bytearray(HEADER.pack(*fields))))


def marker(
    *, commit: bool, producer_id: int = 7, epoch: int = 0, coordinator_epoch: int = 0, offset: int = 0, ts: int = 1
) -> Batch:
    kind = MarkerKind.COMMIT if commit else MarkerKind.ABORT
    batch = build_marker(
        Marker(kind, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=ts,
        base_offset=offset,
    )
    return Batch(memoryview(batch))


def append(table: ProducerTable, batch: Batch, offset: int) -> None:
    assert table.check(batch) is None
    table.stage(batch, offset)
    table.commit()


def test_a_copy_of_any_of_the_last_five_batches_gets_the_offsets_of_the_original() -> None:
    table = ProducerTable(0)
    for n in range(6):
        append(table, data(n * 10, count=10, ts=n), 1000 + n * 10)
    for n in range(1, 6):
        assert table.check(data(n * 10, count=10)) == Duplicate(1000 + n * 10, 1009 + n * 10, n)
    assert table.check(data(0, count=10)) is Fault.DUPLICATE_SEQUENCE


def test_a_gap_and_an_overlap_are_out_of_order() -> None:
    table = ProducerTable(0)
    append(table, data(0, count=10), 0)
    assert table.check(data(11)) is Fault.OUT_OF_ORDER_SEQUENCE
    assert table.check(data(0, count=9)) is Fault.OUT_OF_ORDER_SEQUENCE
    assert table.check(data(5, count=10)) is Fault.OUT_OF_ORDER_SEQUENCE
    assert table.check(data(10)) is None


def test_sequences_wrap_to_zero_and_a_gap_across_the_wrap_is_not_taken_for_an_old_duplicate() -> None:
    table = ProducerTable(0)
    append(table, data(0, count=2**30), 0)
    append(table, data(2**30, count=2**30 - 2), 2**30)
    append(table, data(2**31 - 2, count=4), 2**31)
    assert table.describe()[0].last_sequence == 1
    assert table.check(data(2**31 - 2, count=4)) == Duplicate(2**31, 2**31 + 3, 1)
    assert table.check(data(2)) is None
    late = ProducerTable(0)
    late.load([SnapshotEntry(7, 0, 2**31 - 3, 5, 0, 1, -1, -1)])
    assert late.check(data(1)) is Fault.OUT_OF_ORDER_SEQUENCE


def test_an_unknown_producer_must_begin_at_zero() -> None:
    table = ProducerTable(0)
    assert table.check(data(3)) is Fault.UNKNOWN_PRODUCER_ID
    assert table.check(data(0)) is None
    assert len(table) == 0


def test_epochs_only_rise_and_a_new_one_begins_at_zero() -> None:
    table = ProducerTable(0)
    append(table, data(0, epoch=3, count=5), 0)
    assert table.check(data(5, epoch=2)) is Fault.INVALID_PRODUCER_EPOCH
    assert table.check(data(0, epoch=2, count=5)) is Fault.INVALID_PRODUCER_EPOCH
    assert table.check(data(5, epoch=4)) is Fault.OUT_OF_ORDER_SEQUENCE
    append(table, data(0, epoch=4), 5)
    assert table.check(data(5, epoch=3)) is Fault.INVALID_PRODUCER_EPOCH


def test_malformed_batches_of_clients_are_refused() -> None:
    table = ProducerTable(0)
    assert table.check(marker(commit=True)) is Fault.INVALID_RECORD
    assert table.check(data(-1)) is Fault.INVALID_RECORD
    assert table.check(data(0, epoch=-1)) is Fault.INVALID_PRODUCER_EPOCH


def test_rollback_undoes_a_run_and_commit_keeps_it() -> None:
    table = ProducerTable(0)
    append(table, data(0), 0)
    before = list(table.snapshot())
    for n in range(1, 8):
        assert table.check(data(n)) is None
        table.stage(data(n), n)
    assert table.check(data(5)) == Duplicate(5, 5, 1)
    table.stage(data(0, producer_id=8), 8)
    table.rollback()
    assert list(table.snapshot()) == before
    assert table.check(data(1)) is None
    assert table.check(data(1, producer_id=8)) is Fault.UNKNOWN_PRODUCER_ID


def test_rollback_gives_back_the_open_transaction_the_verification_and_the_unflushed_marker() -> None:
    table = ProducerTable(0)
    table.verified(7, 0)
    append(table, data(0, txn=True), 10)
    table.verified(8, 0)
    table.stage(data(0, txn=True, producer_id=8), 11)
    table.stage(marker(commit=False), 12)
    assert not table.has_open_transaction(7)
    table.rollback()
    assert [row.transaction_first_offset for row in table.describe()] == [10]
    assert table.first_undecided_offset == 10
    assert table.check(data(0, txn=True, producer_id=8)) is None
    assert table.stage(marker(commit=False), 11) == AbortedTransaction(7, 10, 11, 12)


def test_a_transaction_opens_only_with_the_coordinators_word() -> None:
    table = ProducerTable(0)
    batch = data(0, txn=True)
    assert table.needs_verification(batch)
    assert table.check(batch) is Fault.INVALID_TXN_STATE
    table.verified(7, 0)
    assert not table.needs_verification(batch)
    append(table, batch, 0)
    assert not table.needs_verification(data(1, txn=True))
    append(table, data(1, txn=True), 1)
    append_marker(table, marker(commit=True), 2)
    assert table.check(data(2, txn=True)) is Fault.INVALID_TXN_STATE


def test_a_marker_takes_back_a_verification_that_was_not_used() -> None:
    table = ProducerTable(0)
    table.verified(7, 0)
    append_marker(table, marker(commit=False), 0)
    assert table.check(data(0, txn=True)) is Fault.INVALID_TXN_STATE


def test_a_verification_holds_for_its_epoch_alone() -> None:
    table = ProducerTable(0)
    table.verified(7, 1)
    assert table.check(data(0, txn=True, epoch=2)) is Fault.INVALID_TXN_STATE


def test_without_verification_any_transactional_batch_opens_a_transaction() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True), 0)
    assert table.first_undecided_offset == 0


def test_plain_batches_are_refused_while_the_producers_transaction_is_open() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True), 0)
    assert table.check(data(1)) is Fault.INVALID_TXN_STATE


def append_marker(table: ProducerTable, batch: Batch, offset: int) -> AbortedTransaction | None:
    aborted = table.stage(batch, offset)
    table.commit()
    return aborted


def test_the_first_undecided_offset_waits_for_the_earliest_transaction_and_for_its_flush() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True, producer_id=1), 5)
    append(table, data(0, txn=True, producer_id=2), 6)
    append_marker(table, marker(commit=True, producer_id=1), 7)
    assert table.first_undecided_offset == 5
    table.high_watermark_moved(7)
    assert table.first_undecided_offset == 5
    table.high_watermark_moved(8)
    assert table.first_undecided_offset == 6
    append_marker(table, marker(commit=False, producer_id=2), 8)
    table.log_start_moved(9)
    assert table.first_undecided_offset is None


def test_the_earliest_transaction_is_known_after_a_rollback_and_after_a_restart() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True, producer_id=1), 0)
    append(table, data(0, txn=True, producer_id=2), 1)
    append(table, data(1, txn=True, producer_id=1), 2)
    again = ProducerTable(0, verify=False)
    again.load(table.snapshot())
    assert again.first_undecided_offset == 0
    table.stage(marker(commit=True, producer_id=1), 3)
    table.rollback()
    assert table.first_undecided_offset == 0


def test_an_abort_is_indexed_with_the_stable_offset_that_it_makes() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True, producer_id=1, count=3), 10)
    append(table, data(0, txn=True, producer_id=2), 13)
    assert append_marker(table, marker(commit=False, producer_id=1), 14) == AbortedTransaction(1, 10, 14, 13)
    assert append_marker(table, marker(commit=False, producer_id=2), 15) == AbortedTransaction(2, 13, 15, 16)
    assert append_marker(table, marker(commit=False, producer_id=3), 16) is None


def test_markers_of_old_epochs_and_old_coordinators_are_refused() -> None:
    table = ProducerTable(0)
    append_marker(table, marker(commit=True, epoch=4, coordinator_epoch=9), 0)
    assert table.check_marker(7, 3, 9) is Fault.INVALID_PRODUCER_EPOCH
    assert table.check_marker(7, 4, 8) is Fault.TRANSACTION_COORDINATOR_FENCED
    assert table.check_marker(7, 4, 9) is None
    assert table.check_marker(8, 0, 0) is None


def test_coordinator_epochs_above_the_newest_are_refused_without_fencing() -> None:
    table = ProducerTable(0)
    append_marker(table, marker(commit=True, epoch=4, coordinator_epoch=2**31 - 1), 0)
    for producer_id in (7, 8):
        assert (
            table.check_marker(producer_id, 4, 10, newest_coordinator_epoch=9) is Fault.TRANSACTION_COORDINATOR_FENCED
        )
        assert table.check_marker(producer_id, 4, 9, newest_coordinator_epoch=9) is None
    assert table.check_marker(7, 4, 8, newest_coordinator_epoch=9) is Fault.TRANSACTION_COORDINATOR_FENCED
    append_marker(table, marker(commit=True, epoch=4, coordinator_epoch=9), 1)
    assert table.check_marker(7, 4, 8) is Fault.TRANSACTION_COORDINATOR_FENCED
    assert table.check_marker(7, 4, 9) is None


def test_a_marker_of_version_2_is_not_written_twice_and_never_hits_the_next_transaction() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True, epoch=4), 0)
    assert table.check_marker(7, 5, 0, 2) is None
    append_marker(table, marker(commit=True, epoch=5), 1)
    assert table.check_marker(7, 5, 0, 2) == Duplicate(-1, -1, 1)
    append(table, data(0, txn=True, epoch=5), 2)
    assert table.check_marker(7, 5, 0, 2) is Fault.INVALID_PRODUCER_EPOCH


def test_a_marker_with_a_newer_epoch_fences_the_old_one_and_restarts_sequences() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, count=5, txn=True), 0)
    append_marker(table, marker(commit=True, epoch=1), 5)
    assert table.check(data(5, txn=True)) is Fault.INVALID_PRODUCER_EPOCH
    assert table.check(data(5, txn=True, epoch=1)) is Fault.OUT_OF_ORDER_SEQUENCE
    assert table.check(data(0, txn=True, epoch=1)) is None


def test_a_marker_of_the_same_epoch_lets_sequences_go_on() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, count=5, txn=True), 0)
    append_marker(table, marker(commit=True), 5)
    assert table.check(data(0, count=5, txn=True)) == Duplicate(0, 4, 1)
    assert table.check(data(5, txn=True)) is None


def test_idle_producers_expire_but_not_those_in_a_transaction() -> None:
    table = ProducerTable(1_000, verify=False)
    append(table, data(0, producer_id=1), 0)
    append(table, data(0, producer_id=2, txn=True), 1)
    assert table.expire(1_500, 1_000) == 0
    append(table, data(0, producer_id=3), 2)
    assert table.expire(2_000, 1_000) == 1
    assert [row.producer_id for row in table.describe()] == [2, 3]
    append_marker(table, marker(commit=True, producer_id=2), 3)
    assert table.expire(9_000, 1_000) == 2


def test_age_is_the_brokers_not_the_records() -> None:
    table = ProducerTable(10**12)
    append(table, data(0, ts=5), 0)
    assert table.expire(10**12 + 999, 1_000) == 0
    assert table.expire(10**12 + 1_000, 1_000) == 1


def test_the_table_is_bounded_and_the_least_recently_written_go_first() -> None:
    table = ProducerTable(0, producers_max=3, verify=False)
    append(table, data(0, producer_id=1, txn=True), 0)
    for producer_id in (2, 3):
        append(table, data(0, producer_id=producer_id), producer_id)
    append(table, data(1, producer_id=2), 4)
    append(table, data(0, producer_id=4), 5)
    assert sorted(row.producer_id for row in table.describe()) == [1, 2, 4]
    assert table.first_undecided_offset == 0
    table.load(SnapshotEntry(n, 0, 0, n, 0, 1, -1, -1) for n in range(10))
    assert [row.producer_id for row in table.describe()] == [7, 8, 9]


def test_a_table_full_of_open_transactions_grows_rather_than_forgets_one() -> None:
    table = ProducerTable(0, producers_max=2, verify=False)
    for n in range(40):
        append(table, data(0, producer_id=n, txn=True), n)
    assert len(table) == 40


def test_the_whole_window_survives_a_snapshot() -> None:
    table = ProducerTable(0, verify=False)
    for n in range(7):
        append(table, data(n * 2, count=2, txn=True, ts=n), n * 2)
    append_marker(table, marker(commit=True, producer_id=9, epoch=2, coordinator_epoch=3, ts=8), 14)
    again = ProducerTable(0, verify=False)
    again.load(decode_snapshot(encode_snapshot(table.snapshot())))
    assert again.describe() == table.describe()
    assert again.describe()[1] == ProducerRow(9, 2, -1, 8, 3, -1)
    assert again.first_undecided_offset == 0
    for n in range(2, 7):
        assert again.check(data(n * 2, count=2, txn=True)) == Duplicate(n * 2, n * 2 + 1, n)
    assert again.check(data(14, txn=True)) is None


def test_kafka_which_keeps_the_last_entry_of_a_producer_keeps_the_newest_batch() -> None:
    table = ProducerTable(0)
    for n in range(6):
        append(table, data(n), n)
    kept = {entry.producer_id: entry for entry in table.snapshot()}
    assert kept[7] == SnapshotEntry(7, 0, 5, 5, 0, 1, -1, -1)


def test_clear_forgets_everything() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True), 0)
    append_marker(table, marker(commit=True), 1)
    table.clear()
    assert len(table) == 0
    assert table.first_undecided_offset is None


def test_replay_takes_what_stands_in_the_log_without_judging() -> None:
    table = ProducerTable(0)
    table.replay(data(17, epoch=3, offset=40, txn=True))
    table.replay(data(99, epoch=3, offset=41, txn=True))
    table.replay(data(-1, producer_id=-1, epoch=-1, offset=42))
    assert table.describe() == [ProducerRow(7, 3, 99, 1, -1, 40)]
    assert table.replay(marker(commit=False, epoch=4, offset=43)) == AbortedTransaction(7, 40, 43, 44)


def test_replay_passes_over_a_marker_that_log_cleaning_emptied() -> None:
    table = ProducerTable(0, verify=False)
    append(table, data(0, txn=True), 0)
    fields = (1, 49, 0, 2, 0, TRANSACTIONAL_BIT | CONTROL_BIT, 0, 1, 1, 7, 5, -1, 0)
    assert table.replay(Batch(memoryview(HEADER.pack(*fields)))) is None
    assert table.describe() == [ProducerRow(7, 0, 0, 1, -1, 0)]


def test_a_control_batch_without_a_control_record_changes_nothing() -> None:
    table = ProducerTable(0)
    fields = (0, 49, 0, 2, 0, TRANSACTIONAL_BIT | CONTROL_BIT, 0, 1, 1, 7, 5, -1, 1)
    with pytest.raises(BatchError):
        table.replay(Batch(memoryview(HEADER.pack(*fields))))
    assert len(table) == 0


ENTRIES = st.builds(
    SnapshotEntry,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
)


@given(st.lists(ENTRIES, max_size=5))
def test_snapshots_come_back_as_they_were(entries: list[SnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


def test_a_snapshot_has_kafkas_layout() -> None:
    data_bytes = encode_snapshot([SnapshotEntry(1, 2, 3, 4, 5, 6, 7, 8)])
    body = struct.pack(">iqhiqiqiq", 1, 1, 2, 3, 4, 5, 6, 7, 8)
    assert data_bytes == struct.pack(">hI", 1, crc32c(body)) + body


@given(st.lists(ENTRIES, max_size=3), st.data())
def test_a_damaged_snapshot_is_refused(entries: list[SnapshotEntry], draw: st.DataObject) -> None:
    good = encode_snapshot(entries)
    bit = draw.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match="snapshot"):
        decode_snapshot(bytes(bad))
    with pytest.raises(ValueError, match="snapshot"):
        decode_snapshot(good[: draw.draw(st.integers(0, len(good) - 1))])


def test_an_aborted_transaction_is_34_bytes_in_kafkas_layout() -> None:
    aborted = AbortedTransaction(1, 2, 3, 4)
    assert aborted.encode() == struct.pack(">hqqqq", 0, 1, 2, 3, 4)
    assert len(aborted.encode()) == ABORTED_BYTES == 34
    assert AbortedTransaction.decode(b"x" + aborted.encode(), 1) == aborted
    with pytest.raises(ValueError, match="34 bytes"):
        AbortedTransaction.decode(aborted.encode()[:-1])
    with pytest.raises(ValueError, match="version 1"):
        AbortedTransaction.decode(b"\x00\x01" + aborted.encode()[2:])
