"""Which segments retention lets go: the oldest whole ones, never the active one, never above the high watermark."""

from __future__ import annotations

from penstock.model.topic_config import TopicConfig
from penstock.storage.log import PartitionLog


def expired_segments(log: PartitionLog, config: TopicConfig, high_watermark: int, now_ms: int) -> int:
    """How many segments from the start may be dropped."""
    deletable = 0
    for following in log.segments[1:]:
        if following.base_offset > high_watermark:
            break
        deletable += 1
    by_start = 0
    while by_start < deletable and log.segments[by_start + 1].base_offset <= log.log_start_offset:
        by_start += 1
    by_time = by_start
    if config.retention_ms >= 0:
        while by_time < deletable and _age_ms(log, by_time, now_ms) > config.retention_ms:
            by_time += 1
    by_size = by_start
    if config.retention_bytes >= 0:
        excess = log.size_bytes - config.retention_bytes
        while by_size < deletable and excess >= log.segments[by_size].size:
            excess -= log.segments[by_size].size
            by_size += 1
    return max(by_time, by_size)


def _age_ms(log: PartitionLog, at: int, now_ms: int) -> int:
    """Since the segment's latest record; a segment without timestamps ages by its file."""
    segment = log.segments[at]
    latest = segment.largest_timestamp()
    if latest < 0:
        latest = segment.modified_ms()
    return now_ms - latest
