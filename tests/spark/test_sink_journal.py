"""What the journal's records say of a query, whatever else is between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from penstock import Broker
from penstock.client.kafka import KafkaClient, Producer
from penstock.records.batch import Batch
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker as EndOfTransaction
from penstock.records.control import MarkerKind, build_marker
from penstock.spark.sink import journal as sink_journal
from penstock.spark.sink.journal import Decision, Journal, JournalState, Opened, Plan, marker_batch, partition_of
from penstock.spark.sink.options import SinkError
from penstock.spark.sink.row_digest import Content

QUERY = "q"


def placed(data: bytearray, offset: int) -> Batch:
    batch = Batch(memoryview(data))
    batch.place(offset, 0)
    return batch


def end(producer: Producer, *, commit: bool) -> bytearray:
    kind = MarkerKind.COMMIT if commit else MarkerKind.ABORT
    return build_marker(
        EndOfTransaction(kind, 0),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        timestamp_ms=1,
    )


transactions = st.lists(
    st.tuples(
        st.sampled_from([QUERY, "q2", "other"]),
        st.integers(0, 2),  # the task, and its producer
        st.sampled_from(["commit", "abort", "fence", "leave open"]),
    ),
    max_size=25,
)


@given(transactions)
def test_only_markers_of_committed_transactions_count(given_transactions: list[tuple[str, int, str]]) -> None:
    state = JournalState(QUERY)
    expected: dict[int, int] = {}
    still_open: dict[tuple[str, int], Producer] = {}
    epochs: dict[tuple[str, int], int] = {}
    offset = 0

    def feed(data: bytearray) -> None:
        nonlocal offset
        state.feed(placed(data, offset))
        offset += 1

    for batch, (query, task, fate) in enumerate(given_transactions):
        epochs[query, task] = epochs.get((query, task), 0) + 1
        producer = Producer(100 * [QUERY, "q2", "other"].index(query) + task, epochs[query, task])
        before = still_open.pop((query, task), None)
        if before is not None:
            feed(end(producer, commit=False))
        feed(marker_batch(query, task, batch, producer))
        if fate == "leave open":
            still_open[query, task] = producer
            continue
        feed(
            end(producer._replace(producer_epoch=producer.producer_epoch + (fate == "fence")), commit=fate == "commit")
        )
        if fate == "commit" and query == QUERY:
            expected[task] = batch
    assert state.committed == expected
    assert {marker.producer for marker in state.pending} == {
        producer for (query, _), producer in still_open.items() if query == QUERY
    }
    assert state.offset == offset
    assert all(marker.offset >= state.settled_offset for marker in state.pending)


def test_a_marker_outside_a_transaction_does_not_count() -> None:
    state = JournalState(QUERY)
    state.feed(placed(build_batch([NewRecord(1, b"q/0", b"7")]), 0))
    assert state.committed == {}
    assert state.pending == []


def test_the_last_decision_counts_and_says_what_is_missing() -> None:
    first = Decision(4, 3, {0: Opened("q-0-0", Producer(5, 1)), 2: Opened("q-2-1", Producer(6, 9))})
    second = Decision(5, 1, {0: Opened("q-0-0", Producer(5, 2))})
    assert Decision.decode(first.encode()) == first
    state = JournalState(QUERY)
    for offset, decision in enumerate((first, second)):
        state.feed(placed(build_batch([NewRecord(1, b"q", decision.encode())]), offset))
        assert state.decision == decision
    assert state.missing(second) == [0]
    state.committed = {0: 5, 2: 4}
    assert state.missing(second) == []
    assert state.missing(first) == [0]


def test_decision_identifies_the_content_of_its_batch() -> None:
    opened = {1: Opened("q-1-0", Producer(5, 1))}
    decision = Decision(4, 3, opened, {0: Content(2, 7), 1: Content(9, 2**64 - 1)}, Plan("a", "b"))
    assert Decision.decode(decision.encode()) == decision
    # a task without rows takes no room
    assert Decision.decode(Decision(4, 1, {}, {0: Content()}).encode()) == Decision(4, 1, {}, {})


def test_decision_of_an_earlier_version_has_no_content() -> None:
    value = b'{"batch": 4, "tasks": 3, "open": {"1": ["q-1-0", 5, 1]}}'
    assert Decision.decode(value) == Decision(4, 3, {1: Opened("q-1-0", Producer(5, 1))}, None, None)


def test_a_transaction_is_pending_until_it_ends_and_a_later_one_of_its_producer_is_another() -> None:
    opened = Opened("q-0-0", Producer(5, 1))
    state = JournalState(QUERY)
    state.feed(placed(marker_batch(QUERY, 0, 1, opened.producer), 0))
    assert state.is_pending(opened)
    state.feed(placed(end(Producer(5, 2), commit=False), 1))
    state.feed(placed(marker_batch(QUERY, 0, 1, Producer(5, 2)), 2))
    assert not state.is_pending(opened)
    assert state.is_pending(Opened("q-0-0", Producer(5, 2)))


def test_what_is_none_of_the_sinks_is_told() -> None:
    with pytest.raises(SinkError, match="the record at offset 3 of penstock-sink was not written by the sink"):
        JournalState(QUERY).feed(placed(build_batch([NewRecord(1, b"q", b"gossip")]), 3))


def test_a_query_is_looked_for_where_it_was_written() -> None:
    """For ever: these are in journals already."""
    assert [partition_of(name) for name in ("", "q", "2c4a7c6e-6b0c-4c2e-a3a8-0d8f9b1d7f10")] == [5, 4, 2]


@pytest.fixture
def client() -> Iterator[KafkaClient]:
    with Broker(settings={"storage.flush": "os"}) as broker, KafkaClient(broker.bootstrap) as client:
        yield client


def test_the_topic_is_made_compacted_and_one_that_would_forget_is_refused(client: KafkaClient) -> None:
    for _ in range(2):
        sink_journal.prepare(client)
    assert len(client.metadata([sink_journal.TOPIC]).topics[sink_journal.TOPIC].partitions) == 8
    journal = Journal(client, JournalState(QUERY))
    decision = Decision(0, 1, {})
    journal.decide(decision)
    assert journal.read_on().decision == decision
    # a state that has read more than there is begins again
    journal = Journal(client, JournalState(QUERY, offset=99))
    assert journal.read_on().decision == decision


@pytest.mark.parametrize(
    ("partitions", "policy", "text"), [(1, "compact", "has 1 partitions"), (8, "delete", "cleanup.policy=delete")]
)
def test_a_topic_of_that_name_made_otherwise_is_refused(
    client: KafkaClient, partitions: int, policy: str, text: str
) -> None:
    client.create_topic(sink_journal.TOPIC, partitions, configs={"cleanup.policy": policy})
    with pytest.raises(SinkError, match=text):
        sink_journal.prepare(client)
