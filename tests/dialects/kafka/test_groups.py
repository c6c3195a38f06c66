from __future__ import annotations

from typing import Any

import pytest

from penstock.coordination.group_commands import (
    DeleteGroup,
    DeleteResult,
    DescribedMember,
    DescribeGroup,
    GroupDescription,
    GroupList,
    Heartbeat,
    HeartbeatResult,
    JoinedMember,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    ListGroups,
    SyncGroup,
    SyncResult,
)
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.groups import GROUP_OPERATIONS
from penstock.model.errors import Fault
from penstock.model.limits import GROUP_PROTOCOLS_MAX
from tests.dialects.kafka.stand_in import CLIENT_HOST, CLIENT_ID, NODE, Client, versions

LOADING, NOT_AVAILABLE, UNKNOWN_MEMBER, NOT_FOUND, INVALID_REQUEST = 14, 15, 25, 69, 42
OPERATIONS_NOT_ASKED = -(2**31)


@pytest.fixture
def client() -> Client:
    return Client()


# ---- FindCoordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_this_node_coordinates_every_group_once_the_topic_is_there(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]})
    rows = answer.coordinators if version >= 4 else [answer]
    assert [(row.error_code, row.node_id, row.host, row.port) for row in rows] == [(0, NODE, "broker.test", 9_092)] * (
        2 if version >= 4 else 1
    )
    if version >= 4:
        assert [row.key for row in rows] == ["g", "h"]
    assert (client.groups.ensured, client.transactions.ensured) == (1, 0)


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR, first=1))
def test_key_type_1_asks_for_the_coordinator_of_a_transaction(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, {"key": "t", "key_type": 1, "coordinator_keys": ["t"]})
    row = answer.coordinators[0] if version >= 4 else answer
    assert (row.error_code, row.node_id) == (0, NODE)
    assert (client.groups.ensured, client.transactions.ensured) == (0, 1)


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_no_coordinator_is_an_error_with_no_address(client: Client, version: int) -> None:
    client.groups.made = Fault.COORDINATOR_NOT_AVAILABLE
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, {"key": "g", "key_type": 0, "coordinator_keys": ["g"]})
    row = answer.coordinators[0] if version >= 4 else answer
    assert (row.error_code, row.node_id, row.host, row.port) == (NOT_AVAILABLE, -1, "", -1)
    if version >= 1:
        assert row.error_message


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR, first=1))
@pytest.mark.parametrize("key_type", [0, 1])
def test_find_coordinator_names_the_reason_why_nothing_can_be_stored(
    client: Client, version: int, key_type: int
) -> None:
    client.engine.coordination_problem = "no room"
    fields = {"key": "g", "key_type": key_type, "coordinator_keys": ["g"]}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, fields)
    row = answer.coordinators[0] if version >= 4 else answer
    assert (row.error_code, row.node_id, row.error_message) == (0, NODE, "no room")


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR, first=1))
@pytest.mark.parametrize("key_type", [0, 1])
def test_topic_of_a_coordinator_is_not_created_where_nothing_can_be_stored(
    client: Client, version: int, key_type: int
) -> None:
    client.engine.coordination_problem = "no room"
    client.groups.is_open = client.transactions.is_open = False
    fields = {"key": "g", "key_type": key_type, "coordinator_keys": ["g"]}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, fields)
    row = answer.coordinators[0] if version >= 4 else answer
    assert (row.error_code, row.node_id, row.error_message) == (NOT_AVAILABLE, -1, "no room")
    assert (client.groups.ensured, client.transactions.ensured) == (0, 0)


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR, first=4))
def test_find_coordinator_answers_for_each_group_by_itself(client: Client, version: int) -> None:
    client.groups.problems["g"] = "its log is read-only"
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, {"key_type": 0, "coordinator_keys": ["g", "h"]})
    assert [(row.key, row.error_code, row.error_message) for row in answer.coordinators] == [
        ("g", 0, "its log is read-only"),
        ("h", 0, None),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR, first=1))
def test_other_key_types_have_no_coordinator(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, {"key": "g", "key_type": 2, "coordinator_keys": ["g"]})
    row = answer.coordinators[0] if version >= 4 else answer
    assert (row.error_code, row.node_id) == (INVALID_REQUEST, -1)


# ---- JoinGroup --------------------------------------------------------------------------------------------------------

JOIN: dict[str, Any] = {
    "group_id": "g",
    "session_timeout": 10_000,
    "rebalance_timeout": 60_000,
    "member_id": "m",
    "group_instance_id": "i",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"\x00r"}, {"name": "rr", "metadata": b""}],
    "reason": "because",
}


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_join_says_all_that_its_version_can(client: Client, version: int) -> None:
    client.groups.answers[JoinGroup] = JoinResult(
        Fault.NONE,
        "m",
        7,
        "consumer",
        "range",
        leader="m",
        skip_assignment=True,
        members=(JoinedMember("m", "i", b"\x00r"), JoinedMember("n", None, b"")),
    )
    answer = client.ask(ApiKey.JOIN_GROUP, version, JOIN)
    assert client.groups.asked == [
        JoinGroup(
            "g",
            "m",
            "i" if version >= 5 else None,
            CLIENT_ID,
            f"/{CLIENT_HOST}",
            10_000,
            60_000 if version >= 1 else 10_000,
            "consumer",
            (("range", b"\x00r"), ("rr", b"")),
            needs_member_id=version >= 4,
            may_skip_assignment=version >= 9,
        )
    ]
    assert (answer.error_code, answer.generation_id, answer.protocol_name, answer.leader, answer.member_id) == (
        0,
        7,
        "range",
        "m",
        "m",
    )
    assert [(member.member_id, member.metadata) for member in answer.members] == [("m", b"\x00r"), ("n", b"")]
    if version >= 5:
        assert [member.group_instance_id for member in answer.members] == ["i", None]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    if version >= 9:
        assert answer.skip_assignment


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
@pytest.mark.parametrize(
    ("result", "code", "member_id"),
    [
        (JoinResult(Fault.MEMBER_ID_REQUIRED, "made-1"), 79, "made-1"),
        (Fault.COORDINATOR_NOT_AVAILABLE, NOT_AVAILABLE, "m"),
    ],
)
def test_a_refused_join_has_no_protocol_and_keeps_the_member_id(
    client: Client, version: int, result: object, code: int, member_id: str
) -> None:
    client.groups.answers[JoinGroup] = result
    answer = client.ask(ApiKey.JOIN_GROUP, version, JOIN)
    assert (answer.error_code, answer.member_id, answer.generation_id, answer.members) == (code, member_id, -1, ())
    assert answer.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("too_many", [0, 1])
def test_assignors_of_a_member_are_limited(client: Client, too_many: int) -> None:
    client.groups.answers[JoinGroup] = JoinResult(Fault.MEMBER_ID_REQUIRED, "made-1")
    protocols = [{"name": f"p{number}", "metadata": b""} for number in range(GROUP_PROTOCOLS_MAX + too_many)]
    answer = client.ask(ApiKey.JOIN_GROUP, 5, {**JOIN, "protocols": protocols})
    assert answer.error_code == (42 if too_many else 79)
    assert len(client.groups.asked) == 1 - too_many


# ---- SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------------------------------------

SYNC: dict[str, Any] = {
    "group_id": "g",
    "generation_id": 4,
    "member_id": "m",
    "group_instance_id": "i",
    "protocol_type": "consumer",
    "protocol_name": "range",
    "assignments": [{"member_id": "m", "assignment": b"\x01"}, {"member_id": "n", "assignment": b""}],
}


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_a_sync_brings_and_gets_assignments(client: Client, version: int) -> None:
    client.groups.answers[SyncGroup] = SyncResult(Fault.NONE, b"\x01", "consumer", "range")
    answer = client.ask(ApiKey.SYNC_GROUP, version, SYNC)
    known = version >= 5
    assert client.groups.asked == [
        SyncGroup(
            "g",
            "m",
            "i" if version >= 3 else None,
            4,
            "consumer" if known else None,
            "range" if known else None,
            {"m": b"\x01", "n": b""},
        )
    ]
    assert (answer.error_code, answer.assignment) == (0, b"\x01")
    if known:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


def test_from_version_5_on_a_sync_without_protocol_is_inconsistent(client: Client) -> None:
    for missing in ("protocol_type", "protocol_name"):
        assert client.ask(ApiKey.SYNC_GROUP, 5, {**SYNC, missing: None}).error_code == 23
    assert client.groups.asked == []


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_a_sync_that_cannot_be_served_has_an_empty_assignment(client: Client, version: int) -> None:
    client.groups.fault_at_once = Fault.COORDINATOR_LOADING
    answer = client.ask(ApiKey.SYNC_GROUP, version, SYNC)
    assert (answer.error_code, answer.assignment) == (LOADING, b"")


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_a_heartbeat_is_answered_with_the_coordinators_fault(client: Client, version: int) -> None:
    asked = {"group_id": "g", "generation_id": 4, "member_id": "m", "group_instance_id": "i"}
    client.groups.answers[Heartbeat] = HeartbeatResult(Fault.REBALANCE_IN_PROGRESS)
    assert client.ask(ApiKey.HEARTBEAT, version, asked).error_code == 27
    assert client.groups.asked == [Heartbeat("g", "m", "i" if version >= 3 else None, 4)]
    client.groups.answers[Heartbeat] = Fault.NOT_COORDINATOR
    assert client.ask(ApiKey.HEARTBEAT, version, asked).error_code == 16


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_members_leave_alone_or_together(client: Client, version: int) -> None:
    def leave(command: LeaveGroup) -> LeaveResult:
        return LeaveResult(Fault.NONE, tuple((member, Fault.UNKNOWN_MEMBER_ID) for member in command.members))

    client.groups.answers[LeaveGroup] = leave
    members = [
        {"member_id": "m", "group_instance_id": None, "reason": "done"},
        {"member_id": "", "group_instance_id": "i", "reason": None},
    ]
    answer = client.ask(ApiKey.LEAVE_GROUP, version, {"group_id": "g", "member_id": "m", "members": members})
    if version < 3:
        assert client.groups.asked == [LeaveGroup("g", (LeavingMember("m", None),))]
        assert answer.error_code == UNKNOWN_MEMBER
    else:
        assert client.groups.asked == [LeaveGroup("g", (LeavingMember("m", None), LeavingMember("", "i")))]
        assert answer.error_code == 0
        assert [(row.member_id, row.group_instance_id, row.error_code) for row in answer.members] == [
            ("m", None, UNKNOWN_MEMBER),
            ("", "i", UNKNOWN_MEMBER),
        ]
    client.groups.fault_at_once = Fault.COORDINATOR_LOADING
    answer = client.ask(ApiKey.LEAVE_GROUP, version, {"group_id": "g", "member_id": "m", "members": members})
    assert answer.error_code == LOADING


# ---- DescribeGroups, ListGroups, DeleteGroups -------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_every_asked_group_is_described_in_order(client: Client, version: int) -> None:
    found = {
        "g": GroupDescription(
            Fault.NONE,
            "g",
            "Stable",
            "consumer",
            "range",
            (DescribedMember("m", "i", "client", "/host", b"meta", b"assigned"),),
        ),
        "gone": GroupDescription(Fault.GROUP_ID_NOT_FOUND, "gone", "Dead"),
        "away": Fault.COORDINATOR_LOADING,
    }
    client.groups.answers[DescribeGroup] = lambda command: found[command.group]
    answer = client.ask(
        ApiKey.DESCRIBE_GROUPS, version, {"groups": ["gone", "g", "away"], "include_authorized_operations": True}
    )
    gone, stable, away = answer.groups
    assert [row.group_id for row in answer.groups] == ["gone", "g", "away"]
    assert (gone.error_code, gone.group_state, gone.members) == (NOT_FOUND if version >= 6 else 0, "Dead", ())
    assert (away.error_code, away.group_state) == (LOADING, "")
    assert (stable.error_code, stable.group_state, stable.protocol_type, stable.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = stable.members
    assert (member.member_id, member.client_id, member.client_host) == ("m", "client", "/host")
    assert (member.member_metadata, member.member_assignment) == (b"meta", b"assigned")
    if version >= 3:
        assert stable.authorized_operations == GROUP_OPERATIONS == 0b1_0100_1000
    if version >= 4:
        assert member.group_instance_id == "i"
    if version >= 6:
        assert gone.error_message == "Group gone not found."
        assert stable.error_message is None


def test_operations_are_told_only_when_asked_for(client: Client) -> None:
    client.groups.answers[DescribeGroup] = GroupDescription(Fault.NONE, "g", "Empty")
    answer = client.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"], "include_authorized_operations": False})
    assert answer.groups[0].authorized_operations == OPERATIONS_NOT_ASKED


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_the_groups_of_all_shards_are_listed(client: Client, version: int) -> None:
    client.groups.answers[ListGroups] = lambda command: [
        GroupList((ListedGroup("g", "consumer", "Stable", "classic"),)),
        GroupList(()),
        GroupList((ListedGroup("h", "consumer", "Empty", "consumer"), ListedGroup("i", "", "Empty", "classic"))),
    ]
    answer = client.ask(ApiKey.LIST_GROUPS, version, {"states_filter": ["Stable"], "types_filter": ["classic"]})
    assert client.groups.asked == [
        ListGroups(("Stable",) if version >= 4 else (), ("classic",) if version >= 5 else ())
    ]
    assert answer.error_code == 0
    assert [(row.group_id, row.protocol_type) for row in answer.groups] == [
        ("g", "consumer"),
        ("h", "consumer"),
        ("i", ""),
    ]
    if version >= 4:
        assert [row.group_state for row in answer.groups] == ["Stable", "Empty", "Empty"]
    if version >= 5:
        assert [row.group_type for row in answer.groups] == ["classic", "consumer", "classic"]


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_a_list_is_whole_or_an_error(client: Client, version: int) -> None:
    client.groups.answers[ListGroups] = lambda command: [
        GroupList((ListedGroup("g", "consumer", "Stable", "classic"),)),
        Fault.COORDINATOR_NOT_AVAILABLE,
    ]
    answer = client.ask(ApiKey.LIST_GROUPS, version, {})
    assert (answer.error_code, answer.groups) == (NOT_AVAILABLE, ())
    client.groups.fault_at_once = Fault.COORDINATOR_LOADING
    answer = client.ask(ApiKey.LIST_GROUPS, version, {})
    assert (answer.error_code, answer.groups) == (LOADING, ())


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_a_broker_that_never_had_a_group_lists_none(client: Client, version: int) -> None:
    client.groups.answers[ListGroups] = lambda command: []
    answer = client.ask(ApiKey.LIST_GROUPS, version, {})
    assert (answer.error_code, answer.groups) == (0, ())


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_are_deleted_one_by_one(client: Client, version: int) -> None:
    found = {"g": DeleteResult(Fault.NONE), "h": DeleteResult(Fault.NON_EMPTY_GROUP), "i": Fault.COORDINATOR_LOADING}
    client.groups.answers[DeleteGroup] = lambda command: found[command.group]
    answer = client.ask(ApiKey.DELETE_GROUPS, version, {"groups_names": ["h", "g", "i"]})
    assert [(row.group_id, row.error_code) for row in answer.results] == [("h", 68), ("g", 0), ("i", LOADING)]
