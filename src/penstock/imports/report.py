"""What an import did, or would do: a row for each partition, what was left out and why, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.imports.source import Finding, Findings, Skips, shown
from penstock.imports.survey import Survey


@dataclass(slots=True)
class PartitionReport:
    source_topic: str
    topic: str
    partition: int
    records: int
    bytes: int
    first_offset: int
    end_offset: int
    """Of the source; in a data directory the log has the same."""
    missing_offsets: int
    renumbered: int
    damaged_bytes: int
    damage_count: int
    damage: list[Finding]

    @classmethod
    def of(cls, survey: Survey, topic: str, number: int) -> PartitionReport:
        partition, findings = survey.partition, survey.findings
        return cls(
            shown(partition.topic),
            topic,
            number,
            survey.tally.records,
            survey.tally.bytes,
            max(survey.first_offset, 0),
            survey.end_offset,
            survey.missing,
            findings.renumbered,
            findings.bytes,
            findings.count,
            list(findings.kept),
        )

    def remarks(self) -> str:
        """In a few words for a table."""
        parts = []
        if self.damage_count:
            parts.append(f"{self.damage_count} damaged, {self.damaged_bytes} bytes")
        if self.renumbered:
            parts.append(f"{self.renumbered} renumbered")
        if self.missing_offsets:
            parts.append(f"{self.missing_offsets} offsets missing")
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "source_topic": self.source_topic,
            "partition": self.partition,
            "records": self.records,
            "bytes": self.bytes,
            "first_offset": self.first_offset,
            "end_offset": self.end_offset,
            "missing_offsets": self.missing_offsets,
            "renumbered": self.renumbered,
            "damaged_bytes": self.damaged_bytes,
            "damage_count": self.damage_count,
            "damage": [finding._asdict() for finding in self.damage],
        }


@dataclass(slots=True)
class Report:
    reader: str
    source: str
    target: str
    dry_run: bool
    partitions: list[PartitionReport] = field(default_factory=list)
    skipped: Skips = field(default_factory=Skips)
    commit_damage: Findings = field(default_factory=Findings)
    """In what groups committed."""
    committed_offsets: int = 0
    aborted_transactions: int = 0
    """Open when the source ended, and taken back."""
    resumed: bool = False
    verified: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(row.records for row in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.partitions)

    @property
    def damage_count(self) -> int:
        return self.commit_damage.count + sum(row.damage_count for row in self.partitions)

    @property
    def damaged_bytes(self) -> int:
        return self.commit_damage.bytes + sum(row.damaged_bytes for row in self.partitions)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was there came over."""
        return not self.damage_count and not self.skipped.losses

    def losses(self) -> Iterator[str]:
        """One line for each damaged or skipped item that is kept. All names are printable."""
        for row in self.partitions:
            yield from _damage(row.damage, row.damage_count, f"{row.source_topic}-{row.partition}")
        yield from _damage(self.commit_damage.kept, self.commit_damage.count, "committed offsets")
        for one in self.skipped:
            yield f"skipped: {one.what}: {one.why}"
        if len(self.skipped) > len(self.skipped.kept):
            yield f"skipped: {len(self.skipped) - len(self.skipped.kept)} more"

    def as_dict(self) -> dict[str, Any]:
        return {
            "from": self.reader,
            "source": self.source,
            "target": self.target,
            "dry_run": self.dry_run,
            "resumed": self.resumed,
            "verified": self.verified,
            "complete": self.is_complete,
            "records": self.records,
            "bytes": self.bytes,
            "committed_offsets": self.committed_offsets,
            "aborted_transactions": self.aborted_transactions,
            "partitions": [row.as_dict() for row in self.partitions],
            "damage_count": self.damage_count,
            "damaged_bytes": self.damaged_bytes,
            "skipped_count": self.skipped.count,
            "skipped": [one._asdict() for one in self.skipped],
            "damage": [finding._asdict() for finding in self.commit_damage.kept],
            "notes": self.notes,
        }


def _damage(kept: Sequence[Finding], count: int, where: str) -> Iterator[str]:
    for finding in kept:
        yield f"damaged: {finding}"
    if count > len(kept):
        yield f"damaged: {count - len(kept)} more places in {where}"
