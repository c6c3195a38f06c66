"""Classic consumer groups (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) and what can be asked of every group.

Who is a member and when a group rebalances is the coordinator's; here is what each version of a request means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.coordination.group_commands import (
    DeleteGroup,
    DeleteResult,
    DescribeGroup,
    GroupDescription,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
    SyncResult,
)
from penstock.dialects.kafka.coordinators import Room, ask_each, ask_group
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.dialects.kafka.metadata import OPERATIONS_NOT_ASKED
from penstock.model import limits
from penstock.model.errors import Fault
from penstock.model.pending import Pending, when
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

# Bits of Kafka's AclOperation: without an authorizer every operation is allowed.
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))

_FIRST_WITH_REBALANCE_TIMEOUT = 1
_FIRST_WITH_MEMBER_ID_ROUND_TRIP = 4
_FIRST_WITH_NULL_PROTOCOL = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT = 9


# ---- membership -------------------------------------------------------------------------------------------------------


def join_group(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    session_timeout_ms = milliseconds(body.session_timeout)
    command = JoinGroup(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            milliseconds(body.rebalance_timeout) if version >= _FIRST_WITH_REBALANCE_TIMEOUT else session_timeout_ms
        ),
        protocol_type=body.protocol_type,
        protocols=tuple(
            (protocol.name, protocol.metadata) for protocol in body.protocols[: limits.GROUP_PROTOCOLS_MAX + 1]
        ),
        needs_member_id=version >= _FIRST_WITH_MEMBER_ID_ROUND_TRIP,
        may_skip_assignment=version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )

    def answer(result: JoinResult | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = JoinResult(result, body.member_id)
        protocol = result.protocol
        if protocol is None and version < _FIRST_WITH_NULL_PROTOCOL:
            protocol = ""
        return {
            "error_code": result.fault,
            "generation_id": result.generation,
            "protocol_type": result.protocol_type,
            "protocol_name": protocol,
            "leader": result.leader,
            "skip_assignment": result.skip_assignment,
            "member_id": result.member_id,
            "members": [
                {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
                for member in result.members
            ],
        }

    if len(command.protocols) > limits.GROUP_PROTOCOLS_MAX:
        return answer(Fault.INVALID_REQUEST)
    return when(ask_group(service, command.group, command), answer)


def sync_group(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    def answer(result: SyncResult | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = SyncResult(result)
        return {
            "error_code": result.fault,
            "protocol_type": result.protocol_type,
            "protocol_name": result.protocol,
            "assignment": result.assignment,
        }

    protocol_type = getattr(body, "protocol_type", None)
    protocol = getattr(body, "protocol_name", None)
    if version >= 5 and (protocol_type is None or protocol is None):
        return answer(Fault.INCONSISTENT_GROUP_PROTOCOL)  # KIP-559: no longer optional
    assignments: dict[str, bytes] = {}
    for entry in body.assignments:
        assignments[entry.member_id] = entry.assignment
        yield None
    command = SyncGroup(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        protocol_type=protocol_type,
        protocol=protocol,
        assignments=assignments,
    )
    result = ask_group(service, command.group, command)
    return answer((yield result) if isinstance(result, Pending) else result)


def heartbeat(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    command = Heartbeat(body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id)

    def answer(result: HeartbeatResult | Fault) -> dict[str, Any]:
        return {"error_code": result if isinstance(result, Fault) else result.fault}

    return when(ask_group(service, command.group, command), answer)


DELETED_AT_ONCE = 200
"""Offsets of a group that are deleted with one command: about a millisecond."""
LEAVING_AT_ONCE = 100
"""Members that leave with one command: about a millisecond."""


def leave_group(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """One member with a top-level error before version 3; any number of members with an error each from then on."""
    left: list[tuple[LeavingMember, Fault]] = []
    for first in range(0, max(1, len(body.members)) if version >= 3 else 1, LEAVING_AT_ONCE):
        if version >= 3:
            members = body.members[first : first + LEAVING_AT_ONCE]
            some = tuple(LeavingMember(member.member_id, member.group_instance_id) for member in members)
        else:
            some = (LeavingMember(body.member_id, None),)
        result = ask_group(service, body.group_id, LeaveGroup(body.group_id, some))
        if isinstance(result, Pending):
            result = yield result
        fault = result if isinstance(result, Fault) else result.fault
        if fault is not Fault.NONE:
            return {"error_code": fault, "members": []}
        left += result.members
    rows = []
    for member, member_fault in left:
        rows.append(
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": member_fault}
        )
        yield None
    return {"error_code": left[0][1] if version < 3 else Fault.NONE, "members": rows}


# ---- questions --------------------------------------------------------------------------------------------------------


def describe_groups(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    operations = GROUP_OPERATIONS if getattr(body, "include_authorized_operations", False) else OPERATIONS_NOT_ASKED
    room = Room()

    def row(group: str, result: GroupDescription | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = GroupDescription(result, group, state="")
        room.take(1 + len(result.members))
        fault = result.fault
        if version < 6 and fault is Fault.GROUP_ID_NOT_FOUND:
            fault = Fault.NONE  # the state Dead says it (KIP-1043)
        return {
            "error_code": fault,
            "error_message": None if fault is Fault.NONE else _text(group, fault),
            "group_id": group,
            "group_state": result.state,
            "protocol_type": result.protocol_type,
            "protocol_data": result.protocol,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata,
                    "member_assignment": member.assignment,
                }
                for member in result.members
            ],
            "authorized_operations": operations if fault is Fault.NONE else OPERATIONS_NOT_ASKED,
        }

    return {"groups": (yield from ask_each(body.groups, partial(_ask, service, DescribeGroup), row))}


def _ask(service: KafkaService, command: Callable[[str], Any], group: str) -> Any:
    return ask_group(service, group, command(group))


def _text(group: str, fault: Fault) -> str:
    return f"Group {group} not found." if fault is Fault.GROUP_ID_NOT_FOUND else fault.value


def list_groups(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    listed = yield from service.engine.groups.list_in_slices(
        getattr(body, "states_filter", ()), getattr(body, "types_filter", ())
    )
    if isinstance(listed, Fault):
        return {"error_code": listed, "groups": []}
    rows = []
    for group in listed:
        rows.append(
            {
                "group_id": group.group,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
        )
        yield None
    return {"error_code": Fault.NONE, "groups": rows}


def delete_groups(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    def ask(group: str) -> Any:
        return ask_group(service, group, DeleteGroup(group, DELETED_AT_ONCE))

    def answered(group: str, result: DeleteResult | Fault) -> tuple[str, DeleteResult | Fault]:
        return group, result

    rows = []
    for group, result in (yield from ask_each(body.groups_names, ask, answered)):
        while isinstance(result, DeleteResult) and result.is_partial:
            asked = ask(group)
            result = (yield asked) if isinstance(asked, Pending) else asked
        rows.append({"group_id": group, "error_code": result if isinstance(result, Fault) else result.fault})
        yield None
    return {"results": rows}
