"""Archives in tests: made and continued in this process, and read as others would read them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.lake.archiver import Archiver, Pace, Step
from penstock.lake.buckets import Bucketing
from penstock.lake.compaction import recover
from penstock.lake.engines import Engine, LocalEngine
from penstock.lake.errors import ArchiveError
from penstock.lake.lock import locked
from penstock.lake.opening import continued, make_table, open_table, table_at
from penstock.lake.places import place_of
from penstock.lake.settings import Format, TableSettings, ValueSettings, read_settings
from penstock.lake.tables import Table, dataset
from penstock.lake.tasks import Task, Written
from tests.lake.topics import Row, Topic, table_rows


class Interrupted(LocalEngine):
    """Does the work, and dies before anybody hears of it."""

    def run(self, tasks: Sequence[Task]) -> list[Written]:
        super().run(tasks)
        raise ArchiveError("killed")


def made(
    topic: Topic, url: str | Path, format_: str = "parquet", *, by: str = "day", value: ValueSettings | None = None
) -> Table:
    place = place_of(str(url))
    there = read_settings(place)
    if there is not None:
        return table_at(place, continued(place, there, value))
    info = topic.client.metadata([topic.name]).topics[topic.name]
    return make_table(
        place,
        TableSettings(topic.name, str(info.topic_id), Format(format_), Bucketing(by), value or ValueSettings()),
    )


def archive(
    topic: Topic,
    url: str | Path,
    format_: str = "parquet",
    *,
    by: str = "day",
    value: ValueSettings | None = None,
    engine: Engine | None = None,
    pace: Pace | None = None,
) -> list[Step]:
    """What `penstock archive run` does, without its process."""
    place = place_of(str(url))
    steps = []
    with locked(place, "a test"):
        table = made(topic, url, format_, by=by, value=value)
        recover(table)
        with contextlib.closing(Archiver(topic.settings, table, engine or LocalEngine(2), pace)) as archiver:
            ends = archiver.ends()
            while (step := archiver.step(ends)) is not None:
                steps.append(step)
    return steps


def rows(url: str | Path) -> list[Row]:
    return table_rows(dataset(open_table(str(url))).to_table())


def natively(url: str | Path) -> pa.Table:
    """The table as its own library reads it; parquet as a folder."""
    table = open_table(str(url))
    match table.settings.format:
        case Format.PARQUET:
            import pyarrow.dataset as ds

            place = table.place
            files = [place.path(file.name) for file in table.files()]
            schema = pa.unify_schemas([pa.parquet.read_schema(file) for file in files])
            return ds.dataset(place.path(), schema=schema, format="parquet", filesystem=place.files).to_table()
        case Format.DELTA:
            from deltalake import DeltaTable

            return pa.table(DeltaTable(table.place.url).to_pyarrow_table())
        case Format.ICEBERG:
            return iceberg(table).scan().to_arrow()


def iceberg(table: Table) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{table.place.path('_penstock/catalog.db')}")
    return catalog.load_table(("penstock", table.settings.topic.replace(".", "_")))
