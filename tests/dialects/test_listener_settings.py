"""What a listener may be told, in every dialect that cannot say it itself: acks of produces and of offset commits, and
which topics it makes.

acks all: answered after the flush. leader: answered when it is written. Both answer with the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import NewTopic
from penstock.coordination.group_commands import FetchOffsets
from penstock.model.listeners import ACKS, DEFAULTS
from penstock.net.session import Peer
from penstock.server.dialects import SERVICES
from tests.broker.failing_disk import CueDisk
from tests.dialects.day1 import frames as day1
from tests.dialects.fluxgo import frames as fluxgo
from tests.dialects.fluxgo.in_process import Serving
from tests.dialects.flymq import broker as flymq
from tests.dialects.flymq.broker import i32, i64, s, u64
from tests.dialects.rustlog import peer as rustlog

ALL, LEADER = -1, 1


class Requests(NamedTuple):
    """A produce and a commit of offset 1 by group g, for topic t, partition 0, with what each is answered."""

    produce: bytes
    produced: bytes
    commit: bytes | None
    committed: bytes


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


API_COMMIT = flymq.api(8, s("g") + i32(-1) + s("") + flymq.arr(s("t") + i32(0) + i64(1) + s("")))
REQUESTS = {
    "fluxgo": Requests(
        fluxgo.produce("t", 0, b"v"),
        framed(fluxgo.offset(0)),
        fluxgo.commit("g", "t", 0, 1),
        framed(fluxgo.ok()),
    ),
    "minikafka": Requests(b"TOPIC t k 1\nv", b"+OFFSET 0\n", b"SET_OFFSET t:g 1\n", b"+OK\n"),
    "rustlog": Requests(
        rustlog.produce(b"v", topic="t"),
        rustlog.produced(0),
        rustlog.commit("g", 1, topic="t"),
        rustlog.frame(b"\x03\x01"),
    ),
    "flymq": Requests(
        flymq.api_produce("t", 0, flymq.message(b"v")),
        flymq.api(0, struct.pack(">hIiq", 0, 1, 0, 0)),
        flymq.op(6, s("t") + s("g") + i32(0) + u64(1)),
        flymq.op(6, b"\x01"),
    ),
    "flymq by key": Requests(
        flymq.api_produce("t", 0, flymq.message(b"v"), version=1, stream=9),
        flymq.api(0, struct.pack(">hIiq", 0, 1, 0, 0), 1, 9),
        API_COMMIT,
        flymq.api(8, struct.pack(">hI", 0, 1) + s("t") + i32(0) + b"\x00\x00"),
    ),
    "day1": Requests(day1.one("t", 0, b"v"), framed(day1.base(0)), None, b""),
}


def listener(dialect: str, acks: int) -> Callable[[EmbeddedEngine], Callable[[Peer], Any]]:
    name = SERVICES[dialect]

    def make(engine: EmbeddedEngine) -> Callable[[Peer], Any]:
        make_service = getattr(import_module(f"penstock.dialects.{dialect}.service"), f"{name}Service")
        make_session = getattr(import_module(f"penstock.dialects.{dialect}.session"), f"{name}Session")
        service = make_service(engine, replace(DEFAULTS[dialect], acks=acks))
        return lambda peer: make_session(service, peer.host)

    return make


@pytest.mark.parametrize("acks", ACKS.values(), ids=ACKS)
@pytest.mark.parametrize("name", REQUESTS)
def test_produces_and_commits_are_answered_when_the_listeners_acks_say(tmp_path: Path, name: str, acks: int) -> None:
    produce, produced, commit, committed = REQUESTS[name]
    dialect = name.partition(" ")[0]
    disk = CueDisk()
    with Serving(tmp_path / "data", listener(dialect, acks), disk=disk) as broker:
        engine = broker.engine
        broker.call(lambda: engine.create_topics([NewTopic("t", 1)], validate_only=False))
        broker.call(lambda: engine.groups.ask("g", FetchOffsets("g", None)))  # makes the topic of the offsets
        for request, answer in ((produce, produced), (commit, committed)):
            if request is None:
                continue
            with broker.connect() as peer:
                broker.until(lambda: not disk.syncs_waiting)
                disk.hold()
                peer.send(request)
                if acks == ALL:
                    broker.until(lambda: disk.syncs_waiting)
                    assert peer.is_silent()
                else:
                    assert peer.exactly(len(answer)) == answer
                disk.release()
                if acks == ALL:
                    assert peer.exactly(len(answer)) == answer


@pytest.mark.parametrize("name", [name for name, requests in REQUESTS.items() if requests.commit])
def test_a_first_commit_makes_its_topic_and_is_kept_whatever_the_acks(tmp_path: Path, name: str) -> None:
    _, _, commit, committed = REQUESTS[name]
    assert commit is not None
    with Serving(tmp_path / "data", listener(name.partition(" ")[0], LEADER)) as broker:
        engine = broker.engine
        broker.call(lambda: engine.create_topics([NewTopic("t", 1)], validate_only=False))
        with broker.connect() as peer:
            peer.send(commit)
            assert peer.exactly(len(committed)) == committed
        found = broker.call(lambda: engine.groups.ask("g", FetchOffsets("g", {"t": (0,)})))
        assert found.offsets["t"][0].value.offset == 1


@pytest.mark.parametrize("name", REQUESTS)
def test_a_produce_may_make_a_topic_whose_name_has_249_characters(tmp_path: Path, name: str) -> None:
    longest = "n" * 249
    produce = {
        "fluxgo": fluxgo.produce(longest, 0, b"v"),
        "minikafka": b"TOPIC %b k 1\nv" % longest.encode(),
        "rustlog": rustlog.frame(b"\x05" + rustlog.text(longest) + struct.pack(">I", 1)),
        "flymq": flymq.produce(longest, b"v"),
        "flymq by key": flymq.api_produce(longest, 0, flymq.message(b"v")),
        "day1": day1.one(longest, 0, b"v"),
    }[name]
    with Serving(tmp_path / "data", listener(name.partition(" ")[0], LEADER)) as broker, broker.connect() as peer:
        peer.send(produce)
        assert peer.exactly(1)
        assert broker.call(lambda: broker.engine.topic(longest)) is not None
