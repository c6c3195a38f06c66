"""Committed offsets by opcode: COMMIT, GET_OFFSET, RESET_OFFSET, GET_LAG, and the groups that hold them.

FlyMQ's group is a pair of topic and name. Here a name is one group for all dialects, and the pair is that group's offsets of
one topic: deleting the pair drops those. A pair is known while it has an offset or a connection that subscribed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    DeleteOffsets,
    DeleteOffsetsResult,
    DescribeGroup,
    FetchedOffset,
    FetchOffsets,
    FetchResult,
    GroupDescription,
    OffsetToCommit,
)
from penstock.dialects.flymq.errors import check_group, checked
from penstock.dialects.flymq.reading import end_of, start_of
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I32, TRUE, U32, U64, Reader, Rows, array, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import topic_name
from penstock.model.pending import Pending
from penstock.model.slices import Work, sorted_in_slices

if TYPE_CHECKING:
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

NO_LEADER_EPOCH = -1
ASKED_AT_ONCE = 200
"""Offsets that one command looks up, commits or deletes: about a millisecond."""
PAIRS_AT_ONCE = 1_000
"""Subscribed pairs searched between two pauses."""


def commit(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group, partition, offset = reader.string(), reader.string(), reader.i32(), reader.offset()
    topic_name(topic)  # it need not exist
    return commit_as_nobody(service, check_group(group), topic, partition, offset)


def commit_as_nobody(service: FlyMQService, group: str, topic: str, partition: int, offset: int) -> Any:
    """A commit of a connection that is no member of the group: refused while the group has some."""
    if partition < 0:
        raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} not found")
    offsets = (OffsetToCommit(topic, partition, offset, NO_LEADER_EPOCH, ""),)
    command = CommitOffsets(group, NO_MEMBER, None, NO_GENERATION, offsets)

    def committed(result: CommitResult | Fault) -> bytes:
        fault = result if isinstance(result, Fault) else result.fault
        if fault is Fault.UNKNOWN_MEMBER_ID:
            raise BrokerError(fault, f"consumer group {group} has members: only they commit")
        checked(fault)
        return TRUE

    return follow(service.engine.groups.commit(command, service.settings.acks), committed)


def get_offset(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    topic, group, partition = reader.string(), reader.string(), reader.i32()
    return U64.pack(_committed((yield from _offsets_of(service, topic, group, partition)), partition))


def get_lag(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    topic, group, partition = reader.string(), reader.string(), reader.i32()
    service.check_partition(topic, partition)
    ending = end_of(service, topic, partition)
    committed = _committed((yield from _offsets_of(service, topic, group, partition)), partition)
    latest = (yield ending) if isinstance(ending, Pending) else ending
    if isinstance(latest, BrokerError):
        raise latest
    return b"".join(map(U64.pack, (committed, committed, latest, max(0, latest - committed))))


def reset_offset(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group, partition, mode = reader.string(), reader.string(), reader.i32(), reader.short_string()
    check_group(group)
    service.check_partition(topic, partition)
    match mode:
        case "earliest":
            offset = start_of(service, topic, partition)
        case "latest":
            return follow(
                end_of(service, topic, partition), partial(commit_as_nobody, service, group, topic, partition)
            )
        case "offset":
            offset = reader.offset()
        case _:
            raise BrokerError(Fault.INVALID_REQUEST, f"unknown reset mode: {mode}")
    return commit_as_nobody(service, group, topic, partition, offset)


def _committed(offsets: Mapping[int, FetchedOffset], partition: int) -> int:
    fetched = offsets.get(partition)
    return 0 if fetched is None or fetched.value is None else max(0, fetched.value.offset)


def _offsets_of(
    service: FlyMQService, topic: str, group: str, partition: int | None = None
) -> Work[Mapping[int, FetchedOffset]]:
    """The offsets of a pair by partition: all, or the requested one. The pair must exist."""
    offsets = (yield from fetched(service, group, topic, partition)).get(topic, {})
    if not offsets and not service.subscribers(topic, group):
        raise BrokerError(Fault.GROUP_ID_NOT_FOUND, f"consumer group not found: {topic}:{group}")
    return offsets


def fetched(
    service: FlyMQService, group: str, topic: str | None = None, partition: int | None = None
) -> Work[dict[str, dict[int, FetchedOffset]]]:
    """The committed offsets of the group, of all topics or of one; only that of the given partition, if it has an offset."""
    groups = service.engine.groups
    if not groups.shards:
        yield groups.ensure()
    places: Mapping[str, Sequence[int]] = groups.partitions_of(group)
    if topic is not None:
        places = {topic: places.get(topic, ())}
        if partition is not None and partition in places[topic]:
            places = {topic: (partition,)}
    found: dict[str, dict[int, FetchedOffset]] = {}
    for part in parts_of(places):
        asked = groups.ask(group, FetchOffsets(group, part))
        result = (yield asked) if isinstance(asked, Pending) else asked
        checked(result if isinstance(result, Fault) else result.fault)
        assert isinstance(result, FetchResult)
        for name, offsets in result.offsets.items():
            found.setdefault(name, {}).update(offsets)
        yield None
    return {name: offsets for name, offsets in found.items() if offsets}


def parts_of(places: Mapping[str, Sequence[int]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """The partitions in parts for one command each; at least one part."""
    part: dict[str, tuple[int, ...]] = {}
    room = ASKED_AT_ONCE
    for topic, partitions in places.items():
        start = 0
        while start < len(partitions):
            taken = part[topic] = tuple(partitions[start : start + room])
            start += len(taken)
            room -= len(taken)
            if not room:
                yield part
                part, room = {}, ASKED_AT_ONCE
    if part or not any(places.values()):
        yield part


# ---- groups -------------------------------------------------------------------------------------------------------


def list_groups(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    """Every pair that has an offset or a subscriber."""
    subscribed: dict[str, set[str]] = {}
    for number, (topic, group) in enumerate(list(service.subscribed_pairs())):
        subscribed.setdefault(group, set()).add(topic)
        if number % PAIRS_AT_ONCE == 0:
            yield None
    listed = yield from service.engine.groups.list_in_slices((), ())
    checked(listed if isinstance(listed, Fault) else Fault.NONE)
    assert isinstance(listed, list)
    names = yield from sorted_in_slices({*subscribed, *(group.group for group in listed)})
    rows = Rows(service.frame_bytes_max)
    for name in names:
        yield from _describe(service, name, subscribed.get(name, ()), None, rows)
    return rows.array()


def describe_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    topic, group = reader.string(), reader.string()
    yield from _offsets_of(service, topic, group)
    rows = Rows(service.frame_bytes_max)
    yield from _describe(service, group, (), topic, rows)
    return rows.first()


def _describe(
    service: FlyMQService, group: str, subscribed: Collection[str], only: str | None, rows: Rows
) -> Work[None]:
    """Add a row for each topic of the group, or for the requested one."""
    found = yield from fetched(service, group, only)
    asked = service.engine.groups.ask(group, DescribeGroup(group))
    described = (yield asked) if isinstance(asked, Pending) else asked
    checked(described if isinstance(described, Fault) else Fault.NONE)
    assert isinstance(described, GroupDescription)
    topics: Iterable[str] = (only,) if only is not None else (yield from sorted_in_slices({*found, *subscribed}))
    for topic in topics:
        members = len(described.members) + service.subscribers(topic, group)
        offsets = found.get(topic, {})
        places = array([I32.pack(at) + U64.pack(_committed(offsets, at)) for at in sorted(offsets)])
        rows.add(b"".join((string(topic), string(group), U32.pack(members), places)))
        yield None


def delete_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    topic, group = reader.string(), reader.string()
    offsets = list((yield from _offsets_of(service, topic, group)))
    for start in range(0, len(offsets), ASKED_AT_ONCE):
        command = DeleteOffsets(group, tuple((topic, at) for at in offsets[start : start + ASKED_AT_ONCE]))
        asked = service.engine.groups.ask(group, command)
        result = (yield asked) if isinstance(asked, Pending) else asked
        fault = result if isinstance(result, Fault) else result.fault
        checked(fault, f"consumer group {group} has members" if fault is Fault.NON_EMPTY_GROUP else "")
        assert isinstance(result, DeleteOffsetsResult)
        if result.refused:
            raise BrokerError(Fault.GROUP_SUBSCRIBED_TO_TOPIC, f"consumer group {group} has members that read {topic}")
    service.unsubscribe_all(topic, group)
    return TRUE
