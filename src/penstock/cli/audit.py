"""`penstock logs audit`: is everything there, once and undamaged? A Spark job over segments or tables."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import AsJson, reach
from penstock.cli.failure import Failed, Misused
from penstock.cli.import_ import EngineName, engine_of, watcher
from penstock.cli.master import MasterOption
from penstock.cli.output import counted, note, print_json, print_table

if TYPE_CHECKING:
    from penstock.audit.report import AuditReport


def audit(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", exists=True, file_okay=False, help="Data directory or partition directory."),
    ] = None,
    table: Annotated[
        str, typer.Option("--table", metavar="PATH", help="Lake table; compared with PATH or --bootstrap if given.")
    ] = "",
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Broker that holds the table's topic.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Audit only this topic; repeatable.")
    ] = None,
    allowed: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KIND", help="Report findings of this kind, but do not fail; repeatable."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", dir_okay=False, help="Write an HTML report with plots.")
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Run on Spark or in local threads.")] = EngineName.spark,
    master: MasterOption = None,
    as_json: AsJson = False,
) -> None:
    """Check every record of a data directory or a lake table.

    Checks CRCs, indexes, missing, duplicate and out-of-order offsets, and that every record can be decoded. Counts
    records, keys and bytes per partition and over time. Compares a table with its topic by offset and by content.

    Exit code: 0 if clean, 1 if something was found or could not be read, 2 for invalid arguments.
    """
    with _needs_arrow():
        from penstock.audit.facts import KINDS
        from penstock.audit.job import AuditRequest, NothingToAudit
        from penstock.audit.job import audit as run_audit
        from penstock.client.kafka import KafkaError, KafkaSettings
        from penstock.imports.engine import JobFailed
        from penstock.lake import ArchiveError
    for kind in allowed or ():
        if kind not in KINDS:
            raise Misused(f"--allow {kind}: unknown kind; expected one of {', '.join(KINDS)}")
    if path is None and not table:
        raise Misused("nothing to audit: give a data directory or --table")
    if bootstrap is not None and not table:
        raise Misused("--bootstrap requires --table")
    if bootstrap is not None and path is not None:
        raise Misused("PATH and --bootstrap cannot be combined: the table is compared with one of them")
    if bootstrap is not None:
        reach(bootstrap)
    broker = None if bootstrap is None else KafkaSettings.of(bootstrap)
    try:
        with watcher() as watching, engine_of(engine, master, "penstock logs audit") as working:
            report = run_audit(AuditRequest(working, path, table, broker, topics or (), allowed or (), watching))
    except (NothingToAudit, JobFailed, ArchiveError, KafkaError) as error:
        raise Failed(str(error)) from None
    if html is not None:
        _write_page(report, html)
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if not report.is_clean:
        raise typer.Exit(1)


@contextlib.contextmanager
def _needs_arrow() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("pyarrow", "pyspark", "numpy", "pandas"):
            raise Failed("audit requires Spark's packages: pip install 'penstock-broker[spark]'") from None
        raise


def _write_page(report: AuditReport, path: Path) -> None:
    from penstock.audit.page import html_page

    try:
        path.write_text(html_page(report, datetime.datetime.now(datetime.UTC)))
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror or error}") from None


def _print(report: AuditReport) -> None:
    from penstock.audit.report import partition_row

    shown = ("topic", "partition", "records", "hidden", "files", "bytes", "log_start_offset", "log_end_offset", "keys")
    rows = [partition_row(merged) for merged in report.partitions]
    print_table(
        tuple(name.replace("_", " ") for name in (*shown, "findings")),
        [
            (
                *(row[name] for name in shown),
                ", ".join(f"{kind} {count}" for kind, count in row["findings"].items()) or None,
            )
            for row in rows
        ],
    )
    found = report.found()
    for one in found.kept:
        print(f"{one.kind}: {one.place}: {one.text}")
    total = sum(found.counts.values())
    verdict = "clean" if not total else counted(total, "finding") + (" (all allowed)" if report.is_clean else "")
    note(f"{counted(report.records, 'record')}: {verdict}")
