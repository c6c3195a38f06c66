"""`penstock consume`: records to text, from anywhere in a topic to its end or on and on; alone, or as a group's member.

Which records are read, and how, is in `reading`; what `--dialect` reads in `dialects`.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import BOOTSTRAP_DEFAULT, Bootstrap, admin_client, client_config, partitions_of
from penstock.cli.dialect_runs import DialectReading
from penstock.cli.dialects import DialectOption, dialect_address, speaking
from penstock.cli.failure import Failed, Misused, checked_group, checked_topic
from penstock.cli.reading import Reading, Writer
from penstock.cli.record_text import Place, RecordWriter, TextRecord, format_hex, format_json, format_keyvalue
from penstock.cli.stopping import until_stopped
from penstock.cli.whence import From, bounds, parse_start, readable_ends, resolve

app = command_app()


class OutputFormat(enum.StrEnum):
    value = "value"
    keyvalue = "keyvalue"
    json = "json"
    hex = "hex"


@app.command()
def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where to start: beginning, end, an offset, -N (last N of each partition), @MILLISECONDS or a time "
            "(2026-01-31T12:00Z).",
        ),
    ] = "beginning",
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Read only this partition; repeatable. [default: all]")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Read as a member of this consumer group and commit the offsets of printed records. --from applies to "
            "partitions without a committed offset, and must be beginning or end.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=0, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--until-end", help="Wait for new records, or stop at the current end.")
    ] = False,
    format_: Annotated[OutputFormat, typer.Option("--format", help="Output format of a record.")] = OutputFormat.value,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-K", metavar="TEXT", help="Separator between key and value for keyvalue.")
    ] = ":",
    dialect: DialectOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Read records from a topic and print them, one per line."""
    checked_topic(topic)
    begin = parse_start(start)
    if group is not None:
        checked_group(group)
    if dialect is not None:
        write = _record_writer(format_, key_separator)
        with until_stopped() as stop, speaking(dialect, dialect_address(context, dialect, bootstrap)) as client:
            DialectReading(dialect, topic, write, count, stop).run(client, begin, partition, group, follow=follow)
        return
    if group is not None:
        _check_with_group(group, begin[0], partition)
    admin = admin_client(bootstrap)
    chosen = _choose(partitions_of(admin, topic), partition, topic)
    spots = [(topic, number) for number in chosen]
    there, ends = bounds(admin, spots), readable_ends(admin, spots)
    if begin[0] is From.LAST:
        there = there._replace(end=ends)
    with until_stopped() as stop:
        reading = Reading(topic, _writer(format_, key_separator), count, None if follow else ends, stop)
        if group is None:
            reading.run(client_config(bootstrap), resolve(admin, there, begin, f"--from {start}"))
        else:
            otherwise = "earliest" if begin[0] is From.BEGINNING else "latest"
            reading.run_in_group(client_config(bootstrap), group, otherwise)


def _check_with_group(group: str, begin: From, partition: list[int] | None) -> None:
    if partition:
        raise Misused(f"--partition cannot be combined with --group: group {group} assigns partitions to its members")
    if begin not in (From.BEGINNING, From.END):
        raise Misused(
            f"--from must be beginning or end with --group; `penstock groups reset {group}` sets other offsets"
        )


def _choose(there: list[int], wanted: list[int] | None, topic: str) -> list[int]:
    if not wanted:
        return there
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise Failed(f"topic {topic} has no partition {missing[0]} (partitions: {len(there)})")
    return sorted(set(wanted))


def _writer(chosen: OutputFormat, separator: str) -> Writer:
    """Of the client library's own messages: what is not printed of one is not asked for."""
    if chosen is OutputFormat.value:
        return lambda message: message.value() or b""
    write = _record_writer(chosen, separator)
    return lambda message: write(_record(message), _place(message))


def _record_writer(chosen: OutputFormat, separator: str) -> RecordWriter:
    if chosen is OutputFormat.value:
        return lambda record, _: record.value or b""
    if chosen is OutputFormat.keyvalue:
        between = separator.encode()
        return lambda record, _: format_keyvalue(record, between)
    return format_json if chosen is OutputFormat.json else format_hex


def _record(message: Any) -> TextRecord:
    kind, timestamp_ms = message.timestamp()
    return TextRecord(message.key(), message.value(), message.headers() or (), timestamp_ms if kind else None)


def _place(message: Any) -> Place:
    return Place(message.topic(), message.partition(), message.offset())
