"""A hundred rebalances of groups with real members that join, leave, are paused and are killed."""

from __future__ import annotations

import json
import random
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.coordination.consumer_group_records import CurrentAssignment, CurrentAssignmentRecord, MemberState
from penstock.coordination.group_records import (
    ClassicGroupRecord,
    CommittedOffset,
    OffsetRecord,
    StoredGroup,
    StoredMember,
)
from tests.compatibility.rebalance_run import BROKER_SETTINGS, PROTOCOLS, RebalanceRun, judge

REBALANCES = {"eager": 34, "cooperative": 33, "consumer": 33}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_partition_has_one_owner_and_no_old_generation_commits(tmp_path: Path, protocol: str) -> None:
    seed = random.randrange(2**32)
    with Broker(tmp_path / "data", settings=BROKER_SETTINGS) as broker:
        findings = RebalanceRun(broker, protocol, tmp_path, seed).run(REBALANCES[protocol])
        assert bool(findings), f"seed {seed}\n{findings}"
        assert findings.rebalances >= REBALANCES[protocol]
        assert findings.commits > REBALANCES[protocol]
        assert "Traceback" not in broker.log, broker.log


# ---- the judge can condemn --------------------------------------------------------------------------------------------


def stored(generation: int, owned: dict[str, list[int]]) -> ClassicGroupRecord:
    members = tuple(
        StoredMember(name, None, name, "/h", 1_000, 1_000, b"", assignment(partitions))
        for name, partitions in owned.items()
    )
    return ClassicGroupRecord("g", StoredGroup("consumer", generation, "range", "a", 0, members))


def assignment(partitions: list[int]) -> bytes:
    rows = b"".join(struct.pack(">i", partition) for partition in partitions)
    return struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", len(partitions)) + rows + struct.pack(">i", -1)


def held(member: str, epoch: int, assigned: list[int], revoking: list[int] | None = None) -> CurrentAssignmentRecord:
    topic = uuid.UUID(int=7)
    value = CurrentAssignment(
        epoch, epoch, MemberState.STABLE, {topic: frozenset(assigned)}, {topic: frozenset(revoking or [])}
    )
    return CurrentAssignmentRecord("g", member, value)


def committed(name: str) -> OffsetRecord:
    return OffsetRecord("g", "t", 0, CommittedOffset(1, 0, metadata=name + "\0"))


def said(folder: Path, **events: list[dict[str, Any]]) -> list[Path]:
    for name, lines in events.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    return [folder / f"{name}.jsonl" for name in events]


def ok(name: str) -> dict[str, Any]:
    return {"commit": name, "result": "ok", "changed": False}


def test_a_sound_history_is_found_sound(tmp_path: Path) -> None:
    records = [stored(1, {"a": [0, 1]}), committed("1 1 1 a"), stored(2, {"a": [0], "b": [1]}), committed("2 1 2 b")]
    one = [{"generation": 1, "owned": [0, 1]}, ok("1 1 1 a"), {"generation": 2, "owned": [0]}]
    two = [{"generation": 2, "owned": [1]}, ok("2 1 2 b"), {"commit": "2 2 2 b", "result": "REFUSED", "changed": True}]
    findings = judge(records, said(tmp_path, one=one, two=two), "g")
    assert bool(findings)
    assert (findings.rebalances, findings.commits, findings.refused) == (2, 2, {"REFUSED": 1})


def test_two_owners_are_found_in_either_account(tmp_path: Path) -> None:
    lines = [{"generation": 3, "owned": [5]}]
    assert judge([], said(tmp_path, one=lines, two=lines), "g").two_owners
    assert judge([stored(1, {"a": [0, 1], "b": [1]})], [], "g").two_owners
    assert judge([held("a", 1, [0, 1]), held("b", 2, [1])], [], "g").two_owners
    assert judge([held("a", 1, [0], [1]), held("b", 2, [1])], [], "g").two_owners
    assert not judge([held("a", 1, [0, 1]), held("a", 2, [0]), held("b", 2, [1])], [], "g").two_owners


def test_commits_of_old_generations_and_lost_ones_are_found(tmp_path: Path) -> None:
    logs = said(tmp_path, one=[ok("1 1 1 a"), ok("1 2 1 a")])
    late = judge([stored(1, {"a": [0]}), committed("1 1 1 a"), stored(2, {"a": [0]}), committed("1 2 1 a")], logs, "g")
    assert [line.partition(":")[0] for line in late.old_commits] == ["1 2 1 a"]
    gone = judge([held("a", 1, [0]), committed("1 1 1 a"), held("b", 2, [1])], logs, "g")
    assert gone.lost_commits == ["1 2 1 a"]
    stranger = judge([held("b", 1, [0]), committed("1 1 1 a"), committed("1 2 1 a")], logs, "g")
    assert len(stranger.old_commits) == 2
