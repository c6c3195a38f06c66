from __future__ import annotations

from typing import Any

import pytest

from penstock.coordination.group_commands import (
    CommitOffsets,
    CommitResult,
    DeleteOffsets,
    DeleteOffsetsResult,
    FetchedOffset,
    FetchOffsets,
    FetchResult,
    OffsetToCommit,
    Producer,
)
from penstock.coordination.group_records import CommittedOffset
from penstock.coordination.transaction_commands import AddPartitions, PartitionsResult, VerifyPartitions
from penstock.coordination.transaction_states import Identity
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.offsets import COMMITTED_AT_ONCE
from penstock.model.errors import Fault
from tests.dialects.kafka.stand_in import IDS, OFFSETS_PARTITION, STRANGE_ID, Client, versions

UNKNOWN_TOPIC, UNKNOWN_ID, LOADING, NOT_AVAILABLE = 3, 100, 14, 15


@pytest.fixture
def client() -> Client:
    return Client()


def offset(partition: int, at: int, epoch: int = 5, metadata: str | None = "") -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": at,
        "committed_leader_epoch": epoch,
        "committed_metadata": metadata,
    }


def codes(answer: Any) -> list[tuple[int, int]]:
    return [(row.partition_index, row.error_code) for topic in answer.topics for row in topic.partitions]


# ---- OffsetCommit -----------------------------------------------------------------------------------------------------

COMMIT: dict[str, Any] = {
    "group_id": "g",
    "generation_id_or_member_epoch": 4,
    "member_id": "m",
    "group_instance_id": "i",
    "retention_time": -1,
    "topics": [
        {
            "name": "alpha",
            "topic_id": IDS["alpha"],
            "partitions": [offset(0, 10, 5, "note"), offset(2, 11, 6, None), offset(3, 12)],
        },
        {"name": "nowhere", "topic_id": STRANGE_ID, "partitions": [offset(0, 1)]},
        {"name": "beta", "topic_id": IDS["beta"], "partitions": [offset(0, 13, 7, "")]},
    ],
}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_a_commit_goes_to_the_coordinator_but_for_partitions_that_do_not_exist(client: Client, version: int) -> None:
    client.groups.answers[CommitOffsets] = CommitResult(Fault.NONE, {("alpha", 2): Fault.OFFSET_METADATA_TOO_LARGE})
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, COMMIT)

    def epoch(value: int) -> int:
        return value if version >= 6 else -1

    assert client.groups.asked == [
        CommitOffsets(
            "g",
            "m",
            "i" if version >= 7 else None,
            4,
            (
                OffsetToCommit("alpha", 0, 10, epoch(5), "note"),
                OffsetToCommit("alpha", 2, 11, epoch(6), None),
                OffsetToCommit("beta", 0, 13, epoch(7), ""),
            ),
            knows_consumer_groups=version >= 9,
        )
    ]
    strange = UNKNOWN_ID if version >= 10 else UNKNOWN_TOPIC
    assert codes(answer) == [(0, 0), (2, 12), (3, UNKNOWN_TOPIC), (0, strange), (0, 0)]
    if version >= 10:
        assert [topic.topic_id for topic in answer.topics] == [IDS["alpha"], STRANGE_ID, IDS["beta"]]
    else:
        assert [topic.name for topic in answer.topics] == ["alpha", "nowhere", "beta"]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
@pytest.mark.parametrize(
    ("result", "code"),
    [(CommitResult(Fault.ILLEGAL_GENERATION), 22), (Fault.COORDINATOR_NOT_AVAILABLE, NOT_AVAILABLE)],
)
def test_a_refused_commit_is_refused_for_each_partition(
    client: Client, version: int, result: object, code: int
) -> None:
    client.groups.answers[CommitOffsets] = result
    strange = UNKNOWN_ID if version >= 10 else UNKNOWN_TOPIC
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, COMMIT)
    assert codes(answer) == [(0, code), (2, code), (3, UNKNOWN_TOPIC), (0, strange), (0, code)]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_old_clients_may_say_how_long_an_offset_is_kept(client: Client, version: int) -> None:
    client.groups.answers[CommitOffsets] = CommitResult(Fault.NONE)
    client.ask(ApiKey.OFFSET_COMMIT, version, {**COMMIT, "retention_time": 60_000})
    assert client.groups.asked[0].retention_ms == 60_000


def test_a_commit_of_nothing_that_exists_asks_nobody(client: Client) -> None:
    answer = client.ask(ApiKey.OFFSET_COMMIT, 8, {**COMMIT, "topics": [COMMIT["topics"][1]]})
    assert codes(answer) == [(0, UNKNOWN_TOPIC)]
    assert client.groups.asked == []


# ---- OffsetFetch ------------------------------------------------------------------------------------------------------

VALUE = CommittedOffset(10, 1, 5, "note")
WANTED = [
    {"name": "alpha", "topic_id": IDS["alpha"], "partition_indexes": [1, 0]},
    {"name": "nowhere", "topic_id": STRANGE_ID, "partition_indexes": [0]},
]


def fetch_tree(topics: list[dict[str, Any]] | None) -> dict[str, Any]:
    group = {"group_id": "g", "topics": topics, "member_id": "m", "member_epoch": 6}
    return {**group, "require_stable": True, "groups": [group]}


def fetched(answer: Any, version: int) -> Any:
    if version < 8:
        return answer
    (group,) = answer.groups
    assert group.group_id == "g"
    return group


def held(command: FetchOffsets) -> FetchResult:
    """Partition 0 has something, the others have not."""
    assert command.partitions is not None
    return FetchResult(
        Fault.NONE,
        {
            topic: {at: FetchedOffset(VALUE if topic == "alpha" and at == 0 else None) for at in partitions}
            for topic, partitions in command.partitions.items()
        },
    )


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_asked_offsets_come_back_with_epoch_and_metadata(client: Client, version: int) -> None:
    client.groups.answers[FetchOffsets] = held
    answer = fetched(client.ask(ApiKey.OFFSET_FETCH, version, fetch_tree(WANTED)), version)
    by_id = version >= 10
    (command,) = client.groups.asked
    assert command == FetchOffsets(
        "g",
        {"alpha": (1, 0)} if by_id else {"alpha": (1, 0), "nowhere": (0,)},
        require_stable=version >= 7,
        member_id="m" if version >= 9 else None,
        member_epoch=6 if version >= 9 else -1,
    )
    if version >= 2:
        assert answer.error_code == 0
    alpha, nowhere = answer.topics
    assert [topic.topic_id if by_id else topic.name for topic in answer.topics] == (
        [IDS["alpha"], STRANGE_ID] if by_id else ["alpha", "nowhere"]
    )
    assert [(row.partition_index, row.committed_offset, row.metadata, row.error_code) for row in alpha.partitions] == [
        (1, -1, "", 0),
        (0, 10, "note", 0),
    ]
    if version >= 5:
        assert [row.committed_leader_epoch for row in alpha.partitions] == [-1, 5]
    assert [(row.committed_offset, row.error_code) for row in nowhere.partitions] == [(-1, UNKNOWN_ID if by_id else 0)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH, first=2))
def test_null_asks_for_all_offsets(client: Client, version: int) -> None:
    offsets = {"alpha": {2: FetchedOffset(VALUE)}, "deleted": {0: FetchedOffset(VALUE)}}
    client.groups.answers[FetchOffsets] = FetchResult(Fault.NONE, offsets)
    answer = fetched(client.ask(ApiKey.OFFSET_FETCH, version, fetch_tree(None)), version)
    assert client.groups.asked[0].partitions is None
    rows = [(row.partition_index, row.committed_offset) for row in answer.topics[0].partitions]
    assert rows == [(2, 10)]
    if version >= 10:
        assert [topic.topic_id for topic in answer.topics] == [IDS["alpha"]]
    else:
        assert [topic.name for topic in answer.topics] == ["alpha", "deleted"]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_no_topics_is_not_all_topics(client: Client, version: int) -> None:
    client.groups.answers[FetchOffsets] = held
    answer = fetched(client.ask(ApiKey.OFFSET_FETCH, version, fetch_tree([])), version)
    assert client.groups.asked[0].partitions == {}
    assert answer.topics == ()


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_null_metadata_stays_null_and_empty_stays_empty(client: Client, version: int) -> None:
    client.groups.answers[FetchOffsets] = FetchResult(
        Fault.NONE,
        {
            "alpha": {
                0: FetchedOffset(VALUE._replace(metadata=None)),
                1: FetchedOffset(VALUE._replace(metadata="")),
            }
        },
    )
    answer = fetched(client.ask(ApiKey.OFFSET_FETCH, version, fetch_tree(WANTED[:1])), version)
    assert [(row.partition_index, row.metadata) for row in answer.topics[0].partitions] == [(1, ""), (0, None)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH, first=7))
def test_a_reader_of_stable_offsets_is_told_to_come_again(client: Client, version: int) -> None:
    unstable = FetchedOffset(None, is_unstable=True)
    client.groups.answers[FetchOffsets] = FetchResult(Fault.NONE, {"alpha": {0: unstable, 1: FetchedOffset(VALUE)}})
    answer = fetched(client.ask(ApiKey.OFFSET_FETCH, version, fetch_tree(WANTED[:1])), version)
    assert [(row.committed_offset, row.error_code) for row in answer.topics[0].partitions] == [(10, 0), (-1, 88)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
@pytest.mark.parametrize(
    ("result", "code"), [(FetchResult(Fault.STALE_MEMBER_EPOCH), 113), (Fault.COORDINATOR_LOADING, LOADING)]
)
def test_a_refused_fetch_has_its_error_where_the_version_has_room(
    client: Client, version: int, result: object, code: int
) -> None:
    client.groups.answers[FetchOffsets] = result
    answer = fetched(client.ask(ApiKey.OFFSET_FETCH, version, fetch_tree(WANTED[:1])), version)
    if version >= 2:
        assert (answer.error_code, answer.topics) == (code, ())
    else:
        assert codes(answer) == [(1, code), (0, code)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH, first=8))
def test_several_groups_are_answered_each_for_itself(client: Client, version: int) -> None:
    found = {
        "g": FetchResult(Fault.NONE, {"alpha": {0: FetchedOffset(VALUE)}}),
        "h": Fault.COORDINATOR_NOT_AVAILABLE,
    }
    client.groups.answers[FetchOffsets] = lambda command: found[command.group]
    groups = [{"group_id": name, "topics": None, "member_id": None, "member_epoch": -1} for name in ("h", "g")]
    answer = client.ask(ApiKey.OFFSET_FETCH, version, {"groups": groups, "require_stable": False})
    assert [(group.group_id, group.error_code, len(group.topics)) for group in answer.groups] == [
        ("h", NOT_AVAILABLE, 0),
        ("g", 0, 1),
    ]


# ---- OffsetDelete -----------------------------------------------------------------------------------------------------

DELETE: dict[str, Any] = {
    "group_id": "g",
    "topics": [
        {"name": "alpha", "partitions": [{"partition_index": 0}, {"partition_index": 9}]},
        {"name": "beta", "partitions": [{"partition_index": 0}]},
    ],
}


def test_offsets_are_deleted_partition_by_partition(client: Client) -> None:
    client.groups.answers[DeleteOffsets] = DeleteOffsetsResult(
        Fault.NONE, {("beta", 0): Fault.GROUP_SUBSCRIBED_TO_TOPIC}
    )
    answer = client.ask(ApiKey.OFFSET_DELETE, 0, DELETE)
    assert client.groups.asked == [DeleteOffsets("g", (("alpha", 0), ("beta", 0)))]
    assert answer.error_code == 0
    assert codes(answer) == [(0, 0), (9, UNKNOWN_TOPIC), (0, 86)]


@pytest.mark.parametrize(
    ("group", "result", "code"),
    [
        ("g", DeleteOffsetsResult(Fault.GROUP_ID_NOT_FOUND), 69),
        ("g", Fault.COORDINATOR_LOADING, LOADING),
        ("", DeleteOffsetsResult(Fault.NONE), 24),
    ],
)
def test_a_refused_delete_has_one_error(client: Client, group: str, result: object, code: int) -> None:
    client.groups.answers[DeleteOffsets] = result
    answer = client.ask(ApiKey.OFFSET_DELETE, 0, {**DELETE, "group_id": group})
    assert (answer.error_code, answer.topics) == (code, ())


# ---- TxnOffsetCommit --------------------------------------------------------------------------------------------------

TXN_COMMIT: dict[str, Any] = {
    "transactional_id": "t",
    "group_id": "g",
    "producer_id": 20,
    "producer_epoch": 2,
    "generation_id": 4,
    "member_id": "m",
    "group_instance_id": "i",
    "topics": [{"name": "alpha", "partitions": [offset(0, 10, 5, None), offset(7, 1)]}],
}


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
def test_offsets_are_committed_in_the_producers_name_once_the_transaction_has_the_partition(
    client: Client, version: int
) -> None:
    kind = AddPartitions if version >= 5 else VerifyPartitions
    client.transactions.answers[kind] = PartitionsResult(Fault.NONE)
    client.groups.answers[CommitOffsets] = CommitResult(Fault.NONE)
    answer = client.ask(ApiKey.TXN_OFFSET_COMMIT, version, TXN_COMMIT)
    assert client.transactions.asked == [kind("t", Identity(20, 2), frozenset({OFFSETS_PARTITION}))]
    says_who = version >= 3
    assert client.groups.asked == [
        CommitOffsets(
            "g",
            "m" if says_who else "",
            "i" if says_who else None,
            4 if says_who else -1,
            (OffsetToCommit("alpha", 0, 10, 5 if version >= 2 else -1, None),),
            Producer(20, 2),
        )
    ]
    assert codes(answer) == [(0, 0), (7, UNKNOWN_TOPIC)]


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
@pytest.mark.parametrize(
    ("result", "code", "first"),
    [
        (PartitionsResult(Fault.PRODUCER_FENCED), {3: 90}, 47),
        (PartitionsResult(Fault.NONE, frozenset({OFFSETS_PARTITION})), {4: 120}, 48),
        (PartitionsResult(Fault.CONCURRENT_TRANSACTIONS), {2: 14, 5: 51}, 15),
        (PartitionsResult(Fault.INVALID_PRODUCER_ID_MAPPING), {}, 49),
        (Fault.COORDINATOR_LOADING, {2: 14}, 15),
    ],
)
def test_without_the_transactions_consent_nothing_is_committed(
    client: Client, version: int, result: object, code: dict[int, int], first: int
) -> None:
    client.transactions.answers = {AddPartitions: result, VerifyPartitions: result}
    answer = client.ask(ApiKey.TXN_OFFSET_COMMIT, version, TXN_COMMIT)
    expected = first
    for since, later in code.items():
        expected = later if version >= since else expected
    assert codes(answer) == [(0, expected), (7, UNKNOWN_TOPIC)]
    assert client.groups.asked == []


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
def test_a_member_of_another_generation_cannot_commit_in_a_transaction(client: Client, version: int) -> None:
    client.transactions.answers = dict.fromkeys((AddPartitions, VerifyPartitions), PartitionsResult(Fault.NONE))
    for fault in (Fault.ILLEGAL_GENERATION, Fault.STALE_MEMBER_EPOCH):
        client.groups.answers[CommitOffsets] = CommitResult(fault)
        assert codes(client.ask(ApiKey.TXN_OFFSET_COMMIT, version, TXN_COMMIT))[0] == (0, 22)


def test_a_commit_for_no_group_or_without_coordinator_is_refused(client: Client) -> None:
    assert codes(client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, {**TXN_COMMIT, "group_id": ""}))[0] == (0, 24)
    client.groups.made = Fault.COORDINATOR_NOT_AVAILABLE
    assert codes(client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, TXN_COMMIT))[0] == (0, NOT_AVAILABLE)
    assert client.transactions.asked == []


def test_the_commit_follows_the_verification_in_the_same_moment(client: Client) -> None:
    """A marker between the two would leave the offsets pending for ever."""
    order: list[str] = []

    def verify(command: object) -> PartitionsResult:
        return PartitionsResult(Fault.NONE)

    def commit(command: object) -> CommitResult:
        order.append("commit")
        return CommitResult(Fault.NONE)

    client.transactions.answers[VerifyPartitions] = verify
    client.groups.answers[CommitOffsets] = commit
    settle = client.transactions.settle

    def settle_and_mark() -> bool:
        settled = settle()
        if settled:
            order.append("marker")
        return settled

    client.transactions.settle = settle_and_mark  # type: ignore[method-assign]
    client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, TXN_COMMIT)
    assert order == ["commit", "marker"]


# ---- many partitions --------------------------------------------------------------------------------------------------

WIDE = 3 * COMMITTED_AT_ONCE + 1


@pytest.fixture
def wide() -> Client:
    return Client({"wide": WIDE})


def test_a_commit_of_many_partitions_is_several_commands(wide: Client) -> None:
    def commit(command: CommitOffsets) -> CommitResult | Fault:
        first = command.offsets[0].partition
        if first == COMMITTED_AT_ONCE:
            return Fault.COORDINATOR_NOT_AVAILABLE
        return CommitResult(Fault.NONE, {("wide", first): Fault.OFFSET_METADATA_TOO_LARGE})

    wide.groups.answers[CommitOffsets] = commit
    rows = [
        {"partition_index": n, "committed_offset": n, "committed_leader_epoch": -1, "committed_metadata": ""}
        for n in range(WIDE)
    ]
    tree = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "wide", "partitions": rows}],
    }
    answer = wide.ask(ApiKey.OFFSET_COMMIT, 8, tree)
    committed = [offset.partition for command in wide.groups.asked for offset in command.offsets]
    assert committed == list(range(WIDE))
    assert max(len(command.offsets) for command in wide.groups.asked) == COMMITTED_AT_ONCE
    too_large = [n for n, code in codes(answer) if code == 12]
    assert too_large == [0, 2 * COMMITTED_AT_ONCE, 3 * COMMITTED_AT_ONCE]
    not_available = [n for n, code in codes(answer) if code == NOT_AVAILABLE]
    assert not_available == list(range(COMMITTED_AT_ONCE, 2 * COMMITTED_AT_ONCE))


@pytest.mark.parametrize("version", [1, 7, 9])
def test_offsets_of_many_partitions_are_fetched_by_several_commands(wide: Client, version: int) -> None:
    def fetch(command: FetchOffsets) -> FetchResult:
        assert command.partitions is not None
        return FetchResult(
            Fault.NONE,
            {
                topic: {at: FetchedOffset(CommittedOffset(at + 7, 0)) for at in partitions}
                for topic, partitions in command.partitions.items()
            },
        )

    wide.groups.answers[FetchOffsets] = fetch
    topics = [{"name": "wide", "partition_indexes": list(range(WIDE))}, {"name": "none", "partition_indexes": []}]
    group = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}
    answer = wide.ask(ApiKey.OFFSET_FETCH, version, {**group, "groups": [group], "require_stable": False})
    found = answer.groups[0].topics if version >= 8 else answer.topics
    assert [row.committed_offset for row in found[0].partitions] == list(range(7, WIDE + 7))
    assert [topic.name for topic in found] == ["wide", "none"]
    assert len(wide.groups.asked) == 4


@pytest.mark.parametrize("ends", [True, False])
def test_offsets_of_many_partitions_are_deleted_by_several_commands(wide: Client, ends: bool) -> None:
    """A group of offsets alone ends with the last of them."""

    def delete(command: DeleteOffsets) -> DeleteOffsetsResult:
        is_first = command.partitions[0][1] == 0
        return DeleteOffsetsResult(Fault.NONE if is_first or not ends else Fault.GROUP_ID_NOT_FOUND)

    wide.groups.answers[DeleteOffsets] = delete
    rows = [{"partition_index": n} for n in range(WIDE)]
    answer = wide.ask(ApiKey.OFFSET_DELETE, 0, {"group_id": "g", "topics": [{"name": "wide", "partitions": rows}]})
    assert answer.error_code == 0
    assert {row.error_code for row in answer.topics[0].partitions} == {0}
    assert len(wide.groups.asked) == (2 if ends else 4)
