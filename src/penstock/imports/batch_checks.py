"""Whether the content of a batch matches its header.

A checksum proves that a batch is unchanged, not that its header is true: a header may claim two billion records for a batch
of one. So the records of every batch are counted by their lengths, and numbers that no broker assigns are refused, because
the broker that imports the log would continue from them.
"""

from __future__ import annotations

from penstock.imports.source import OFFSET_END
from penstock.model.limits import DECOMPRESSED_BYTES_MAX
from penstock.records.batch import Batch, BatchError
from penstock.records.compression import decompress
from penstock.records.record import RECORD_BYTES_MIN
from penstock.records.varint import VARINT_BYTES_MAX, read_varint

EPOCH_END = 1 << 30
"""Leader epochs grow by one with each start of a broker or each election."""
_SAME_SIZE = 4
"""Number of records of equal size after which more of that size are expected."""
_RUN_MAX = 4096


def batch_problem(batch: Batch) -> str | None:
    """What is wrong with a batch whose checksum matches, or None."""
    count, room = batch.count, batch.last_offset_delta + 1
    if not 0 <= count <= room:
        return f"the batch claims {count} records and has offsets for {room}"
    if batch.next_offset > OFFSET_END:
        return f"offset {batch.last_offset} is out of range"
    if batch.leader_epoch >= EPOCH_END or batch.producer_id >= OFFSET_END:
        return f"leader epoch {batch.leader_epoch} or producer id {batch.producer_id} is out of range"
    payload = batch.payload()
    if not count and not payload:  # log cleaning leaves such headers
        return None
    try:
        limit_bytes = max(DECOMPRESSED_BYTES_MAX, len(payload))
        is_right = has_records(decompress(batch.compression, payload, limit_bytes), count)
    except BatchError as error:
        return f"the records cannot be read: {error}"
    return None if is_right else f"the batch claims {count} records and has others"


def has_records(data: bytes, count: int) -> bool:
    """Whether `data` has exactly `count` records, by their lengths. Raises BatchError for an invalid length."""
    at, size, left = 0, len(data), count
    if left * RECORD_BYTES_MIN > size:
        return False
    previous = same = 0
    while left and at < size - 1:
        # Lengths of one and two bytes are decoded inline: a call would double the cost.
        raw, high = data[at], data[at + 1]
        if raw < 0x80:
            record_bytes = 1 + (raw >> 1)
        elif high < 0x80:
            record_bytes = 2 + ((raw & 0x7F | high << 7) >> 1)
        else:
            length, start = read_varint(data, at)
            record_bytes = start - at + length
        if raw & 1 or record_bytes < RECORD_BYTES_MIN:
            return False
        at += record_bytes
        left -= 1
        if record_bytes != previous:
            previous, same = record_bytes, 0
            continue
        same += 1
        if same == _SAME_SIZE:
            run = _run(data, at, min(left, _RUN_MAX, (size - at) // record_bytes), record_bytes)
            at += run * record_bytes
            left -= run
            same = 0
    return not left and at == size


def _run(data: bytes, at: int, count: int, record_bytes: int) -> int:
    """Number of the next `count` records that have the size of the one before, by comparing all lengths at once."""
    run = count
    for byte in range(VARINT_BYTES_MAX):
        expected = data[at + byte - record_bytes]
        column = data[at + byte : at + byte + count * record_bytes : record_bytes]
        run = min(run, len(column) - len(column.lstrip(bytes((expected,)))))
        if expected < 0x80:
            break
    return run
