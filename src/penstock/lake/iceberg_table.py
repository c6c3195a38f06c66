"""Iceberg tables, through pyiceberg and any catalog that it knows; without one named, a SQLite catalog beside the table.

The next offsets are a property of the table, set in the transaction that adds the files: snapshots expire, properties
stay. pyiceberg would repeat a commit that lost a race, on top of whatever won it; that is switched off, because
two archivers would then both write the same offsets. Instead the table is looked at again after a commit that failed:
if it carries the mark of ours, that had succeeded; if the offsets are the old ones, somebody else's commit was in the way,
and ours is made again; otherwise there is a second archiver, and this one stops.
"""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyiceberg.exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.typedef import Record

from penstock.lake.buckets import Bucketing
from penstock.lake.columns import ERROR, RECORD, kind_of, schema_of
from penstock.lake.data_files import MIXED, SUFFIX, DataFile
from penstock.lake.errors import ArchiveError, Conflict
from penstock.lake.lock import FOLDER
from penstock.lake.places import Place
from penstock.lake.settings import TableSettings
from penstock.lake.tables import Append, Expired, State, check_base

OFFSETS: Final = "penstock.offsets"
COMMIT: Final = "penstock.commit"
"""A mark that no two commits share: two archivers may well plan the same offsets."""
NAME_MAPPING: Final = "schema.name-mapping.default"
TRIES_MAX: Final = 5
_MADE_WITH: Final = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "format-version": "2",
}
_REFUSALS: Final = tuple(
    one
    for one in vars(pyiceberg.exceptions).values()
    if isinstance(one, type) and issubclass(one, Exception) and one is not Exception
)
"""pyiceberg's exceptions have no common base."""


class IcebergTable:
    def __init__(self, place: Place, settings: TableSettings) -> None:
        if place.url.startswith("memory:"):
            raise ArchiveError(f"{place.url}: Iceberg tables cannot be stored in memory; use parquet")
        self.place = place
        self.settings = settings
        self._catalog: Catalog | None = None

    @property
    def identifier(self) -> tuple[str, ...]:
        name = self.settings.table or f"penstock.{self.settings.topic.replace('.', '_')}"
        return tuple(name.split("."))

    @property
    def location(self) -> str:
        return self.place.url if "://" in self.place.url else f"file://{self.place.url}"

    def _opened_catalog(self) -> Catalog:
        if self._catalog is None:
            properties = dict(self.settings.catalog)
            name = properties.pop("name", "penstock")
            if not self.settings.catalog:
                if not self.place.is_local:
                    raise ArchiveError("an Iceberg table that is not on a local path requires --catalog NAME")
                path = self.place.path(f"{FOLDER}/catalog.db")
                properties = {"type": "sql", "uri": f"sqlite:///{path}", "warehouse": self.location}
            with self._telling():
                self._catalog = load_catalog(name, **properties)
        return self._catalog

    # ------------------------------------------------------------------------------------------------ reading

    def _opened(self) -> Table | None:
        """As it is now; None before the first commit."""
        catalog = self._opened_catalog()
        with self._telling():
            try:
                table: Table = catalog.load_table(self.identifier)
            except NoSuchTableError:
                return None
        if table.location().rstrip("/") != self.location:
            raise ArchiveError(
                f"the catalog already has a table {'.'.join(self.identifier)} at {table.location()}: choose another --table"
            )
        return table

    def state(self) -> State:
        table = self._opened()
        if table is None:
            return State({}, {}, with_error=False)
        kinds = {}
        with_error = False
        for field in table.schema().as_arrow():
            if field.name == ERROR:
                with_error = True
            elif field.name not in RECORD.names:
                kinds[field.name] = kind_of(field.type)
        return State(_offsets(table), kinds, with_error)

    def files(self) -> list[DataFile]:
        table = self._opened()
        if table is None:
            return []
        with self._telling():
            found = [self._file(table, task.file) for task in table.scan().plan_files()]
        return sorted(found, key=lambda file: (file.partition, file.first_offset))

    def _file(self, table: Table, file: IcebergFile) -> DataFile:
        def bounds(name: str) -> tuple[int, int]:
            field = table.schema().find_field(name)
            kind: Any = field.field_type
            low, high = file.lower_bounds[field.field_id], file.upper_bounds[field.field_id]
            return int(from_bytes(kind, low)), int(from_bytes(kind, high))

        first_us, last_us = bounds("timestamp")
        partition, other = bounds("partition")
        return DataFile(
            self._name(file.file_path),
            partition if partition == other else MIXED,
            self.settings.bucketing.label_of(first_us),
            file.record_count,
            file.file_size_in_bytes,
            *bounds("offset"),
            first_us,
            last_us,
        )

    def _iceberg_file(self, metadata: TableMetadata, file: DataFile) -> IcebergFile:
        """Of what the task found while it wrote: the file need not be opened again."""
        low, high = {}, {}
        of_file = {
            "timestamp": (file.first_us, file.last_us),
            "partition": (file.partition, file.partition),
            "offset": (file.first_offset, file.last_offset),
        }
        for name, bounds in of_file.items():
            field = metadata.schema().find_field(name)
            kind: Any = field.field_type
            low[field.field_id], high[field.field_id] = (to_bytes(kind, bound) for bound in bounds)
        bucketing = self.settings.bucketing
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.location}/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record() if bucketing is Bucketing.NONE else Record(bucketing.number_of(file.first_us)),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            lower_bounds=low,
            upper_bounds=high,
            spec_id=metadata.default_spec_id,
        )

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.location}/")

    # ------------------------------------------------------------------------------------------------ writing

    def append(self, commit: Append) -> None:
        def change(table: Table, transaction: Transaction) -> None:
            wanted = schema_of(commit.kinds, with_error=commit.with_error)
            there = set(table.schema().column_names)
            if any(name not in there for name in wanted.names):
                with transaction.update_schema() as update:
                    update.union_by_name(wanted)
            transaction.set_properties({OFFSETS: msgspec.json.encode(commit.offsets).decode()})
            # Without files too: the snapshot is what a second archiver is refused by.
            with transaction.update_snapshot().merge_append() as appending:
                for file in commit.files:
                    appending.append_data_file(self._iceberg_file(transaction.table_metadata, file))

        if self._opened() is None:
            self._make(commit)
        self._commit(change, commit.base)

    def _make(self, commit: Append) -> None:
        catalog = self._opened_catalog()
        schema = schema_of(commit.kinds, with_error=commit.with_error)
        with self._telling():
            catalog.create_namespace_if_not_exists(self.identifier[:-1])
            with catalog.create_table_transaction(
                self.identifier, schema, location=self.location, properties=_MADE_WITH
            ) as transaction:
                if self.settings.bucketing is not Bucketing.NONE:
                    day = self.settings.bucketing is Bucketing.DAY
                    with transaction.update_spec() as spec:
                        spec.add_field(
                            "timestamp", DayTransform() if day else HourTransform(), self.settings.bucketing.value
                        )
                # The files name their columns and do not number them.
                mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
                transaction.set_properties({NAME_MAPPING: mapping})

    def _commit(self, change: Callable[[Table, Transaction], None], base: dict[int, int]) -> None:
        mark = uuid.uuid4().hex
        for _ in range(TRIES_MAX):
            table = self._opened()
            assert table is not None
            if table.properties.get(COMMIT) == mark:
                return
            check_base(self, base, _offsets(table))
            try:
                with self._telling(), table.transaction() as transaction:
                    change(table, transaction)
                    transaction.set_properties({COMMIT: mark})
                return
            except (CommitFailedException, CommitStateUnknownException):
                continue
        raise Conflict(f"{self.place.url}: too many concurrent commits to the Iceberg table; try again later")

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        def change(table: Table, transaction: Transaction) -> None:
            goes = self._iceberg_files(table, old)
            with transaction.update_snapshot().overwrite() as overwrite:
                for file in goes:
                    overwrite.delete_data_file(file)
                for made in new:
                    overwrite.append_data_file(self._iceberg_file(table.metadata, made))

        self._commit(change, self.state().offsets)

    def _iceberg_files(self, table: Table, files: Sequence[DataFile]) -> list[IcebergFile]:
        names = {file.name for file in files}
        found = [task.file for task in table.scan().plan_files() if self._name(task.file.file_path) in names]
        if len(found) != len(names):
            raise Conflict(f"{self.place.url}: a file to be replaced no longer exists; run the command again")
        return found

    # ------------------------------------------------------------------------------------------------ forgetting

    def expire(self, before_s: int | None, unused_before_s: float) -> Expired:
        if self._opened() is None:
            return Expired(0, 0, 0, 0)
        old = [file for file in self.files() if before_s is not None and file.last_us < before_s * 1_000_000]
        if old:
            self.replace(old, [])
        table = self._opened()
        assert table is not None
        with self._telling():
            moment = datetime.datetime.fromtimestamp(unused_before_s, datetime.UTC)
            table.maintenance.expire_snapshots().older_than(moment).commit()
        table = self._opened()
        assert table is not None
        with self._telling():
            needed = {self._name(path) for path in _referenced(table)}
        unused = [
            found
            for found in self.place.found()
            if found.name.endswith((SUFFIX, ".avro"))
            and found.name not in needed
            and found.changed_at_s < unused_before_s
        ]
        self.place.delete(found.name for found in unused)
        return Expired(sum(file.rows for file in old), len(old), len(unused), sum(found.bytes for found in unused))

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Whatever a catalog or pyiceberg cannot do becomes a sentence; what a caller knows to handle goes on."""
        try:
            yield
        except (CommitFailedException, CommitStateUnknownException, NoSuchTableError, ArchiveError):
            raise
        except (*_REFUSALS, *_database_errors(), OSError, ValueError, OverflowError, pa.ArrowException) as error:
            first = (str(error).splitlines() or [""])[0] or type(error).__name__
            raise ArchiveError(f"the Iceberg table {'.'.join(self.identifier)}: {first}") from None


def _offsets(table: Table) -> dict[int, int]:
    written: dict[int, int] = msgspec.json.decode(table.properties.get(OFFSETS, "{}"), type=dict[int, int])
    return written


def _referenced(table: Table) -> Iterator[str]:
    """Every file that some snapshot needs."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path


def _database_errors() -> tuple[type[Exception], ...]:
    """Of the SQL catalog, if it is what is used."""
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return ()
    kinds: tuple[Any, ...] = (SQLAlchemyError,)
    return kinds
