from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.transactions import TRANSACTIONS_TOPIC
from penstock.coordination.producers import ProducerRow
from penstock.coordination.transaction_commands import (
    AddPartitions,
    DescribeTransaction,
    Description,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    PartitionsResult,
    ProducerResult,
    TransactionList,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.coordination.transaction_states import Identity, Status, TransactionState
from penstock.dialects.kafka.apis import ApiKey
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition
from tests.dialects.kafka.stand_in import OFFSETS_PARTITION, Client, versions

UNKNOWN_TOPIC, INVALID_TOPIC, LOADING, NOT_AVAILABLE, FENCED, OLD_FENCED = 3, 17, 14, 15, 90, 47
NOT_ATTEMPTED, ABORTABLE, INVALID_STATE = 55, 120, 48


def place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), partition)


@pytest.fixture
def client() -> Client:
    return Client()


# ---- InitProducerId ---------------------------------------------------------------------------------------------------

INIT: dict[str, Any] = {"transactional_id": "t", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_a_producer_without_transactional_id_gets_a_fresh_id(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, {**INIT, "transactional_id": None})
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 4_711, 0)
    assert client.transactions.asked == []


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_the_coordinator_says_who_a_transactional_producer_is(client: Client, version: int) -> None:
    client.transactions.answers[InitProducerId] = ProducerResult(Fault.NONE, 20, 3)
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, {**INIT, "producer_id": 20, "producer_epoch": 2})
    assert client.transactions.asked == [InitProducerId("t", 60_000, Identity(20, 2) if version >= 3 else None)]
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 20, 3)
    client.ask(ApiKey.INIT_PRODUCER_ID, version, INIT)
    assert client.transactions.asked[1].expected is None


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
@pytest.mark.parametrize(
    ("result", "code", "old_code"),
    [
        (ProducerResult(Fault.PRODUCER_FENCED), FENCED, OLD_FENCED),
        (ProducerResult(Fault.INVALID_TRANSACTION_TIMEOUT), 50, 50),
        (Fault.COORDINATOR_LOADING, LOADING, LOADING),
    ],
)
def test_a_refused_producer_has_no_id(client: Client, version: int, result: object, code: int, old_code: int) -> None:
    client.transactions.answers[InitProducerId] = result
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, version, INIT)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
        code if version >= 4 else old_code,
        -1,
        -1,
    )


def test_half_an_identity_is_an_invalid_request(client: Client) -> None:
    for half in ({"producer_id": 20}, {"producer_epoch": 2}):
        assert client.ask(ApiKey.INIT_PRODUCER_ID, 4, {**INIT, **half}).error_code == 42
    assert client.transactions.asked == []


# ---- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


def add_tree(topics: dict[str, list[int]], *, verify_only: bool = False) -> dict[str, Any]:
    rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    old = {"transactional_id": "t", "producer_id": 20, "producer_epoch": 2, "topics": rows}
    return {
        **{f"v3_and_below_{name}": value for name, value in old.items()},
        "transactions": [{**old, "verify_only": verify_only}],
    }


def added(answer: Any, version: int) -> list[tuple[str, int, int]]:
    topics = answer.results_by_transaction[0].topic_results if version >= 4 else answer.results_by_topic_v3_and_below
    return [
        (topic.name, row.partition_index, row.partition_error_code)
        for topic in topics
        for row in topic.results_by_partition
    ]


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_partitions_join_a_transaction(client: Client, version: int) -> None:
    client.transactions.answers[AddPartitions] = PartitionsResult(Fault.NONE)
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, add_tree({"beta": [0], "alpha": [2, 0]}))
    partitions = frozenset({place("beta", 0), place("alpha", 2), place("alpha", 0)})
    assert client.transactions.asked == [AddPartitions("t", Identity(20, 2), partitions)]
    assert added(answer, version) == [("beta", 0, 0), ("alpha", 2, 0), ("alpha", 0, 0)]


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_one_partition_that_does_not_exist_keeps_all_out(client: Client, version: int) -> None:
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, add_tree({"alpha": [0, 9], TRANSACTIONS_TOPIC: [0]}))
    assert added(answer, version) == [
        ("alpha", 0, NOT_ATTEMPTED),
        ("alpha", 9, UNKNOWN_TOPIC),
        (TRANSACTIONS_TOPIC, 0, INVALID_TOPIC),
    ]
    assert client.transactions.asked == []


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
@pytest.mark.parametrize(
    ("result", "code", "old_code"),
    [
        (PartitionsResult(Fault.PRODUCER_FENCED), FENCED, OLD_FENCED),
        (PartitionsResult(Fault.CONCURRENT_TRANSACTIONS), 51, 51),
        (Fault.COORDINATOR_NOT_AVAILABLE, NOT_AVAILABLE, NOT_AVAILABLE),
    ],
)
def test_a_refused_addition_is_refused_for_each_partition(
    client: Client, version: int, result: object, code: int, old_code: int
) -> None:
    client.transactions.answers[AddPartitions] = result
    expected = code if version >= 2 else old_code
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, add_tree({"alpha": [0, 1]}))
    assert added(answer, version) == [("alpha", 0, expected), ("alpha", 1, expected)]


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN, first=4))
def test_the_batched_form_asks_for_several_transactions_and_may_only_verify(client: Client, version: int) -> None:
    client.transactions.answers[VerifyPartitions] = PartitionsResult(Fault.NONE, frozenset({place("alpha", 1)}))
    client.transactions.answers[AddPartitions] = PartitionsResult(Fault.NONE)
    tree = add_tree({"alpha": [0, 1], OFFSETS_PARTITION.topic: [2]}, verify_only=True)
    (first,) = tree["transactions"]
    second = {**first, "transactional_id": "u", "verify_only": False, "topics": [{"name": "beta", "partitions": [0]}]}
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, {"transactions": [first, second]})
    assert [type(command) for command in client.transactions.asked] == [VerifyPartitions, AddPartitions]
    assert [row.transactional_id for row in answer.results_by_transaction] == ["t", "u"]
    stranger = ABORTABLE if version >= 5 else INVALID_STATE
    assert added(answer, version) == [("alpha", 0, 0), ("alpha", 1, stranger), (OFFSETS_PARTITION.topic, 2, 0)]
    assert answer.error_code == 0


# ---- AddOffsetsToTxn, EndTxn ------------------------------------------------------------------------------------------

ADD_OFFSETS: dict[str, Any] = {"transactional_id": "t", "producer_id": 20, "producer_epoch": 2, "group_id": "g"}


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_the_groups_partition_joins_the_transaction(client: Client, version: int) -> None:
    client.transactions.answers[AddPartitions] = PartitionsResult(Fault.NONE)
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, ADD_OFFSETS).error_code == 0
    assert client.transactions.asked == [AddPartitions("t", Identity(20, 2), frozenset({OFFSETS_PARTITION}))]


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_refused_offsets_have_an_error_that_the_version_knows(client: Client, version: int) -> None:
    client.transactions.answers[AddPartitions] = PartitionsResult(Fault.PRODUCER_FENCED)
    expected = FENCED if version >= 2 else OLD_FENCED
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, ADD_OFFSETS).error_code == expected
    client.transactions.fault_at_once = Fault.COORDINATOR_LOADING
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, ADD_OFFSETS).error_code == LOADING
    asked = len(client.transactions.asked)
    client.groups.made = Fault.COORDINATOR_NOT_AVAILABLE
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, ADD_OFFSETS).error_code == NOT_AVAILABLE
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, {**ADD_OFFSETS, "group_id": ""}).error_code == 24
    assert len(client.transactions.asked) == asked


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
@pytest.mark.parametrize("committed", [True, False])
def test_from_version_5_on_the_end_of_a_transaction_raises_the_epoch(
    client: Client, version: int, committed: bool
) -> None:
    client.transactions.answers[EndTransaction] = ProducerResult(Fault.NONE, 20, 3)
    asked = {"transactional_id": "t", "producer_id": 20, "producer_epoch": 2, "committed": committed}
    answer = client.ask(ApiKey.END_TXN, version, asked)
    assert client.transactions.asked == [
        EndTransaction("t", Identity(20, 2), commit=committed, raises_epoch=version >= 5)
    ]
    assert answer.error_code == 0
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (20, 3)


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
@pytest.mark.parametrize(
    ("result", "code", "old_code"),
    [
        (ProducerResult(Fault.PRODUCER_FENCED), FENCED, OLD_FENCED),
        (ProducerResult(Fault.INVALID_TXN_STATE), INVALID_STATE, INVALID_STATE),
        (Fault.COORDINATOR_NOT_AVAILABLE, NOT_AVAILABLE, NOT_AVAILABLE),
    ],
)
def test_an_end_that_is_refused_gives_no_identity(
    client: Client, version: int, result: object, code: int, old_code: int
) -> None:
    client.transactions.answers[EndTransaction] = result
    asked = {"transactional_id": "t", "producer_id": 20, "producer_epoch": 2, "committed": True}
    answer = client.ask(ApiKey.END_TXN, version, asked)
    assert answer.error_code == (code if version >= 2 else old_code)
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


# ---- administration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
def test_an_administrator_writes_markers_but_not_into_the_transaction_log(client: Client, version: int) -> None:
    def write(marker: WriteMarkers) -> dict[TopicPartition, Fault]:
        return {at: Fault.INVALID_PRODUCER_EPOCH if at.partition == 1 else Fault.NONE for at in marker.partitions}

    client.transactions.answers[WriteMarkers] = write
    marker = {
        "producer_id": 20,
        "producer_epoch": 2,
        "transaction_result": False,
        "coordinator_epoch": 8,
        "transaction_version": 2,
        "topics": [
            {"name": "alpha", "partition_indexes": [1, 0, 9]},
            {"name": TRANSACTIONS_TOPIC, "partition_indexes": [0]},
        ],
    }
    other = {**marker, "producer_id": 21, "topics": [{"name": "beta", "partition_indexes": [0]}]}
    answer = client.ask(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker, other]})
    first, second = client.transactions.asked
    assert first == WriteMarkers(
        "", Identity(20, 2), 8, False, frozenset({place("alpha", 0), place("alpha", 1)}), 2 if version >= 2 else 0
    )
    assert second.identity == Identity(21, 2)
    assert [row.producer_id for row in answer.markers] == [20, 21]
    assert [
        (topic.name, row.partition_index, row.error_code)
        for topic in answer.markers[0].topics
        for row in topic.partitions
    ] == [
        ("alpha", 1, OLD_FENCED),
        ("alpha", 0, 0),
        ("alpha", 9, UNKNOWN_TOPIC),
        (TRANSACTIONS_TOPIC, 0, UNKNOWN_TOPIC),
    ]


ONGOING = TransactionState(
    20,
    2,
    60_000,
    Status.ONGOING,
    frozenset({place("beta", 0), place("alpha", 2), place("alpha", 0)}),
    start_ms=1_700_000_000_000,
)


def test_transactions_are_described(client: Client) -> None:
    found = {
        "t": Description(Fault.NONE, "t", ONGOING),
        "none": Description(Fault.TRANSACTIONAL_ID_NOT_FOUND, "none"),
        "away": Fault.COORDINATOR_LOADING,
    }
    client.transactions.answers[DescribeTransaction] = lambda command: found[command.transactional_id]
    answer = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["none", "t", "away"]})
    assert [(row.transactional_id, row.error_code) for row in answer.transaction_states] == [
        ("none", 105),
        ("t", 0),
        ("away", LOADING),
    ]
    row = answer.transaction_states[1]
    assert (row.transaction_state, row.producer_id, row.producer_epoch) == ("Ongoing", 20, 2)
    assert row.transaction_timeout.total_seconds() == 60
    assert row.transaction_start_time.timestamp() == 1_700_000_000
    assert [(topic.topic, topic.partitions) for topic in row.topics] == [("alpha", (0, 2)), ("beta", (0,))]


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_the_transactions_of_all_shards_are_listed(client: Client, version: int) -> None:
    client.transactions.answers[ListTransactions] = lambda command: [
        TransactionList(("Odd",), (("t", ONGOING),)),
        TransactionList(("Odd",), (("u", ONGOING._replace(producer_id=21, status=Status.PREPARE_ABORT)),)),
    ]
    answer = client.ask(
        ApiKey.LIST_TRANSACTIONS,
        version,
        {
            "state_filters": ["Ongoing", "Odd"],
            "producer_id_filters": [20, 21],
            "duration_filter": 500,
            "transactional_id_pattern": "t.",
        },
    )
    (command,) = client.transactions.asked
    assert (command.producer_ids, command.statuses) == ({20, 21}, {"Ongoing", "Odd"})
    assert command.running_longer_than_ms == (500 if version >= 1 else -1)
    if version >= 2:
        assert [command.matches(name) for name in ("t1", "t12", "xt1")] == [True, False, False]
    else:
        assert command.matches is None
    assert (answer.error_code, answer.unknown_state_filters) == (0, ("Odd",))
    assert [(row.transactional_id, row.producer_id, row.transaction_state) for row in answer.transaction_states] == [
        ("t", 20, "Ongoing"),
        ("u", 21, "PrepareAbort"),
    ]


def test_a_pattern_that_is_no_re2_is_refused(client: Client) -> None:
    tree: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, 2, {**tree, "transactional_id_pattern": "(?=x)"})
    assert answer.error_code == 128
    assert client.transactions.asked == []
    client.transactions.answers[ListTransactions] = TransactionList((), ())
    for everything in (None, ""):
        client.ask(ApiKey.LIST_TRANSACTIONS, 2, {**tree, "transactional_id_pattern": everything})
        assert client.transactions.asked[-1].matches is None


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_a_list_of_transactions_is_whole_or_an_error(client: Client, version: int) -> None:
    tree = {"state_filters": [], "producer_id_filters": []}
    client.transactions.answers[ListTransactions] = lambda command: [
        TransactionList((), (("t", ONGOING),)),
        Fault.COORDINATOR_NOT_AVAILABLE,
    ]
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, version, tree)
    assert (answer.error_code, answer.transaction_states) == (NOT_AVAILABLE, ())
    client.transactions.fault_at_once = Fault.COORDINATOR_LOADING
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, version, tree)
    assert (answer.error_code, answer.transaction_states) == (LOADING, ())


def test_producers_of_a_partition_are_described(client: Client) -> None:
    producers = client.engine.partition("alpha", 1).producers
    producers.ids = lambda: [19, 20]
    producers.row = {19: None, 20: ProducerRow(20, 2, 9, 1_000, 8, 77)}.get  # one was forgotten meanwhile
    client.engine.take_offline("alpha", 2)
    answer = client.ask(
        ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "alpha", "partition_indexes": [1, 0, 2, 3]}]}
    )
    one, none, offline, missing = answer.topics[0].partitions
    assert [row.error_code for row in answer.topics[0].partitions] == [0, 0, 56, UNKNOWN_TOPIC]
    (producer,) = one.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence, producer.last_timestamp) == (
        20,
        2,
        9,
        1_000,
    )
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (8, 77)
    assert none.active_producers == offline.active_producers == missing.active_producers == ()
    assert missing.error_message
