"""The codecs of a batch: none, gzip, snappy, lz4, zstd. What comes out is bounded before it is made.

A few hundred bytes can claim gigabytes, so no decoder here runs without knowing how much it may give: it stops at the
limit, and a size that the compressed bytes could not hold is refused before memory is taken for it. Damage of any kind
is a DecompressionError. Codecs are imported when the first batch needs them.

Decompression may run in a thread next to the event loop. The work is done in C code that releases the interpreter lock, in
pieces of at most `STEP_BYTES`, and the number of pieces that a peer can choose is bounded.
"""

from __future__ import annotations

import enum
import re
import struct
import zlib

from penstock.records.batch import BatchError, BatchTooLarge


class Codec(enum.IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS = frozenset(Codec)

EXPANSION_MAX = (1, 1_032, 22, 255, 32 * 1024)
"""The most bytes that one compressed byte can unpack to, by codec. gzip: a match of 258 bytes takes two bits; snappy: a copy
of 64 takes three bytes; lz4: a length byte adds 255; zstd: a block of 128 KiB that repeats one byte takes four."""


STEP_BYTES = 1024 * 1024
"""Output of one step of a decoder. Copying one piece holds the interpreter lock, joining many pieces does not."""
PARTS_MAX = 32 * 1024
"""Members, frames and blocks of one payload: each takes a few Python steps. Writers use parts of at least 32 KiB."""


class DecompressionError(BatchError):
    """Compressed records that are damaged, of an unknown codec, or larger than allowed."""


class TooLarge(DecompressionError, BatchTooLarge):
    """The decompressed records exceed the limit. They may be valid otherwise."""


def compress(codec: int, data: bytes | bytearray | memoryview) -> bytes:
    """`data` as Java's clients can read it."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            gzip = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
            return gzip.compress(data) + gzip.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data)
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
    raise BatchError(f"compression {codec} is not known")


def decompress(codec: int, data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """What `data` holds, if that is at most `limit_bytes`; raises DecompressionError otherwise."""
    match codec:
        case Codec.NONE:
            if len(data) > limit_bytes:
                raise _too_large(limit_bytes)
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(memoryview(data), limit_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), limit_bytes)
        case Codec.LZ4:
            return _decompress_lz4(memoryview(data), limit_bytes)
        case Codec.ZSTD:
            return _decompress_zstd(memoryview(data), limit_bytes)
    raise DecompressionError(f"compression {codec} is not known")


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the records are larger than {limit_bytes} bytes")


def _check_parts(parts: int) -> None:
    if parts > PARTS_MAX:
        raise DecompressionError(f"more than {PARTS_MAX} compressed parts")


# gzip (RFC 1952): one member or several

_GZIP_WINDOW_BITS = 31
"""zlib's way to say: the largest window, in a gzip member."""
_GZIP_PIECE_BYTES = 16 * 1024
"""What follows a member is copied out of the piece it ends in: many small members must not copy the whole rest each."""


def _decompress_gzip(data: memoryview, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = limit_bytes
    start = members = 0
    while True:
        members += 1
        _check_parts(members)
        member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        while not member.eof:
            piece = data[start : start + _GZIP_PIECE_BYTES]
            if not piece:
                raise DecompressionError("gzip: a member is cut off")
            try:
                part = member.decompress(piece, min(STEP_BYTES, left + 1))
            except zlib.error as error:
                raise DecompressionError(f"gzip: {error}") from None
            left -= len(part)
            if left < 0:
                raise _too_large(limit_bytes)
            parts.append(part)
            start += len(piece) - len(member.unconsumed_tail) - len(member.unused_data)
        if start == len(data):
            return b"".join(parts)


# snappy: raw blocks from most clients, xerial's frame around blocks from Java

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_HEADER_BYTES = len(_XERIAL_HEADER)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")


def _compress_snappy(data: bytes | bytearray | memoryview) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit_bytes: int) -> bytes:
    # Version and compatibility are not looked at: one broker writes them little-endian.
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(data, limit_bytes, limit_bytes)
    parts: list[bytes] = []
    left = limit_bytes
    start = headers = 0
    while start < len(data):
        _check_parts(len(parts) + headers)
        # Streams that were appended to one another have a header again where a length would be.
        if data[start : start + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            start += _XERIAL_HEADER_BYTES
            headers += 1
            if start > len(data):
                raise DecompressionError("snappy: the frame's header is cut off")
            continue
        if start + _BLOCK_LENGTH.size > len(data):
            raise DecompressionError("snappy: the length of a block is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(data, start)
        start += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - start:
            raise DecompressionError(f"snappy: a block of {length} bytes, {len(data) - start} are there")
        parts.append(_snappy_block(data[start : start + length], left, limit_bytes))
        left -= len(parts[-1])
        start += length
    return b"".join(parts)


def _snappy_block(block: memoryview, left: int, limit_bytes: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise _too_large(limit_bytes)
        if size > len(block) * EXPANSION_MAX[Codec.SNAPPY]:
            raise DecompressionError(f"snappy: {len(block)} bytes cannot hold {size}")
        unpacked = memoryview(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise DecompressionError(str(error)) from None
    if size <= STEP_BYTES:
        return bytes(unpacked)
    return b"".join([bytes(unpacked[start : start + STEP_BYTES]) for start in range(0, size, STEP_BYTES)])


# lz4: the frame format


def _compress_lz4(data: bytes | bytearray | memoryview) -> bytes:
    import lz4.frame

    # Java's reader refuses linked blocks.
    frame: bytes = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return frame


def _decompress_lz4(data: memoryview, limit_bytes: int) -> bytes:
    import lz4.frame

    parts: list[bytes] = []
    left = limit_bytes
    start = frames = 0
    context = lz4.frame.create_decompression_context()
    while True:
        try:
            part, taken, at_end = lz4.frame.decompress_chunk(
                context, data[start:], max_length=min(STEP_BYTES, left + 1)
            )
        except RuntimeError as error:
            raise DecompressionError(f"lz4: {error}") from None
        left -= len(part)
        if left < 0:
            raise _too_large(limit_bytes)
        parts.append(part)
        start += taken
        if at_end:
            if start == len(data):
                return b"".join(parts)
            frames += 1
            _check_parts(frames)
        elif not taken and not part:
            raise DecompressionError("lz4: a frame is cut off")


# zstd (RFC 8878)

_ZSTD_LEVEL = 3
"""Kafka's default."""
_ZSTD_SKIPPABLE_MAGIC = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_ZSTD_SKIPPABLE_HEADER = struct.Struct("<II")
_ZSTD_WINDOW_BYTES_MAX = 1 << 27
"""zstd's own bound for decoders, and what its level 22 asks for."""
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_RAW, _ZSTD_RLE = 0, 1


def _decompress_zstd(data: memoryview, limit_bytes: int) -> bytes:
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    parts: list[bytes] = []
    left = limit_bytes
    blocks = content_bytes_max = 0
    while True:
        blocks += 1
        _check_parts(blocks)
        if _ZSTD_SKIPPABLE_MAGIC.match(data):
            data = _after_skippable_frame(data)
        else:
            try:
                size, content_bytes_max, blocks = _zstd_frame_extent(data, blocks)
                declared = zstandard.frame_content_size(data)
                if declared > left:
                    raise _too_large(limit_bytes)
                if declared > content_bytes_max:
                    raise DecompressionError(f"zstd: a frame of {size} bytes cannot hold {declared}")
                # The decoder takes 0 for "not said".
                part = decoder.decompress(data[:size], max_output_size=max(1, min(content_bytes_max, left)))
            except zstandard.ZstdError as error:
                if content_bytes_max > left:  # also raised for a frame without a content size that is too large
                    raise _too_large(limit_bytes) from None
                raise DecompressionError(f"zstd: {error}, with {left} of {limit_bytes} bytes left") from None
            left -= len(part)
            if left < 0:
                raise _too_large(limit_bytes)
            parts.append(part)
            data = data[size:]
        if not data:
            return b"".join(parts)


def _after_skippable_frame(data: memoryview) -> memoryview:
    if len(data) < _ZSTD_SKIPPABLE_HEADER.size:
        raise DecompressionError("zstd: a skippable frame is cut off")
    _, length = _ZSTD_SKIPPABLE_HEADER.unpack_from(data)
    if length > len(data) - _ZSTD_SKIPPABLE_HEADER.size:
        raise DecompressionError("zstd: a skippable frame is cut off")
    return data[_ZSTD_SKIPPABLE_HEADER.size + length :]


def _zstd_frame_extent(data: memoryview, blocks: int) -> tuple[int, int, int]:
    """Size of the frame at the start of `data`, the maximum size of its content, and the number of its blocks plus
    `blocks`.

    The decoder tells neither where a frame ends nor, when its content size is missing as in all that Java streams, how
    much to give it; the headers of the blocks (RFC 8878, 3.1.1.2) say both.
    """
    import zstandard

    parameters = zstandard.get_frame_parameters(data)
    end = zstandard.frame_header_size(data)
    content_bytes_max = 0
    is_last = 0
    while not is_last:
        blocks += 1
        _check_parts(blocks)
        header = int.from_bytes(data[end : end + 3], "little")
        is_last, kind, length = header & 1, header >> 1 & 3, header >> 3
        content_bytes_max += length if kind in (_ZSTD_RAW, _ZSTD_RLE) else _ZSTD_BLOCK_BYTES_MAX
        end += 3 + (1 if kind == _ZSTD_RLE else length)
        if end > len(data):
            raise DecompressionError("zstd: a frame is cut off")
    if parameters.has_checksum:
        end += 4
        if end > len(data):
            raise DecompressionError("zstd: a frame's checksum is cut off")
    return end, content_bytes_max, blocks
