"""Finding a table, and making one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.lake.errors import ArchiveError
from penstock.lake.lock import FOLDER
from penstock.lake.parquet_table import ParquetTable
from penstock.lake.places import Place, place_of
from penstock.lake.settings import (
    Format,
    TableSettings,
    Values,
    ValueSettings,
    read_settings,
    write_settings,
)
from penstock.lake.tasks import reader_of

if TYPE_CHECKING:
    from penstock.lake.tables import Table

_OF_URLS = frozenset("#?%")


def open_table(url: str) -> Table:
    """Raises ArchiveError when there is none."""
    place = place_of(url)
    settings = read_settings(place)
    if settings is None:
        raise ArchiveError(f"{place.url} is not an archive: create one with `penstock archive run TOPIC --to {url}`")
    return table_at(place, settings)


def make_table(place: Place, settings: TableSettings) -> Table:
    """Writes down what the table is for; the table itself is there from its first commit on, or before."""
    if any(not found.name.startswith(FOLDER) for found in place.found()):
        raise ArchiveError(f"{place.url} is not empty and not an archive: choose another path")
    check_values(settings.value)
    table = table_at(place, settings)
    write_settings(place, settings)
    return table


def table_at(place: Place, settings: TableSettings) -> Table:
    if settings.format is not Format.PARQUET and "://" not in place.url and _OF_URLS & set(place.url):
        # their libraries make URLs of paths, and would read and write elsewhere
        raise ArchiveError(f"{place.url}: the path of a {settings.format.value} table must not contain #, ? or %")
    match settings.format:
        case Format.PARQUET:
            return ParquetTable(place, settings)
        case Format.DELTA:
            try:
                from penstock.lake.delta_table import DeltaLakeTable
            except ModuleNotFoundError as error:
                raise _missing("Delta", "deltalake", error) from None
            return DeltaLakeTable(place, settings)
        case Format.ICEBERG:
            try:
                from penstock.lake.iceberg_table import IcebergTable
            except ModuleNotFoundError as error:
                raise _missing("Iceberg", "pyiceberg", error) from None
            return IcebergTable(place, settings)


def _missing(what: str, package: str, error: ModuleNotFoundError) -> ArchiveError:
    return ArchiveError(f"{what} tables require {package} ({error}): pip install 'penstock-broker[lake]'")


def continued(place: Place, there: TableSettings, value: ValueSettings | None) -> TableSettings:
    """The settings of a table that goes on: how values are read may change, and Avro schemas are added."""
    if value is None or value == there.value:
        return there
    schemas = {**(there.value.schemas if value.values is there.value.values else {}), **value.schemas}
    settings = msgspec.structs.replace(
        there, value=ValueSettings(value.values, {**there.value.kinds, **value.kinds}, schemas)
    )
    check_values(settings.value)
    write_settings(place, settings)
    return settings


def check_values(value: ValueSettings) -> None:
    """Raises ArchiveError before anything is done when values cannot be read like that."""
    if value.values is Values.AVRO and not value.schemas:
        raise ArchiveError("--values avro requires --schema FILE, or --schema ID=FILE for values with schema ids")
    if value.is_typed:
        reader_of(value)
