"""Which segments retention lets go: the oldest whole ones, never the active one, never above the high watermark."""

from __future__ import annotations

from penstock.model.topic_config import TopicConfig
from penstock.storage.log import PartitionLog


def expired_segments(log: PartitionLog, config: TopicConfig, high_watermark: int, now_ms: int | None) -> int:
    """Number of segments at the start that may be deleted; checks at most one segment that stays. Without `now_ms`,
    segments do not expire by age. Raises Cold when the age of a segment has to be read from the disk first."""
    if log.swapping:
        return 0
    segments = log.segments
    excess = log.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= high_watermark:
        segment = segments[count]
        is_below_start = segments[count + 1].base_offset <= log.log_start_offset
        is_too_much = excess >= segment.size
        # age last: it may have to read the segment, which may fail
        if not (is_below_start or is_too_much or _is_too_old(log, count, config.retention_ms, now_ms)):
            break
        excess -= segment.size
        count += 1
    return count


def _is_too_old(log: PartitionLog, at: int, retention_ms: int, now_ms: int | None) -> bool:
    """Age by the segment's latest record, or by its file if the records have no timestamps."""
    if now_ms is None or retention_ms < 0:
        return False
    segment = log.segments[at]
    latest = segment.largest_timestamp(wait=False)
    if latest < 0:
        latest = segment.modified_ms()
    return now_ms - latest > retention_ms
