"""`penstock import`: another broker's data directory into this one. What is whole comes over; what is not is listed."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import BOOTSTRAP_DEFAULT, AsJson, reach
from penstock.cli.failure import Failed, Interrupted, Misused, checked_topic, key_values
from penstock.cli.master import MasterOption, check_master
from penstock.cli.output import counted, note, print_json, print_table
from penstock.model.limits import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from penstock.imports.engine import Engine, Watcher
    from penstock.imports.report import Report
    from penstock.imports.run import OpenBroker

app = command_app()


class From(enum.StrEnum):
    fluxgo = "fluxgo"
    minikafka = "minikafka"
    rustlog = "rustlog"
    flymq = "flymq"
    day1 = "day1"
    kafka = "kafka"


class EngineName(enum.StrEnum):
    local = "local"
    spark = "spark"


@app.command(name="import")
def import_(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Data directory of the other broker.")
    ],
    origin: Annotated[From, typer.Option("--from", help="Broker that wrote the directory.")],
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            "--to",
            metavar="HOST:PORT",
            help="Import into a running broker; records get new offsets. [default: PENSTOCK_BOOTSTRAP, or 127.0.0.1:9092]",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Import into a stopped broker's data directory; keeps offsets."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read everything and report, but write nothing.")] = False,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Import only this topic; repeatable.")
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW[:PARTITION]", help="Rename a topic; repeatable."),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="Config for created topics; repeatable."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Read in this process or in parallel on Spark.")] = (
        EngineName.local
    ),
    master: MasterOption = None,
    progress: Annotated[
        Path | None,
        typer.Option("--progress", metavar="DIR", help="Directory for progress files; removed on success."),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Exit with 0 even if something could not be imported.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import another broker's data directory and verify the result.

    Without --data-dir, records are written to a running broker. To resume an interrupted import, run the same command
    again. Topics must be new or empty, and their records do not expire unless --config sets a retention.

    All readable records are imported. If anything could not be imported, the exit code is 1, unless --accept-loss is
    given.
    """
    from penstock.client.kafka import KafkaError, KafkaSettings
    from penstock.imports.engine import ImportFailed
    from penstock.imports.progress import ProgressError
    from penstock.imports.run import Import, ImportRequest
    from penstock.imports.source import SourceError

    if bootstrap is not None and data_dir is not None:
        raise Misused("--bootstrap (a running broker) cannot be combined with --data-dir (a stopped broker)")
    names, topic_configs = _mapping(mapping or []), key_values(configs or [], "--config")
    target = bootstrap or os.environ.get("PENSTOCK_BOOTSTRAP") or BOOTSTRAP_DEFAULT
    if data_dir is None and not dry_run:
        reach(target)
    request = ImportRequest(str(origin), directory, names, tuple(topics or ()), topic_configs, progress)
    try:
        with watcher() as request.watcher, engine_of(engine, master) as request.engine:
            task = Import(request)
            if dry_run:
                report = task.dry_run()
            elif data_dir is not None:
                report = task.into_directory(data_dir, _broker_opener(data_dir))
            else:
                report = task.into_broker(KafkaSettings.of(target), target)
    except (SourceError, ProgressError, ImportFailed, KafkaError) as error:
        raise Failed(str(error)) from None
    except KeyboardInterrupt:
        raise Interrupted("stopped before the import was complete; run the same command again to resume") from None
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if not report.is_complete and not accept_loss:
        raise Failed(_loss(report))


def _loss(report: Report) -> str:
    parts = []
    if report.damage_count:
        places = counted(report.damage_count, "damaged place")
        parts.append(f"{places} ({counted(report.damaged_bytes, 'byte')})")
    if report.skipped.losses:
        parts.append(f"{report.skipped.losses:,} skipped")
    what = "not everything can be imported" if report.dry_run else "not everything was imported"
    return f"{what}: {', '.join(parts)}; see the report, or accept the loss with --accept-loss"


def _mapping(pairs: list[str]) -> dict[str, str]:
    names = {}
    for pair in pairs:
        old, equals, new = pair.rpartition("=")
        if not equals:
            raise Misused(f"--map {pair}: expected OLD=NEW")
        topic, colon, number = new.partition(":")
        checked_topic(topic)
        if colon and not (number.isascii() and number.isdecimal() and int(number) < PARTITIONS_PER_TOPIC_MAX):
            raise Misused(f"--map {pair}: {number} is not a partition; expected OLD=NEW or OLD=NEW:PARTITION")
        names[old] = new
    return names


def _broker_opener(data_dir: Path) -> OpenBroker:
    from penstock.server.embedding import Broker, BrokerStartFailed

    @contextlib.contextmanager
    def open_broker() -> Iterator[str]:
        try:
            with Broker(data_dir) as broker:
                yield broker.bootstrap
        except BrokerStartFailed as error:
            last = str(error).strip().splitlines()[-1]
            raise Failed(f"cannot start a broker on {data_dir}: {last.removeprefix('penstock: ')}") from None

    return open_broker


@contextlib.contextmanager
def engine_of(name: EngineName, master: str | None, title: str = "penstock import") -> Iterator[Engine]:
    """Who reads and writes, for as long as it takes."""
    check_master(master, uses_spark=name is EngineName.spark)
    if name is EngineName.local:
        from penstock.imports.engine import LocalEngine

        yield LocalEngine()
        return
    from penstock.spark.import_job import spark_engine
    from penstock.spark.java import NoSpark
    from penstock.spark.session import LOCAL

    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(spark_engine(master or LOCAL, title))
        except ImportError:
            raise Failed("--engine spark requires Spark: pip install 'penstock-broker[spark]'") from None
        except NoSpark as error:
            raise Failed(str(error)) from None
        yield engine


@contextlib.contextmanager
def watcher() -> Iterator[Watcher]:
    """A bar on a terminal, nothing in a pipe."""
    from penstock.imports.engine import NobodyWatches

    if not sys.stderr.isatty():
        yield NobodyWatches()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description:>10}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        yield _Bars(bars)


class _Bars:
    """One bar a step."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._bar: Any = None
        self._total_bytes = 0

    def begin(self, what: str, total_bytes: int) -> None:
        if self._bar is not None:  # what was damaged is not advanced over
            self._bars.update(self._bar, completed=self._total_bytes)
        self._bar, self._total_bytes = self._bars.add_task(what, total=total_bytes), total_bytes

    def advance(self, count: int) -> None:
        self._bars.advance(self._bar, count)


def _print(report: Report) -> None:
    print_table(
        ("topic", "partition", "records", "bytes", "first offset", "end offset", "remarks"),
        [
            (row.topic, row.partition, row.records, row.bytes, row.first_offset, row.end_offset, row.remarks() or None)
            for row in report.partitions
        ],
    )
    for line in report.losses():
        print(line)
    for text in report.notes:
        note(text)
    if report.aborted_transactions:
        note(f"treated {counted(report.aborted_transactions, 'unfinished transaction')} as aborted")
    what = "would be imported" if report.dry_run else "imported and verified"
    offsets = counted(report.committed_offsets, "committed offset")
    note(f"{counted(report.records, 'record')} and {offsets} {what}")
