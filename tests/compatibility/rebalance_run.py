"""The rebalance run: real members join a group, leave it, are paused and killed, until it has been rebalanced often enough.

Every choice comes from a seed. Afterwards two accounts are judged: what the members wrote about themselves, and what the
broker wrote to `__consumer_offsets`, record by record.

    two owners      one partition with two members, in one generation by the members' account, at one time by the broker's
    old commits     a commit in the log that a member made in another generation than the log says it was then
    lost commits    a commit that a member was told is done, and that is not in the log
    stuck           a wait that did not end (raised at once)

A hundred rebalances run with the tests, a thousand with `make soak`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.coordination import group_records
from penstock.coordination.consumer_group_records import CurrentAssignmentRecord, GroupEpochRecord
from penstock.coordination.group_records import ClassicGroupRecord, GroupRecord, OffsetRecord, StoredGroup
from penstock.coordination.record_fields import FieldReader
from penstock.records.record import read_records
from penstock.storage.segment_reader import list_segments, read_segment

PARTITIONS = 6
MEMBERS_MAX = 4
SESSION_MS = 2_000
HEARTBEAT_MS = 250
WAIT_S = 60.0
HASTE = 0.3
"""How often the next thing happens before the group has settled."""

BROKER_SETTINGS = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.session_timeout_min_ms": 100,
    "groups.consumer_session_timeout_ms": SESSION_MS,
    "groups.consumer_heartbeat_interval_ms": HEARTBEAT_MS,
}

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


@dataclass(slots=True)
class Findings:
    two_owners: list[str] = field(default_factory=list)
    old_commits: list[str] = field(default_factory=list)
    lost_commits: list[str] = field(default_factory=list)
    rebalances: int = 0
    commits: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        """Whether all is well."""
        return not (self.two_owners or self.old_commits or self.lost_commits)

    def __str__(self) -> str:
        lists = (self.two_owners, self.old_commits, self.lost_commits)
        return "\n".join([str(self.as_json()), *(line for found in lists for line in found[:10])])

    def as_json(self) -> dict[str, Any]:
        return {
            "rebalances": self.rebalances,
            "commits": self.commits,
            "refused": dict(self.refused),
            "actions": dict(self.actions),
            "two_owners": len(self.two_owners),
            "old_commits": len(self.old_commits),
            "lost_commits": len(self.lost_commits),
        }


# ---- the run ----------------------------------------------------------------------------------------------------------


class MemberProcess:
    """One member; its client id is its name in the group."""

    def __init__(self, name: str, bootstrap: str, group: str, topic: str, folder: Path, more: dict[str, Any]) -> None:
        self.name = name
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **more,
        }
        if more.get("group.protocol") != "consumer":
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        self.log = folder / f"{name}.jsonl"
        program = str(Path(__file__).with_name("group_member.py"))
        self.process = subprocess.Popen([sys.executable, program, json.dumps(settings), topic, str(self.log)])

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """However it stands, it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)


class RebalanceRun:
    def __init__(self, broker: Broker, protocol: str, folder: Path, seed: int) -> None:
        self._broker = broker
        self._settings = PROTOCOLS[protocol]
        self._folder = folder
        self._dice = random.Random(f"{seed} {protocol}")
        self._topic = f"rebalanced-{protocol}"
        self._group = f"{protocol}-members"
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self._live: list[MemberProcess] = []
        self._all: list[MemberProcess] = []
        self._actions: Counter[str] = Counter()

    def run(self, rebalances: int) -> Findings:
        self._admin.create_topics([NewTopic(self._topic, PARTITIONS)])[self._topic].result(WAIT_S)
        stopping = threading.Event()
        writer = threading.Thread(target=self._write, args=(stopping,), daemon=True)
        writer.start()
        try:
            self._join()
            self._settle()
            while self._rebalances() < rebalances:
                # reading all that was written takes long when there is much of it
                for _ in range(1 + rebalances // 100):
                    self._act()
                    if self._dice.random() > HASTE:
                        self._settle()
            self._settle()
            self._progress()
            for member in self._live:
                member.signal(signal.SIGTERM)
            for member in self._live:
                assert member.process.wait(WAIT_S) == 0, f"{member.name} did not leave well"
            self._live.clear()
            self._settle()
        finally:
            stopping.set()
            writer.join(WAIT_S)
            for member in self._all:
                member.end()
        findings = judge(self._records(), [member.log for member in self._all], self._group)
        findings.actions = self._actions
        return findings

    # ---- what happens

    def _act(self) -> None:
        choices = []
        if len(self._live) < MEMBERS_MAX:
            choices += [self._join, self._join]
        if len(self._live) > 1:
            choices += [self._leave, self._kill, self._pause]
        self._dice.choice(choices)()

    def _join(self) -> None:
        self._actions["join"] += 1
        name = f"member-{len(self._all)}"
        member = MemberProcess(name, self._broker.bootstrap, self._group, self._topic, self._folder, self._settings)
        self._live.append(member)
        self._all.append(member)

    def _take(self) -> MemberProcess:
        return self._live.pop(self._dice.randrange(len(self._live)))

    def _leave(self) -> None:
        self._actions["leave"] += 1
        self._take().signal(signal.SIGTERM)

    def _kill(self) -> None:
        self._actions["kill"] += 1
        self._take().signal(signal.SIGKILL)

    def _pause(self) -> None:
        """Long enough to be out, or not; then it goes on in what it takes to be its generation."""
        self._actions["pause"] += 1
        member = self._dice.choice(self._live)
        member.signal(signal.SIGSTOP)
        try:
            if self._dice.random() < 0.7:
                self._until(lambda: member.name not in self._owned(), f"{member.name} is out")
        finally:
            member.signal(signal.SIGCONT)

    def _write(self, stopping: threading.Event) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._broker.bootstrap, "log_level": 0})
        number = 0
        while not stopping.wait(0.05):
            for partition in range(PARTITIONS):
                producer.produce(self._topic, b"%d" % number, partition=partition)
            number += 1
            producer.poll(0)
        producer.flush(WAIT_S)

    # ---- what must come of it

    def _owned(self) -> dict[str, list[int]]:
        return self._described()[1]

    def _described(self) -> tuple[Any, dict[str, list[int]]]:
        """The group's state, and partitions by client id."""
        shown = self._admin.describe_consumer_groups([self._group])[self._group].result(WAIT_S)
        owned = {row.client_id: [at.partition for at in row.assignment.topic_partitions] for row in shown.members}
        return shown.state, owned

    def _settle(self) -> None:
        """The group has the members that live and no other, and they share all partitions."""
        names = {member.name for member in self._live}

        def is_settled() -> bool:
            for member in self._live:
                assert member.process.poll() is None, f"{member.name} ended by itself"
            state, owned = self._described()
            if owned.keys() != names:
                return False
            if not names:
                return state is ConsumerGroupState.EMPTY
            shared = sorted(partition for own in owned.values() for partition in own)
            return state is ConsumerGroupState.STABLE and shared == list(range(PARTITIONS)) and all(owned.values())

        self._until(is_settled, f"{sorted(names)} share the partitions")

    def _progress(self) -> None:
        """Every partition is read and committed."""
        asked = confluent_kafka.ConsumerGroupTopicPartitions(self._group)

        def offsets() -> dict[int, int]:
            found = self._admin.list_consumer_group_offsets([asked])[self._group].result(WAIT_S).topic_partitions
            return {partition.partition: partition.offset for partition in found}

        before = offsets()
        self._until(
            lambda: (
                (now := offsets()).keys() == set(range(PARTITIONS)) and all(now[at] > before.get(at, -1) for at in now)
            ),
            "every partition goes on",
        )

    def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"stuck, it never came to this: {what}; it is {self._described()}"
            time.sleep(0.02)

    def _rebalances(self) -> int:
        return rebalances_in(self._records(), self._group)

    def _records(self) -> list[GroupRecord]:
        return list(records_of(self._broker.data_dir, self._group))


# ---- the judge --------------------------------------------------------------------------------------------------------


def records_of(data_dir: Path, group: str) -> Iterator[GroupRecord]:
    """What the broker has written about the group, in order; one group is in one partition."""
    for folder in sorted(data_dir.glob("__consumer_offsets-*")):
        for path in list_segments(folder):
            for _, batch in read_segment(path):
                for record in read_records(batch):
                    assert record.key is not None
                    found = group_records.decode(record.key, record.value)
                    if found is not None and found.group == group:
                        yield found


def rebalances_in(records: list[GroupRecord], group: str) -> int:
    last = 0
    for record in records:
        if isinstance(record, ClassicGroupRecord) and record.value is not None:
            last = record.value.generation
        elif isinstance(record, GroupEpochRecord) and record.value is not None:
            last = record.value
    return last


def judge(records: list[GroupRecord], logs: list[Path], group: str) -> Findings:
    findings = Findings(rebalances=rebalances_in(records, group))
    commits = _members_account(logs, findings)
    _brokers_account(records, commits, findings)
    return findings


def _members_account(logs: list[Path], findings: Findings) -> dict[str, dict[str, Any]]:
    """Who owned what in which generation; the commits by name."""
    owners: dict[tuple[int, int], str] = {}
    commits: dict[str, dict[str, Any]] = {}
    for path in logs:
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of one that was killed while it wrote
            if "fatal" in event:
                findings.refused[event["fatal"]] += 1
            elif "commit" in event:
                commits[event["commit"]] = event
                if event["result"] != "ok":
                    findings.refused[event["result"]] += 1
            elif "owned" in event:
                for partition in event["owned"]:
                    owner = owners.setdefault((event["generation"], partition), path.stem)
                    if owner != path.stem:
                        findings.two_owners.append(
                            f"partition {partition} of generation {event['generation']}: {owner} and {path.stem}"
                        )
    return commits


def _brokers_account(records: list[GroupRecord], commits: dict[str, dict[str, Any]], findings: Findings) -> None:
    classic: StoredGroup | None = None
    current: dict[str, Any] = {}
    written: set[str] = set()
    for record in records:
        if isinstance(record, ClassicGroupRecord):
            classic = record.value
            if classic is not None:
                held = {member.member_id: _partitions(member.assignment) for member in classic.members}
                findings.two_owners += _shared(held, f"generation {classic.generation}")
        elif isinstance(record, CurrentAssignmentRecord):
            if record.value is None:
                current.pop(record.member_id, None)
            else:
                current[record.member_id] = record.value
            held = {
                member: {at for own in (value.assigned, value.revoking) for ats in own.values() for at in ats}
                for member, value in current.items()
            }
            findings.two_owners += _shared(held, f"after {record}")
        elif isinstance(record, OffsetRecord) and record.value is not None:
            findings.commits += 1
            name = (record.value.metadata or "").rstrip("\0")  # which confluent-kafka sends with it
            written.add(name)
            event = commits.get(name)
            # without an event it is not known in which generation the request left: the member was killed meanwhile
            if event is None or event["changed"]:
                continue
            _, _, generation, member = name.split(" ", 3)
            if classic is not None:
                now = classic.generation if member in {row.member_id for row in classic.members} else None
                # one that ended before it was stable is not in the log, and commits in it are taken, as Kafka does
                is_old = now is None or int(generation) < now
            else:
                now = current[member].epoch if member in current else None
                is_old = now != int(generation)
            if is_old:
                findings.old_commits.append(f"{name}: the broker has it in {now}")
    findings.lost_commits += [
        name for name, event in commits.items() if event["result"] == "ok" and name not in written
    ]


def _shared(held: dict[str, set[int]], when: str) -> list[str]:
    counts = Counter(partition for own in held.values() for partition in own)
    return [f"partition {partition} has {count} owners, {when}" for partition, count in counts.items() if count > 1]


def _partitions(assignment: bytes) -> set[int]:
    """The partitions of a classic member's assignment, as its client wrote them."""
    if not assignment:
        return set()
    reader = FieldReader(assignment, 2)
    found: set[int] = set()
    for _ in range(reader.i32()):
        reader.string()
        found |= {reader.i32() for _ in range(reader.i32())}
    return found
