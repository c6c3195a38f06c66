"""Zigzag varints as records have them: seven bits a byte, low bits first, the sign in the lowest bit.

Readers take `(buffer, offset)` and give `(value, next offset)`; they read at most 5 bytes for 32 bits and 10 for 64, and
refuse bits beyond that. The unsigned varints of flexible requests are not here: they belong to the Kafka dialect.
"""

from __future__ import annotations

from penstock.records.batch import BatchError

Buffer = bytes | bytearray | memoryview

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def read_varint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """A signed 32-bit varint."""
    return _read(buffer, offset, VARINT_BYTES_MAX, 32)


def read_varlong(buffer: Buffer, offset: int) -> tuple[int, int]:
    """A signed 64-bit varint."""
    return _read(buffer, offset, VARLONG_BYTES_MAX, 64)


def _read(buffer: Buffer, offset: int, bytes_max: int, bits: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    at = offset
    try:
        while True:
            byte = buffer[at]
            at += 1
            if byte < 0x80:
                break
            raw |= (byte & 0x7F) << shift
            shift += 7
            if at - offset == bytes_max:
                raise BatchError(f"varint at {offset} is longer than {bytes_max} bytes")
    except IndexError:
        raise BatchError(f"varint at {offset} is cut off at {len(buffer)}") from None
    raw |= byte << shift
    if raw >> bits:
        raise BatchError(f"varint at {offset} is wider than {bits} bits")
    return raw >> 1 ^ -(raw & 1), at


def varint(value: int) -> bytes:
    """A signed 32-bit varint."""
    if not INT32_MIN <= value <= INT32_MAX:
        raise BatchError(f"{value} does not fit 32 bits")
    return _encode(value)


def varlong(value: int) -> bytes:
    """A signed 64-bit varint."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise BatchError(f"{value} does not fit 64 bits")
    return _encode(value)


def _encode(value: int) -> bytes:
    # Python's shift keeps the sign, so that this is zigzag for both widths.
    raw = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        return _ONE_BYTE[raw]
    encoded = bytearray()
    while raw >= 0x80:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


_ONE_BYTE = tuple(bytes((raw,)) for raw in range(0x80))
