"""Delta tables, through deltalake: no JVM, and readable by Spark, DuckDB, Polars and everything else that reads Delta.

The next offset of a partition is the version of an application transaction, `penstock-<topic>-<partition>`, which Delta
keeps with the table and commits together with the files. A second archiver that planned on the same state commits the
same application ids and is refused by the log itself. New columns are added in a commit of their own before the files
that have them: empty columns harm nobody if the archiver dies between the two.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from penstock.lake.columns import ERROR, RECORD, kind_of, schema_of
from penstock.lake.data_files import MIXED, DataFile
from penstock.lake.errors import ArchiveError, Conflict
from penstock.lake.places import Place
from penstock.lake.settings import TableSettings
from penstock.lake.tables import Append, Expired, State, check_base

_UNKNOWN_US: Final = 1 << 62
"""Of a file without statistics: it is never too old."""
_SCHEMES: Final = ("/", "file://", "s3://", "s3a://", "gs://", "az://", "abfs://", "abfss://")
_YEAR_MIN_US: Final = -62_135_596_800_000_000
_YEAR_MAX_US: Final = 253_402_300_799_999_999
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DeltaLakeTable:
    def __init__(self, place: Place, settings: TableSettings) -> None:
        if not place.url.startswith(_SCHEMES):
            raise ArchiveError(
                f"{place.url}: Delta tables require a local path, s3://, gs:// or az://; otherwise use parquet"
            )
        self.place = place
        self.settings = settings
        self._delta: DeltaTable | None = None

    # ------------------------------------------------------------------------------------------------ reading

    def state(self) -> State:
        table = self._opened()
        if table is None:
            return State({}, {}, with_error=False)
        column = self.settings.bucketing.column
        kinds = {}
        with_error = False
        for field in pa.schema(table.schema().to_arrow()):
            if field.name == ERROR:
                with_error = True
            elif field.name not in RECORD.names and field.name != column:
                kinds[field.name] = kind_of(field.type)
        return State(self._offsets(table), kinds, with_error)

    def _opened(self) -> DeltaTable | None:
        """As it is now; None before the first commit."""
        with self._telling():
            try:
                if self._delta is None:
                    self._delta = DeltaTable(self.place.url)
                else:
                    self._delta.update_incremental()
            except TableNotFoundError:
                return None
        return self._delta

    def _offsets(self, table: DeltaTable) -> dict[int, int]:
        """Partitions are numbered from 0 on, and every commit names all that it knows."""
        offsets: dict[int, int] = {}
        with self._telling():
            while True:
                partition = len(offsets)
                version = table.transaction_version(self._application(partition))
                if version is None:
                    return offsets
                offsets[partition] = version

    def _application(self, partition: int) -> str:
        return f"penstock-{self.settings.topic}-{partition}"

    def files(self) -> list[DataFile]:
        table = self._opened()
        if table is None:
            return []
        with self._telling():
            rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        column = self.settings.bucketing.column
        found = [_file(row, column) for row in rows]
        return sorted(found, key=lambda file: (file.partition, file.first_offset))

    # ------------------------------------------------------------------------------------------------ writing

    def append(self, commit: Append) -> None:
        base = dict(commit.base)
        if sorted(commit.offsets) != list(range(len(commit.offsets))):
            raise ArchiveError(f"{self.place.url}: the partition numbers of {self.settings.topic} have gaps")
        table = self._opened() or self._made(commit)
        check_base(self, base, self._offsets(table))
        self._grow(table, commit)
        # The columns may have been added on top of somebody else's commit.
        check_base(self, base, self._offsets(table))
        transactions = [Transaction(self._application(one), offset) for one, offset in commit.offsets.items()]
        self._write(table, [self._add(file) for file in commit.files], transactions)

    def _made(self, commit: Append) -> DeltaTable:
        column = self.settings.bucketing.column
        with self._telling():
            self._delta = DeltaTable.create(
                self.place.url,
                self._schema(schema_of(commit.kinds, with_error=commit.with_error)),
                mode="ignore",
                partition_by=[] if column is None else [column],
                description=f"topic {self.settings.topic}",
            )
        return self._delta

    def _schema(self, schema: pa.Schema) -> Schema:
        column = self.settings.bucketing.column
        if column is not None:
            schema = schema.append(pa.field(column, pa.date32() if column == "day" else pa.string()))
        return Schema.from_arrow(schema)

    def _grow(self, table: DeltaTable, commit: Append) -> None:
        wanted = Schema.from_arrow(schema_of(commit.kinds, with_error=commit.with_error))
        there = {field.name for field in table.schema().fields}
        fields: list[Field] = [field for field in wanted.fields if field.name not in there]
        if fields:
            with self._telling():
                table.alter.add_columns(fields)

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        table = self._opened()
        assert table is not None
        there = {file.name for file in self.files()}
        if any(file.name not in there for file in old):
            raise Conflict(f"{self.place.url}: a file to be replaced no longer exists; run the command again")
        self._write(
            table,
            [
                *(self._add(file, data_change=False) for file in new),
                *(self._remove(file, data_change=False) for file in old),
            ],
            [],
        )

    def _write(
        self, table: DeltaTable, actions: list[AddAction | RemoveAction], transactions: list[Transaction]
    ) -> None:
        column = self.settings.bucketing.column
        with self._telling():
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=[] if column is None else [column],
                commit_properties=CommitProperties(app_transactions=transactions),
                post_commithook_properties=PostCommitHookProperties(),
            )

    def _add(self, file: DataFile, *, data_change: bool = True) -> AddAction:
        smallest: dict[str, Any] = {"offset": file.first_offset, "partition": file.partition}
        largest: dict[str, Any] = {"offset": file.last_offset, "partition": file.partition}
        if file.first_us >= _YEAR_MIN_US and file.last_us <= _YEAR_MAX_US:
            smallest["timestamp"], largest["timestamp"] = _moment(file.first_us), _moment(file.last_us)
        stats = {"numRecords": file.rows, "minValues": smallest, "maxValues": largest, "nullCount": {"offset": 0}}
        return AddAction(
            file.name,
            file.bytes,
            self._partition_values(file),
            int(time.time() * 1_000),
            data_change,
            msgspec.json.encode(stats).decode(),
        )

    def _remove(self, file: DataFile, *, data_change: bool) -> RemoveAction:
        return RemoveAction(
            path=file.name,
            data_change=data_change,
            deletion_timestamp=int(time.time() * 1_000),
            size=file.bytes,
            partition_values=self._partition_values(file),
        )

    def _partition_values(self, file: DataFile) -> dict[str, str | None]:
        column = self.settings.bucketing.column
        return {} if column is None else {column: file.bucket}

    # ------------------------------------------------------------------------------------------------ forgetting

    def expire(self, before_s: int | None, unused_before_s: float) -> Expired:
        table = self._opened()
        if table is None:
            return Expired(0, 0, 0, 0)
        old = [file for file in self.files() if before_s is not None and file.last_us < before_s * 1_000_000]
        if old:
            self._write(table, [self._remove(file, data_change=True) for file in old], [])
        hours = max(int((time.time() - unused_before_s) // 3_600), 0)
        with self._telling():
            table.create_checkpoint()
            unused = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return Expired(sum(file.rows for file in old), len(old), len(unused), sum(file.bytes for file in old))

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except TableNotFoundError:
            raise
        except CommitFailedError as error:
            raise Conflict(
                f"{self.place.url} changed during this run: another writer committed to it ({_first_line(error)}); "
                "the last step of this run was discarded"
            ) from None
        except (DeltaError, OSError, ValueError) as error:
            raise ArchiveError(f"the Delta table {self.place.url}: {_first_line(error)}") from None


def _file(row: dict[str, Any], column: str | None) -> DataFile:
    first, last = row.get("min.timestamp"), row.get("max.timestamp")
    bucket = row.get(f"partition.{column}") if column else None
    return DataFile(
        unquote(row["path"]),
        _partition(row.get("min.partition"), row.get("max.partition")),
        "" if bucket is None else str(bucket),
        row.get("num_records") or 0,
        row["size_bytes"],
        row.get("min.offset") or 0,
        row.get("max.offset") or 0,
        _UNKNOWN_US if first is None else _microseconds(first),
        _UNKNOWN_US if last is None else _microseconds(last),
    )


def _partition(low: int | None, high: int | None) -> int:
    return MIXED if low is None or low != high else low


def _moment(microseconds: int) -> str:
    return (_EPOCH + datetime.timedelta(microseconds=microseconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _microseconds(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
