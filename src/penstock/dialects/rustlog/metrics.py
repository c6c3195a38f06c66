"""The metrics of a listener in Prometheus' text format, with the names, types and HELP lines of the original.

Messages, bytes, connections and lags are those of the listener; retention and compaction are those of the whole broker.
Latencies are 0, as they always are in the original: a dialect has no clock. Consumers are never throttled and segments
never skipped here, so those counters stay 0.
"""

from __future__ import annotations

from penstock.broker.cleaning import CleaningTotals
from penstock.broker.housekeeping import RetentionTotals
from penstock.model.limits import RUSTLOG_LAGS_MAX

_COUNTER, _GAUGE = "counter", "gauge"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class ListenerMetrics:
    """What one listener counts."""

    __slots__ = ("_lags", "bytes_in", "bytes_out", "connections", "messages_fetched", "messages_produced")

    def __init__(self) -> None:
        self.connections = 0
        self.messages_produced = 0
        self.messages_fetched = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._lags: dict[tuple[str, int, str], int] = {}

    def note_lag(self, topic: str, partition: int, group: str, lag: int) -> None:
        """Keep a bounded number of lags, because clients choose the group names. The least recent fetch is dropped first."""
        key = (topic, partition, group)
        self._lags.pop(key, None)
        self._lags[key] = lag
        if len(self._lags) > RUSTLOG_LAGS_MAX:
            del self._lags[next(iter(self._lags))]

    def text(self, retention: RetentionTotals, cleaning: CleaningTotals) -> str:
        reclaimed = retention.bytes_deleted + cleaning.bytes_freed
        rows: list[tuple[str, str, str, int]] = [
            ("messages_produced_total", _COUNTER, "Total number of messages produced", self.messages_produced),
            ("messages_fetched_total", _COUNTER, "Total number of messages fetched", self.messages_fetched),
            ("bytes_in_total", _COUNTER, "Total bytes received (produced)", self.bytes_in),
            ("bytes_out_total", _COUNTER, "Total bytes sent (fetched)", self.bytes_out),
            ("active_connections", _GAUGE, "Current number of active TCP connections", self.connections),
            ("throttled_consumers_total", _COUNTER, "Total number of consumer throttle events", 0),
            ("slow_consumers_total", _COUNTER, "Total number of slow consumer detections", 0),
            (
                "segments_deleted_total",
                _COUNTER,
                "Total number of segments deleted by retention",
                retention.segments_deleted,
            ),
            ("bytes_reclaimed_total", _COUNTER, "Total bytes reclaimed by retention and compaction", reclaimed),
            ("compaction_runs_total", _COUNTER, "Total number of log compaction runs", cleaning.runs),
            ("compaction_skipped_segments_total", _COUNTER, "Total number of segments skipped during compaction", 0),
            (
                "retention_noop_runs_total",
                _COUNTER,
                "Total number of retention runs that deleted no segments",
                retention.idle_runs,
            ),
            ("checkpoint_corruption_total", _COUNTER, "Total number of corrupted checkpoint files recovered", 0),
            (
                "compaction_segments_rewritten_total",
                _COUNTER,
                "Total number of segments rewritten during compaction",
                cleaning.segments_rewritten,
            ),
            (
                "compaction_records_dropped_total",
                _COUNTER,
                "Total number of records dropped during compaction",
                cleaning.records_dropped,
            ),
            (
                "compaction_bytes_rewritten_total",
                _COUNTER,
                "Total bytes rewritten during compaction",
                cleaning.bytes_rewritten,
            ),
        ]
        rows += [
            (f"{kind}_latency_ns_p{rank}", _GAUGE, f"{kind.capitalize()} latency {rank}th percentile (ns)", 0)
            for kind in ("fetch", "produce")
            for rank in (50, 95, 99)
        ]
        lines = [f"{_head(name, kind, meaning)}{name} {value}\n" for name, kind, meaning, value in rows]
        lines.append(_head("consumer_lag", _GAUGE, "Consumer lag per partition and group"))
        for (topic, partition, group), lag in sorted(self._lags.items()):
            labels = f'topic="{_escaped(topic)}",partition="{partition}",group="{_escaped(group)}"'
            lines.append(f"consumer_lag{{{labels}}} {lag}\n")
        return "".join(lines)


def _head(name: str, kind: str, meaning: str) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def _escaped(label: str) -> str:
    return label.translate(_ESCAPES)
