"""Many small files made into few: what a continuous archive leaves behind becomes quick to read again.

Files of one partition and one day or hour are merged in the order of their offsets, up to the size that is aimed at. The
new files are written first, then one commit exchanges them for the old: no reader of the table sees a row twice or
not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.lake.data_files import MIXED, SUFFIX, DataFile
from penstock.lake.engines import Engine
from penstock.lake.errors import ArchiveError
from penstock.lake.lock import FOLDER
from penstock.lake.settings import Format
from penstock.lake.tables import Table
from penstock.lake.tasks import MergeFiles

TARGET_BYTES = 128 * 1024 * 1024
FILES_MIN = 8
"""On the way; `archive compact` takes two."""


MERGING = f"{FOLDER}/merging.json"


class Merging(msgspec.Struct, frozen=True):
    """Written down before the first file is: who comes after a crash clears away the one side or the other."""

    old: list[str]
    stems: list[str]


class Merged(NamedTuple):
    before: int
    """Files that were replaced."""
    after: int
    rows: int
    bytes: int


def compact_table(
    table: Table, engine: Engine, *, target_bytes: int = TARGET_BYTES, files_min: int = FILES_MIN
) -> Merged:
    """One commit, or none if there is nothing to merge. The table's lock is held."""
    if not (engine.is_one_process or table.place.is_shared):
        raise ArchiveError(f"{table.place.url} is in the memory of this process: use --engine local")
    recover(table)
    groups = list(groups_of(table.files(), target_bytes, files_min))
    if not groups:
        return Merged(0, 0, 0, 0)
    schema = table.state().schema
    tasks = [
        MergeFiles(table.place, tuple(group), table.settings.bucketing, merged_stem(group), schema) for group in groups
    ]
    old = [file for group in groups for file in group]
    merging = Merging([file.name for file in old], [task.stem for task in tasks])
    table.place.write(MERGING, msgspec.json.encode(merging))
    written = engine.run(tasks)
    new = [file for one in written for file in one.files]
    rows = sum(file.rows for file in old)
    if sum(file.rows for file in new) != rows:
        raise ArchiveError(
            f"{table.place.url}: merged files do not contain the rows of the old files; nothing was changed"
        )
    table.replace(old, new)
    table.place.delete([MERGING])
    return Merged(len(old), len(new), rows, sum(file.bytes for file in new))


def recover(table: Table) -> None:
    """Finish, or take back, a compaction that was interrupted. The table's lock is held."""
    data = table.place.read(MERGING)
    if data is None:
        return
    try:
        merging = msgspec.json.decode(data, type=Merging)
    except msgspec.DecodeError as error:
        raise ArchiveError(f"{table.place.url}/{MERGING} is corrupt: {error}") from None
    there = {file.name for file in table.files()}
    stems = tuple(f"{stem}{SUFFIX}" for stem in merging.stems)
    made = [found.name for found in table.place.found() if found.name.endswith(stems)]
    table.place.delete(name for name in made if name not in there)
    if table.settings.format is Format.PARQUET:
        # The other formats keep replaced files for readers of older versions.
        table.place.delete(name for name in merging.old if name not in there)
    table.place.delete([MERGING])


def groups_of(files: Sequence[DataFile], target_bytes: int, files_min: int) -> Iterator[list[DataFile]]:
    """Neighbours that are small, as many as make up one file of the size aimed at."""
    small = [file for file in files if file.bytes < target_bytes // 2 and file.partition != MIXED]
    small.sort(key=lambda file: (file.partition, file.bucket, file.first_offset))
    for _, together in itertools.groupby(small, key=lambda file: (file.partition, file.bucket)):
        group: list[DataFile] = []
        for file in together:
            if group and sum(one.bytes for one in group) + file.bytes > target_bytes:
                if len(group) >= files_min:
                    yield group
                group = []
            group.append(file)
        if len(group) >= files_min:
            yield group


def merged_stem(group: Sequence[DataFile]) -> str:
    """By what is in it and from how many files: never the name of one of them, nor that of a range."""
    first, last = min(one.first_offset for one in group), max(one.last_offset for one in group)
    return f"part-{group[0].partition:05d}-{first:020d}-{last + 1:020d}-merged-{len(group):05d}"
