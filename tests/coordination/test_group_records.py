"""The records of `__consumer_offsets`: bytes as Kafka writes them, and every version that it ever wrote."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.coordination import group_records
from penstock.coordination.consumer_group_records import (
    CurrentAssignment,
    CurrentAssignmentRecord,
    GroupEpochRecord,
    GroupTopicsRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopic,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from penstock.coordination.group_records import (
    ClassicGroupRecord,
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
    decode,
    encode,
)
from penstock.coordination.record_fields import FieldError

names = st.text(max_size=20)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.uuids()
partitions = st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=5)
assignments = st.dictionaries(ids, partitions, max_size=3)

offsets = st.one_of(
    st.builds(CommittedOffset, i64, i64, i32, st.none() | names, st.none()),
    st.builds(CommittedOffset, i64, i64, st.just(-1), names, st.integers(0, 2**63 - 1)),
)
stored_members = st.builds(
    StoredMember, names, st.none() | names, names, names, i32, i32, st.binary(max_size=20), st.binary(max_size=20)
)
stored_groups = st.builds(
    StoredGroup, names, i32, st.none() | names, st.none() | names, i64, st.lists(stored_members, max_size=3).map(tuple)
)
members = st.builds(
    MemberMetadata,
    st.none() | names,
    st.none() | names,
    names,
    names,
    st.lists(names, max_size=3).map(tuple),
    st.none() | names,
    i32,
    st.none() | names,
)
currents = st.builds(CurrentAssignment, i32, i32, st.sampled_from(MemberState), assignments, assignments)
topics = st.dictionaries(names, st.builds(SubscribedTopic, ids, i32), max_size=3)
regexes = st.builds(ResolvedRegex, st.frozensets(names, max_size=3), i64, i64)


def _or_tombstone(values: Any) -> Any:
    return st.none() | values


records: st.SearchStrategy[GroupRecord] = st.one_of(
    st.builds(OffsetRecord, names, names, i32, _or_tombstone(offsets)),
    st.builds(ClassicGroupRecord, names, _or_tombstone(stored_groups)),
    st.builds(GroupEpochRecord, names, _or_tombstone(i32)),
    st.builds(GroupTopicsRecord, names, _or_tombstone(topics)),
    st.builds(MemberRecord, names, names, _or_tombstone(members)),
    st.builds(TargetEpochRecord, names, _or_tombstone(st.builds(TargetEpoch, i32, i64))),
    st.builds(TargetMemberRecord, names, names, _or_tombstone(assignments)),
    st.builds(CurrentAssignmentRecord, names, names, _or_tombstone(currents)),
    st.builds(RegexRecord, names, names, _or_tombstone(regexes)),
)


@given(records)
def test_what_is_written_is_read_back(record: GroupRecord) -> None:
    assert decode(*encode(record)) == record


@given(records)
def test_equal_keys_mean_the_same_thing_for_the_log_cleaner(record: GroupRecord) -> None:
    assert encode(record)[0] == encode(record._replace(value=None))[0]


@given(records, st.data())
def test_damaged_records_are_field_errors_and_nothing_else(record: GroupRecord, data: st.DataObject) -> None:
    key, value = encode(record)
    for raw, is_key in ((key, True), (value or b"", False)):
        cut = raw[: data.draw(st.integers(0, len(raw)))]
        flipped = bytearray(cut)
        if flipped:
            flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= data.draw(st.integers(1, 255))
        try:
            decode(bytes(flipped), value) if is_key else decode(key, bytes(flipped))
        except FieldError:
            pass


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
@example(b"", None)
@example(b"\0\1\xff\xff\0\0", None)
def test_any_bytes_are_a_record_a_stranger_or_a_field_error(key: bytes, value: bytes | None) -> None:
    try:
        decode(key, value)
    except FieldError:
        pass


def test_an_offset_has_the_bytes_that_kafka_writes() -> None:
    record = OffsetRecord("gr", "t", 3, CommittedOffset(42, 1_700_000_000_000, 7, "m"))
    key, value = encode(record)
    assert key == b"\0\1" + b"\0\2gr" + b"\0\1t" + b"\0\0\0\3"
    assert value == struct.pack(">hqi", 3, 42, 7) + b"\0\1m" + struct.pack(">q", 1_700_000_000_000)


def test_a_classic_group_has_the_bytes_that_kafka_writes() -> None:
    member = StoredMember("m-1", None, "c", "/h", 60_000, 10_000, b"sub", b"asg")
    key, value = encode(ClassicGroupRecord("gr", StoredGroup("consumer", 5, "range", "m-1", 99, (member,))))
    assert key == b"\0\2" + b"\0\2gr"
    assert value == (
        b"\0\3\0\x08consumer\0\0\0\5\0\5range\0\3m-1"
        + struct.pack(">qi", 99, 1)
        + b"\0\3m-1\xff\xff\0\1c\0\2/h"
        + struct.pack(">ii", 60_000, 10_000)
        + b"\0\0\0\3sub\0\0\0\3asg"
    )


def test_a_consumer_member_has_the_bytes_that_kafka_writes() -> None:
    topic_id = uuid.UUID(int=5)
    current = CurrentAssignment(4, 3, MemberState.UNREVOKED_PARTITIONS, {topic_id: frozenset({1, 0})}, {})
    key, value = encode(CurrentAssignmentRecord("gr", "m", current))
    assert key == b"\0\x08\0\2gr\0\1m"
    assigned = b"\2" + topic_id.bytes + b"\3" + struct.pack(">ii", 0, 1) + b"\0"
    assert value == b"\0\0" + struct.pack(">iib", 4, 3, 1) + assigned + b"\1" + b"\0"


def test_the_topics_of_a_consumer_group_have_the_bytes_that_kafka_writes() -> None:
    topic_id = uuid.UUID(int=5)
    key, value = encode(GroupTopicsRecord("gr", {"t": SubscribedTopic(topic_id, 4)}))
    assert key == b"\0\4\0\2gr"
    assert value == b"\0\0" + b"\2" + topic_id.bytes + b"\2t" + b"\0\0\0\4" + b"\1" + b"\0" + b"\0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (struct.pack(">hq", 0, 5) + b"\0\1m" + struct.pack(">q", 9), CommittedOffset(5, 9, -1, "m")),
        (struct.pack(">hq", 1, 5) + b"\0\1m" + struct.pack(">qq", 9, 20), CommittedOffset(5, 9, -1, "m", 20)),
        (struct.pack(">hq", 1, 5) + b"\0\1m" + struct.pack(">qq", 9, -1), CommittedOffset(5, 9, -1, "m")),
        (struct.pack(">hq", 2, 5) + b"\0\1m" + struct.pack(">q", 9), CommittedOffset(5, 9, -1, "m")),
        (struct.pack(">hqi", 3, 5, 2) + b"\0\1m" + struct.pack(">q", 9), CommittedOffset(5, 9, 2, "m")),
        (struct.pack(">hqi", 4, 5, 2) + b"\2m" + struct.pack(">q", 9) + b"\0", CommittedOffset(5, 9, 2, "m")),
        # Kafka 4.1 and later put the topic id into tag 0
        (
            struct.pack(">hqi", 4, 5, 2) + b"\2m" + struct.pack(">q", 9) + b"\1\0\x10" + bytes(16),
            CommittedOffset(5, 9, 2, "m"),
        ),
    ],
)
@pytest.mark.parametrize("key_version", [0, 1])
def test_every_version_of_an_offset_is_read(key_version: int, value: bytes, expected: CommittedOffset) -> None:
    key = struct.pack(">h", key_version) + b"\0\1g\0\1t\0\0\0\0"
    assert decode(key, value) == OffsetRecord("g", "t", 0, expected)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_classic_group_is_read(version: int) -> None:
    def text(raw: bytes) -> bytes:
        return bytes([len(raw) + 1]) + raw if version == 4 else struct.pack(">h", len(raw)) + raw

    def blob(raw: bytes) -> bytes:
        return bytes([len(raw) + 1]) + raw if version == 4 else struct.pack(">i", len(raw)) + raw

    end = b"\0" if version == 4 else b""
    value = struct.pack(">h", version) + text(b"consumer") + struct.pack(">i", 5) + text(b"range") + text(b"m-1")
    value += struct.pack(">q", 99) if version >= 2 else b""
    value += b"\2" if version == 4 else struct.pack(">i", 1)
    value += text(b"m-1") + (text(b"i") if version >= 3 else b"") + text(b"c") + text(b"/h")
    value += struct.pack(">i", 60_000) if version >= 1 else b""
    value += struct.pack(">i", 10_000) + blob(b"sub") + blob(b"asg") + end + end
    member = StoredMember(
        "m-1", "i" if version >= 3 else None, "c", "/h", 60_000 if version else 10_000, 10_000, b"sub", b"asg"
    )
    expected = StoredGroup("consumer", 5, "range", "m-1", 99 if version >= 2 else -1, (member,))
    assert decode(b"\0\2\0\1g", value) == ClassicGroupRecord("g", expected)


def test_records_of_other_kinds_of_groups_are_left_alone() -> None:
    share_group = struct.pack(">h", 11) + b"\0\1g"
    assert decode(share_group, b"\0\0") is None


def test_a_newer_value_than_known_is_an_error_not_a_guess() -> None:
    with pytest.raises(FieldError, match="version 5"):
        decode(b"\0\2\0\1g", b"\0\5")


def test_null_metadata_is_not_empty_metadata() -> None:
    null = OffsetRecord("g", "t", 0, CommittedOffset(1, 2, 3, None))
    empty = OffsetRecord("g", "t", 0, CommittedOffset(1, 2, 3, ""))
    assert decode(*encode(null)) == null
    assert decode(*encode(empty)) == empty


def test_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_records, "_NAMES_MAX", 3)
    monkeypatch.setattr(group_records, "_NAMES", {})
    for number in range(10):
        record = OffsetRecord(f"g{number}", "t", 0, CommittedOffset(number, 0, -1))
        assert decode(*encode(record)) == record
        assert len(group_records._NAMES) <= 3
