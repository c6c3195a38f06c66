"""What a table can do, in whichever format: say what it holds, take a commit, exchange files, forget old ones.

A commit brings files and the next offset of each partition together or not at all, and only if the offsets are still
those that it was planned on. Those two things are all that the three formats promise; everything else is built on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from penstock.lake.buckets import Bucketing
from penstock.lake.columns import schema_of
from penstock.lake.data_files import DataFile
from penstock.lake.errors import Conflict
from penstock.lake.places import Place
from penstock.lake.settings import TableSettings


class State(NamedTuple):
    """What a table holds, as far as the next commit must know."""

    offsets: dict[int, int]
    """The next offset of each partition."""
    kinds: dict[str, str]
    """Typed columns."""
    with_error: bool

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.kinds, with_error=self.with_error)


class Append(NamedTuple):
    """A commit of new files."""

    base: dict[int, int]
    """The offsets that it was planned on."""
    offsets: dict[int, int]
    """And those that it leads to."""
    files: Sequence[DataFile]
    kinds: dict[str, str]
    """All typed columns, those that are new with it last."""
    with_error: bool


class Expired(NamedTuple):
    """What `expire` took away."""

    rows: int
    files: int
    unused_files: int
    bytes: int


class Table(Protocol):
    place: Place
    settings: TableSettings

    def state(self) -> State:
        """As it is now. Raises ArchiveError when the table cannot be read."""
        ...

    def append(self, commit: Append) -> None:
        """Raises Conflict when the table is not as it was planned on, ArchiveError when it cannot be written."""
        ...

    def files(self) -> list[DataFile]:
        """By partition and offset."""
        ...

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """Other files with the same rows. Raises Conflict, ArchiveError."""
        ...

    def expire(self, before_s: int | None, unused_before_s: float) -> Expired:
        """Drop the rows that are older than `before_s`, the beginning of a bucket; then what no reader needs: files
        and versions that were replaced before `unused_before_s`."""
        ...


def check_base(table: Table, base: Mapping[int, int], there: Mapping[int, int]) -> None:
    if dict(base) != dict(there):
        raise Conflict(
            f"{table.place.url} changed during this run: another archiver writes to it; "
            "the last step of this run was discarded"
        )


def dataset(table: Table) -> Any:
    """The whole table for pyarrow, with one schema over all its files."""
    state = table.state()
    return dataset_of(table.place, table.settings.bucketing, table.files(), state.schema)


def dataset_of(place: Place, bucketing: Bucketing, files: Sequence[DataFile], schema: pa.Schema) -> Any:
    # Brings pandas along, which an archiver does without.
    import pyarrow.dataset as ds

    column = bucketing.column
    partitioning = None
    if column is not None:
        field = pa.field(column, pa.string())
        schema = schema.append(field)
        partitioning = ds.partitioning(pa.schema([field]), flavor="hive")
    if not files:
        return ds.dataset(schema.empty_table())
    return ds.dataset(
        [place.path(file.name) for file in files],
        schema=schema,
        format="parquet",
        filesystem=place.files,
        partitioning=partitioning,
        partition_base_dir=place.path(),
    )
