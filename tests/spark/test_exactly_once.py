"""The exactly-once sink, step by step: tasks and drivers that die between any two requests, on Penstock and on Apache Kafka.

Spark is not needed for these: what it would call is called here, in every order that it could.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from penstock.client.kafka import Producer
from penstock.client.kafka_apis import Api
from penstock.client.kafka_cluster import CoordinatorKind
from penstock.spark.sink import exactly_once
from penstock.spark.sink.exactly_once import Prepared, abort, commit, write
from penstock.spark.sink.journal import TOPIC, Decision, Journal, JournalState
from penstock.spark.sink.options import SinkError
from tests.spark.sink_cluster import Clusters, Sink, records, rows

WAIT_S_MAX = 60.0
EPOCHS = 32_766
"""Clients get no higher one: the last fences."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with Clusters(tmp_path_factory) as clusters:
        yield clusters


@pytest.fixture(params=["penstock", "kafka"])
def bootstrap(request: pytest.FixtureRequest, clusters: Clusters) -> str:
    exactly_once._SEEN.clear()
    return clusters.address(request.param)


@pytest.fixture
def sink(bootstrap: str) -> Iterator[Sink]:
    sink = Sink(bootstrap)
    yield sink
    sink.close()


def decided(sink: Sink, *prepared: Prepared, by_earlier_version: bool = False) -> Decision:
    """What `commit` does up to and with the decision; the driver dies behind it."""
    opened = {one.task.number: one.opened for one in prepared if one.opened is not None}
    contents = None if by_earlier_version else {one.task.number: one.content for one in prepared}
    decision = Decision(prepared[0].task.batch, len(prepared), opened, contents)
    Journal(sink.client, JournalState(sink.query)).decide(decision)
    return decision


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def once(*values: bytes) -> Counter[bytes]:
    return Counter(dict.fromkeys(values, 1))


# ---------------------------------------------------------------------------------------------------- the plain way


def test_rows_are_seen_when_the_batch_is_committed_and_not_before(sink: Sink) -> None:
    for batch in (0, 1, 2):
        before = sink.values()
        prepared = [write(sink.options, sink.task(batch, task), rows(b"%d.%d" % (batch, task))) for task in (0, 1)]
        assert sink.values() == before
        commit(sink.options, prepared)
        eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(*(b"%d.%d" % (batch, task) for batch in (0, 1, 2) for task in (0, 1)))
    journal = {record.key: record.value for record in records(sink.client, TOPIC)}
    assert journal[f"{sink.query}/0".encode()] == journal[f"{sink.query}/1".encode()] == b"2"


def test_a_batch_without_rows_leaves_nothing_behind(sink: Sink) -> None:
    prepared = [write(sink.options, sink.task(0, task), rows()) for task in (0, 1)]
    assert [one.opened for one in prepared] == [None, None]
    commit(sink.options, prepared)
    assert not any((record.key or b"").startswith(sink.query.encode()) for record in records(sink.client, TOPIC))


def test_transactional_ids_are_reused_from_batch_to_batch(sink: Sink) -> None:
    for batch in range(4):
        commit(sink.options, [write(sink.options, sink.task(batch, 0), rows(b"%d" % batch))])
    assert [one.transactional_id for one in sink.client.list_transactions(f"{sink.query}-")] == [f"{sink.query}-0-0"]


def test_a_task_that_fails_leaves_nothing_open(sink: Sink) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(b"lost")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(sink.options, sink.task(0, 0), broken())
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == Counter()


# ---------------------------------------------------------------------------------------------------- dying


def test_a_second_attempt_of_a_task_neither_fences_the_first_nor_is_seen(sink: Sink) -> None:
    """Named case: speculation. Either of the two may win."""
    for batch, winner in ((0, 0), (1, 1)):
        attempts = [write(sink.options, sink.task(batch, 0, attempt), rows(b"%d" % batch)) for attempt in (0, 1)]
        other = write(sink.options, sink.task(batch, 1), rows(b"%d other" % batch))
        commit(sink.options, [attempts[winner], other])
        eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"0 other", b"1", b"1 other")


def test_a_batch_that_was_not_decided_is_written_again(sink: Sink) -> None:
    write(sink.options, sink.task(0, 0), rows(b"a"))
    write(sink.options, sink.task(0, 1, 1), rows(b"b"))
    # the driver dies; the next run has other tasks, and the same rows
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a", b"b"))])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"a", b"b")


def test_a_decided_batch_is_finished_and_not_written_again(sink: Sink) -> None:
    decided(sink, *(write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)))
    replay = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)]
    assert [one.opened for one in replay] == [None] * 3
    commit(sink.options, replay)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1", b"2")


@pytest.mark.parametrize("committed", [1, 2, 3])
def test_a_driver_that_dies_between_two_commits_loses_and_doubles_nothing(sink: Sink, committed: int) -> None:
    """Named case: a kill between two EndTxn."""
    decision = decided(sink, *(write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)))
    for task in range(committed):
        sink.client.end_txn(*decision.opened[task], commit=True)
    for _ in range(2):
        exactly_once._SEEN.clear()
        replay = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)]
        commit(sink.options, replay)
        eventually(lambda: not sink.is_held_open())
        assert sink.values() == once(b"0", b"1", b"2")
    commit(sink.options, [write(sink.options, sink.task(1, 0), rows(b"next"))])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1", b"2", b"next")


def test_a_driver_away_for_longer_than_the_timeout_writes_what_timed_out_again(bootstrap: str) -> None:
    """Named case: the driver is down longer than the transaction timeout between decision and EndTxn."""
    # time enough for all that is done before the driver is away, on any machine
    sink = Sink(bootstrap, kafka__transaction__timeout__ms="12000")
    decision = decided(sink, *(write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)))
    sink.client.end_txn(*decision.opened[1], commit=True)
    eventually(lambda: not sink.client.list_transactions(f"{sink.query}-", states=["Ongoing"]))
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"1")
    replay = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)]
    assert [one.opened is None for one in replay] == [False, True, False]
    commit(sink.options, replay)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1", b"2")
    sink.close()


def test_a_transaction_that_is_gone_when_it_is_committed_is_told_and_written_again(sink: Sink) -> None:
    prepared = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)]
    decision = decided(sink, *prepared)
    sink.client.init_producer_id(f"{sink.query}-1-0")
    with pytest.raises(SinkError, match=r"batch 0 .* task 1 was aborted .* start the query again"):
        exactly_once.carry_out(sink.client, Journal(sink.client, JournalState(sink.query)), decision)
    abort(sink.options, prepared)
    commit(sink.options, [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1")


def test_epochs_that_run_out_change_nothing(bootstrap: str) -> None:
    """Named case: after 32,767 batches the transactional id gets another producer id."""
    sink = Sink(bootstrap)
    name = f"{sink.query}-0-0"
    first = write(sink.options, sink.task(0, 0), rows(b"0"))
    commit(sink.options, [first])
    use_up_epochs(sink, name)
    producers = []
    for batch in range(1, 5):
        prepared = write(sink.options, sink.task(batch, 0), rows(b"%d" % batch))
        assert prepared.opened is not None
        producers.append(prepared.opened.producer)
        if batch == 2:
            # a driver that dies in between, at the seam
            decided(sink, prepared)
            prepared = write(sink.options, sink.task(batch, 0), rows(b"%d" % batch))
        commit(sink.options, [prepared])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(*(b"%d" % batch for batch in range(5)))
    assert len({producer.producer_id for producer in producers}) == 2
    sink.close()


def use_up_epochs(sink: Sink, name: str) -> None:
    """Until one or two are left; many requests at a time, which the coordinator answers one after the other."""
    producer = sink.client.init_producer_id(name)
    connection = sink.client.connection(sink.client._coordinator(CoordinatorKind.TRANSACTION, name))
    fields = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    while producer.producer_epoch < EPOCHS - 2:
        wanted = min(500, EPOCHS - 2 - producer.producer_epoch)
        answers = [one.wait() for one in [connection.begin(Api.INIT_PRODUCER_ID, fields) for _ in range(wanted)]]
        assert not any(answer.error_code for answer in answers)
        producer = Producer(answers[-1].producer_id, answers[-1].producer_epoch)


def test_a_replay_with_another_number_of_tasks_is_finished_while_its_transactions_are_open(sink: Sink) -> None:
    decided(sink, *(write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)))
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"0", b"1", b"2"))])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1", b"2")


def test_fewer_tasks_are_an_error_when_a_transaction_timed_out(sink: Sink) -> None:
    decided(sink, *(write(sink.options, sink.task(5, task), rows(b"%d" % task)) for task in (0, 1, 2)))
    sink.client.init_producer_id(f"{sink.query}-1-0")
    replay = [write(sink.options, sink.task(5, 0), rows(b"0", b"2")), write(sink.options, sink.task(5, 1), rows(b"1"))]
    with pytest.raises(
        SinkError, match=r"batch 5 .* decided with 3 tasks and now has 2, .*spark.sql.shuffle.partitions"
    ):
        commit(sink.options, replay)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"2")


def test_more_tasks_are_an_error_when_a_transaction_timed_out(sink: Sink) -> None:
    decided(sink, *(write(sink.options, sink.task(5, task), rows(b"%d" % task)) for task in (0, 1, 2)))
    sink.client.init_producer_id(f"{sink.query}-1-0")
    replay = [write(sink.options, sink.task(5, task), rows(b"again")) for task in (0, 1, 2)]
    with pytest.raises(SinkError, match=r"batch 5 .* decided with 3 tasks and now has at least 4, "):
        write(sink.options, sink.task(5, 3), rows(b"again"))
    abort(sink.options, [*replay, None])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"2")


def test_what_is_decided_is_not_aborted_when_spark_gives_the_batch_up(sink: Sink) -> None:
    prepared = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)]
    decided(sink, *prepared)
    abort(sink.options, prepared)
    commit(sink.options, [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1")


def test_what_is_not_decided_is_aborted_at_once_when_spark_gives_the_batch_up(sink: Sink) -> None:
    finished = write(sink.options, sink.task(0, 0), rows(b"finished"))
    write(sink.options, sink.task(0, 1), rows(b"killed before it could say so"))
    assert sink.is_held_open()
    abort(sink.options, [finished, None])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == Counter()


def test_a_batch_write_whose_tasks_were_all_killed_leaves_nothing_open(sink: Sink) -> None:
    write(sink.options, sink.task(0, 0), rows(b"killed before it could say so"))
    assert sink.is_held_open()
    abort(sink.options, [None, None], sink.query)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == Counter()


def test_a_driver_that_was_thought_dead_cannot_double_a_batch(sink: Sink) -> None:
    old = write(sink.options, sink.task(0, 0, 1), rows(b"a"))
    new = write(sink.options, sink.task(0, 0), rows(b"a"))
    # the old driver wakes up first, and then the new one comes
    commit(sink.options, [old])
    with pytest.raises(SinkError, match="another run of the query has committed task 0"):
        commit(sink.options, [new])
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a"))])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"a")


def test_a_driver_that_wakes_up_behind_the_new_one_cannot_double_a_batch(sink: Sink) -> None:
    old = write(sink.options, sink.task(0, 0, 1), rows(b"a"))
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a"))])
    with pytest.raises(SinkError, match="another run of the query has committed task 0"):
        commit(sink.options, [old])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"a")


def test_a_stale_decision_says_nothing_against_what_is_committed(sink: Sink) -> None:
    """The last record of a driver that was thought dead, and had fewer tasks."""
    old = write(sink.options, sink.task(0, 0), rows(b"0", b"1"))
    commit(sink.options, [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)])
    decided(sink, old)
    replay = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)]
    assert [one.opened for one in replay] == [None, None]
    commit(sink.options, replay)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1")


def test_a_batch_that_took_too_long_is_given_up_before_it_is_decided(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(bootstrap, kafka__transaction__timeout__ms="20000")
    prepared = write(sink.options, sink.task(0, 0), rows(b"slow"))
    monkeypatch.setattr(exactly_once, "_now_ms", lambda: prepared.opened_at_ms + 11_000)
    with pytest.raises(SinkError, match=r"batch 0 took 11 s, more than half .* 20 s: make batches smaller"):
        commit(sink.options, [prepared])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == Counter()
    sink.close()


def test_a_checkpoint_older_than_the_topic_is_told(sink: Sink) -> None:
    for batch in range(3):
        commit(sink.options, [write(sink.options, sink.task(batch, 0), rows(b"x"))])
    with pytest.raises(SinkError, match="wrote batch 2 before this batch 1: its checkpoint is older"):
        write(sink.options, sink.task(1, 0), rows(b"x"))


# ---------------------------------------------------------------------------------------------------- other rows


OTHER_ROWS = r"batch 0 of query \S+ was already written with 3 rows and now has {} rows, .* the checkpoint is older"


@pytest.mark.parametrize("is_committed", [False, True])
def test_other_rows_under_a_decided_batch_id_are_an_error(sink: Sink, is_committed: bool) -> None:
    first = [
        write(sink.options, sink.task(0, task), rows(*values)) for task, values in enumerate(((b"0", b"1"), (b"2",)))
    ]
    if is_committed:
        commit(sink.options, first)
    else:
        decided(sink, *first)
    for values, count in (
        ((b"0", b"1", b"2", b"3"), "4"),
        ((b"0", b"1", b"3"), "3 other"),
        ((b"0", b"1"), "2"),
        ((), "0"),
    ):
        replay = [write(sink.options, sink.task(0, 0), rows(*values)), write(sink.options, sink.task(0, 1), rows())]
        with pytest.raises(SinkError, match=OTHER_ROWS.format(count)):
            commit(sink.options, replay)
        abort(sink.options, replay)
        eventually(lambda: not sink.is_held_open())
        assert sink.values() == once(b"0", b"1", b"2")


def test_the_same_rows_in_another_order_and_in_other_tasks_are_the_same_batch(sink: Sink) -> None:
    decided(
        sink,
        write(sink.options, sink.task(0, 0), rows(b"0", b"1", b"2")),
        write(sink.options, sink.task(0, 1), rows(b"3")),
    )
    replay = [
        write(sink.options, sink.task(0, 0), rows(b"3")),
        write(sink.options, sink.task(0, 1), iter([*rows(b"2"), *rows(b"1")])),
        write(sink.options, sink.task(0, 2), rows(b"0")),
    ]
    commit(sink.options, replay)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1", b"2", b"3")


def test_a_decision_of_an_earlier_version_is_finished_whatever_the_rows(sink: Sink) -> None:
    decided(sink, write(sink.options, sink.task(0, 0), rows(b"first")), by_earlier_version=True)
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"other"))])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"first")


def test_a_task_that_must_write_its_rows_again_and_has_others_is_an_error(sink: Sink) -> None:
    first = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)]
    decided(sink, *first)
    sink.client.init_producer_id(f"{sink.query}-1-0")
    # the same rows, but one has gone from task to task
    replay = [write(sink.options, sink.task(0, 0), rows(b"1")), write(sink.options, sink.task(0, 1), rows(b"0"))]
    with pytest.raises(SinkError, match=r"the transaction of task 1 of batch 0 .* timed out .* now has other rows"):
        commit(sink.options, replay)
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0")
    commit(sink.options, [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)])
    eventually(lambda: not sink.is_held_open())
    assert sink.values() == once(b"0", b"1")


def test_the_identity_of_a_batch_outlives_a_task_that_wrote_its_rows_again(sink: Sink) -> None:
    first = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)]
    decided(sink, *first)
    sink.client.init_producer_id(f"{sink.query}-1-0")
    commit(sink.options, [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1)])
    replay = [write(sink.options, sink.task(0, task), rows(b"%d" % task)) for task in (0, 1, 2)]
    with pytest.raises(SinkError, match="already written with 2 rows and now has 3 rows"):
        commit(sink.options, replay)
    commit(sink.options, replay[:2])
    assert sink.values() == once(b"0", b"1")


def checkpoint(folder: Path, query: str, batch: int, planned_at_ms: int, offset: int) -> None:
    """As Spark writes it when it plans a batch."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(f'{{"id":"{query}"}}')
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{planned_at_ms}}}\n{{"t":{{"0":{offset}}}}}'
    (folder / "offsets" / str(batch)).write_text(text)


def test_other_rows_of_the_same_plan_are_the_same_batch(bootstrap: str, tmp_path: Path) -> None:
    """A query with rand(), or a new version of it: what was decided stays."""
    sink = Sink(bootstrap, checkpointLocation=tmp_path.as_uri())
    checkpoint(tmp_path, sink.query, 0, planned_at_ms=1, offset=10)
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"0.123"))])
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"0.456", b"0.789"))])
    assert sink.values() == once(b"0.123")
    sink.close()


def test_replanned_batch_is_identified_by_its_offsets_and_its_rows(bootstrap: str, tmp_path: Path) -> None:
    sink = Sink(bootstrap, checkpointLocation=str(tmp_path))
    checkpoint(tmp_path, sink.query, 0, planned_at_ms=1, offset=10)
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a"))])
    checkpoint(tmp_path, sink.query, 0, planned_at_ms=2, offset=10)
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a"))])
    with pytest.raises(SinkError, match="was already written with 1 rows and now has 1 other rows"):
        commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"b"))])
    # rows that happen to be the same, of other input
    checkpoint(tmp_path, sink.query, 0, planned_at_ms=2, offset=11)
    with pytest.raises(SinkError, match="was already written with 1 rows and now has 1 other rows"):
        commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a"))])
    assert sink.values() == once(b"a")
    sink.close()


def test_an_open_transaction_of_another_query_hides_nothing(sink: Sink) -> None:
    commit(sink.options, [write(sink.options, sink.task(0, 0), rows(b"a"))])
    others = [Sink(sink.bootstrap) for _ in range(12)]
    for other in others:
        write(other.options, other.task(0, 0), rows(b"open"))
    commit(sink.options, [write(sink.options, sink.task(1, 0), rows(b"b"))])
    exactly_once._SEEN.clear()
    assert write(sink.options, sink.task(1, 0), rows(b"b")).opened is None
    for other in others:
        abort(other.options, [Prepared(other.task(0, 0))])
        other.close()
