"""What a table was made for: written once beside it, read by every later run and by `status`."""

from __future__ import annotations

import enum

import msgspec

from penstock.lake.buckets import Bucketing
from penstock.lake.errors import ArchiveError
from penstock.lake.lock import FOLDER
from penstock.lake.places import Place

SETTINGS = f"{FOLDER}/table.json"


class Format(enum.Enum):
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Values(enum.Enum):
    """How the values of records are read."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


class ValueSettings(msgspec.Struct, frozen=True):
    values: Values = Values.RAW
    kinds: dict[str, str] = {}
    """Kinds of columns that somebody named, before anything was seen."""
    schemas: dict[str, str] = {}
    """Avro schemas by the id that records carry; by "" the one of records that carry none."""

    @property
    def is_typed(self) -> bool:
        return self.values is not Values.RAW


class TableSettings(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str | None
    """None from brokers that have none."""
    format: Format
    bucketing: Bucketing
    value: ValueSettings = ValueSettings()
    table: str = ""
    """What the catalog calls it: Iceberg alone has a catalog."""
    catalog: dict[str, str] = {}
    """How pyiceberg reaches the catalog; without secrets, which come from its own configuration or the environment."""


def read_settings(place: Place) -> TableSettings | None:
    """None if there is no table yet."""
    data = place.read(SETTINGS)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=TableSettings)
    except msgspec.DecodeError as error:
        raise ArchiveError(f"{place.url}/{SETTINGS} is corrupt: {error}") from None


def write_settings(place: Place, settings: TableSettings) -> None:
    place.write(SETTINGS, msgspec.json.format(msgspec.json.encode(settings), indent=2))
