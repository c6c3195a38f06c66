"""Classic consumer groups (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) and what can be asked of every group.

Who is a member and when a group rebalances is the coordinator's; here is what each version of a request means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.coordination.group_commands import (
    DeleteGroup,
    DeleteResult,
    DescribeGroup,
    GroupDescription,
    GroupList,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeaveResult,
    LeavingMember,
    ListGroups,
    SyncGroup,
    SyncResult,
)
from penstock.dialects.kafka.coordinators import ask_group
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.dialects.kafka.metadata import OPERATIONS_NOT_ASKED
from penstock.model.errors import Fault
from penstock.model.pending import gather, when

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
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
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

    return when(ask_group(service, command.group, command), answer)


def sync_group(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
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
    command = SyncGroup(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        protocol_type=protocol_type,
        protocol=protocol,
        assignments={entry.member_id: entry.assignment for entry in body.assignments},
    )
    return when(ask_group(service, command.group, command), answer)


def heartbeat(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    command = Heartbeat(body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id)

    def answer(result: HeartbeatResult | Fault) -> dict[str, Any]:
        return {"error_code": result if isinstance(result, Fault) else result.fault}

    return when(ask_group(service, command.group, command), answer)


def leave_group(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """One member, and its fault on top, before version 3; any number of them, each with its own, from then on."""
    if version >= 3:
        leaving = tuple(LeavingMember(member.member_id, member.group_instance_id) for member in body.members)
    else:
        leaving = (LeavingMember(body.member_id, None),)

    def answer(result: LeaveResult | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = LeaveResult(result)
        fault = result.fault
        if version < 3 and fault is Fault.NONE:
            fault = result.members[0][1]
        return {
            "error_code": fault,
            "members": [
                {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": member_fault}
                for member, member_fault in result.members
            ],
        }

    return when(ask_group(service, body.group_id, LeaveGroup(body.group_id, leaving)), answer)


# ---- questions --------------------------------------------------------------------------------------------------------


def describe_groups(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    operations = GROUP_OPERATIONS if getattr(body, "include_authorized_operations", False) else OPERATIONS_NOT_ASKED

    def row(group: str, result: GroupDescription | Fault) -> dict[str, Any]:
        if isinstance(result, Fault):
            result = GroupDescription(result, group, state="")
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

    asked = [ask_group(service, group, DescribeGroup(group)) for group in body.groups]
    return when(gather(asked), lambda results: {"groups": list(map(row, body.groups, results))})


def _text(group: str, fault: Fault) -> str:
    return f"Group {group} not found." if fault is Fault.GROUP_ID_NOT_FOUND else fault.value


def list_groups(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    command = ListGroups(tuple(getattr(body, "states_filter", ())), tuple(getattr(body, "types_filter", ())))

    def answer(results: list[GroupList | Fault] | Fault) -> dict[str, Any]:
        if isinstance(results, Fault):
            return {"error_code": results, "groups": []}
        groups = []
        for result in results:
            if isinstance(result, Fault):
                return {"error_code": result, "groups": []}
            groups += [
                {
                    "group_id": listed.group,
                    "protocol_type": listed.protocol_type,
                    "group_state": listed.state,
                    "group_type": listed.type,
                }
                for listed in result.groups
            ]
        return {"error_code": Fault.NONE, "groups": groups}

    asked: Any = service.engine.groups.ask_all(command)
    return when(asked, answer)


def delete_groups(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    def row(group: str, result: DeleteResult | Fault) -> dict[str, Any]:
        return {"group_id": group, "error_code": result if isinstance(result, Fault) else result.fault}

    names = body.groups_names
    asked = [ask_group(service, group, DeleteGroup(group)) for group in names]
    return when(gather(asked), lambda results: {"results": list(map(row, names, results))})
