"""`penstock topics`: list, create, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    AsJson,
    Bootstrap,
    admin_client,
    describe_topic,
    failing_as,
    partitions_of,
)
from penstock.cli.deleting import report_deleted
from penstock.cli.failure import Misused, checked_topic, key_values
from penstock.cli.output import note, print_json, print_table
from penstock.cli.whence import bounds
from penstock.model.ids import is_internal

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigEntry

app = command_app("List, create, describe, alter and delete topics.")

_URL_SAFE = str.maketrans("+/", "-_")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
ConfigPairs = Annotated[
    list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Topic config; repeatable.")
]


@app.command("list")
def list_topics(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    internal: Annotated[bool, typer.Option("--internal", help="Include the broker's internal topics.")] = False,
    as_json: AsJson = False,
) -> None:
    """List topics."""
    admin = admin_client(bootstrap)
    with failing_as("cannot list topics"):
        found = admin.list_topics(timeout=TIMEOUT_S).topics
    rows = [(name, len(found[name].partitions)) for name in sorted(found) if internal or not is_internal(name)]
    if as_json:
        print_json([{"name": name, "partitions": partitions} for name, partitions in rows])
    else:
        print_table(("topic", "partitions"), rows)


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions. [default: num_partitions of the broker]")
    ] = None,
    config: ConfigPairs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    new = NewTopic(
        checked_topic(name),
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1,
        config=key_values(config or [], "--config"),
    )
    admin = admin_client(bootstrap)
    created = True
    with failing_as(f"cannot create topic {name}"):
        try:
            admin.create_topics([new], operation_timeout=TIMEOUT_S)[name].result()
        except KafkaException as error:
            if not if_not_exists or error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            created = False
    if as_json:
        print_json({"name": name, "created": created, "partitions": len(partitions_of(admin, name))})
    else:
        note(f"created topic {name}" if created else f"topic {name} already exists")


@app.command()
def describe(
    name: Name,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Include configs that have their default value.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a topic's id, partitions, offsets and configs."""
    checked_topic(name)
    admin = admin_client(bootstrap)
    topic = describe_topic(admin, name)
    there = bounds(admin, [(name, info.id) for info in topic.partitions])
    configs = _configs(admin, name)
    topic_id = str(topic.topic_id).translate(_URL_SAFE)  # as Kafka's tools and files have it
    rows = [
        (info.id, info.leader.id, there.start[name, info.id], there.end[name, info.id]) for info in topic.partitions
    ]
    if as_json:
        head = ("partition", "leader", "start_offset", "end_offset")
        print_json(
            {
                "name": name,
                "id": topic_id,
                "internal": topic.is_internal,
                "partitions": [dict(zip(head, row, strict=True)) for row in rows],
                "configs": {entry.name: {"value": entry.value, "default": _is_default(entry)} for entry in configs},
            }
        )
        return
    print(f"topic {name}, id {topic_id}" + (", internal" if topic.is_internal else ""))
    print_table(("partition", "leader", "start offset", "end offset"), rows)
    shown = [(entry.name, entry.value) for entry in configs if all_configs or not _is_default(entry)]
    if shown:
        print_table(("config", "value"), shown)


@app.command()
def alter(
    name: Name,
    partitions: Annotated[int | None, typer.Option(min=1, help="New number of partitions; can only grow.")] = None,
    config: ConfigPairs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset this config to its default; repeatable."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add partitions, and set or unset configs."""
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        ResourceType,
    )

    checked_topic(name)
    values = key_values(config or [], "--config")
    if partitions is None and not values and not unset:
        raise Misused("nothing to alter: give --partitions, --config or --unset")
    admin = admin_client(bootstrap)
    partitions_of(admin, name)
    if values or unset:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()
        ]
        entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset or []]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        with failing_as(f"cannot alter topic {name}"):
            admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)[resource].result()
    if partitions is not None:
        with failing_as(f"cannot add partitions to topic {name}"):
            admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=TIMEOUT_S)[name].result()
    if as_json:
        print_json(
            {
                "name": name,
                "partitions": len(partitions_of(admin, name)),
                "configs": {entry.name: entry.value for entry in _configs(admin, name) if not _is_default(entry)},
            }
        )
    else:
        note(f"altered topic {name}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topic names.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records."""
    wanted = list(dict.fromkeys(map(checked_topic, names)))
    admin = admin_client(bootstrap)  # held: without it no answer comes
    report_deleted("topic", admin.delete_topics(wanted, operation_timeout=TIMEOUT_S), as_json=as_json)


def _configs(admin: AdminClient, topic: str) -> list[ConfigEntry]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    with failing_as(f"cannot read configs of topic {topic}"):
        entries: dict[str, ConfigEntry] = admin.describe_configs([resource], request_timeout=TIMEOUT_S)[
            resource
        ].result()
    return [entries[name] for name in sorted(entries)]


def _is_default(entry: Any) -> bool:
    from confluent_kafka.admin import ConfigSource

    return bool(ConfigSource(entry.source) is not ConfigSource.DYNAMIC_TOPIC_CONFIG)
