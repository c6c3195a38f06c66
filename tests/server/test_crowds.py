"""Requests about large things that were made before: groups, transactions and topics as large as they may be.

Pings of another client take less than 50 ms of broker CPU time, and an answer that would be too large closes the connection
of the client that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Broker
from penstock.dialects.kafka.apis import ApiKey
from penstock.model import limits
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import RawPeer, api_versions
from tests.server.large_requests import Large, Ping, kafka_frame, longest_ping, too_long
from tests.server.test_large_requests import SETTINGS, address

WIDE = 4_000
MANY = 1_500
"""Topics of one partition that patterns look at."""


def frame(key: int, version: int, tree: dict[str, Any]) -> bytes:
    return kafka_frame(key, version, request_body(key, version, tree))


def ask(broker: Broker, key: int, version: int, *trees: dict[str, Any]) -> list[Any]:
    with RawPeer(broker) as peer:
        peer.send(b"".join(frame(key, version, tree) for tree in trees))
        frames = [peer.read_frame() for _ in trees]
        return [decode_answer(key, version, data) for data in frames if data is not None]


def heartbeat(group: str, member: str, *names: str, pattern: str | None = None) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": list(names),
        "subscribed_topic_regex": pattern,
        "server_assignor": None,
        "topic_partitions": [],
    }


def commit(first: int, count: int) -> dict[str, Any]:
    rows = [{"partition_index": first + n, "committed_offset": 1, "committed_metadata": ""} for n in range(count)]
    return {
        "group_id": "offsets",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [{"name": "wide", "partitions": rows}],
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        fill(broker)
        yield broker
        assert "Traceback" not in broker.log, broker.log
        broker.kill()


def fill(broker: Broker) -> None:
    """A wide topic and many topics; a consumer group, offsets and a transaction for all of the wide one's partitions."""
    counts = {"wide": WIDE, **{f"t{number}": 1 for number in range(MANY)}}
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in counts.items()
    ]
    ask(broker, ApiKey.CREATE_TOPICS, 4, {"topics": topics, "timeout": 60_000, "validate_only": False})
    ask(broker, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat("consumers", "m", "wide"))
    ask(broker, ApiKey.OFFSET_COMMIT, 2, *(commit(first, 1_000) for first in range(0, WIDE, 1_000)))
    [producer] = ask(broker, ApiKey.INIT_PRODUCER_ID, 0, {"transactional_id": "tx", "transaction_timeout": 600_000})
    added = {
        "v3_and_below_transactional_id": "tx",
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.producer_epoch,
        "v3_and_below_topics": [{"name": "wide", "partitions": list(range(WIDE))}],
    }
    ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)


def join(number: int, group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": f"i{number}",
        "protocol_type": "consumer",
        "protocols": [{"name": "p", "metadata": bytes(1_000)}],
    }


def crowds() -> Iterator[Large]:
    many = [heartbeat("crowd", f"m{number}", "wide") for number in range(400)]
    beats = b"".join(frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, tree) for tree in many)
    yield Large("400 members join a consumer group", beats, len(many))
    for pattern in (".*", "t.*"):
        beat = frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat(f"of {pattern}", "m", pattern=pattern))
        yield Large(f"a member subscribes to {pattern}", beat)
    different = [heartbeat("patterns", f"m{number}", pattern=f"t{number}|t.*") for number in range(300)]
    beats = b"".join(frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, tree) for tree in different)
    yield Large("300 members with a pattern each", beats, len(different))
    described = {"group_ids": ["consumers", "crowd", "of t.*"], "include_authorized_operations": False}
    yield Large("ConsumerGroupDescribe", frame(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, described))
    fetched = {"groups": [{"group_id": "offsets", "topics": None}], "require_stable": True}
    yield Large("OffsetFetch of all", frame(ApiKey.OFFSET_FETCH, 8, fetched))
    yield Large("DescribeTransactions", frame(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["tx"] * 20}))
    yield Large("DeleteGroups", frame(ApiKey.DELETE_GROUPS, 1, {"groups_names": ["offsets"]}))


CROWDS = list(crowds())


@pytest.mark.parametrize("large", CROWDS, ids=[large.name for large in CROWDS])
def test_pings_do_not_wait_for_requests_for_large_objects(broker: Broker, large: Large) -> None:
    with Ping(address(broker), broker.pid, api_versions()) as ping:
        complaint = too_long(ping, address(broker), large)
    assert complaint is None, complaint


REPEATED = {
    "ConsumerGroupDescribe": (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        1,
        {"group_ids": ["consumers"] * 1_000, "include_authorized_operations": False},
    ),
    "OffsetFetch": (
        ApiKey.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": "all", "topics": None}] * 1_000, "require_stable": False},
    ),
    "DescribeTransactions": (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["tx"] * 1_000}),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeating_a_large_object_closes_the_connection(broker: Broker, name: str) -> None:
    if name == "OffsetFetch":
        trees = [{**commit(first, 1_000), "group_id": "all"} for first in range(0, WIDE, 1_000)]
        ask(broker, ApiKey.OFFSET_COMMIT, 2, *trees)
    with Ping(address(broker), broker.pid, api_versions()) as ping:
        served = longest_ping(ping, address(broker), Large(name, frame(*REPEATED[name])))
    assert served.outcome == "closed"
    assert str(limits.ANSWER_ELEMENTS_MAX) in broker.log


def test_largest_group_rebalances_while_other_clients_are_served(broker: Broker) -> None:
    """Static members of one process: the first to join leads, and the others wait until it joins again."""
    half = limits.GROUP_MEMBERS_MAX // 2
    frames = [frame(ApiKey.JOIN_GROUP, 5, join(number, "classic")) for number in range(2 * half)]
    with (
        RawPeer(broker) as leader,
        RawPeer(broker) as some,
        RawPeer(broker) as others,
        Ping(address(broker), broker.pid, api_versions()) as ping,
    ):
        leader.send(frames[0])
        answer = leader.read_frame()
        assert answer is not None
        first = decode_answer(ApiKey.JOIN_GROUP, 5, answer)
        some.send(b"".join(frames[1:half]))
        others.send(b"".join(frames[half:]))
        described = {"groups": ["classic"], "include_authorized_operations": False}
        while len(ask(broker, ApiKey.DESCRIBE_GROUPS, 5, described)[0].groups[0].members) < len(frames):
            pass
        again = frame(ApiKey.JOIN_GROUP, 5, {**join(0, "classic"), "member_id": first.member_id})
        served = longest_ping(ping, address(broker), Large("the leader joins again", again))
        assert served.outcome == "answered"
        assert served.longest_ping_ms <= 50
        refused = ask(broker, ApiKey.JOIN_GROUP, 5, join(2 * half, "classic"))
        assert refused[0].error_code.name == "group_max_size_reached"
