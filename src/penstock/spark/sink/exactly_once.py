"""Exactly once: a two-phase commit over plain Kafka transactions, decided by the driver.

Spark runs a batch as tasks, and may run any of it again: a task that failed or was slow, a batch whose driver died. Kafka
has transactions of one producer, and none over several. What joins them is a decision in the journal (`journal`): before
it nothing of a batch may be seen, after it all of it will be.

    task                                        driver
    ----                                        ------
    read the journal
      committed already? --------- skip --+
      decided already?  finish, look again|
    InitProducerId, AddPartitionsToTxn    |
    Produce the rows, Produce the marker  |
    leave the transaction open -----------+--> PREPARED: commit(messages)
                                               decided already? then with these rows (sink_identity)?
                                               abort what no task of this batch owns
                                               has somebody else committed it? is there time left?
                                               write the decision
                                          ---> DECIDED
                                               EndTxn(commit), one after the other
                                          ---> COMMITTED

Promises

1. A task's rows and its marker are in one transaction: both can be read, or neither. The marker is therefore the truth
   about a task. What EndTxn answers is not: an answer is lost with its connection, and a transaction id is forgotten
   after a week.
2. No transaction is committed before its batch is decided, and a decided one is never aborted by us.
3. A task writes rows only when its marker for the batch is not committed and no transaction that could still commit it is
   open: its own earlier one is ended or fenced (InitProducerId), and before it decides, the driver fences every other of the
   query and looks for markers once more. So a driver or a task that was thought dead and wakes up can delay, not double.
4. A batch that is decided and replayed is finished, not written again, as long as its transactions are there. One that
   timed out is aborted by the broker as a whole; its task writes its rows again. That, and only that, needs the same rows in
   the same task, so the number of tasks must be as decided then.
5. A decision identifies the content of its batch (sink_identity). Different rows under the number of a decided batch are an
   error: they are neither written nor silently skipped.

A transaction lives for `transaction.timeout.ms` from its first partition on. The driver decides in its first half or not at
all; the second half is for the decision to be carried out, and for clocks that differ.

The id of a transaction is `<query>-<task>-<attempt>`. With the attempt in it a second attempt of a task does not fence the
first, which may have won. Without the batch in it the coordinator has a few ids a query, and an InitProducerId a batch is
what fences the leftovers of a run before. All requests are of transactions version 1 (Produce up to 11, EndTxn up to 4):
partitions are added by name, the epoch is raised by InitProducerId alone, and a repeated commit answers as the first.

A batch write has no query. With `writeId` it is a query of that name with one batch, number 0; without, there is nothing
by which a second run could know the first, so neither marker nor decision is written: every task's rows come whole or not
at all, and a driver that dies between two EndTxn leaves some tasks' rows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from penstock.arrow.encode import Writer
from penstock.client.kafka import KafkaClient, KafkaError
from penstock.model.ids import TopicPartition
from penstock.spark.sink.delivery import Sender
from penstock.spark.sink.identity import Batch, check_same, check_same_task, plan_of
from penstock.spark.sink.journal import TOPIC, Decision, Journal, JournalState, Opened, marker_batch
from penstock.spark.sink.options import SinkError, SinkOptions
from penstock.spark.sink.row_digest import EMPTY, Content, ContentCounter
from penstock.spark.sink.transactions import abort_quietly, explained, fence, finish, impatient

if TYPE_CHECKING:
    import pyarrow as pa

_SEEN: dict[tuple[object, str], JournalState] = {}
"""What this process has read of journals, so that a task reads on from there."""
_SEEN_MAX = 32
KILLED_TASKS_S = 0.5
"""How long a task that Spark kills may still write."""


class Task(NamedTuple):
    """One attempt of Spark's to write one part of one batch."""

    query: str
    batch: int
    number: int
    attempt: int
    is_journaled: bool = True

    @property
    def transactional_id(self) -> str:
        return f"{self.query}-{self.number}-{self.attempt}"


@dataclass
class Prepared(WriterCommitMessage):
    """What a task hands to the driver."""

    task: Task
    content: Content = EMPTY
    """Content of all rows of the task, even if they are already written; unknown for a write without a name."""
    opened: Opened | None = None
    """None when there is nothing to commit: no rows, or all of them there already."""
    opened_at_ms: int = 0
    tasks_decided: int | None = None
    """Of an earlier run of this batch."""
    journal_offset: int = 0
    """From where on the driver reads what the task cannot have seen."""


# ---------------------------------------------------------------------------------------------------- the task


def write(options: SinkOptions, task: Task, tables: Iterator[pa.RecordBatch]) -> Prepared:
    """The rows of one task into a transaction that is left open; or nothing, if they are there already."""
    with KafkaClient(options.settings) as client:
        prepared = Prepared(task)
        is_done, counter = False, None
        if task.is_journaled:
            counter = ContentCounter(options.columns)
            tables = counter.watch(tables)
            journal = _journal(client, task.query)
            is_done = _is_done(client, journal, task)
            state = journal.state
            if state.decision is not None and state.decision.batch == task.batch:
                prepared.tasks_decided = state.decision.tasks
            prepared.journal_offset = state.settled_offset
            if is_done:
                # Read to the end, or Spark would have to start another worker.
                for _ in tables:
                    pass
        if not is_done:
            first = next((table for table in tables if table.num_rows), None)
            if first is not None:
                prepared = _write(client, options, prepared, chain([first], tables))
        return prepared if counter is None else dataclasses.replace(prepared, content=counter.content)


def _journal(client: KafkaClient, query: str) -> Journal:
    info = client.metadata([TOPIC]).topics.get(TOPIC)
    if info is None:
        raise SinkError(f"topic {TOPIC} was deleted: the state of query {query} is lost")
    # A topic that was deleted and made again has another id.
    key = (info.topic_id, query)
    journal = Journal(client, _SEEN.pop(key) if key in _SEEN else JournalState(query))
    journal.read_on()
    _SEEN[key] = journal.state
    while len(_SEEN) > _SEEN_MAX:
        del _SEEN[next(iter(_SEEN))]
    return journal


def _is_done(client: KafkaClient, journal: Journal, task: Task) -> bool:
    """Whether this task's rows of this batch are in their topics; a decided transaction is finished on the way."""
    state = journal.state
    decision = state.decision
    newest = max(state.committed.get(task.number, -1), -1 if decision is None else decision.batch)
    if newest > task.batch:
        raise SinkError(
            f"query {task.query} wrote batch {newest} before this batch {task.batch}: its checkpoint is older than "
            "the topic; use the newest checkpoint, or a new one"
        )
    if state.committed.get(task.number) == task.batch:
        return True
    if decision is None or decision.batch != task.batch:
        return False
    if task.number >= decision.tasks:
        finish(client, journal, decision, decision.opened)
        if journal.state.missing(decision):
            raise _other_tasks(task.query, decision, f"at least {task.number + 1}")
    elif task.number in decision.opened:
        finish(client, journal, decision, [task.number])
        return journal.state.committed.get(task.number) == task.batch
    # No transaction was decided for it: it had no rows, or they were committed by a run before.
    return True


def _write(client: KafkaClient, options: SinkOptions, prepared: Prepared, tables: Iterator[pa.RecordBatch]) -> Prepared:
    task = prepared.task
    name = task.transactional_id
    opened_at_ms = _now_ms()
    with explained(options):
        producer = client.init_producer_id(name, timeout_ms=options.timeout_ms)
    opened = Opened(name, producer)

    def join(places: Sequence[TopicPartition]) -> None:
        client.add_partitions_to_txn(name, producer, places)

    try:
        with explained(options):
            sender = Sender(client, options, Writer(*producer, True), transactional_id=name, joining=join)
            sender.send_all(tables)
            if task.is_journaled:
                place = Journal(client, JournalState(task.query)).place
                client.add_partitions_to_txn(name, producer, [place])
                marker = marker_batch(task.query, task.number, task.batch, producer)
                client.produce({place: marker}, transactional_id=name)
    except BaseException:
        abort_quietly(options, [opened])
        raise
    return dataclasses.replace(prepared, opened=opened, opened_at_ms=opened_at_ms)


# ---------------------------------------------------------------------------------------------------- the driver


def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Decide the batch of these messages and carry the decision out. May be repeated, by any driver."""
    prepared = [message for message in messages if isinstance(message, Prepared)]
    opened = {one.task.number: one.opened for one in prepared if one.opened is not None}
    is_decided = any(one.tasks_decided is not None for one in prepared)
    if not opened and not is_decided:
        return
    task = prepared[0].task
    with KafkaClient(options.settings) as client:
        if not task.is_journaled:
            _commit_alone(client, options, task, prepared)
            return
        journal = Journal(client, JournalState(task.query))
        contents = {one.task.number: one.content for one in prepared}
        batch = Batch(task.query, task.batch, contents, plan_of(options.checkpoint, task.query, task.batch))
        decided: Decision | None = None
        try:
            if is_decided:
                decided = _decided(client, options, journal, batch, len(messages))
            else:
                journal.state.offset = min(one.journal_offset for one in prepared)
            if not opened:
                return
            if decided is not None:
                for number in sorted(opened):
                    check_same_task(decided, batch, number)
            _check_alone(client, options, journal, task, opened)
            _check_time(options, task, prepared)
        except SinkError:
            abort_quietly(options, opened.values())
            raise
        if decided is not None and decided.contents is not None:
            # The topics already have the rows of the earlier run, whatever was computed now.
            contents = dict(decided.contents)
        decision = Decision(task.batch, len(messages), opened, contents, batch.plan)
        journal.decide(decision)
        carry_out(client, journal, decision)


def carry_out(client: KafkaClient, journal: Journal, decision: Decision) -> None:
    """Commit what was decided; raises SinkError when a transaction was gone before."""
    finish(client, journal, decision, decision.opened)
    missing = journal.state.missing(decision)
    if missing:
        raise SinkError(
            f"batch {decision.batch} of query {journal.state.query}: the transaction of task {missing[0]} was aborted "
            "before it could be committed; start the query again, and the task writes its rows again"
        )


def _commit_alone(client: KafkaClient, options: SinkOptions, task: Task, prepared: Sequence[Prepared]) -> None:
    """A batch write without a name: nobody will ever ask what was decided."""
    opened = [one.opened for one in prepared if one.opened is not None]
    try:
        fence(client, options, task.query, opened)
        _check_time(options, task, prepared)
    except SinkError:
        abort_quietly(options, opened)
        raise
    with explained(options):
        for one in opened:
            client.end_txn(*one, commit=True)


def _decided(client: KafkaClient, options: SinkOptions, journal: Journal, batch: Batch, tasks: int) -> Decision | None:
    """The decision on this batch by an earlier run. Raises SinkError if this is a different batch, or if it has a
    different number of tasks and still needs them to finish."""
    decision = journal.read_on().decision
    if decision is None or decision.batch != batch.number:
        return None
    if decision.tasks != tasks:
        finish(client, journal, decision, decision.opened)
    check_same(decision, batch, options.write_id)
    if decision.tasks != tasks and journal.state.missing(decision):
        raise _other_tasks(batch.query, decision, str(tasks))
    return decision


def _check_alone(
    client: KafkaClient, options: SinkOptions, journal: Journal, task: Task, opened: dict[int, Opened]
) -> None:
    """Nobody else can commit, or has committed, what these transactions hold."""
    own = {one.producer for one in opened.values()}

    def is_alone(state: JournalState) -> bool:
        if all(one.producer in own for one in state.pending):
            return True
        fence(client, options, task.query, opened.values())
        return False

    fence(client, options, task.query, opened.values())
    state = journal.read_until(is_alone, f"batch {task.batch}: another run of query {task.query} has not ended")
    doubled = [number for number in sorted(opened) if state.committed.get(number) == task.batch]
    if doubled:
        raise SinkError(
            f"batch {task.batch} of query {task.query}: another run of the query has committed task {doubled[0]}; "
            "stop one of the two, and start the other again"
        )


def _check_time(options: SinkOptions, task: Task, prepared: Iterable[Prepared]) -> None:
    """A decision needs time to be carried out."""
    oldest_ms = min(one.opened_at_ms for one in prepared if one.opened is not None)
    if _now_ms() - oldest_ms > options.timeout_ms / 2:
        raise SinkError(
            f"batch {task.batch} took {(_now_ms() - oldest_ms) / 1_000:.0f} s, more than half of its transactions' "
            f"timeout of {options.timeout_ms / 1_000:g} s: make batches smaller, or raise kafka.transaction.timeout.ms "
            "and the broker's transaction.max.timeout.ms"
        )


def abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], query: str | None = None) -> None:
    """Spark gives the batch up: because a task failed, or because `commit` did. What is decided stays as it is.

    `query` is for writers that know it themselves: tasks that were killed leave an open transaction and no message.
    """
    prepared = [message for message in messages if isinstance(message, Prepared)]
    if prepared:
        query = prepared[0].task.query
    if query is None:
        return
    decided: set[Opened] = set()
    # What cannot be aborted now ends by itself; why the batch failed must not be hidden behind that.
    with suppress(KafkaError, SinkError), KafkaClient(impatient(options)) as client:
        if prepared and prepared[0].task.is_journaled:
            decision = Journal(client, JournalState(query)).read_on().decision
            if decision is not None and decision.batch == prepared[0].task.batch:
                decided = set(decision.opened.values())
        for one in prepared:
            if one.opened is not None and one.opened not in decided:
                with suppress(KafkaError):
                    client.end_txn(*one.opened, commit=False)
        fence(client, options, query, decided)
        if len(prepared) < len(messages):
            # Spark kills the tasks that are left while it tells us: one of them may have begun just now.
            time.sleep(KILLED_TASKS_S)
            fence(client, options, query, decided)


def _other_tasks(query: str, decision: Decision, tasks: str) -> SinkError:
    return SinkError(
        f"batch {decision.batch} of query {query} was decided with {decision.tasks} tasks and now has {tasks}, and a "
        "transaction of it timed out: which rows are missing cannot be told; run it with as many tasks as before "
        "(spark.sql.shuffle.partitions, minPartitions)"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
