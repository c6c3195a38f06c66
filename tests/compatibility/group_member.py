"""A member of a consumer group in a process of its own, for runs that pause and kill it.

    python group_member.py SETTINGS TOPIC LOG

It reads, commits what it read under a name of its own, and writes what it owns and what became of its commits to LOG, a line
each. SIGTERM makes it leave. It imports confluent-kafka and nothing of Penstock.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from typing import Any

import confluent_kafka

POLL_S = 0.05
COMMIT_EVERY_S = 0.1
PAUSED_S = 0.5
"""Who took so long for a round was stopped."""

_PREFIX = b"CGMDv2:"
_GENERATION = struct.Struct("=i")


def generation_of(consumer: Any) -> int:
    """What the client takes itself to be in: the generation or, in the consumer protocol, the member epoch."""
    state = consumer.consumer_group_metadata()
    if state is None or not state.startswith(_PREFIX):
        return -1
    return int(_GENERATION.unpack_from(state, len(_PREFIX))[0])


class Member:
    def __init__(self, settings: dict[str, Any], topic: str, log: Any) -> None:
        self._log = log
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._is_leaving = False
        self._commits = 0
        self._read: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._said: tuple[int, list[int]] = (-1, [])

    def leave(self, *_: Any) -> None:
        self._is_leaving = True

    def _assigned(self, _consumer: Any, _partitions: list[Any]) -> None:
        self._read.clear()
        self._positions.clear()

    def _revoked(self, _consumer: Any, partitions: list[Any]) -> None:
        for partition in partitions:
            self._read.pop(partition.partition, None)
            self._positions.pop(partition.partition, None)

    def _say(self, **event: Any) -> None:
        self._log.write(json.dumps(event) + "\n")
        self._log.flush()

    def run(self) -> None:
        committed_at = 0.0
        round_at = time.monotonic()
        while not self._is_leaving:
            if time.monotonic() > round_at + PAUSED_S:
                # who was stopped goes on as if nothing had happened, before it hears that it is out
                self._read = self._read or dict(self._positions)
                if self._read:
                    self._commit()
            round_at = time.monotonic()
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                self._read[message.partition()] = self._positions[message.partition()] = message.offset() + 1
            elif message is not None and message.error().fatal():
                self._say(fatal=str(message.error()))
                return
            self._say_what_it_owns()
            if self._read and time.monotonic() > committed_at + COMMIT_EVERY_S:
                committed_at = time.monotonic()
                self._commit()
        self._consumer.close()
        self._say(left=True)

    def _say_what_it_owns(self) -> None:
        before = generation_of(self._consumer)
        owned = sorted(partition.partition for partition in self._consumer.assignment())
        if before == generation_of(self._consumer) and (before, owned) != self._said:
            self._said = (before, owned)
            self._say(generation=before, owned=owned)

    def _commit(self) -> None:
        self._commits += 1
        before = generation_of(self._consumer)
        member = self._consumer.memberid()
        name = f"{os.getpid()} {self._commits} {before} {member}"
        offsets = [
            confluent_kafka.TopicPartition(self._topic, partition, offset, name)
            for partition, offset in self._read.items()
        ]
        self._read.clear()
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
            result = "ok"
        except confluent_kafka.KafkaException as error:
            result = error.args[0].name()
        self._say(commit=name, result=result, changed=before != generation_of(self._consumer))


def main() -> None:
    settings, topic, path = sys.argv[1:]
    with open(path, "a", encoding="utf-8") as log:
        member = Member(json.loads(settings), topic, log)
        signal.signal(signal.SIGTERM, member.leave)
        member.run()


if __name__ == "__main__":
    main()
