"""The guard in front of kio's reader: a request is walked before it is decoded.

kio reserves memory for as many elements as an array claims before it reads the first (five bytes can ask for 32 GB and
end the process), and it refuses tagged fields that it does not know, which KIP-482 says are to be skipped. The walk
checks that every array can be there and takes unknown tagged fields out. It does not judge anything else: kio does.
"""

from __future__ import annotations

import functools
from typing import Protocol

from penstock.dialects.kafka.kio_schema import FIXED_BYTES, Field, Shape, request_shape
from penstock.dialects.kafka.wire import I16, I32, MALFORMED, read_tag_count, read_uvarint, uvarint
from penstock.model import limits
from penstock.model.errors import ProtocolError


class _Tally:
    """What a walk has seen so far."""

    __slots__ = ("edits", "elements")

    def __init__(self) -> None:
        self.elements = 0
        self.edits: list[tuple[int, int, bytes]] = []
        """Tag buffers to be replaced: start, end, new bytes; in order."""


class _Step(Protocol):
    """Reads over a part of the request at `at`: gives the position behind it, which may lie past the end."""

    def __call__(self, view: memoryview, at: int, tally: _Tally, /) -> int: ...


def guarded(key: int, version: int, view: memoryview, start: int) -> tuple[memoryview, int]:
    """The request at `start` of `view` as kio can take it: the same view and start, or a cleaned copy and 0."""
    tally = _Tally()
    try:
        at = _request_step(key, version)(view, start, tally)
    except MALFORMED:
        raise ProtocolError("the request is shorter than its fields") from None
    if at > len(view):
        raise ProtocolError("the request is shorter than its fields")
    if tally.edits:
        return memoryview(_edited(view, start, len(view), tally.edits)), 0
    return view, start


@functools.cache
def _request_step(key: int, version: int) -> _Step:
    return _struct_step(request_shape(key, version))[0]


def _struct_step(shape: Shape) -> tuple[_Step, int]:
    """The step over a message, and the fewest bytes that it takes."""
    steps: list[_Step] = []
    fixed = 0
    bytes_min = 0
    for field in shape.fields:
        if field.tag is not None:
            continue
        if field.kind in FIXED_BYTES and not field.is_array:
            fixed += FIXED_BYTES[field.kind]
            bytes_min += FIXED_BYTES[field.kind]
            continue
        if fixed:
            steps.append(_fixed_step(fixed))
            fixed = 0
        step, least = _field_step(field, shape.is_flexible)
        steps.append(step)
        bytes_min += least
    if fixed:
        steps.append(_fixed_step(fixed))
    if shape.is_flexible:
        steps.append(_tags_step(shape))
        bytes_min += 1
    if len(steps) == 1:
        return steps[0], bytes_min

    def walk(view: memoryview, at: int, tally: _Tally) -> int:
        for step in steps:
            at = step(view, at, tally)
        return at

    return walk, bytes_min


def _field_step(field: Field, is_flexible: bool) -> tuple[_Step, int]:
    if field.nested is not None:
        step, bytes_min = _struct_step(field.nested)
    elif field.kind in FIXED_BYTES:
        bytes_min = FIXED_BYTES[field.kind]
        step = _fixed_step(bytes_min)
    elif is_flexible:
        step, bytes_min = _compact_bytes, 1
    elif field.kind == "string":
        step, bytes_min = _legacy_string, 2
    else:
        step, bytes_min = _legacy_bytes, 4
    if field.is_array:
        fixed = FIXED_BYTES.get(field.kind)
        return _array_step(step, fixed, bytes_min, is_flexible, field), 1 if is_flexible else 4
    if field.nested is not None and field.is_nullable and field.tag is None:
        return _nullable_step(step), 1
    return step, bytes_min


def _fixed_step(size: int) -> _Step:
    def walk(view: memoryview, at: int, tally: _Tally) -> int:
        return at + size

    return walk


def _legacy_string(view: memoryview, at: int, tally: _Tally) -> int:
    length: int = I16.unpack_from(view, at)[0]
    return at + 2 + length if length > 0 else at + 2


def _legacy_bytes(view: memoryview, at: int, tally: _Tally) -> int:
    length: int = I32.unpack_from(view, at)[0]
    return at + 4 + length if length > 0 else at + 4


def _compact_bytes(view: memoryview, at: int, tally: _Tally) -> int:
    length = view[at]
    if length >= 0x80:
        length, at = read_uvarint(view, at)
        return at + length - 1
    return at + length if length else at + 1


def _nullable_step(step: _Step) -> _Step:
    """A nested message with a byte in front that says whether it is there (KIP-893)."""

    def walk(view: memoryview, at: int, tally: _Tally) -> int:
        return step(view, at + 1, tally) if view[at] == 1 else at + 1

    return walk


def _array_step(step: _Step, fixed: int | None, bytes_min: int, is_flexible: bool, field: Field) -> _Step:
    name = field.name
    is_nullable = field.is_nullable

    def walk(view: memoryview, at: int, tally: _Tally) -> int:
        if is_flexible:
            count, at = read_uvarint(view, at)
            count -= 1
        else:
            count = I32.unpack_from(view, at)[0]
            at += 4
        if count < 0:
            if count != -1 or not is_nullable:
                raise ProtocolError(f"array {name} of the request has {count} elements")
            return at
        tally.elements += count
        if count * bytes_min > len(view) - at or tally.elements > limits.REQUEST_ELEMENTS_MAX:
            raise ProtocolError(f"array {name} of the request claims {count} elements in {len(view) - at} bytes")
        if fixed is not None:
            return at + count * fixed
        for _ in range(count):
            at = step(view, at, tally)
        return at

    return walk


def _tags_step(shape: Shape) -> _Step:
    known: dict[int, _Step] = {
        field.tag: _field_step(field, True)[0] for field in shape.fields if field.tag is not None
    }

    def walk(view: memoryview, start: int, tally: _Tally) -> int:
        if view[start] == 0:
            return start + 1
        count, at = read_tag_count(view, start)
        kept: list[tuple[int, bytes | memoryview]] = []
        changed = False
        for _ in range(count):
            tag, at = read_uvarint(view, at)
            size, at = read_uvarint(view, at)
            stop = at + size
            if stop > len(view):
                raise ProtocolError(f"tagged field {tag} of the request is longer than the request")
            step = known.get(tag)
            if step is None:
                changed = True
            else:
                edits_before = len(tally.edits)
                if step(view[:stop], at, tally) != stop:
                    raise ProtocolError(f"tagged field {tag} of the request is not as long as it says")
                inner = tally.edits[edits_before:]
                if inner:
                    del tally.edits[edits_before:]
                    changed = True
                    kept.append((tag, _edited(view, at, stop, inner)))
                else:
                    kept.append((tag, view[at:stop]))
            at = stop
        if changed:
            parts: list[bytes | memoryview] = [uvarint(len(kept))]
            for tag, data in kept:
                parts += (uvarint(tag), uvarint(len(data)), data)
            tally.edits.append((start, at, b"".join(parts)))
        return at

    return walk


def _edited(view: memoryview, start: int, end: int, edits: list[tuple[int, int, bytes]]) -> bytes:
    parts: list[bytes | memoryview] = []
    for begin, stop, replacement in edits:
        parts += (view[start:begin], replacement)
        start = stop
    parts.append(view[start:end])
    return b"".join(parts)
