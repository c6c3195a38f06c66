"""Reading a topic through the Kafka client: chosen partitions from given offsets, or a share of them as a group's member.

Both write every record as one line and stop after a count, at an end, or never. The first commits nothing. A member
commits what it has written, and only that: whatever ends the command, no record is lost, and after a crash some may come
twice.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.cli.connection import TIMEOUT_S, Spot, coordinator_problem, reason
from penstock.cli.failure import Failed
from penstock.cli.output import OutputClosed, note, write_lines
from penstock.cli.stopping import Stop

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

Writer = Callable[["Message"], bytes]

_MESSAGES_PER_CALL = 1_000
_POLL_S = 0.25
_COMMIT_INTERVAL_MS = 1_000
_LEAVE_S_MAX = 5.0
_LOOK_INTERVAL_S = 2.0
_NO_GROUP = "penstock-consume"
"""The client library wants a name; nothing is ever committed under it."""


class Reading:
    """One run over a topic. `end` is where to stop in each partition; None reads on."""

    def __init__(
        self, topic: str, write: Writer, count: int | None, end: Mapping[Spot, int] | None, stop: Stop
    ) -> None:
        self._topic = topic
        self._stop = stop
        self._write = write
        self._left = sys.maxsize if count is None else count
        self._end = None if end is None else {partition: offset for (_, partition), offset in end.items()}
        self._open: set[int] = set()
        """Partitions that have more to read."""
        self._waiting = False
        """A member that has not been told yet which partitions it reads."""
        self._group = ""
        self._bootstrap = ""
        self._look_at = 0.0
        """When a waiting member next checks the state of the group's coordinator."""
        self._problem: str | None = None
        self._gone: str | None = None
        self._commit_failure: str | None = None
        self._written: dict[int, int] = {}
        """The offset behind the last record written, of each partition since the last commit."""

    def run(self, config: dict[str, Any], first: Mapping[Spot, int]) -> None:
        """Read from these offsets, in no group."""
        from confluent_kafka import TopicPartition

        self._open = {p for (_, p), offset in first.items() if self._end is None or offset < self._end[p]}
        if not self._open or not self._left:
            return
        places = [TopicPartition(self._topic, p, first[self._topic, p]) for p in sorted(self._open)]
        settings = {**config, "group.id": _NO_GROUP, "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._run(settings, lambda consumer: consumer.assign(places), lambda _: None)

    def run_in_group(self, config: dict[str, Any], group: str, otherwise: str) -> None:
        """Read as a member, from where the group is; from `otherwise` (earliest or latest) where it committed nothing."""
        if not self._left:
            return
        self._waiting = True
        self._group = group
        self._bootstrap = config["bootstrap.servers"]
        self._look_at = time.monotonic() + _LOOK_INTERVAL_S
        settings = {
            **config,
            "group.id": group,
            "enable.auto.commit": True,
            "auto.commit.interval.ms": _COMMIT_INTERVAL_MS,
            "enable.auto.offset.store": False,
            "auto.offset.reset": otherwise,
            "on_commit": self._committed,
        }
        self._run(
            settings,
            lambda consumer: consumer.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            ),
            self._store,
        )
        if self._commit_failure is not None:
            raise Failed(f"group {group}: the last offsets may not be committed: {self._commit_failure}")

    def _run(
        self, settings: dict[str, Any], begin: Callable[[Consumer], None], wrote: Callable[[Consumer], None]
    ) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer({**settings, "enable.partition.eof": True, "error_cb": self._note_error})
        try:
            begin(consumer)
            self._read(consumer, wrote)
        except OutputClosed:
            return
        finally:
            self._leave(consumer)

    def _leave(self, consumer: Consumer) -> None:
        """Commit and say goodbye, in bounded time: without a broker the client library would try for as long as a session
        lasts, and again when the object is freed. A thread that nobody waits for keeps it."""
        leaving = threading.Thread(target=consumer.close, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S_MAX)
        if leaving.is_alive():
            self._commit_failure = "the broker does not answer"

    def _read(self, consumer: Consumer, wrote: Callable[[Consumer], None]) -> None:
        while self._left and not self._stop.asked and (self._open or self._waiting or self._end is None):
            messages = consumer.consume(_MESSAGES_PER_CALL, _POLL_S)
            if messages:
                self._gone = None
            elif self._gone is not None and self._end is not None:
                raise Failed(f"topic {self._topic}: {self._gone}")
            elif self._waiting and time.monotonic() >= self._look_at:
                self._check_coordinator()
            write_lines(self._lines(messages))
            wrote(consumer)

    # ------------------------------------------------------------------------------------------------ records

    def _lines(self, messages: list[Message]) -> list[bytes]:
        lines: list[bytes] = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._take_error(error, message)
                continue
            partition: Any = message.partition()
            offset: Any = message.offset()
            if partition not in self._open:
                continue
            if self._end is not None and offset >= self._end[partition] - 1:
                self._open.discard(partition)
                if offset >= self._end[partition]:
                    continue  # the last offset below the end was no record (a marker, or compacted away)
            lines.append(self._write(message) + b"\n")
            self._written[partition] = offset + 1
            self._left -= 1
            if not self._left:
                break
        return lines

    def _take_error(self, error: Any, message: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            if self._end is not None:
                self._open.discard(message.partition())
        elif error.fatal() or not error.retriable():
            raise Failed(f"topic {self._topic}: {reason(error)}")

    def _note_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._gone = reason(error)

    # ------------------------------------------------------------------------------------------------ as a member

    def _check_coordinator(self) -> None:
        """Fail if the group's coordinator cannot store anything in two consecutive checks: the client library would wait
        silently."""
        problem = coordinator_problem(self._bootstrap, self._group)
        if problem is not None and self._problem is not None:
            raise Failed(f"group {self._group}: {problem}")
        self._problem = problem
        self._look_at = time.monotonic() + _LOOK_INTERVAL_S

    def _assigned(self, consumer: Consumer, places: list[Any]) -> None:
        self._waiting = False
        self._open |= {place.partition for place in places} - self._read_to_the_end(consumer, places)
        if not places:
            note(f"no partitions assigned: other members of the group read all of topic {self._topic}")

    def _read_to_the_end(self, consumer: Consumer, places: list[Any]) -> set[int]:
        """Partitions where the group is at the end or behind it: behind an open transaction no end is ever reported."""
        from confluent_kafka import KafkaException

        if self._end is None or not places:
            return set()
        try:
            there = consumer.committed(places, timeout=TIMEOUT_S)
        except KafkaException as error:
            raise Failed(f"topic {self._topic}: cannot read the group's committed offsets: {reason(error)}") from None
        return {place.partition for place in there if place.offset >= self._end[place.partition]}

    def _revoked(self, _consumer: Consumer, places: list[Any]) -> None:
        """A rebalance: what this member is to read next comes with the next assignment."""
        self._waiting = True
        for place in places:
            self._open.discard(place.partition)

    def _store(self, consumer: Consumer) -> None:
        """Hand the client library what may be committed: it does so now and then, at a rebalance, and at the end."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        for partition, offset in self._written.items():
            try:
                consumer.store_offsets(offsets=[TopicPartition(self._topic, partition, offset)])
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:  # it is another member's by now
                    raise Failed(f"topic {self._topic}: {reason(error)}") from None
        self._written.clear()

    def _committed(self, error: Any, _places: Any) -> None:
        from confluent_kafka import KafkaError

        if error is None:
            self._commit_failure = None
        elif error.code() != KafkaError._NO_OFFSET:
            self._commit_failure = reason(error)
