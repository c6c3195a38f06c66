from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.imports.batch_checks import batch_problem, has_records
from penstock.records.batch import CRC, CRC_OFFSET, CRC_START, Batch
from penstock.records.builder import NewRecord, build_batch, rebuild_batch
from penstock.records.compression import Codec
from penstock.records.record import read_records, unpacked

COUNT_AT, DELTA_AT, PRODUCER_AT, EPOCH_AT = 57, 23, 43, 12


def _batch(sizes: list[int], codec: int = Codec.NONE) -> Batch:
    news = [NewRecord(1_000 + n, b"k", b"v" * size) for n, size in enumerate(sizes)]
    return Batch(memoryview(build_batch(news, compression=codec)))


def with_fields(batch: Batch, **fields: int) -> Batch:
    """A batch whose header says something else, with a checksum that fits."""
    data = bytearray(batch.view)
    for name, value in fields.items():
        at = {"count": COUNT_AT, "delta": DELTA_AT, "producer_id": PRODUCER_AT, "epoch": EPOCH_AT, "offset": 0}[name]
        data[at : at + (8 if name in ("producer_id", "offset") else 4)] = value.to_bytes(
            8 if name in ("producer_id", "offset") else 4, "big", signed=True
        )
    CRC.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[CRC_START:]))
    return Batch(memoryview(data))


@given(
    sizes=st.lists(st.sampled_from([0, 1, 1, 1, 30, 55, 56, 57, 200, 8_100, 8_200]), min_size=1, max_size=200),
    more=st.integers(-2, 2),
)
def test_records_are_counted_whatever_their_sizes(sizes: list[int], more: int) -> None:
    batch = _batch(sizes)
    assert len(list(read_records(batch))) == len(sizes)
    assert has_records(unpacked(batch), len(sizes) + more) is (more == 0)


@pytest.mark.parametrize("codec", Codec)
def test_a_sound_batch_has_no_problem(codec: Codec) -> None:
    batch = _batch([10] * 100 + [300, 0, 7], codec)
    assert batch_problem(batch) is None
    thin = rebuild_batch(_batch([5] * 20), [record for record in read_records(_batch([5] * 20)) if record.offset % 3])
    assert batch_problem(Batch(memoryview(thin))) is None
    assert batch_problem(Batch(memoryview(rebuild_batch(_batch([5]), [])))) is None


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    "fields",
    [
        {"count": (1 << 31) - 1, "delta": (1 << 31) - 2},
        {"count": (1 << 31) - 1},
        {"count": -1},
        {"count": 0},
        {"count": 11, "delta": 10},
        {"count": 9},
        {"delta": 8},
        {"producer_id": (1 << 63) - 1},
        {"epoch": (1 << 31) - 1},
        {"offset": (1 << 63) - 20},
    ],
    ids=str,
)
def test_a_header_that_lies_is_a_problem(codec: Codec, fields: dict[str, int]) -> None:
    assert batch_problem(with_fields(_batch([20] * 10, codec), **fields)) is not None


def test_unpacked_size_above_the_limit_is_a_problem() -> None:
    batch = _batch([130 * 1024 * 1024], Codec.ZSTD)
    assert batch.size < 100_000
    assert "larger than" in (batch_problem(batch) or "")
