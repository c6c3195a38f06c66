"""Data directories for audits, with damage of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.audit.job import AuditRequest, audit
from penstock.audit.report import AuditReport
from penstock.imports.engine import LocalEngine
from penstock.records.builder import NewRecord, build_batch

TIME = 1_700_000_000_000
HOUR_MS = 3_600_000


def batch(base: int, count: int = 10, **how: object) -> bytes:
    records = [
        NewRecord(TIME + n * HOUR_MS // 4, b"k%d" % (n % 7), b"value %d" % n, (("h", b"x"),))
        for n in range(base, base + count)
    ]
    return bytes(build_batch(records, base_offset=base, leader_epoch=0, **how))  # type: ignore[arg-type]


def write(data_dir: Path, name: str, base: int, batches: Sequence[bytes]) -> Path:
    folder = data_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def audited(data_dir: Path, **how: object) -> AuditReport:
    """By threads of this process."""
    return audit(AuditRequest(LocalEngine(), data_dir, **how))  # type: ignore[arg-type]


def counts(report: AuditReport) -> dict[str, int]:
    return dict(report.found().counts)
