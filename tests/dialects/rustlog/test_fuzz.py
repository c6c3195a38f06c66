"""Whatever bytes come: only the documented answers, no exception, no hang, nothing kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.rustlog.errors import Code
from penstock.dialects.rustlog.service import RustLogService
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import Broker
from tests.dialects.rustlog.peer import Peer, commit, fetch, frame, offset_fetch, produce

VARIANTS = {"Produce", "Fetch", "OffsetCommit", "OffsetFetch", "Error"}
KINDS = {*range(1, 10), 0xFE, 0xFF}

names = st.sampled_from(["orders", "", "no", "../x", "é"])
numbers = st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1])
offsets = st.sampled_from([0, 1, 5, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
groups = st.sampled_from(["", "g", "x" * 255, "\n"])

sound = st.one_of(
    st.builds(
        lambda r, t, p: produce(*r, topic=t, partition=p), st.lists(st.binary(max_size=20), max_size=3), names, numbers
    ),
    st.builds(
        lambda o, m, g, t, p: fetch(o, m, group=g, topic=t, partition=p), offsets, numbers, groups, names, numbers
    ),
    st.builds(lambda g, o, t, p: commit(g, o, topic=t, partition=p), groups, offsets, names, numbers),
    st.builds(lambda g, t, p: offset_fetch(g, topic=t, partition=p), groups, names, numbers),
    st.builds(lambda kind, rest: frame(bytes([kind]) + rest), st.integers(0, 255), st.binary(max_size=30)),
    st.builds(
        lambda kind, body: frame(json.dumps({kind: body}).encode()),
        st.sampled_from(sorted(VARIANTS)),
        st.fixed_dictionaries(
            {},
            optional={
                "topic": st.one_of(names, st.none(), st.integers()),
                "partition": st.one_of(numbers, st.integers(), st.text(max_size=3)),
                "offset": st.one_of(offsets, st.integers(), st.floats(allow_nan=False)),
                "max_bytes": st.one_of(numbers, st.integers()),
                "group_id": st.one_of(groups, st.none()),
                "records": st.lists(st.lists(st.integers(-1, 256), max_size=5), max_size=3),
            },
        ),
    ),
)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Sound frames, some of them damaged by a byte."""
    data = bytearray(b"".join(draw(st.lists(sound, max_size=12))))
    for at in draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=3)):
        if data:
            data[at] = draw(st.integers(0, 255))
    return bytes(data) + draw(st.binary(max_size=8))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path: Path = tmp_path_factory.mktemp("fuzz")
    with Broker(path / "data", lambda engine: RustLogService(engine, DEFAULTS["rustlog"])) as broker:
        broker.make_topic("orders", 2)
        yield broker


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(conversation=conversations(), cuts=st.lists(st.integers(1, 60), max_size=6))
def test_any_bytes_get_documented_answers_and_nothing_else(
    shared: Broker, conversation: bytes, cuts: list[int]
) -> None:
    peer = Peer(shared)
    out = b""
    at = 0
    for cut in [*cuts, len(conversation)]:
        if peer.fatal is None and at < len(conversation):
            out += peer.send(conversation[at : at + cut])
            at += cut
    while out:
        size = int.from_bytes(out[:4], "big")
        payload, out = out[4 : 4 + size], out[4 + size :]
        assert len(payload) == size
        if payload[:1] == b"{":
            [variant] = json.loads(payload)
            assert variant in VARIANTS
        else:
            assert payload[0] in KINDS
            if payload[0] == 0xFE:
                assert int.from_bytes(payload[1:3], "big") in set(Code)
    assert shared.service.metrics.connections == 1
    peer.close()
    assert shared.service.metrics.connections == 0
