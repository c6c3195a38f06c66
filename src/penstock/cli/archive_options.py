"""What `penstock archive run` was told, made into a table: the one that is there, or a new one."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.failure import Failed, Misused, key_values

if TYPE_CHECKING:
    from penstock.client.kafka import KafkaSettings
    from penstock.lake.settings import TableSettings, ValueSettings
    from penstock.lake.tables import Table


class Format(enum.Enum):
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Bucket(enum.Enum):
    DAY = "day"
    HOUR = "hour"
    NONE = "none"


class Values(enum.Enum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


def value_settings(values: Values | None, types: list[str] | None, schemas: list[str] | None) -> ValueSettings | None:
    """What the options say of values; None if nothing."""
    from penstock.lake import settings as archive
    from penstock.lake.columns import arrow_type

    if values is None:
        if types or schemas:
            raise Misused("--type and --schema require --values json or avro")
        return None
    kinds = key_values(types or [], "--type")
    for field, kind in kinds.items():
        try:
            arrow_type(kind)
        except ValueError as error:
            raise Misused(f"--type {field}={kind}: {error}") from None
    texts: dict[str, str] = {}
    for written in schemas or []:
        number, equals, path = written.rpartition("=")
        if equals and not number.isdecimal():
            raise Misused(f"--schema {written}: expected FILE or ID=FILE")
        try:
            texts[number] = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"--schema {written}: {getattr(error, 'strerror', None) or error}") from None
    if texts and values is not Values.AVRO:
        raise Misused("--schema requires --values avro")
    return archive.ValueSettings(archive.Values(values.value), kinds, texts)


def table_for(
    kafka: KafkaSettings,
    topic: str,
    to: str,
    format_: Format | None,
    bucket: Bucket | None,
    value: ValueSettings | None,
    catalog: dict[str, str],
    table_name: str | None,
) -> Table:
    """The table that is there, if it is what the options say, or a new one."""
    from penstock.client.kafka import KafkaClient
    from penstock.lake import settings as archive
    from penstock.lake.buckets import Bucketing
    from penstock.lake.opening import continued, make_table, table_at
    from penstock.lake.places import place_of

    place = place_of(to)
    there = archive.read_settings(place)
    if there is not None:
        _refuse_other(there, topic, format_, bucket, to)
        if (catalog and catalog != there.catalog) or (table_name and table_name != there.table):
            raise Failed(
                f"{to} was created with another catalog or table name, which cannot change: choose another path"
            )
        return table_at(place, continued(place, there, value))
    if (catalog or table_name) and format_ is not Format.ICEBERG:
        raise Misused("--catalog, --catalog-option and --table require --format iceberg")
    with KafkaClient(kafka) as client:
        info = client.metadata([topic]).topics.get(topic)
    if info is None:
        raise Failed(f"topic {topic}: the broker has no such topic")
    settings = archive.TableSettings(
        topic,
        None if info.topic_id is None else str(info.topic_id),
        archive.Format((format_ or Format.PARQUET).value),
        Bucketing((bucket or Bucket.DAY).value),
        value or archive.ValueSettings(),
        table_name or "",
        catalog,
    )
    return make_table(place, settings)


def _refuse_other(there: TableSettings, topic: str, format_: Format | None, bucket: Bucket | None, to: str) -> None:
    if there.topic != topic:
        raise Failed(f"{to} is the archive of topic {there.topic}, not of {topic}: choose another path")
    for name, wanted, has in (("--format", format_, there.format), ("--partition-by", bucket, there.bucketing)):
        if wanted is not None and wanted.value != has.value:
            raise Failed(f"{to} was created with {name} {has.value}, which cannot change: choose another path")
