"""Every request of every dialect, cut in two at every byte and sent byte by byte: it has the answer that it has whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.coordination.group_commands import GroupSettings
from penstock.server.dialects import SERVICES
from tests.dialects.fuzz_targets import MEMBER_TIMEOUT_MS, TOPIC, Target, target_of
from tests.dialects.in_process import Broker, InProcessPeer

Served = tuple[Broker, Target]


@pytest.fixture(scope="module", params=SERVICES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = target_of(request.param)
    path: Path = tmp_path_factory.mktemp(request.param)
    groups = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_min=MEMBER_TIMEOUT_MS)
    with Broker(path / "data", target.make_service, groups=groups) as broker:
        broker.make_topic(TOPIC, 2)
        broker.append(TOPIC, 0, b"value", key=b"key")
        for seed in target.seeds:  # what makes things makes them now, so that all later answers are alike
            answers(broker, target, seed)
        yield broker, target


def answers(broker: Broker, target: Target, *pieces: bytes) -> list[Any]:
    """What kinds of answers the pieces have, sent on one connection."""
    peer = InProcessPeer(broker, target.make_session(broker.service))
    out = b"".join(peer.send(piece) for piece in pieces if peer.fatal is None)
    peer.close()
    assert not peer.half_frame or peer.fatal
    return target.check(out)


def test_every_request_split_at_every_byte_has_the_answer_that_it_has_whole(served: Served) -> None:
    broker, target = served
    for seed in target.seeds:
        whole = answers(broker, target, seed)
        assert whole
        is_steady = answers(broker, target, seed) == whole  # else what it did before changes what it finds
        for cut in range(1, len(seed)):
            split = answers(broker, target, seed[:cut], seed[cut:])
            assert len(split) == len(whole), (seed, cut)
            assert not is_steady or split == whole, (seed, cut)


def test_every_request_sent_byte_by_byte_has_the_answer_that_it_has_whole(served: Served) -> None:
    broker, target = served
    for seed in target.seeds:
        assert len(answers(broker, target, *(bytes((byte,)) for byte in seed))) == len(answers(broker, target, seed))


def test_every_request_pipelined_with_every_other_has_its_answer(served: Served) -> None:
    broker, target = served
    counts = [len(answers(broker, target, seed)) for seed in target.seeds]
    for first, seed in enumerate(target.seeds):
        for second, other in enumerate(target.seeds):
            assert len(answers(broker, target, seed + other)) == counts[first] + counts[second], (seed, other)
