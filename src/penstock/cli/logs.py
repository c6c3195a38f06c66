"""`penstock logs`: look into segment files, and check them. Reads a data directory as it lies there; needs no broker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.audit import audit
from penstock.cli.command import command_app
from penstock.cli.connection import AsJson
from penstock.cli.failure import Failed
from penstock.cli.output import print_json, print_table
from penstock.cli.record_text import Place, TextRecord, format_json
from penstock.records.batch import Batch, BatchError
from penstock.records.compression import Codec
from penstock.records.record import read_records
from penstock.storage.segment_reader import (
    base_offset_of,
    check_indexes,
    list_partitions,
    list_segments,
    read_segment,
    topics_that_compact,
)

app = command_app("Dump, verify and audit segment files.")
app.command()(audit)

Where = Annotated[
    Path, typer.Argument(metavar="PATH", exists=True, help="Data directory, partition directory or .log file.")
]


@app.command()
def dump(
    path: Where,
    records: Annotated[bool, typer.Option("--records", help="Print records as JSON, one per line.")] = False,
    from_offset: Annotated[int, typer.Option("--from-offset", min=0, help="Skip records below this offset.")] = 0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many batches or records.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the batches or the records of segments."""
    segments = _segments(path)
    if records:
        for line in islice(_records(segments, from_offset), count):
            print(line)
        return
    rows = list(islice(_batches(segments, from_offset), count))
    if as_json:
        print_json(rows)
    elif rows:
        print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@app.command()
def verify(
    path: Where,
    deep: Annotated[bool, typer.Option("--deep", help="Decompress every batch and check each record.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the batches and indexes of segments.

    Checks the length, CRC and offsets of every batch, and that the indexes match. Exit code 1 if anything is damaged.
    After a crash, the last segment may end in an incomplete batch, which the broker truncates when it starts.
    """
    segments = _segments(path)
    dense = _dense_segments(segments)
    reports = [_verified(segment, deep=deep, dense=segment in dense) for segment in segments]
    for before, report in zip([None, *reports], reports, strict=False):
        if before is not None and before["partition"] == report["partition"]:
            if report["segment"] < before["next_offset"]:
                report["problems"].append(
                    f"starts at {report['segment']}, but the previous segment ends at {before['next_offset']}"
                )
    wrong = sum(1 for report in reports if report["problems"])
    if as_json:
        print_json({"segments": reports, "damaged": wrong})
    else:
        print_table(
            ("partition", "segment", "batches", "records", "bytes", "next offset", "result"),
            [(*tuple(report.values())[:-1], "; ".join(report["problems"]) or "ok") for report in reports],
        )
    if wrong:
        raise Failed(f"{wrong} of {len(reports)} segments are damaged")


def _segments(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.suffix != ".log" or not path.is_file():
            raise Failed(f"{path} is not a .log file")
        return [path]
    segments = list_segments(path) or [segment for folder in list_partitions(path) for segment in list_segments(folder)]
    if not segments:
        raise Failed(f"no segments in {path}")
    return segments


def _batches(segments: list[Path], from_offset: int) -> Iterator[dict[str, Any]]:
    for segment in segments:
        scan = read_segment(segment)
        for position, batch in scan:
            if batch.last_offset >= from_offset:
                yield {
                    "partition": segment.parent.name,
                    "segment": base_offset_of(segment),
                    "position": position,
                    "size": batch.size,
                    "base_offset": batch.base_offset,
                    "last_offset": batch.last_offset,
                    "records": batch.count,
                    "max_timestamp": batch.max_timestamp,
                    "leader_epoch": batch.leader_epoch,
                    "compression": _codec(batch),
                    "producer_id": batch.producer_id,
                    "producer_epoch": batch.producer_epoch,
                    "base_sequence": batch.base_sequence,
                    "transactional": batch.is_transactional,
                    "control": batch.is_control,
                }
        if scan.damage is not None:
            raise Failed(f"{segment}: {scan.damage}")


def _codec(batch: Batch) -> str:
    try:
        return Codec(batch.compression).name.lower()
    except ValueError:
        return f"unknown ({batch.compression})"


def _records(segments: list[Path], from_offset: int) -> Iterator[str]:
    for segment in segments:
        topic, _, number = segment.absolute().parent.name.rpartition("-")
        partition = int(number) if number.isdecimal() else -1
        scan = read_segment(segment)
        for position, batch in scan:
            if batch.last_offset < from_offset or batch.is_control:
                continue
            try:
                for record in read_records(batch):
                    if record.offset >= from_offset:
                        text = TextRecord(record.key, record.value, record.headers, record.timestamp)
                        yield format_json(text, Place(topic, partition, record.offset)).decode()
            except BatchError as error:
                raise Failed(f"{segment}: batch at position {position}: {error}") from None
        if scan.damage is not None:
            raise Failed(f"{segment}: {scan.damage}")


def _dense_segments(segments: list[Path]) -> set[Path]:
    """Those in which each offset must be there: cleaning alone leaves gaps, and never in a partition's last segment."""
    compacts = cache(topics_that_compact)
    dense = set()
    for folder in dict.fromkeys(segment.parent for segment in segments):
        topic = folder.absolute().name.rpartition("-")[0]
        if compacts(folder.absolute().parent).get(topic) is False:
            dense.add(list_segments(folder)[-1])
    return dense


def _verified(segment: Path, *, deep: bool, dense: bool) -> dict[str, Any]:
    problems: list[str] = []
    places: list[tuple[int, int, int]] = []
    records = 0
    next_offset = base_offset_of(segment)
    scan = read_segment(segment)
    for position, batch in scan:
        if dense and batch.base_offset != next_offset:
            problems.append(
                f"at position {position}: offsets {next_offset} to {batch.base_offset - 1} are missing, "
                "but the topic is not compacted"
            )
        places.append((position, batch.base_offset, batch.last_offset))
        records += batch.count
        next_offset = batch.next_offset
        if deep:
            try:
                for _ in read_records(batch):
                    pass
            except BatchError as error:
                problems.append(f"batch at position {position}: {error}")
    if scan.damage is not None:
        problems.append(str(scan.damage))
    problems += check_indexes(segment, places)
    return {
        "partition": segment.absolute().parent.name,
        "segment": base_offset_of(segment),
        "batches": len(places),
        "records": records,
        "bytes": scan.end_position,
        "next_offset": next_offset,
        "problems": problems,
    }
