"""Names are checked before any path is made of them: Kafka's error, and no file where none belongs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from tests.clients.drivers import Confluent, Sent
from tests.dialects.kafka.oracle import request_body
from tests.raw_peer import CREATE_TOPICS, METADATA, PRODUCE, RawPeer, metadata, produce, request
from tests.server.test_hostile_peers import BATCH

INVALID_TOPIC = 17
BAD_NAMES = [
    "../x",
    "a/b",
    "/etc/passwd",
    "",
    ".",
    "..",
    "x" * 250,
    "x" * 30_000,
    "nul\x00byte",
    "new\nline",
    "tab\t",
    "tøpic",
    "世界",
    "\u202eevil",
    "a b",
    "a\\b",
    "a:b",
    "x-0/../../y",
    "%2e%2e",
    "~",
    "$HOME",
]
GOOD_NAMES = ["x" * 249, "a", "...", "..a", "-", "_", "a.b_c-D9", "-rf", "__not_internal", "x-0", "topics", "CON"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def broker(home: Path) -> Iterator[Broker]:
    with Broker(home / "deep" / "data", settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture
def nothing_made(home: Path, broker: Broker) -> Iterator[None]:
    data = str(home / "deep" / "data")

    def everything() -> set[str]:
        """But for what the broker makes on its own time: the files of the data directory itself, which it replaces
        whenever it likes, and the offsets topic, which the consumer of an earlier test may have asked for."""
        found = set()
        for at, folders, names in os.walk(home):
            if at == data:
                folders[:] = [folder for folder in folders if not folder.startswith("__consumer_offsets-")]
            found.update(os.path.join(at, name) for name in (folders if at == data else (*folders, *names)))
        return found

    before = everything()
    yield
    assert everything() == before


def create(peer: RawPeer, *names: str) -> list[tuple[str, int]]:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} for name in names
    ]
    body = request_body(CREATE_TOPICS, 7, {"topics": topics, "timeout": 30_000, "validate_only": False})
    answer = peer.ask(CREATE_TOPICS, 7, request(CREATE_TOPICS, 7, body))
    return [(topic.name, topic.error_code) for topic in answer.topics]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:12]))
@pytest.mark.usefixtures("nothing_made")
def test_a_bad_name_is_refused_by_every_way_in(broker: Broker, name: str) -> None:
    with RawPeer(broker) as peer:
        assert create(peer, name) == [(name, INVALID_TOPIC)]
        [topic] = peer.ask(METADATA, 9, metadata(name, create=True)).topics
        assert (topic.name, topic.error_code) == (name, INVALID_TOPIC)
        [topic] = peer.ask(METADATA, 9, metadata(name, create=False)).topics
        assert (topic.name, topic.error_code) == (name, INVALID_TOPIC)
        [answer] = peer.ask(PRODUCE, 8, produce(name, BATCH)).responses
        assert answer.partition_responses[0].error_code == 3
        assert peer.ask(METADATA, 9, metadata()).topics == ()


@pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: ascii(name[:12]))
def test_a_good_name_is_a_folder_of_the_data_directory(broker: Broker, name: str) -> None:
    with RawPeer(broker) as peer:
        assert create(peer, name) == [(name, 0)]
    Confluent().write(broker.bootstrap, name, [Sent(b"v")])
    assert (broker.data_dir / f"{name}-0" / "00000000000000000000.log").stat().st_size > 0
    assert [seen.value for seen in Confluent().read(broker.bootstrap, name, 1)] == [b"v"]


def test_bad_names_among_good_ones_are_told_apart(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        assert create(peer, "good-1", "../bad", "good-2", "..") == [
            ("good-1", 0), ("../bad", INVALID_TOPIC), ("good-2", 0), ("..", INVALID_TOPIC)
        ]  # fmt: skip


def test_names_that_look_like_the_brokers_own_files_survive_a_restart(tmp_path: Path) -> None:
    """`x` with partition 10 and `x-1` with partition 0 are two topics."""
    with Broker(tmp_path / "data") as broker:
        for name in ("x", "x-1", "x-1-0", "checkpoint", "identity"):
            Confluent().write(broker.bootstrap, name, [Sent(name.encode())])
        broker.kill()
        broker.restart()
        for name in ("x", "x-1", "x-1-0", "checkpoint", "identity"):
            assert [seen.value for seen in Confluent().read(broker.bootstrap, name, 1)] == [name.encode()]
