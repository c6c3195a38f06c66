"""A session makes the same requests of the same bytes, however the network cuts them, and stops at the first bad one."""

from __future__ import annotations

import struct
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.kafka.apis import APIS
from penstock.dialects.kafka.session import Call, KafkaSession, ProduceCall, ProduceRun
from penstock.model.fed import Fed
from penstock.records.builder import NewRecord, build_batch
from tests.raw_peer import METADATA, api_versions, fetch, metadata, produce, request

FRAME_BYTES_MAX = 100_000
BATCH = bytes(build_batch([NewRecord(1_000, b"k", b"v")]))
FRAMES = {
    "api versions": api_versions(1),
    "metadata": metadata("t", correlation_id=2),
    "produce": produce("t", BATCH, correlation_id=3),
    "same produce": produce("t", BATCH, correlation_id=4),
    "other produce": produce("u", BATCH, correlation_id=5),
    "large produce": produce("t", BATCH + bytes(5_000), correlation_id=6),
    "fetch": fetch("t", correlation_id=7),
}


def new_session() -> KafkaSession:
    service: Any = types.SimpleNamespace(frame_bytes_max=FRAME_BYTES_MAX, handled=frozenset(APIS))
    return KafkaSession(service)


def plain(requests: list[Any]) -> list[tuple[Any, ...]]:
    """What the requests say, one produce a row, whether they came as a run or alone."""
    rows: list[tuple[Any, ...]] = []
    for item in requests:
        if isinstance(item, ProduceRun):
            rows += [
                (item.topic, item.partition, item.acks, correlation, bytes(data)) for correlation, data in item.items
            ]
        elif isinstance(item, ProduceCall):
            rows.append((item.correlation_id, repr(item.request)))
        else:
            assert isinstance(item, Call)
            rows.append((item.key, item.version, item.correlation_id, repr(item.body)))
    return rows


def feed_in_parts(parts: list[bytes]) -> list[tuple[Any, ...]]:
    """As the network does it: what was not consumed comes again, with more behind it."""
    session = new_session()
    kept = b""
    rows = []
    for part in parts:
        data = bytearray(kept + part)
        fed = session.feed(memoryview(data))
        assert fed.fatal is None
        rows += plain(fed.requests)
        kept = bytes(data[fed.consumed :])
        if fed.needed:
            assert fed.needed > len(kept)
            assert fed.needed == 4 + struct.unpack_from(">i", kept)[0]
    assert kept == b""
    return rows


@given(st.lists(st.sampled_from(sorted(FRAMES)), min_size=1, max_size=8), st.data())
def test_the_cuts_do_not_matter(names: list[str], data: st.DataObject) -> None:
    stream = b"".join(FRAMES[name] for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    parts = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = feed_in_parts([stream])
    assert feed_in_parts(parts) == whole
    assert len(whole) == len(names)


def test_every_single_cut_of_a_pipeline_gives_the_same_requests() -> None:
    stream = b"".join(FRAMES[name] for name in FRAMES if name != "large produce")
    whole = feed_in_parts([stream])
    for cut in range(len(stream) + 1):
        assert feed_in_parts([stream[:cut], stream[cut:]]) == whole, cut


def test_produces_in_a_row_for_one_partition_are_one_run() -> None:
    stream = bytearray(FRAMES["produce"] + FRAMES["same produce"] * 20 + FRAMES["other produce"] + FRAMES["metadata"])
    fed = new_session().feed(memoryview(stream))
    assert sum(len(item.items) for item in fed.requests if isinstance(item, ProduceRun)) == 22
    assert len(fed.requests) <= 4


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", FRAME_BYTES_MAX + 1),
        struct.pack(">i", 3) + b"abc",
        request(999, 0, b""),
        request(METADATA, 77, b""),
        request(METADATA, 9, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_requests_before_a_bad_frame_are_performed_and_those_after_it_are_not(bad: bytes) -> None:
    stream = bytearray(FRAMES["metadata"] + FRAMES["produce"] + bad + FRAMES["metadata"])
    fed = new_session().feed(memoryview(stream))
    assert fed.fatal
    assert len(plain(fed.requests)) == 2
    assert fed.consumed == len(FRAMES["metadata"] + FRAMES["produce"])


@given(st.binary(max_size=200))
def test_any_bytes_are_requests_or_a_reason_to_close(data: bytes) -> None:
    fed = new_session().feed(memoryview(bytearray(data)))
    assert isinstance(fed, Fed)
    assert 0 <= fed.consumed <= len(data)


@given(st.sampled_from(sorted(APIS)), st.data(), st.binary(max_size=100))
def test_any_body_is_a_request_or_a_reason_to_close(key: int, data: st.DataObject, body: bytes) -> None:
    version = data.draw(st.integers(APIS[key].version_min, APIS[key].version_max))
    frame = bytearray(request(key, version, body))
    fed = new_session().feed(memoryview(frame))
    assert (fed.fatal is None) == (len(fed.requests) == 1)


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_a_flipped_bit_is_a_request_or_a_reason_to_close(name: str, data: st.DataObject) -> None:
    frame = bytearray(FRAMES[name])
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    fed = new_session().feed(memoryview(frame))
    assert fed.fatal is None or isinstance(fed.fatal, str)
