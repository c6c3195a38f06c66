"""A session makes the same requests of the same bytes, however the network cuts them, and stops at the first bad one."""

from __future__ import annotations

import struct
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.kafka.apis import APIS
from penstock.dialects.kafka.produce import RUN_ITEMS_MAX
from penstock.dialects.kafka.session import REQUESTS_AT_ONCE, Call, KafkaSession, ProduceCall, ProduceRun
from penstock.model import limits
from penstock.model.errors import ProtocolError
from penstock.model.fed import Fed
from penstock.model.slices import at_once
from penstock.records.builder import NewRecord, build_batch
from tests.dialects.kafka.stand_in import Client
from tests.raw_peer import FETCH, METADATA, PRODUCE, api_versions, fetch, metadata, produce, request

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
            rows.append((item.correlation_id, repr(at_once(item.decoding))))
        else:
            assert isinstance(item, Call)
            rows.append((item.key, item.version, item.correlation_id, bytes(item.view[item.body_start :])))
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
    ],
)
def test_requests_before_a_bad_frame_are_performed_and_those_after_it_are_not(bad: bytes) -> None:
    stream = bytearray(FRAMES["metadata"] + FRAMES["produce"] + bad + FRAMES["metadata"])
    fed = new_session().feed(memoryview(stream))
    assert fed.fatal
    assert len(plain(fed.requests)) == 2
    assert fed.consumed == len(FRAMES["metadata"] + FRAMES["produce"])


@pytest.mark.parametrize("key", [METADATA, FETCH, PRODUCE])
@pytest.mark.parametrize("size", [1, 20, 20_000])
def test_a_malformed_body_is_found_when_the_request_is_performed(key: int, size: int) -> None:
    bad = request(key, 9, b"\xff" * size)
    session = Client().session
    stream = bytearray(FRAMES["api versions"] + bad + FRAMES["metadata"])
    fed = session.feed(memoryview(stream))
    session.perform(fed.requests[0])
    if fed.fatal is None:
        with pytest.raises(ProtocolError):
            session.perform(fed.requests[1])
    else:
        assert key == PRODUCE
        assert len(fed.requests) == 1


def test_one_call_cuts_a_bounded_number_of_requests() -> None:
    frame = FRAMES["api versions"]
    count = 10 * REQUESTS_AT_ONCE
    stream = memoryview(bytearray(frame * count))
    session = new_session()
    at = found = 0
    while at < len(stream):
        fed = session.feed(stream[at:])
        assert 0 < len(fed.requests) <= REQUESTS_AT_ONCE
        assert fed.needed == (len(frame) if at + fed.consumed < len(stream) else 0)
        at += fed.consumed
        found += len(fed.requests)
    assert found == count


def test_a_run_has_a_bounded_number_of_requests() -> None:
    stream = memoryview(bytearray(FRAMES["produce"] * 3 * RUN_ITEMS_MAX))
    runs = new_session().feed(stream).requests
    assert sum(len(run.items) for run in runs) == 3 * RUN_ITEMS_MAX
    assert max(len(run.items) for run in runs) == RUN_ITEMS_MAX


@pytest.mark.parametrize("count", [6, 100])
@pytest.mark.parametrize("key", [PRODUCE, FETCH, METADATA])
def test_a_request_that_is_too_large_is_refused_at_its_first_bytes(key: int, count: int) -> None:
    session = Client().session
    size = limits.REQUEST_BYTES_MAX + 1
    frame = struct.pack(">ih", size, key) + bytes(100)
    fed = session.feed(memoryview(bytearray(frame[:count])))
    if key == PRODUCE:
        assert fed.fatal is None
        assert fed.needed == size + 4
    else:
        assert fed.fatal is not None
        assert str(limits.REQUEST_BYTES_MAX) in fed.fatal


@pytest.mark.parametrize("key", [FETCH, METADATA])
def test_a_request_of_the_largest_size_is_waited_for(key: int) -> None:
    size = limits.REQUEST_BYTES_MAX
    fed = Client().session.feed(memoryview(bytearray(struct.pack(">ih", size, key) + bytes(100))))
    assert (fed.fatal, fed.needed) == (None, size + 4)


@pytest.mark.parametrize("too_large", [0, 1])
def test_frame_size_is_limited(too_large: int) -> None:
    size = FRAME_BYTES_MAX + too_large
    fed = new_session().feed(memoryview(bytearray(struct.pack(">ih", size, PRODUCE))))
    if too_large:
        assert fed.fatal == f"a frame of {size} bytes; 1 to {FRAME_BYTES_MAX} are allowed"
    else:
        assert (fed.fatal, fed.needed) == (None, size + 4)


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
