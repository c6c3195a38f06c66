"""Drives a group coordinator as the broker will: a clock, numbered tickets, a log of encoded records, restarts."""

from __future__ import annotations

import itertools
import re
import uuid
from typing import Any

from penstock.coordination.consumer_group_records import SubscribedTopic
from penstock.coordination.group_commands import Command, Effects, GroupSettings, JoinGroup, SyncGroup
from penstock.coordination.group_coordinator import GroupCoordinator
from penstock.coordination.group_records import decode, encode
from penstock.model.errors import BrokerError, Fault


class Driver:
    """`log` holds what a real log would: key, value and producer id of each record, and (producer id, committed) markers."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None, int | None] | tuple[int, bool]] = []
        self.answers: dict[object, Any] = {}
        self.tickets = itertools.count(1)
        self.ids = itertools.count(1)
        self.topics: dict[str, SubscribedTopic] = {}
        self.coordinator = self.fresh()
        self.coordinator.loaded(self.now_ms)

    def fresh(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(self.settings, lambda: f"id{next(self.ids)}", self.resolve)
        coordinator.topics_changed(self.topics)
        return coordinator

    def resolve(self, regex: str) -> frozenset[str]:
        try:
            return frozenset(name for name in self.topics if re.fullmatch(regex, name))
        except re.error:
            raise BrokerError(Fault.INVALID_REGULAR_EXPRESSION) from None

    def take(self, effects: Effects) -> Effects:
        producer_id = None if effects.producer is None else effects.producer.producer_id
        self.log.extend((*encode(record), producer_id) for record in effects.records)
        for ticket, result in effects.answers:
            assert ticket not in self.answers, "a ticket is answered once"
            self.answers[ticket] = result
        return effects

    def send(self, command: Command) -> int:
        """Hand a command over; its answer will be in `answers`."""
        ticket = next(self.tickets)
        self.take(self.coordinator.handle(command, self.now_ms, ticket))
        return ticket

    def ask(self, command: Command) -> Any:
        """Hand a command over that is answered at once."""
        return self.answers[self.send(command)]

    def wait(self, ms: int) -> None:
        """Let time pass; the coordinator is called when it asked to be, and not otherwise."""
        end_ms = self.now_ms + ms
        while (due_ms := self.coordinator.next_deadline_ms) <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.coordinator.tick(self.now_ms))
            assert self.coordinator.next_deadline_ms > self.now_ms, "a tick does all that is due"
        self.now_ms = end_ms

    def mark(self, producer_id: int, *, committed: bool) -> None:
        self.log.append((producer_id, committed))
        self.coordinator.end_transaction(producer_id, committed=committed)

    def replayed(self) -> GroupCoordinator:
        """Another coordinator that has read the log."""
        coordinator = self.fresh()
        for entry in self.log:
            if len(entry) == 2:
                coordinator.end_transaction(entry[0], committed=entry[1])
            else:
                record = decode(entry[0], entry[1])
                assert record is not None
                coordinator.replay(record, entry[2])
        return coordinator

    def restart(self) -> None:
        self.coordinator = self.replayed()
        self.coordinator.loaded(self.now_ms)

    def create_topic(self, name: str, partitions: int) -> uuid.UUID:
        topic_id = uuid.UUID(int=1_000 + next(self.ids))
        self.topics = {**self.topics, name: SubscribedTopic(topic_id, partitions)}
        self.coordinator.topics_changed(self.topics)
        return topic_id

    # -------------------------------------------------------------------------------------------- classic groups

    def join(self, member_id: str = "", **changes: Any) -> int:
        return self.send(join_command(member_id, **changes))

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **changes: Any) -> int:
        command = SyncGroup("g", member_id, None, generation, None, None, assignments or {})
        return self.send(command._replace(**changes))

    def stable(self, count: int, **changes: Any) -> tuple[list[str], int]:
        """A group of so many members, each with its own id as its assignment; their ids, the leader first."""
        tickets = [self.join(**changes) for _ in range(count)]
        first = self.answers.get(tickets[0])
        if count > 1 and first is not None:  # the first was alone for a moment
            tickets[0] = self.join(first.member_id, **changes)
        results = [self.answers[ticket] for ticket in tickets]
        leader = results[0].leader
        ids = [leader, *(result.member_id for result in results if result.member_id != leader)]
        generation = results[0].generation
        for member_id in reversed(ids):
            self.sync(member_id, generation, {name: name.encode() for name in ids})
        return ids, generation


def join_command(member_id: str = "", **changes: Any) -> JoinGroup:
    command = JoinGroup("g", member_id, None, "c", "/127.0.0.1", 10_000, 60_000, "consumer", (("range", b"m"),))
    return command._replace(**changes)


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription, version 0."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"
