"""Codecs: round trips, foreign framings, damage, and bombs that must not go off."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.compression import (
    CODECS,
    EXPANSION_MAX,
    PARTS_MAX,
    Codec,
    DecompressionError,
    TooLarge,
    compress,
    decompress,
)

MIB = 1024 * 1024
PACKED = sorted(CODECS - {Codec.NONE})
TEXT = b"".join(b'{"user": %d, "event": "click"}\n' % (n * 7919) for n in range(3_000))
"""Three times xerial's block and more than lz4's."""


def zstd_stream(data: bytes, **options: bool) -> bytes:
    """As Java's stream does it: the content size is not known when the header is written."""
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False, **options).compressobj()
    return compressor.compress(data) + compressor.flush()


def bombs(size: int) -> dict[str, tuple[Codec, bytes]]:
    zeros = bytes(size)
    rle = b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(
        struct.pack("<I", (128 * 1024) << 3 | 1 << 1 | (n == 0))[:3] + b"\0" for n in reversed(range(size // 131072))
    )
    return {
        "gzip": (Codec.GZIP, gzip.compress(zeros)),
        "gzip members": (Codec.GZIP, gzip.compress(zeros[: size // 64]) * 64),
        "snappy raw": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros))),
        "snappy xerial": (Codec.SNAPPY, compress(Codec.SNAPPY, zeros)),
        "lz4": (Codec.LZ4, compress(Codec.LZ4, zeros)),
        "lz4 with size": (Codec.LZ4, lz4.frame.compress(zeros, store_size=True)),
        "lz4 frames": (Codec.LZ4, lz4.frame.compress(zeros[: size // 64]) * 64),
        "zstd": (Codec.ZSTD, compress(Codec.ZSTD, zeros)),
        "zstd stream": (Codec.ZSTD, zstd_stream(zeros)),
        "zstd frames": (Codec.ZSTD, zstd_stream(zeros[: size // 64]) * 64),
        "zstd rle blocks": (Codec.ZSTD, rle),
    }


BOMB_BYTES = 16 * MIB
BOMBS = bombs(BOMB_BYTES)


@pytest.mark.parametrize("codec", sorted(CODECS))
@given(data=st.binary(max_size=300), times=st.integers(1, 400))
def test_data_comes_back_and_exactly_its_size_is_enough(codec: Codec, data: bytes, times: int) -> None:
    data *= times
    packed = compress(codec, memoryview(data))
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), len(data) + 1) == data
    if data:
        with pytest.raises(DecompressionError):
            decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_what_comes_out_is_bytes(codec: Codec) -> None:
    assert type(decompress(codec, compress(codec, TEXT), len(TEXT))) is bytes


def test_framings_of_other_writers_are_read() -> None:
    size = len(TEXT)
    framings = [
        (Codec.GZIP, gzip.compress(TEXT, 9)),
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True, content_checksum=True, block_checksum=True)),
        (Codec.LZ4, lz4.frame.compress(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=True)),
        (Codec.ZSTD, zstd_stream(TEXT)),
        (Codec.ZSTD, zstd_stream(TEXT, write_checksum=True)),
        (Codec.ZSTD, zstandard.ZstdCompressor(level=19, write_checksum=True).compress(TEXT)),
        (Codec.ZSTD, b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + zstd_stream(TEXT)),
    ]
    for codec, packed in framings:
        assert decompress(codec, packed, size) == TEXT


def test_frames_that_follow_one_another_are_all_read() -> None:
    for codec in PACKED:
        packed = compress(codec, TEXT) + compress(codec, b"") + compress(codec, b"and more")
        assert decompress(codec, packed, len(TEXT) + 8) == TEXT + b"and more"
        with pytest.raises(DecompressionError):
            decompress(codec, packed, len(TEXT) + 7)


def test_many_tiny_members_cost_no_more_than_their_bytes() -> None:
    members = 20_000
    assert decompress(Codec.GZIP, gzip.compress(b"a") * members, members) == b"a" * members


def test_snappy_is_written_as_java_writes_it() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    (length,) = struct.unpack_from(">i", packed, 16)
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + length]) == 32 * 1024


def test_snappy_frames_with_a_little_endian_version_are_read() -> None:
    packed = bytearray(compress(Codec.SNAPPY, TEXT))
    struct.pack_into("<ii", packed, 8, 1, 1)
    assert decompress(Codec.SNAPPY, packed, len(TEXT)) == TEXT


def test_lz4_is_written_with_the_independent_blocks_that_java_asks_for() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024


@pytest.mark.parametrize("codec", PACKED)
def test_every_truncation_is_a_decompression_error(codec: Codec) -> None:
    variants = [compress(codec, TEXT[:300])]
    if codec is Codec.ZSTD:
        variants += [zstd_stream(TEXT[:300]), zstd_stream(TEXT[:300], write_checksum=True)]
    if codec is Codec.SNAPPY:
        variants.append(bytes(cramjam.snappy.compress_raw(TEXT[:300])))
    for packed in variants:
        whole = decompress(codec, packed, 300)
        for end in range(len(packed)):
            if codec is Codec.SNAPPY and end == 16 and packed.startswith(b"\x82SNAPPY"):
                # Xerial's frame has no end: its bare header is an empty stream.
                continue
            with pytest.raises(DecompressionError):
                decompress(codec, packed[:end], 300)
        assert whole == TEXT[:300]


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.data())
def test_damage_gives_bounded_bytes_or_a_decompression_error(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, TEXT[:2_000]))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, packed, 4_000)) <= 4_000
    except DecompressionError:
        pass


@pytest.mark.parametrize("codec", PACKED)
@given(packed=st.binary(max_size=200))
def test_noise_is_a_decompression_error_or_bounded_bytes(codec: Codec, packed: bytes) -> None:
    try:
        assert len(decompress(codec, packed, 1_000)) <= 1_000
    except DecompressionError:
        pass


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_garbage_after_the_last_frame_is_refused(codec: Codec) -> None:
    with pytest.raises(DecompressionError):
        decompress(codec, compress(codec, TEXT) + b"garbage", len(TEXT) * 2)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_without_more_memory_than_the_limit_takes(name: str) -> None:
    codec, packed = BOMBS[name]
    limit_bytes = MIB // 2
    decompress(codec, compress(codec, b"loaded"), 10)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decompress(codec, packed, limit_bytes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit_bytes


@pytest.mark.parametrize("name", BOMBS)
def test_the_same_bytes_are_read_where_the_limit_allows_it(name: str) -> None:
    codec, packed = BOMBS[name]
    assert decompress(codec, packed, BOMB_BYTES) == bytes(BOMB_BYTES)


def test_a_size_that_the_bytes_cannot_hold_is_refused_before_memory_is_taken() -> None:
    snappy = b"\x80\x80\x80\x20" + b"\0\0"
    assert cramjam.snappy.decompress_raw_len(snappy) == 64 * MIB
    declared = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    header_bytes = zstandard.frame_header_size(declared)
    zstd = declared[:header_bytes] + b"\x01\0\0"
    assert zstandard.frame_content_size(zstd) == 64 * MIB
    for codec, packed in ((Codec.SNAPPY, snappy), (Codec.ZSTD, zstd)):
        tracemalloc.start()
        try:
            with pytest.raises(DecompressionError, match="cannot hold"):
                decompress(codec, packed, 128 * MIB)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MIB


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(DecompressionError, match="not known"):
        decompress(codec, b"", 10)
    with pytest.raises(ValueError, match="not known"):
        compress(codec, b"")


def test_codecs_are_imported_only_when_a_batch_needs_them() -> None:
    program = (
        "import sys, penstock.records.control;"
        "print([name for name in ('lz4', 'zstandard', 'cramjam') if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("name", BOMBS)
def test_no_payload_unpacks_to_more_than_its_codec_allows(name: str) -> None:
    codec, packed = BOMBS[name]
    assert len(decompress(codec, packed, BOMB_BYTES)) <= len(packed) * EXPANSION_MAX[codec]


EMPTY_PARTS = {
    "gzip members": (Codec.GZIP, b"", gzip.compress(b"")),
    "snappy blocks": (Codec.SNAPPY, compress(Codec.SNAPPY, b"")[:16], b"\0\0\0\x01\0"),
    "snappy headers": (Codec.SNAPPY, b"", compress(Codec.SNAPPY, b"")[:16]),
    "lz4 frames": (Codec.LZ4, b"", lz4.frame.compress(b"")),
    "zstd frames": (Codec.ZSTD, b"", zstandard.ZstdCompressor().compress(b"")),
    "zstd skippable frames": (Codec.ZSTD, b"", b"\x50\x2a\x4d\x18\0\0\0\0"),
    "zstd blocks": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\x58", b"\0\0\0"),
}


@pytest.mark.parametrize("name", EMPTY_PARTS)
def test_parts_that_hold_nothing_are_bounded(name: str) -> None:
    codec, start, part = EMPTY_PARTS[name]
    with pytest.raises(DecompressionError, match=f"more than {PARTS_MAX} compressed parts"):
        decompress(codec, start + part * (PARTS_MAX + 2), 1_000)


@pytest.mark.parametrize(("window_log", "is_read"), [(27, True), (28, False)])
def test_zstd_window_above_the_limit_is_refused(window_log: int, is_read: bool) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(b"data") + stream.flush()
    if is_read:
        assert decompress(Codec.ZSTD, packed, 1_000) == b"data"
    else:
        with pytest.raises(DecompressionError):
            decompress(Codec.ZSTD, packed, 1_000)


def longest_hold(work: Callable[[], object]) -> float:
    """The largest part of the processor time of a thread with `work` in which this thread could not run."""
    started, done = threading.Event(), threading.Event()
    clocks: list[int] = []

    def run() -> None:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        started.set()
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    longest = last = 0.0
    while not done.is_set():
        try:
            used = time.clock_gettime(clocks[0])
        except OSError:  # the thread has ended
            break
        longest = max(longest, used - last)
        last = used
        time.sleep(0)
    thread.join()
    return longest / last if last else 1.0


NOISE = random.Random(1).randbytes(MIB) * 48
LONG = {
    "gzip": (Codec.GZIP, gzip.compress(bytes(64 * MIB))),
    "gzip of noise": (Codec.GZIP, gzip.compress(NOISE, 1)),
    "snappy in one block": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(NOISE))),
    "snappy in blocks": (Codec.SNAPPY, compress(Codec.SNAPPY, NOISE)),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, NOISE)),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, NOISE)),
    "zstd stream": (Codec.ZSTD, zstd_stream(NOISE)),
}


@pytest.mark.parametrize("name", LONG)
def test_decompression_in_a_thread_lets_other_threads_run(name: str) -> None:
    codec, packed = LONG[name]
    # this thread may also have to wait for a processor: the best of some tries tells what the decoder does
    assert any(longest_hold(lambda: decompress(codec, packed, 64 * MIB)) < 0.5 for _ in range(20))
