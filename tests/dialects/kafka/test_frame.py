from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.kafka.apis import APIS, is_flexible
from penstock.dialects.kafka.frame import RequestHeader, answer_frame, read_header
from penstock.model.errors import ProtocolError
from tests.dialects.kafka.oracle import I32S, KAFKA_PYTHON

VERSIONS = st.sampled_from(
    [(key, version) for key, api in APIS.items() for version in range(api.version_min, api.version_max + 1)]
)
CLIENT_IDS = st.none() | st.text(max_size=20)


def header_bytes(key: int, version: int, correlation_id: int, client_id: str | None, tags: bytes = b"\x00") -> bytes:
    data = b"" if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, correlation_id, -1 if client_id is None else len(data)) + data
    return head + tags if is_flexible(key, version) else head


@given(VERSIONS, I32S, CLIENT_IDS, st.binary(max_size=5), st.integers(0, 3))
def test_the_header_of_every_api_and_version_is_read(
    api: tuple[int, int], correlation_id: int, client_id: str | None, body: bytes, start: int
) -> None:
    data = header_bytes(*api, correlation_id, client_id)
    header = read_header(memoryview(bytes(start) + data + body), start)
    assert header == RequestHeader(*api, correlation_id, client_id, start + len(data))


@pytest.mark.parametrize("client_id", [None, "", "someone"])
def test_unknown_tagged_fields_are_read_over_with_any_client_id(client_id: str | None) -> None:
    tags = b"\x02\x05\x03abc\x80\x01\x00"
    data = header_bytes(3, 12, 7, client_id, tags)
    assert read_header(memoryview(data + b"body")).body_start == len(data)


@given(VERSIONS, CLIENT_IDS, st.data())
def test_a_header_that_is_cut_off_is_a_protocol_error(
    api: tuple[int, int], client_id: str | None, data: st.DataObject
) -> None:
    whole = header_bytes(*api, 1, client_id, b"\x01\x05\x03abc")
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        read_header(memoryview(whole[:cut]))


@given(st.binary(max_size=40))
def test_random_bytes_are_a_header_or_a_protocol_error(data: bytes) -> None:
    try:
        header = read_header(memoryview(data))
    except ProtocolError:
        return
    assert 8 <= header.body_start <= len(data)


@pytest.mark.parametrize(
    "tail", [b"", b"\x7f\xff", b"\xff\xf0", b"\x00\x01a\xff\xff\xff\xff\xff\xff", b"\xff\xff\x01\x07\x7f"]
)
def test_api_versions_of_the_future_has_a_header_whatever_follows_the_correlation_id(tail: bytes) -> None:
    header = read_header(memoryview(struct.pack(">hhi", 18, 5, 99) + tail))
    assert header[:3] == (18, 5, 99)


def test_a_client_id_that_is_not_utf8_is_only_a_label() -> None:
    assert read_header(memoryview(struct.pack(">hhih", 3, 1, 1, 2) + b"a\xff")).client_id == "a\ufffd"


@pytest.mark.parametrize("name", ["MetadataRequest", "ApiVersionsRequest"])
def test_headers_written_by_kafka_python_are_read(name: str) -> None:
    message = KAFKA_PYTHON[name]
    for version in range(message.max_version + 1):
        request = message(version=version)
        request.with_header(correlation_id=5, client_id="me")
        frame = memoryview(request.encode(version=version, header=True, framed=True))
        header = read_header(frame, 4)
        assert header[:4] == (message.API_KEY, version, 5, "me")
        assert bytes(frame[header.body_start :]) == request.encode(version=version)


def test_answers_have_the_tag_byte_only_where_their_header_is_flexible() -> None:
    assert answer_frame(3, 8, 1, b"xy") == b"\0\0\0\x06\0\0\0\x01xy"
    assert answer_frame(3, 9, 1, b"xy") == b"\0\0\0\x07\0\0\0\x01\0xy"
    assert answer_frame(18, 4, 1, b"xy") == b"\0\0\0\x06\0\0\0\x01xy"
