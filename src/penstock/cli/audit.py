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
    from penstock.spark.audit.report import AuditReport


def audit(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]", exists=True, file_okay=False, help="A data directory or a partition's folder."
        ),
    ] = None,
    table: Annotated[
        str, typer.Option("--table", metavar="PATH", help="A table; with PATH or --bootstrap, against its topic there.")
    ] = "",
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="The broker of the table's topic.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic; can be given again.")
    ] = None,
    allowed: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KIND", help="Report findings of that kind, but count them as fine."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", dir_okay=False, help="Write a page with plots.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Who reads: Spark, or threads of this process.")
    ] = EngineName.spark,
    master: MasterOption = None,
    as_json: AsJson = False,
) -> None:
    """Read every record of a data directory or a table, and say what is wrong.

    CRCs, offsets that are missing, doubled or out of order, indexes, and records that cannot be read; how many records,
    keys and bytes, by partition and over time. A table is held against its topic, by offsets and by content.
    Exit code 0: clean; 1: something was found, or could not be read; 2: called wrongly.
    """
    with _needs_arrow():
        from penstock.client.kafka import KafkaError, KafkaSettings
        from penstock.imports.engine import JobFailed
        from penstock.spark.archive import ArchiveError
        from penstock.spark.audit.facts import KINDS
        from penstock.spark.audit.job import AuditRequest, NothingToAudit
        from penstock.spark.audit.job import audit as run_audit
    for kind in allowed or ():
        if kind not in KINDS:
            raise Misused(f"--allow {kind}: there are {', '.join(KINDS)}")
    if path is None and not table:
        raise Misused("name a data directory, or a table with --table")
    if bootstrap is not None and not table:
        raise Misused("--bootstrap is for a table's topic: name the table with --table")
    if bootstrap is not None and path is not None:
        raise Misused("a table is held against PATH or against --bootstrap: give one of them")
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
            raise Failed("an audit needs Spark's packages: pip install 'penstock-broker[spark]'") from None
        raise


def _write_page(report: AuditReport, path: Path) -> None:
    from penstock.spark.audit.page import html_page

    try:
        path.write_text(html_page(report, datetime.datetime.now(datetime.UTC)))
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror or error}") from None


def _print(report: AuditReport) -> None:
    from penstock.spark.audit.report import partition_row

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
    verdict = (
        "clean" if not total else counted(total, "finding") + (" of kinds that are allowed" if report.is_clean else "")
    )
    note(f"{counted(report.records, 'record')}: {verdict}")
