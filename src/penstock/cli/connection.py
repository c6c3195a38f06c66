"""Reaching a broker as a Kafka client, and turning what librdkafka says into one line."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.failure import Failed, Misused
from penstock.model import limits

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, TopicDescription

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TIMEOUT_S = 10.0
"""For a broker that took the connection to answer one request."""
_CONNECT_TIMEOUT_S = 3.0
_COORDINATOR_MS = 3_000

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT", help="Broker addresses, comma-separated.", envvar="PENSTOCK_BOOTSTRAP"
    ),
]
Spot = tuple[str, int]
"""A topic and one of its partitions."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise Misused(f"--bootstrap {address.strip()!r} is not HOST:PORT")
    return host, int(port)


def reach(bootstrap: str, dialect: str = "kafka") -> list[tuple[str, int]]:
    """The addresses, one that can be reached first. Fails at once, and with the reason, when nobody listens there, or
    nobody who speaks Kafka's protocol: librdkafka would try for a long time."""
    addresses = [host_and_port(address) for address in bootstrap.split(",")]
    problems = []
    for at, (host, port) in enumerate(addresses):
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S) as connection:
                if dialect != "kafka" or _may_speak_kafka(connection):
                    return addresses[at:] + addresses[:at]
                problems.append(f"{host}:{port}: the server does not speak the Kafka protocol")
        except OSError as error:
            problems.append(f"{host}:{port}: {error.strerror or error}")
    listener = "its address" if dialect == "kafka" else f"the address of its {dialect} listener"
    raise Failed(
        f"no broker at {'; '.join(problems)} (start one with `penstock serve`, or give {listener} with --bootstrap)"
    )


_ASKED = b"\n\n\n\n"
"""A correlation id that ends a line too, so that a peer that waits for one answers."""
_API_VERSIONS = struct.pack(">ihh4sh", 10, 18, 0, _ASKED, -1)


def _may_speak_kafka(connection: socket.socket) -> bool:
    """Whether an answer begins as Kafka's do; who is slow to answer may still be such a broker."""
    connection.sendall(_API_VERSIONS)
    answer = b""
    try:
        while len(answer) < 8:
            piece = connection.recv(8 - len(answer))
            if not piece:
                return False
            answer += piece
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    return answer[4:] == _ASKED


def client_config(bootstrap: str, **settings: Any) -> dict[str, Any]:
    """What every client here has in common; librdkafka's own log lines are kept off the terminal."""
    return {"bootstrap.servers": bootstrap, "client.id": "penstock-cli", "log_level": 0, **settings}


def admin_client(bootstrap: str) -> AdminClient:
    reach(bootstrap)
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_config(bootstrap))


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Whatever librdkafka raises inside becomes `Failed` with what was being done."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise Failed(f"{what}: {reason(error)}") from None


def reason(error: Any) -> str:
    """The broker's own sentence if it sent one; `error` is a KafkaException or a KafkaError."""
    from confluent_kafka import KafkaError, KafkaException

    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if isinstance(cause, KafkaError):
        if cause.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
            return "the broker does not answer"
        if cause.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return "the broker has no such topic"
        if cause.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            return "record exceeds the topic's max.message.bytes"
        if cause.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return "the broker has no such group"
        if cause.code() in (KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID):
            return "the group has members"
        return cause.str().removeprefix("Broker: ").removeprefix("Local: ")
    return str(cause)


def coordinator_problem(bootstrap: str, group: str) -> str | None:
    """Why the coordinator of a group cannot store anything, if the broker gives a reason. librdkafka does not return it."""
    from kio.schema.errors import ErrorCode

    from penstock.client.kafka import KafkaClient, KafkaError, KafkaSettings
    from penstock.client.kafka_apis import Api
    from penstock.client.kafka_cluster import CoordinatorKind
    from penstock.client.kafka_settings import addresses

    settings = KafkaSettings(addresses(bootstrap), client_id="penstock-cli", request_timeout_ms=_COORDINATOR_MS)
    try:
        with KafkaClient(settings) as client:
            fields = {"key": group, "key_type": CoordinatorKind.GROUP, "coordinator_keys": [group]}
            answer = client.any_connection().request(Api.FIND_COORDINATOR, fields)
    except KafkaError:
        return None
    found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
    if found.error_code not in (ErrorCode.none, ErrorCode.coordinator_not_available):
        return None
    said: str = found.error_message or ""
    return None if said in ("", "NONE") else said  # old brokers call success NONE


def request_bytes_max(bootstrap: str) -> int:
    """The largest request that the broker accepts, from its config; Kafka's default if the config has none."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient(client_config(bootstrap))
    try:
        brokers = admin.list_topics(timeout=TIMEOUT_S).brokers
        resource = ConfigResource(ConfigResource.Type.BROKER, str(min(brokers)))
        [described] = admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
        return int(described.result()["socket.request.max.bytes"].value)
    except (KafkaException, KeyError, ValueError):
        return limits.FRAME_BYTES_MAX


def partitions_of(admin: AdminClient, topic: str) -> list[int]:
    """The partitions of a topic that is there. To ask for it does not create it."""
    return sorted(info.id for info in describe_topic(admin, topic).partitions)


def describe_topic(admin: AdminClient, topic: str) -> TopicDescription:
    from confluent_kafka import TopicCollection

    with failing_as(f"topic {topic}"):
        found: TopicDescription = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)[
            topic
        ].result()
    return found


def partitions_for_writing(producer: Producer, topic: str) -> list[int]:
    """The partitions of a topic that is there, or that the broker creates because a producer asks for it."""
    from confluent_kafka import KafkaError

    patience = time.monotonic() + TIMEOUT_S
    while True:
        with failing_as(f"topic {topic}"):
            found = producer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is None:
            return sorted(found.partitions)
        if found.error.code() != KafkaError.LEADER_NOT_AVAILABLE or time.monotonic() > patience:
            raise Failed(f"topic {topic}: {reason(found.error)}")
        producer.poll(0.1)


def offsets(
    admin: AdminClient, spots: Iterable[Spot], spec: Any, *, gone_ok: bool = False, committed: bool = False
) -> dict[Spot, int]:
    """The offset of each partition that `spec` asks for (earliest, latest, at a timestamp: -1 where there is none). With
    `gone_ok` partitions that the broker does not have are left out. With `committed` the latest one is where the first open
    transaction begins, if there is one."""
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

    wanted = {TopicPartition(topic, partition): spec for topic, partition in spots}
    if not wanted:
        return {}
    gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
    found: dict[Spot, int] = {}
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=TIMEOUT_S)
    for place, future in answers.items():
        try:
            found[place.topic, place.partition] = future.result().offset
        except KafkaException as error:
            if not gone_ok or error.args[0].code() not in gone:
                raise Failed(f"cannot read offsets of topic {place.topic}: {reason(error)}") from None
    return found
