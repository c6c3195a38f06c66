"""The bytes of `__transaction_state`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.record_fields import FieldError
from penstock.coordination.transaction_records import TransactionRecord, decode, encode
from penstock.coordination.transaction_states import Identity, Status, TransactionState
from penstock.model.ids import TopicName, TopicPartition

KEY = b"\0\0" + b"\0\3" + b"app"


def partitions_of(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TopicName(topic), number) for number in numbers)


STATES = st.builds(
    TransactionState,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(1, 2**31 - 1),
    st.sampled_from(Status),
    st.frozensets(
        st.builds(TopicPartition, st.sampled_from(["t", "other", "ü"]).map(TopicName), st.integers(0, 300)), max_size=6
    ),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.sampled_from([0, 2]),
).map(lambda state: state._replace(partitions=frozenset()) if state.status is Status.EMPTY else state)


@given(st.text(min_size=1, max_size=20), st.one_of(st.none(), STATES))
def test_records_come_back_as_they_were(name: str, state: TransactionState | None) -> None:
    record = TransactionRecord(name, state)
    assert decode(*encode(record)) == record


def test_version_1_has_kafkas_layout() -> None:
    state = TransactionState(
        7, 3, 60_000, Status.ONGOING, partitions_of("t", 2, 1), 20, 10, previous_producer_id=5, transaction_version=2
    )
    key, value = encode(TransactionRecord("app", state))
    assert key == KEY
    tags = b"\3" + b"\0\10" + struct.pack(">q", 5) + b"\2\2\0\2" + b"\xd9\x36\2\xff\xff"
    assert value == (
        struct.pack(">hqhib", 1, 7, 3, 60_000, 1)
        + b"\2" + b"\2t" + b"\3" + struct.pack(">ii", 1, 2) + b"\0"
        + struct.pack(">qq", 20, 10)
        + tags
    )  # fmt: skip


def test_an_empty_transaction_has_null_partitions() -> None:
    _, value = encode(TransactionRecord("app", TransactionState(7, 3, 60_000, Status.EMPTY, last_update_ms=20)))
    assert value is not None
    assert value[17:18] == b"\0"


def test_version_0_of_old_brokers_is_read() -> None:
    value = (
        struct.pack(">hqhib", 0, 7, 3, 60_000, 3)
        + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">iii", 2, 1, 2)
        + struct.pack(">qq", 20, 10)
    )  # fmt: skip
    state = TransactionState(7, 3, 60_000, Status.PREPARE_ABORT, partitions_of("t", 1, 2), 20, 10)
    assert decode(KEY, value) == TransactionRecord("app", state)
    empty = struct.pack(">hqhibiqq", 0, 7, 3, 60_000, 0, -1, 20, -1)
    assert decode(KEY, empty) == TransactionRecord(
        "app", TransactionState(7, 3, 60_000, Status.EMPTY, last_update_ms=20)
    )


def test_in_kafkas_own_records_the_epoch_before_belongs_to_the_same_client() -> None:
    head = struct.pack(">hqhib", 1, 7, 3, 60_000, 4) + b"\1" + struct.pack(">qq", 20, 10)
    record = decode(KEY, head + b"\1" + b"\2\2\0\2")
    assert record is not None
    assert record.value is not None
    assert record.value.last_identity == Identity(7, 2)
    rotated = struct.pack(">hqhib", 1, 7, 0, 60_000, 4) + b"\1" + struct.pack(">qq", 20, 10)
    record = decode(KEY, rotated + b"\2" + b"\0\10" + struct.pack(">q", 5) + b"\2\2\0\2")
    assert record is not None
    assert record.value is not None
    assert record.value.last_identity == Identity(5, 32766)


def test_unknown_tagged_fields_are_skipped_and_unknown_keys_passed_over() -> None:
    value = struct.pack(">hqhib", 1, 7, 3, 60_000, 0) + b"\0" + struct.pack(">qq", 20, -1) + b"\1\x09\1x"
    record = decode(KEY, value)
    assert record == TransactionRecord("app", TransactionState(7, 3, 60_000, Status.EMPTY, last_update_ms=20))
    assert decode(b"\0\1" + KEY[2:], value) is None


def test_unknown_versions_and_statuses_are_refused() -> None:
    with pytest.raises(FieldError, match="version 2"):
        decode(KEY, struct.pack(">hq", 2, 7))
    with pytest.raises(FieldError, match="status 7"):
        decode(KEY, struct.pack(">hqhib", 1, 7, 3, 60_000, 7))


@given(STATES, st.data())
def test_damage_raises_nothing_but_field_error(state: TransactionState, data: st.DataObject) -> None:
    key, value = encode(TransactionRecord("app", state))
    assert value is not None
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    with pytest.raises(FieldError):
        decode(key, cut)
    changed = bytearray(value)
    changed[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(key, bytes(changed))
    except FieldError:
        pass
