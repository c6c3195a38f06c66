"""Leaders and coordinators that move from one broker to another: two brokers that say what a test wants."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.client.kafka import LATEST, KafkaClient, KafkaError, KafkaSettings
from penstock.client.kafka_settings import addresses
from tests.client.kafka_stand_in import API_VERSIONS, METADATA, StandIn, api_versions

LIST_OFFSETS, OFFSET_FETCH, FIND_COORDINATOR = 2, 9, 10
RANGES = {
    API_VERSIONS: (0, 4),
    METADATA: (0, 4),
    LIST_OFFSETS: (0, 2),
    OFFSET_FETCH: (0, 2),
    FIND_COORDINATOR: (0, 0),
}
NOT_LEADER, NOT_COORDINATOR, LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC = 6, 16, 5, 3


def string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text.encode()


class TwoBrokers:
    """A topic `t` of one partition and a group `g`, whose leader and coordinator a test moves. Each request that a
    broker does not have to answer is counted as misled."""

    def __init__(self) -> None:
        self.leader = 1
        self.coordinator = 1
        self.topic_error = 0
        self.partition_error = 0
        self.misled = 0
        self.metadata_asked = 0
        self.ports: dict[int, str] = {}

    def answer(self, broker: int, key: int, version: int, rest: bytes) -> bytes:
        match key:
            case 18:
                return api_versions(version, RANGES)
            case 3:
                self.metadata_asked += 1
                return self._metadata()
            case 10:
                host, port = self.ports[self.coordinator].split(":")
                return struct.pack(">hi", 0, self.coordinator) + string(host) + struct.pack(">i", int(port))
            case 2:
                code = 0 if broker == self.leader else NOT_LEADER
                self.misled += code != 0
                code = code or self.partition_error
                partition = struct.pack(">ihqq", 0, code, -1, 40 + broker)
                return struct.pack(">ii", 0, 1) + string("t") + struct.pack(">i", 1) + partition
        assert key == 9
        code = 0 if broker == self.coordinator else NOT_COORDINATOR
        self.misled += code != 0
        partition = struct.pack(">iq", 0, 40 + broker) + string("") + struct.pack(">h", 0)
        topics = struct.pack(">i", 1) + string("t") + struct.pack(">i", 1) + partition
        return topics + struct.pack(">h", code)

    def _metadata(self) -> bytes:
        brokers = b""
        for node, address in self.ports.items():
            host, port = address.split(":")
            brokers += struct.pack(">i", node) + string(host) + struct.pack(">i", int(port)) + string(None)
        partition = struct.pack(">hiiii", 0, 0, self.leader, 0, 0)
        topic = struct.pack(">h", self.topic_error) + string("t") + b"\0" + struct.pack(">i", 1) + partition
        head = struct.pack(">ii", 0, len(self.ports)) + brokers
        return head + string("cluster") + struct.pack(">ii", 1, 1) + topic


@pytest.fixture
def brokers() -> Iterator[TwoBrokers]:
    two = TwoBrokers()

    def stand_in(broker: int) -> StandIn:
        return StandIn(lambda key, version, rest: two.answer(broker, key, version, rest))

    with ExitStack() as stack:
        for broker in (1, 2):
            two.ports[broker] = stack.enter_context(stand_in(broker)).address
        yield two


@pytest.fixture
def client(brokers: TwoBrokers) -> Iterator[KafkaClient]:
    settings = KafkaSettings(
        addresses(brokers.ports[1]), api_timeout_ms=2_000, retry_backoff_ms=5, request_timeout_ms=2_000
    )
    with KafkaClient(settings) as client:
        yield client


def offset_of(client: KafkaClient) -> int | None:
    return client.list_offsets({("t", 0): LATEST})["t", 0].offset


def test_a_leader_that_moved_is_followed(brokers: TwoBrokers, client: KafkaClient) -> None:
    assert offset_of(client) == 41
    brokers.leader = 2
    assert offset_of(client) == 42
    assert brokers.misled == 1
    asked = brokers.metadata_asked
    assert offset_of(client) == 42
    assert (brokers.misled, brokers.metadata_asked) == (1, asked)


def test_a_coordinator_that_moved_is_followed(brokers: TwoBrokers, client: KafkaClient) -> None:
    assert client.fetch_offsets("g")["t", 0].offset == 41
    brokers.coordinator = 2
    assert client.fetch_offsets("g")["t", 0].offset == 42
    assert client.fetch_offsets("g")["t", 0].offset == 42
    assert brokers.misled == 1


def test_a_partition_without_a_leader_is_asked_for_until_the_time_is_over(
    brokers: TwoBrokers, client: KafkaClient
) -> None:
    brokers.leader = -1
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE: t-0"):
        offset_of(client)
    assert brokers.metadata_asked > 2


def test_what_cannot_pass_is_raised_at_once(brokers: TwoBrokers, client: KafkaClient) -> None:
    brokers.topic_error = 29
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: Metadata, t"):
        offset_of(client)
    assert brokers.metadata_asked == 1


def test_an_error_that_this_client_does_not_know_has_its_number(brokers: TwoBrokers, client: KafkaClient) -> None:
    brokers.partition_error = 9_999
    with pytest.raises(KafkaError, match="ERROR_9999: t-0: unexpected error in the broker") as refused:
        offset_of(client)
    assert refused.value.code == 9_999
    assert not refused.value.retriable


def test_metadata_is_asked_for_again_when_it_is_old(brokers: TwoBrokers) -> None:
    settings = KafkaSettings(addresses(brokers.ports[1]), metadata_age_ms_max=1, retry_backoff_ms=5)
    with KafkaClient(settings) as client:
        offset_of(client)
        asked = brokers.metadata_asked
        brokers.leader = 2
        while brokers.metadata_asked == asked:
            offset_of(client)
        assert offset_of(client) == 42
