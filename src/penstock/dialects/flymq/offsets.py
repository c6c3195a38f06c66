"""Committed offsets by opcode: COMMIT, GET_OFFSET, RESET_OFFSET, GET_LAG, and the groups that hold them.

FlyMQ's group is a pair of topic and name. Here a name is one group for all dialects, and the pair is that group's offsets of
one topic: deleting the pair drops those. A pair is known while it has an offset or a connection that subscribed.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    GroupList,
    ListGroups,
    OffsetToCommit,
)
from penstock.dialects.flymq.errors import check_group, checked
from penstock.dialects.flymq.reading import end_of, start_of
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I32, TRUE, U32, U64, Reader, array, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import topic_name
from penstock.model.pending import gather

if TYPE_CHECKING:
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

NO_LEADER_EPOCH = -1


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


def get_offset(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group, partition = reader.string(), reader.string(), reader.i32()

    def found(offsets: Mapping[int, FetchedOffset]) -> bytes:
        return U64.pack(_committed(offsets, partition))

    return follow(_offsets_of(service, topic, group), found)


def get_lag(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group, partition = reader.string(), reader.string(), reader.i32()
    service.check_partition(topic, partition)

    def found(latest: int, offsets: Mapping[int, FetchedOffset]) -> bytes:
        committed = _committed(offsets, partition)
        return b"".join(map(U64.pack, (committed, committed, latest, max(0, latest - committed))))

    offsets = _offsets_of(service, topic, group)
    return follow(end_of(service, topic, partition), lambda latest: follow(offsets, partial(found, latest)))


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


def _offsets_of(service: FlyMQService, topic: str, group: str) -> Any:
    """The offsets of a pair by partition. It has to be known."""

    def fetched(result: FetchResult | Fault) -> Mapping[int, FetchedOffset]:
        checked(result if isinstance(result, Fault) else result.fault)
        assert isinstance(result, FetchResult)
        offsets = result.offsets.get(topic, {})
        if not offsets and not service.subscribers(topic, group):
            raise BrokerError(Fault.GROUP_ID_NOT_FOUND, f"consumer group not found: {topic}:{group}")
        return offsets

    return follow(service.engine.groups.ask(group, FetchOffsets(group, None)), fetched)


# ---- groups -------------------------------------------------------------------------------------------------------


def list_groups(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    """Every pair that has an offset or a subscriber."""

    def listed(results: list[GroupList | Fault] | Fault) -> Any:
        checked(results if isinstance(results, Fault) else Fault.NONE)
        assert isinstance(results, list)
        names = {group for _, group in service.subscribed_pairs()}
        for result in results:
            checked(result if isinstance(result, Fault) else Fault.NONE)
            assert isinstance(result, GroupList)
            names.update(group.group for group in result.groups)
        ordered = sorted(names)
        return follow(gather([_described(service, name) for name in ordered]), put_together)

    def put_together(groups: list[list[bytes] | BrokerError]) -> bytes:
        rows: list[bytes] = []
        for group in groups:
            if isinstance(group, BrokerError):
                raise group
            rows += group
        return array(rows)

    return follow(service.engine.groups.ask_all(ListGroups()), listed)


def describe_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group = reader.string(), reader.string()
    found = follow(_offsets_of(service, topic, group), lambda _: _described(service, group, topic))
    return follow(found, lambda rows: rows[0])


def _described(service: FlyMQService, group: str, only: str | None = None) -> Any:
    """A row for each topic of the group, or for the one asked for."""
    groups = service.engine.groups
    asked = [groups.ask(group, FetchOffsets(group, None)), groups.ask(group, DescribeGroup(group))]

    def told(results: list[Any]) -> list[bytes]:
        fetched, described = results
        for result in results:
            checked(result if isinstance(result, Fault) else Fault.NONE)
        assert isinstance(fetched, FetchResult)
        assert isinstance(described, GroupDescription)
        topics = set(fetched.offsets) | {topic for topic, name in service.subscribed_pairs() if name == group}
        rows = []
        for topic in sorted(topics if only is None else {only}):
            members = len(described.members) + service.subscribers(topic, group)
            offsets = fetched.offsets.get(topic, {})
            rows.append(
                b"".join(
                    (
                        string(topic),
                        string(group),
                        U32.pack(members),
                        array([I32.pack(at) + U64.pack(_committed(offsets, at)) for at in sorted(offsets)]),
                    )
                )
            )
        return rows

    return follow(gather(asked), told)


def delete_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group = reader.string(), reader.string()

    def known(offsets: Mapping[int, FetchedOffset]) -> Any:
        if not offsets:
            service.unsubscribe_all(topic, group)
            return TRUE
        command = DeleteOffsets(group, tuple((topic, partition) for partition in offsets))
        return follow(service.engine.groups.ask(group, command), deleted)

    def deleted(result: DeleteOffsetsResult | Fault) -> bytes:
        fault = result if isinstance(result, Fault) else result.fault
        checked(fault, f"consumer group {group} has members" if fault is Fault.NON_EMPTY_GROUP else "")
        assert isinstance(result, DeleteOffsetsResult)
        if result.refused:
            raise BrokerError(Fault.GROUP_SUBSCRIBED_TO_TOPIC, f"consumer group {group} has members that read {topic}")
        service.unsubscribe_all(topic, group)
        return TRUE

    return follow(_offsets_of(service, topic, group), known)
