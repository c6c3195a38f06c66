"""One directory a broker, and its damaged twin: what each holds, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.imports.directories import (
    day1_log,
    day1_record,
    flip,
    fluxgo_commit,
    fluxgo_log,
    flymq_commit,
    flymq_message,
    flymq_store,
    minikafka_log,
    minikafka_record,
    rustlog_log,
    rustlog_record,
    tear,
)

COUNT = 40
VALUES = [b"value %d " % number + b"x" * (number * 7 % 50) for number in range(COUNT)]
KEYS = [b"key-%d" % (number % 5) for number in range(COUNT)]

Expected = dict[str, list[tuple[int, bytes | None, bytes | None]]]
"""Offset, key and value of every record, by TOPIC-PARTITION."""


@dataclass(frozen=True)
class Fixture:
    name: str
    make: Callable[[Path], None]
    damage: Callable[[Path], None]
    """A flipped byte, a torn tail and a missing index, as far as the broker has them."""
    has_keys: bool
    commits: dict[tuple[str, str, int], int]
    lost: frozenset[int]
    """Records of the first partition that the damaged twin does not give."""

    def expected(self, *, damaged: bool) -> Expected:
        lost = self.lost if damaged else frozenset()
        rows = [(at, KEYS[at] if self.has_keys else None, VALUES[at]) for at in range(COUNT) if at not in lost]
        return {"orders-0": rows, "orders-2": [(0, b"" if self.has_keys else None, b"only")]}


def _make_fluxgo(root: Path) -> None:
    fluxgo_log(root / "orders_0", 0, VALUES[:30])
    fluxgo_log(root / "orders_0", 30, VALUES[30:])
    fluxgo_log(root / "orders_2", 0, [b"only"])
    fluxgo_commit(root, "billing", "orders", 0, 25)


def _damage_fluxgo(root: Path) -> None:
    flip(root / "orders_0" / f"{0:020d}.log", 0)
    last = root / "orders_0" / f"{30:020d}.log"
    tear(last, 3)
    last.with_suffix(".index").unlink()


def _make_minikafka(root: Path) -> None:
    records = [minikafka_record(n, 1_700_000_000_000 + n, KEYS[n], VALUES[n]) for n in range(COUNT)]
    minikafka_log(root, "orders", 0, 0, records[:30])
    minikafka_log(root, "orders", 0, 30, records[30:])
    minikafka_log(root, "orders", 2, 0, [minikafka_record(0, 1_700_000_000_000, b"", b"only")])
    commit = minikafka_record(0, 1_700_000_100_000, b"billing:orders:0", b"25")
    minikafka_log(root, "__consumer_offsets", 0, 0, [commit])


def _damage_minikafka(root: Path) -> None:
    folder = root / "logs" / "orders" / "0"
    flip(folder / "0.log", 4)
    tear(folder / "30.log", 3)


def _make_rustlog(root: Path) -> None:
    records = [rustlog_record(n, VALUES[n]) for n in range(COUNT)]
    rustlog_log(root / "orders-0", 0, records[:30])
    rustlog_log(root / "orders-0", 30, records[30:])
    rustlog_log(root / "orders-2", 0, [rustlog_record(0, b"only")])


def _damage_rustlog(root: Path) -> None:
    flip(root / "orders-0" / f"{0:020d}.log", 0)
    last = root / "orders-0" / f"{30:020d}.log"
    tear(last, 3)
    last.with_suffix(".index").unlink()


def _make_flymq(root: Path) -> None:
    messages = [flymq_message(KEYS[n], VALUES[n]) for n in range(COUNT)]
    flymq_store(root / "orders" / "0" / "0.store", messages[:30], ">Q")
    flymq_store(root / "orders" / "0" / "30.store", messages[30:], ">Q", padded=12 * 1000)
    flymq_store(root / "topics" / "orders" / "partition-2" / f"{0:020d}.store", [flymq_message(b"", b"only")], ">I")
    flymq_commit(root, "billing", "orders", {"0": 25})


def _damage_flymq(root: Path) -> None:
    flip(root / "orders" / "0" / "0.store", 7)
    tear(root / "orders" / "0" / "30.store", 3)
    (root / "orders" / "0" / "30.index").unlink()


def _make_day1(root: Path) -> None:
    day1_log(root, "orders", 0, [day1_record(n, KEYS[n], VALUES[n]) for n in range(COUNT)])
    day1_log(root, "orders", 2, [day1_record(0, b"", b"only")])


def _damage_day1(root: Path) -> None:
    flip(root / "orders-0.log", 9)
    tear(root / "orders-0.log", 3)


COMMITS = {("billing", "orders", 0): 25}
LOST = frozenset({0, COUNT - 1})
FIXTURES = [
    Fixture("fluxgo", _make_fluxgo, _damage_fluxgo, False, COMMITS, LOST),
    Fixture("minikafka", _make_minikafka, _damage_minikafka, True, COMMITS, LOST),
    Fixture("rustlog", _make_rustlog, _damage_rustlog, False, {}, LOST),
    Fixture("flymq", _make_flymq, _damage_flymq, True, COMMITS, LOST),
    Fixture("day1", _make_day1, _damage_day1, True, {}, LOST),
]
