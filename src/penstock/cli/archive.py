"""`penstock archive`: topics as lake tables, and back. What it does is in `penstock.lake`."""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.archive_options import Bucket, Format, Values, table_for, value_settings
from penstock.cli.command import command_app
from penstock.cli.connection import BOOTSTRAP_DEFAULT, AsJson, Bootstrap, reach
from penstock.cli.failure import Failed, Interrupted, Misused, checked_topic, key_values
from penstock.cli.master import MasterOption, check_master
from penstock.cli.output import counted, note, print_json, print_table
from penstock.cli.stopping import Stop, until_stopped

if TYPE_CHECKING:
    from penstock.client.kafka import KafkaSettings
    from penstock.lake.archiver import Archiver, Step
    from penstock.lake.engines import Engine
    from penstock.lake.tables import Table

app = command_app("Archive topics as lake tables and replay tables to topics.")

_LOOK_AGAIN_S = 0.1


class EngineName(enum.Enum):
    SPARK = "spark"
    LOCAL = "local"


TablePath = Annotated[str, typer.Argument(metavar="PATH", help="Path or URL of a table created by `archive run`.")]
KafkaOption = Annotated[
    list[str] | None,
    typer.Option("--kafka", metavar="KEY=VALUE", help="Kafka client setting, e.g. security.protocol; repeatable."),
]
EngineOption = Annotated[
    EngineName | None,
    typer.Option("--engine", help="Run on Spark or in local threads. [default: spark if installed]"),
]


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Whatever the archive, the client or a batch cannot do becomes one line."""
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("numpy") is None:
        raise Failed("archive requires pyarrow and numpy: pip install 'penstock-broker[spark]'")
    from penstock.client.kafka import KafkaError
    from penstock.lake.errors import ArchiveError
    from penstock.records.batch import BatchError
    from penstock.spark.java import NoSpark

    try:
        yield
    except (ArchiveError, NoSpark) as error:
        raise Failed(str(error)) from None
    except KafkaError as error:
        raise Failed(f"broker error: {error}") from None
    except BatchError as error:
        raise Failed(f"corrupt batch: {error}") from None


def _kafka_settings(bootstrap: str, pairs: list[str] | None) -> KafkaSettings:
    from penstock.client.kafka import KafkaSettings

    options = key_values(pairs or [], "--kafka")
    reach(bootstrap)
    settings = KafkaSettings.of_options({"client.id": "penstock-archive", **options, "bootstrap.servers": bootstrap})
    for unknown in settings.others:
        raise Misused(f"--kafka {unknown}: setting is not supported by this client")
    return settings


def _engine(name: EngineName | None, master: str | None) -> Engine:
    from penstock.lake.engines import LocalEngine, SparkEngine

    has_spark = importlib.util.find_spec("pyspark") is not None
    is_local = name is EngineName.LOCAL or (name is None and not has_spark)
    check_master(master, uses_spark=not is_local)
    if is_local:
        return LocalEngine()
    if not has_spark:
        raise Failed("--engine spark requires pyspark: pip install 'penstock-broker[spark]', or use --engine local")
    from penstock.spark.session import LOCAL, open_session

    # Java only schedules here: its second compiler costs more than it gives.
    settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    return SparkEngine(lambda: open_session("penstock-archive", master or LOCAL, settings))


def _duration_s(text: str, option: str) -> float:
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.replace(".", "", 1).isdecimal():
        raise Misused(f"{option} {text}: expected a duration such as 30s, 15m, 12h or 7d")
    return float(number) * units[unit]


# ---------------------------------------------------------------------------------------------------------------- run


@app.command()
def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to archive.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Path or URL of the table; created if missing.")],
    format_: Annotated[
        Format | None, typer.Option("--format", help="Format of a new table. [default: parquet]", show_default=False)
    ] = None,
    bucket: Annotated[
        Bucket | None,
        typer.Option(
            "--partition-by", help="Time partitioning (UTC) of a new table. [default: day]", show_default=False
        ),
    ] = None,
    values: Annotated[
        Values | None,
        typer.Option("--values", help="Decoding of values. [default: the table's; raw if new]", show_default=False),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="FIELD=TYPE", help="Type of a new column; repeatable."),
    ] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="[ID=]FILE",
            help="Avro schema, optionally for one schema id; repeatable.",
        ),
    ] = None,
    continuous: Annotated[bool, typer.Option("--continuous", help="Keep archiving until stopped.")] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Time between commits when --continuous has caught up.")
    ] = "60s",
    compact_: Annotated[bool, typer.Option("--compact", help="Merge small files when many have accumulated.")] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue past offsets that the broker has deleted.")
    ] = False,
    file_megabytes: Annotated[
        int, typer.Option("--file-mb", min=1, metavar="N", help="Megabytes of log per data file.")
    ] = 256,
    commit_records: Annotated[
        int | None, typer.Option("--commit-records", min=1, metavar="N", help="Maximum number of records per commit.")
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="NAME", help="Iceberg catalog name in pyiceberg's configuration."),
    ] = None,
    catalog_option: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog-option", metavar="KEY=VALUE", help="Iceberg catalog property (no secrets); repeatable."
        ),
    ] = None,
    table_name: Annotated[
        str | None, typer.Option("--table", metavar="NAMESPACE.NAME", help="Table name in the Iceberg catalog.")
    ] = None,
    kafka: KafkaOption = None,
    engine: EngineOption = None,
    master: MasterOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Archive every record of a topic exactly once.

    Reads up to the last stable offset. An existing table continues where it stopped, with the settings it was created
    with.
    """
    checked_topic(topic)
    wait_s = _duration_s(interval, "--interval")
    with _explained(), until_stopped() as stop:
        from penstock.lake.archiver import Archiver, Pace
        from penstock.lake.compaction import recover
        from penstock.lake.lock import locked
        from penstock.lake.places import place_of

        settings = _kafka_settings(bootstrap, kafka)
        workers = _engine(engine, master)
        place = place_of(to)
        with locked(place, f"archive run {topic}"):
            value = value_settings(values, types, schema)
            catalog_properties = {"name": catalog} if catalog else {}
            catalog_properties |= key_values(catalog_option or [], "--catalog-option")
            table = table_for(settings, topic, to, format_, bucket, value, catalog_properties, table_name)
            pace = Pace(file_megabytes * 1024 * 1024, commit_records, skip_lost)
            recover(table)
            archiver = Archiver(settings, table, workers, pace)
            with contextlib.closing(archiver):
                steps = _steps(archiver, stop, wait_s if continuous else None)
                _follow(table, archiver, steps, compact=compact_, as_json=as_json)


def _steps(archiver: Archiver, stop: Stop, wait_s: float | None) -> Iterator[Step]:
    """Until what was there at the start is archived, or, with a time to wait, until somebody says stop."""
    ends = archiver.ends() if wait_s is None else None
    while not stop.asked:
        step = archiver.step(ends)
        if step is not None:
            yield step
        if step is not None and step.lag:
            continue
        if wait_s is None:
            return
        _rest(stop, wait_s)
    if wait_s is None:
        raise Interrupted("stopped before the archive was complete; run the same command again to resume")


def _rest(stop: Stop, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while not stop.asked and time.monotonic() < until:
        time.sleep(min(_LOOK_AGAIN_S, wait_s))


def _follow(table: Table, archiver: Archiver, steps: Iterator[Step], *, compact: bool, as_json: bool) -> None:
    from penstock.lake.compaction import compact_table

    rows = files = size = unreadable = 0
    for step in steps:
        rows, files = rows + step.rows, files + step.files
        size, unreadable = size + step.bytes, unreadable + step.unreadable
        bad = f" ({step.unreadable:,} with an _error)" if step.unreadable else ""
        note(
            f"archived {counted(step.rows, 'record')}{bad} to {counted(step.files, 'file')}, "
            f"{_size(step.bytes)}, in {step.seconds:.1f} s; lag {step.lag:,}"
        )
        if compact:
            merged = compact_table(table, archiver.engine)
            if merged.before:
                note(f"merged {counted(merged.before, 'file')} into {merged.after:,}")
    if as_json:
        print_json({"rows": rows, "files": files, "bytes": size, "unreadable": unreadable, "path": table.place.url})
    elif not rows:
        note(f"nothing to archive: {table.place.url} is up to date")


def _size(count: int) -> str:
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "KB")):
        if count >= 10**power:
            return f"{count / 10**power:,.1f} {unit}"
    return f"{count:,} B"


# ---------------------------------------------------------------------------------------------------------------- status


@app.command()
def status(
    path: TablePath,
    kafka: KafkaOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the broker; lag is not shown.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a table and its lag."""
    if offline and kafka:
        raise Misused("--kafka cannot be combined with --offline")
    with _explained():
        from penstock.lake.opening import open_table
        from penstock.lake.status import table_status

        found = table_status(open_table(path), None if offline else _kafka_settings(bootstrap, kafka))
    if as_json:
        print_json(_shown(found))
        return
    lag = "" if found.lag is None else f", lag {found.lag:,}"
    print(
        f"{found.path}: topic {found.topic}, {found.format}, {counted(found.files, 'file')}, "
        f"{counted(found.rows, 'row')}, {_size(found.bytes)}{lag}"
    )
    if found.lag is None and not offline:
        note(f"lag unknown: the broker has no topic {found.topic}, or the topic was recreated")
    print_table(
        ("partition", "next offset", "end offset", "lag", "files", "rows", "bytes"),
        [
            (one.partition, one.next_offset, one.end_offset, one.lag, one.files, one.rows, one.bytes)
            for one in found.partitions
        ],
    )


# ---------------------------------------------------------------------------------------------------------------- compact


@app.command()
def compact(
    path: TablePath,
    file_megabytes: Annotated[
        int, typer.Option("--file-mb", min=1, metavar="N", help="Target file size in megabytes.")
    ] = 128,
    engine: EngineOption = None,
    master: MasterOption = None,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of a table."""
    with _explained():
        from penstock.lake.compaction import compact_table
        from penstock.lake.lock import locked
        from penstock.lake.opening import open_table

        table = open_table(path)
        workers = _engine(engine, master)
        with locked(table.place, "archive compact"):
            merged = compact_table(table, workers, target_bytes=file_megabytes * 1024 * 1024, files_min=2)
    if as_json:
        print_json({"files_before": merged.before, "files_after": merged.after, "rows": merged.rows})
    elif merged.before:
        note(f"merged {counted(merged.before, 'file')} into {merged.after:,}, {counted(merged.rows, 'row')}")
    else:
        note("nothing to merge")


# ---------------------------------------------------------------------------------------------------------------- expire


@app.command()
def expire(
    path: TablePath,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Drop days (or hours) older than this, such as 90d."),
    ] = None,
    keep: Annotated[
        str,
        typer.Option("--keep", metavar="AGE", help="Keep replaced files and table versions this long."),
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Drop old records and unused files and versions."""
    age_s = None if older_than is None else _duration_s(older_than, "--older-than")
    keep_s = _duration_s(keep, "--keep")
    with _explained():
        from penstock.lake.compaction import recover
        from penstock.lake.lock import locked
        from penstock.lake.opening import open_table

        table = open_table(path)
        now = time.time()
        before_s = None if age_s is None else table.settings.bucketing.before(now - age_s)
        with locked(table.place, "archive expire"):
            recover(table)
            expired = table.expire(before_s, now - keep_s)
            table.place.clear_unfinished(now - keep_s)
    if as_json:
        print_json(expired._asdict())
    else:
        note(
            f"dropped {counted(expired.rows, 'record')} in {counted(expired.files, 'file')}, "
            f"and {counted(expired.unused_files, 'unused file')}"
        )


# ---------------------------------------------------------------------------------------------------------------- replay


@app.command()
def replay(
    path: TablePath,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Target topic; created if missing.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="WHERE", help="Start: offset, @MILLISECONDS or time (2026-01-31T12:00Z)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHERE", help="End, exclusive; same forms as --from.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Write all rows, including those already replayed.")
    ] = False,
    kafka: KafkaOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write the records of a table back to a topic.

    Keeps timestamps and the order within each partition. To resume after an interruption, run the same command again.
    """
    checked_topic(to)
    first, end = _bound(from_, "--from"), _bound(until, "--until")
    with _explained(), until_stopped() as stop:
        from penstock.lake.opening import open_table
        from penstock.lake.replay import Replay
        from penstock.lake.row_order import Bounds

        table = open_table(path)
        bounds = Bounds(first.get("offset"), end.get("offset"), first.get("ms"), end.get("ms"))
        work = Replay(_kafka_settings(bootstrap, kafka), table, to, bounds, restart=restart, tell=note)
        with contextlib.closing(work):
            done = work.run(lambda: stop.asked)
        if as_json:
            print_json({"rows": done.rows, "rows_before": done.before, "partitions": done.partitions, "topic": to})
        else:
            before = f" ({done.before:,} already replayed)" if done.before else ""
            note(f"replayed {counted(done.rows, 'record')} to {to}{before}")
        if not done.is_complete:
            raise Interrupted("stopped before the replay was complete; run the same command again to resume")


def _bound(text: str | None, option: str) -> dict[str, int]:
    from penstock.cli.whence import From, parse_start

    if text is None:
        return {}
    kind, number = parse_start(text, option)
    if kind is From.OFFSET:
        return {"offset": number}
    if kind is From.TIMESTAMP_MS:
        return {"ms": number}
    raise Misused(f"{option} {text}: expected an offset, @MILLISECONDS or a time like 2026-01-31T12:00Z")


def _shown(report: Any) -> dict[str, Any]:
    import msgspec

    shown: dict[str, Any] = msgspec.to_builtins(report)
    return shown
