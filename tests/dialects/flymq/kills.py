"""Runs in which a `penstock serve` process is killed in each state of a FlyMQ transaction, and members of a FlyMQ group are
killed and paused. Every choice comes from a seed. Some rounds run with the tests, two hundred of each with `make soak`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Broker
from tests.dialects.flymq import member
from tests.dialects.flymq.broker import Answer, Fields, Wire, b, fetch, i32, op, s

WAIT_S = 60.0
KILL_AFTER_S = (0.0, 0.004)
"""How long a request that has been sent may be under way."""

TOPICS = ("left", "right")
PARTITIONS = 2
STATES = (
    "begun",
    "produced",
    "produce sent",
    "commit sent",
    "committed",
    "abort sent",
    "aborted",
)

GROUP = "members"
MEMBERS = 4
GROUP_PARTITIONS = 8

BROKER_SETTINGS = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.session_timeout_min_ms": 100,
    "storage.checkpoint_interval_ms": 500,
}
LISTEN = ("flymq=127.0.0.1:0",)


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def wire_to(broker: Broker) -> Wire:
    return Wire(int(broker.addresses["flymq"].rpartition(":")[2]))


# ---- transactions -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TransactionFigures:
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    """How the transactions ended, those that were cut off in their end among them."""
    records: int = 0
    missing: list[bytes] = field(default_factory=list)
    doubled: list[bytes] = field(default_factory=list)
    strange: list[bytes] = field(default_factory=list)
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return not (self.missing or self.doubled or self.strange)

    def as_json(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "kills": dict(self.kills),
            "ends": dict(self.ends),
            "records": self.records,
            "missing": len(self.missing),
            "doubled": len(self.doubled),
            "strange": len(self.strange),
            "seconds": round(self.seconds, 1),
        }


class TransactionKills:
    """Each round: a transaction over two topics comes to a state, the broker is killed and starts again, and the
    transaction goes on to its end, or turns out to have come to it. All of a committed one is seen, nothing of another."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self._broker = broker
        self._dice = random.Random(seed)
        self._figures = TransactionFigures(seed)
        self._due: set[bytes] = set()
        """Acknowledged in transactions that committed."""
        self._possible: set[bytes] = set()
        """In such transactions too, but never acknowledged."""

    def run(self, rounds: int) -> TransactionFigures:
        began = time.monotonic()
        with wire_to(self._broker) as wire:
            for topic in TOPICS:
                wire.good(op(0x03, s(topic) + i32(PARTITIONS)))
        for number in range(rounds):
            self._round(number, STATES[number % len(STATES)])
        self._judge()
        self._figures.seconds = time.monotonic() - began
        return self._figures

    def _round(self, number: int, state: str) -> None:
        acknowledged: list[bytes] = []
        sent: list[bytes] = []
        with wire_to(self._broker) as wire:
            name = self._begin(wire)
            if state != "begun":
                for at in range(self._dice.randint(1, 6)):
                    value = b"%d:%d" % (number, at)
                    wire.good(self._produce(name, value))
                    acknowledged.append(value)
            if state == "produce sent":
                sent = [b"%d:sent%d" % (number, at) for at in range(self._dice.randint(1, 20))]
                wire.send(b"".join(self._produce(name, value) for value in sent))
            elif state in ("commit sent", "abort sent"):
                wire.send(self._end(name, commit=state == "commit sent"))
            elif state in ("committed", "aborted"):
                assert wire.good(self._end(name, commit=state == "committed"))[-1] == 1
            if state.endswith("sent"):
                time.sleep(self._dice.uniform(*KILL_AFTER_S))
            self._broker.kill()
            if state == "produce sent":
                acknowledged += sent[: self._answers(wire)]
        self._figures.kills[state] += 1
        self._broker.start()
        with wire_to(self._broker) as wire:
            self._finish(wire, name, state, acknowledged, sent)

    def _finish(self, wire: Wire, name: str, state: str, acknowledged: list[bytes], sent: list[bytes]) -> None:
        """Bring it to its end, if it has not come to it."""
        told = self._when_loaded(wire, self._produce(name, late := b"%b:late" % name.encode()))
        ended = told.opcode == 0xFF
        if ended:
            assert told.text.startswith("transaction is not active: "), told
            how = told.text.rpartition(" ")[2]
        else:
            acknowledged.append(late)
            how = self._dice.choice(["committed", "aborted"])
            assert wire.good(self._end(name, commit=how == "committed"))[-1] == 1
        self._figures.ends[f"{state}: {'was' if ended else 'then'} {how}"] += 1
        if state in ("committed", "aborted"):
            assert (ended, how) == (True, state), "what was answered is no more"
        if state in ("begun", "produced", "produce sent"):
            assert not ended, "nobody ended it"
        if state in ("commit sent", "abort sent") and ended:
            assert how.startswith(state.partition(" ")[0]), "it ended in another way"
        if how == "committed":
            self._due.update(acknowledged)
            self._possible.update(sent)
            wanted = set(acknowledged)
            until(lambda: wanted <= set(self._values(wire)), f"the records of {name} are seen")

    def _answers(self, wire: Wire) -> int:
        """How many produces were answered before the broker was gone."""
        count = 0
        with suppress(EOFError, ConnectionError):
            while wire.answer().opcode == 0x43:
                count += 1
        return count

    def _begin(self, wire: Wire) -> str:
        return Fields(self._when_loaded(wire, op(0x40)).payload).s()

    def _when_loaded(self, wire: Wire, request: bytes) -> Answer:
        """The answer of a coordinator that has loaded its log."""

        def asked() -> Answer | None:
            answer = wire.ask(request)
            return None if answer.opcode == 0xFF and "load" in answer.text else answer

        found = until(asked, "the coordinator is loaded")
        assert isinstance(found, Answer)
        return found

    def _produce(self, name: str, value: bytes) -> bytes:
        return op(0x43, s(name) + s(self._dice.choice(TOPICS)) + b(value))

    @staticmethod
    def _end(name: str, *, commit: bool) -> bytes:
        return op(0x41 if commit else 0x42, s(name))

    def _values(self, wire: Wire) -> list[bytes]:
        found: list[bytes] = []
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                offset = 0
                while True:
                    fields = Fields(wire.good(fetch(topic, partition, offset, 1000)))
                    count, offset = fields.number("I"), fields.number("Q")
                    if not count:
                        break
                    for _ in range(count):
                        fields.number("Q"), fields.b()
                        found.append(fields.b())
        return found

    def _judge(self) -> None:
        figures = self._figures
        with wire_to(self._broker) as wire:
            seen = Counter(self._values(wire))
        figures.records = seen.total()
        figures.missing = sorted(self._due - seen.keys())
        figures.doubled = sorted(value for value, count in seen.items() if count > 1)
        figures.strange = sorted(seen.keys() - self._due - self._possible)


# ---- members ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MemberFigures:
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    shares: int = 0
    two_owners: list[tuple[int, int]] = field(default_factory=list)
    """Generations and partitions."""
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return not self.two_owners

    def as_json(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "done": dict(self.done),
            "generations": self.generations,
            "shares": self.shares,
            "two_owners": len(self.two_owners),
            "seconds": round(self.seconds, 1),
        }


class MemberKills:
    """Each round one member process is killed or paused, and the others are waited for until they have all partitions; then
    a new one comes, or the paused one wakes up and finds itself out."""

    def __init__(self, broker: Broker, folder: Path, seed: int) -> None:
        self._broker = broker
        self._log = folder / "shares"
        self._log.touch()
        self._dice = random.Random(seed)
        self._figures = MemberFigures(seed)
        self._members: list[subprocess.Popen[bytes]] = []

    def run(self, rounds: int) -> MemberFigures:
        began = time.monotonic()
        with wire_to(self._broker) as wire:
            wire.good(op(0x03, s(GROUP) + i32(GROUP_PARTITIONS)))
        try:
            for _ in range(MEMBERS):
                self._join()
            self._when_whole(MEMBERS, 0)
            for _ in range(rounds):
                self._round()
        finally:
            for process in self._members:
                process.kill()
                process.wait()
        self._judge()
        self._figures.seconds = time.monotonic() - began
        return self._figures

    def _join(self) -> None:
        port = self._broker.addresses["flymq"].rpartition(":")[2]
        command = [sys.executable, "-I", member.__file__, port, GROUP, GROUP, str(self._log)]
        self._members.append(subprocess.Popen(command))

    def _round(self) -> None:
        last = max(self._shares())
        chosen = self._dice.choice(self._members)
        how = self._dice.choice(["killed", "paused"])
        self._figures.done[how] += 1
        chosen.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        last = self._when_whole(MEMBERS - 1, last)
        if how == "killed":
            chosen.wait()
            self._members.remove(chosen)
            self._join()
        else:
            chosen.send_signal(signal.SIGCONT)
        self._when_whole(MEMBERS, last)

    def _shares(self) -> dict[int, dict[str, set[int]]]:
        """Partitions by generation and member."""
        found: dict[int, dict[str, set[int]]] = defaultdict(dict)
        for line in self._log.read_text().splitlines():
            generation, name, *partitions = line.split()
            found[int(generation)][name] = set(map(int, partitions))
        return found

    def _when_whole(self, members: int, after: int) -> int:
        """The first generation behind `after` in which that many members have all partitions."""

        def whole() -> int:
            for generation, shares in sorted(self._shares().items()):
                owned = set().union(*shares.values())
                if generation > after and len(shares) == members and len(owned) == GROUP_PARTITIONS:
                    return generation
            return 0

        found = until(whole, f"a generation of {members} members behind {after}")
        assert isinstance(found, int)
        return found

    def _judge(self) -> None:
        figures = self._figures
        owners: dict[tuple[int, int], set[str]] = defaultdict(set)
        generations = set()
        for line in self._log.read_text().splitlines():
            generation, name, *partitions = line.split()
            generations.add(generation)
            figures.shares += 1
            for partition in partitions:
                owners[int(generation), int(partition)].add(name)
        figures.generations = len(generations)
        figures.two_owners = sorted(place for place, names in owners.items() if len(names) > 1)
