"""`penstock groups`: list and describe consumer groups with their lag, reset their offsets, delete them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    AsJson,
    Bootstrap,
    Spot,
    admin_client,
    failing_as,
    partitions_of,
    reason,
)
from penstock.cli.deleting import report_deleted
from penstock.cli.failure import Failed, Misused, checked_group, checked_topic
from penstock.cli.group_offsets import (
    Group,
    PartitionLag,
    committed_offsets,
    describe_group,
    describe_groups,
    end_offsets,
    lag,
    list_groups,
    partition_lags,
    require_known,
)
from penstock.cli.output import counted, note, print_json, print_table
from penstock.cli.whence import Bounds, bounds, parse_start, resolve

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = command_app("List, describe, reset and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Group name.")]


@app.command("list")
def list_(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False) -> None:
    """List groups with their members and lag."""
    admin = admin_client(bootstrap)
    names = [str(listing.group_id) for listing in list_groups(admin)]
    groups = describe_groups(admin, names)
    committed = committed_offsets(admin, names)
    ends = end_offsets(admin, {spot for spots in committed.values() for spot in spots})
    rows = [
        (
            name,
            groups[name].state,
            groups[name].protocol,
            len(groups[name].members),
            len(committed[name]),
            sum(lag(offset, ends.get(spot)) or 0 for spot, offset in committed[name].items()),
        )
        for name in names
    ]
    if as_json:
        head = ("name", "state", "protocol", "members", "partitions", "lag")
        print_json([dict(zip(head, row, strict=True)) for row in rows])
    else:
        print_table(("group", "state", "protocol", "members", "partitions", "lag"), rows)


@app.command()
def describe(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False) -> None:
    """Show the members of a group and the lag of each partition."""
    checked_group(name)
    admin = admin_client(bootstrap)
    group = describe_group(admin, name)
    committed = committed_offsets(admin, [name])[name]
    require_known(group, committed)
    ends = end_offsets(admin, committed.keys() | {spot for member in group.members for spot in member.spots})
    lags = partition_lags(group, committed, ends)
    if as_json:
        print_json(_described(group, lags))
    else:
        _print_described(group, lags)


def _described(group: Group, lags: list[PartitionLag]) -> dict[str, Any]:
    return {
        "name": group.name,
        "state": group.state,
        "protocol": group.protocol,
        "assignor": group.assignor or None,
        "lag": _total(lags),
        "partitions": [row._asdict() for row in lags],
        "members": [
            {
                "id": member.id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": [{"topic": topic, "partition": partition} for topic, partition in member.spots],
            }
            for member in group.members
        ],
    }


def _print_described(group: Group, lags: list[PartitionLag]) -> None:
    """Members have a number here: their ids are long, and would be there twice."""
    assigned = f", assignor {group.assignor}" if group.assignor else ""
    members = counted(len(group.members), "member")
    print(f"group {group.name}, {group.state}, protocol {group.protocol}{assigned}, {members}, lag {_total(lags):,}")
    numbers = {member.id: number for number, member in enumerate(group.members, 1)}
    head = ("topic", "partition", "committed", "end offset", "lag")
    if lags and not group.members:
        print_table(head, [row[:5] for row in lags])
    elif lags:
        print_table((*head, "member"), [(*row[:5], numbers.get(row.member or "")) for row in lags])
    if group.members:
        print_table(
            ("member", "client", "host", "partitions", "id"),
            [
                (numbers[member.id], member.client_id, member.host, len(member.spots), member.instance_id or member.id)
                for member in group.members
            ],
        )


def _total(lags: Iterable[PartitionLag]) -> int:
    return sum(row.lag or 0 for row in lags)


@app.command()
def reset(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="New offsets: earliest, latest, an offset, -N (last N of each partition), @MILLISECONDS or a time "
            "(2026-01-31T12:00Z).",
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option("--shift", metavar="N", help="Move by N offsets, back if negative, within the log."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:PARTITION,...]",
            help="Reset only this topic; repeatable. [default: every partition with a committed offset]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets without committing them.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Reset the committed offsets of a group without members.

    Members continue from the new offsets when they rejoin. With --topic, the group does not have to exist.
    """
    checked_group(name)
    if (to is None) == (shift is None):
        raise Misused("--to WHERE or --shift N is required" if to is None else "--to cannot be combined with --shift")
    start = None if to is None else parse_start(to, "--to")
    chosen = [_parse_topic(text) for text in topic or []]
    admin = admin_client(bootstrap)
    _refuse_with_members(describe_group(admin, name))
    committed = committed_offsets(admin, [name])[name]
    spots = _spots(admin, chosen) if chosen else sorted(committed)
    if not spots:
        raise Failed(f"group {name} has no committed offsets: give the topics to reset with --topic")
    there = bounds(admin, spots)
    if start is None:
        target = _shifted(name, committed, there, shift or 0)
    else:
        target = resolve(admin, there, start, f"--to {to}")
    if not dry_run:
        _commit(admin, name, target)
    rows = [(*spot, committed.get(spot), target[spot], lag(target[spot], there.end[spot])) for spot in spots]
    if as_json:
        head = ("topic", "partition", "old_offset", "new_offset", "lag")
        partitions = [dict(zip(head, row, strict=True)) for row in rows]
        print_json({"name": name, "dry_run": dry_run, "partitions": partitions})
        return
    print_table(("topic", "partition", "old offset", "new offset", "lag"), rows)
    done = "dry run: would reset" if dry_run else "reset"
    note(f"{done} {counted(len(rows), 'partition')} of group {name}")


def _refuse_with_members(group: Group) -> None:
    if not group.idle:
        holders = counted(len(group.members), "member")
        raise Failed(f"group {group.name} has {holders} ({group.state}): stop them first, then reset")


def _parse_topic(text: str) -> tuple[str, list[int] | None]:
    topic, colon, partitions = text.partition(":")
    checked_topic(topic)
    if not colon:
        return topic, None
    numbers = partitions.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise Misused(f"--topic {text}: expected TOPIC or TOPIC:PARTITION,PARTITION")
    return topic, [int(number) for number in numbers]


def _spots(admin: AdminClient, chosen: list[tuple[str, list[int] | None]]) -> list[Spot]:
    spots: set[Spot] = set()
    for topic, wanted in chosen:
        there = partitions_of(admin, topic)
        for partition in there if wanted is None else wanted:
            if partition not in there:
                raise Failed(f"topic {topic} has no partition {partition} (partitions: {len(there)})")
            spots.add((topic, partition))
    return sorted(spots)


def _shifted(name: str, committed: Mapping[Spot, int], there: Bounds, by: int) -> dict[Spot, int]:
    target: dict[Spot, int] = {}
    for spot, end in there.end.items():
        if spot not in committed:
            topic, partition = spot
            raise Failed(
                f"--shift: group {name} has no committed offset in partition {partition} of topic {topic}; use --to"
            )
        target[spot] = min(max(committed[spot] + by, there.start[spot]), end)
    return target


def _commit(admin: AdminClient, name: str, target: Mapping[Spot, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in target.items()]
    request = ConsumerGroupTopicPartitions(name, places)
    with failing_as(f"cannot reset group {name}"):
        answered = admin.alter_consumer_group_offsets([request], request_timeout=TIMEOUT_S)[name].result()
    failed = [place for place in answered.topic_partitions if place.error is not None]
    if failed:
        first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise Failed(
            f"cannot reset group {name} in partition {first.partition} of topic {first.topic}{more}: "
            f"{reason(first.error)}"
        )


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP", help="Group names.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete groups without members, including their offsets."""
    wanted = list(dict.fromkeys(map(checked_group, names)))
    admin = admin_client(bootstrap)  # held: without it no answer comes
    report_deleted("group", admin.delete_consumer_groups(wanted, request_timeout=TIMEOUT_S), as_json=as_json)
