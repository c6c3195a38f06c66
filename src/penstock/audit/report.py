"""What an audit says: findings by kind, and the numbers of every partition."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from penstock.audit.facts import KINDS, Finding, Found
from penstock.audit.merging import Merged


@dataclass(slots=True)
class AuditReport:
    what: str
    """What was audited, in words."""
    partitions: list[Merged]
    compared_with: str = ""
    topic_partitions: list[Merged] = field(default_factory=list)
    """Of the topic that a table was held against."""
    comparison: Found = field(default_factory=Found)
    allowed: Collection[str] = ()
    """Kinds of findings that do not count."""

    def found(self) -> Found:
        """Everything, of all partitions."""
        total = Found()
        for merged in [*self.partitions, *self.topic_partitions]:
            total.take(merged.facts.found)
        total.take(self.comparison)
        return total

    @property
    def is_clean(self) -> bool:
        return not any(kind not in self.allowed for kind in self.found().counts)

    @property
    def records(self) -> int:
        return sum(merged.facts.records for merged in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        found = self.found()
        return {
            "audited": self.what,
            "compared_with": self.compared_with or None,
            "clean": self.is_clean,
            "allowed": sorted(self.allowed),
            "counts": {kind: found.counts[kind] for kind in KINDS if kind in found.counts},
            "findings": [_finding_row(one) for one in found.kept],
            "partitions": [partition_row(merged) for merged in self.partitions],
        }


def _finding_row(finding: Finding) -> dict[str, Any]:
    first, last = finding.offsets or (None, None)
    return {
        "kind": finding.kind,
        "place": finding.place,
        "text": finding.text,
        "first_offset": first,
        "last_offset": last,
    }


def partition_row(merged: Merged) -> dict[str, Any]:
    facts = merged.facts
    return {
        "topic": facts.topic,
        "partition": facts.partition,
        "files": facts.files,
        "bytes": facts.bytes,
        "batches": facts.batches,
        "records": facts.records,
        "hidden": facts.hidden,
        "log_start_offset": facts.log_start_offset,
        "log_end_offset": facts.log_end_offset,
        "keys": merged.keys.count(),
        "keys_are_exact": merged.keys.is_exact,
        "null_keys": facts.null_keys,
        "null_values": facts.null_values,
        "key_bytes": facts.key_bytes,
        "value_bytes": facts.value_bytes,
        "largest_record_bytes": facts.record_bytes_max,
        "timestamp_min": facts.timestamp_min,
        "timestamp_max": facts.timestamp_max,
        "hours": {str(hour): list(counted) for hour, counted in sorted(facts.hours.items())},
        "findings": dict(facts.found.counts),
    }
