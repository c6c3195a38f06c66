"""Committed offsets as Kafka keeps them in `__consumer_offsets`: keys of type 0 and 1, values of versions 0 to 4.

Everything else in that topic (groups, members, and what later versions add) ends with the group's last member and is not
looked at.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_OFFSET_KEYS = (0, 1)
_VERSION_WITH_EPOCH = 3
_VERSION_FLEXIBLE = 4
_NO_EPOCH = -1

Place = tuple[str, str, int]
"""Group, topic, partition."""


class Committed(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int


def read_commit(key: bytes | None, value: bytes | None) -> tuple[Place, Committed | None] | None:
    """What a record says: a commit, that one is gone (None beside its place), or nothing of the kind."""
    try:
        if key is None or _I16.unpack_from(key)[0] not in _OFFSET_KEYS:
            return None
        group, at = _string(key, _I16.size)
        topic, at = _string(key, at)
        place = (group, topic, _I32.unpack_from(key, at)[0])
        return place, None if value is None else _value(value)
    except (struct.error, UnicodeDecodeError, IndexError, ValueError):
        return None


def _value(value: bytes) -> Committed:
    version = _I16.unpack_from(value)[0]
    if not 0 <= version <= _VERSION_FLEXIBLE:
        raise ValueError(f"version {version}")
    offset = _I64.unpack_from(value, _I16.size)[0]
    at = _I16.size + _I64.size
    leader_epoch = _NO_EPOCH
    if version >= _VERSION_WITH_EPOCH:
        leader_epoch = _I32.unpack_from(value, at)[0]
        at += _I32.size
    metadata, _ = _compact_string(value, at) if version >= _VERSION_FLEXIBLE else _string(value, at)
    return Committed(offset, metadata, leader_epoch)


def _string(data: bytes, at: int) -> tuple[str, int]:
    length = _I16.unpack_from(data, at)[0]
    at += _I16.size
    if length < 0:
        return "", at
    if at + length > len(data):
        raise ValueError("a string is cut off")
    return data[at : at + length].decode(), at + length


def _compact_string(data: bytes, at: int) -> tuple[str, int]:
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    length = max(0, length - 1)
    if at + length > len(data):
        raise ValueError("a string is cut off")
    return data[at : at + length].decode(), at + length
