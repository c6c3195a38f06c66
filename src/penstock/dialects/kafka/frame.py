"""The header of a request, and the head of an answer's frame.

Header version 1 is api key i16, api version i16, correlation id i32 and a nullable client id; version 2 adds a tag
buffer. The client id is never compact, and the tag buffer follows a null one too.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.dialects.kafka.apis import APIS, FIRST_FLEXIBLE, NEVER, ApiKey, answer_header_is_flexible
from penstock.dialects.kafka.wire import MALFORMED, skip_tags
from penstock.model.errors import ProtocolError

SIZE_BYTES = 4

_REQUEST_HEAD = struct.Struct(">hhih")
_SHORT_HEAD = struct.Struct(">hhi")
_ANSWER_HEAD = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def read_header(view: memoryview, start: int = 0) -> RequestHeader:
    """The header at `start` of `view`, which ends where the request does. Raises ProtocolError."""
    try:
        api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(view, start)
        at = start + 10
        client_id: str | None = None
        if length >= 0:
            stop = at + length
            if stop > len(view):
                raise ProtocolError("the client id is longer than its request")
            # Only a label: text that is not UTF-8 harms nobody.
            client_id = view[at:stop].tobytes().decode("utf-8", "replace")
            at = stop
        elif length != -1:
            raise ProtocolError(f"the client id has length {length}")
        if version >= FIRST_FLEXIBLE.get(api_key, NEVER):
            at = skip_tags(view, at) if view[at] else at + 1
    except (ProtocolError, *MALFORMED) as error:
        return _header_of_the_future(view, start, error)
    return tuple.__new__(RequestHeader, (api_key, version, correlation_id, client_id, at))


def _header_of_the_future(view: memoryview, start: int, error: Exception) -> RequestHeader:
    """An ApiVersions request newer than the broker must be answered whatever its header looks like (KIP-511)."""
    try:
        api_key, version, correlation_id = _SHORT_HEAD.unpack_from(view, start)
    except struct.error:
        raise ProtocolError("the request is shorter than its header") from None
    if api_key == ApiKey.API_VERSIONS and version > APIS[api_key].version_max:
        return RequestHeader(api_key, version, correlation_id, None, len(view))
    if isinstance(error, ProtocolError):
        raise error
    raise ProtocolError("the request is shorter than its header") from None


def answer_frame(api_key: int, version: int, correlation_id: int, body: bytes | bytearray) -> bytes:
    """The whole answer: size, header, `body`."""
    if answer_header_is_flexible(api_key, version):
        return _ANSWER_HEAD.pack(5 + len(body), correlation_id) + b"\x00" + body
    return _ANSWER_HEAD.pack(4 + len(body), correlation_id) + body
