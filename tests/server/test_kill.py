"""kill -9 at any moment, and clean restarts: what was acknowledged stays, where it was, once."""

from __future__ import annotations

import random
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from penstock import Broker
from tests.clients.drivers import Confluent, Sent, confluent_producer
from tests.history import History, Outcome
from tests.kill_run import kill_run

CYCLES = 3


def test_nothing_acknowledged_is_lost_doubled_or_moved_by_kill_9(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    with Broker(tmp_path / "data", settings={"storage.checkpoint_interval_ms": 300}) as broker:
        figures = kill_run(broker, CYCLES, seed)
        assert figures.verdict, f"seed {seed}\n{figures.verdict}"
        assert figures.unknown == 0
        assert figures.acknowledged > 100 * CYCLES
        assert figures.polled >= figures.acknowledged
        assert "Traceback" not in broker.log, broker.log


@pytest.mark.parametrize(("kind", "flush"), [("clean", "os"), ("kill -9", "acks")])
def test_an_idempotent_producer_goes_on_over_a_restart(tmp_path: Path, kind: str, flush: str) -> None:
    """The same producer, with its numbers, before and after: nothing twice, nothing refused."""
    history = History()

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        value = message.value()
        history.sent("p", 0, value, Outcome.OK, message.offset())

    with Broker(tmp_path / "data", settings={"storage.flush": flush}) as broker:
        producer = confluent_producer(
            broker.bootstrap, **{"enable.idempotence": True, "reconnect.backoff.ms": 20, "batch.num.messages": 10}
        )
        for cycle in range(2):
            for n in range(100):
                producer.produce("t", b"%d-%d" % (cycle, n), partition=0, on_delivery=delivered)
            assert producer.flush(60) == 0
            broker.kill() if kind == "kill -9" else broker.stop()
            # these wait for the broker to come back
            for n in range(100, 150):
                producer.produce("t", b"%d-%d" % (cycle, n), partition=0, on_delivery=delivered)
            broker.restart()
            assert producer.flush(60) == 0
        seen = Confluent().read(broker.bootstrap, "t", 300)
        history.polled("reader", 0, [(s.offset, s.value) for s in seen])
        assert history.count(Outcome.OK) == 300
        assert history.check(), str(history.check())
        assert "after a clean stop" in broker.log or kind != "clean"


def test_a_clean_restart_keeps_topics_configs_records_and_bounds(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", settings={"storage.flush": "os"}) as broker:
        address = broker.bootstrap
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic("t", 3, config={"segment.bytes": "2000", "retention.ms": "-1"})])["t"].result(30)
        admin.create_topics([NewTopic("gone", 1)])["gone"].result(30)
        admin.delete_topics(["gone"])["gone"].result(30)
        cluster = admin.list_topics(timeout=30).cluster_id
        topic_id = str(admin.describe_topics(confluent_kafka.TopicCollection(["t"]))["t"].result(30).topic_id)
        records = [Sent(b"%d" % n * 50, b"k", (("h", b"%d" % n),), 1_700_000_000_000 - n) for n in range(100)]
        Confluent().write(address, "t", records, **{"batch.num.messages": 10})
        low = confluent_kafka.TopicPartition("t", 0, 15)
        admin.delete_records([low])[low].result(30)
        before = Confluent().read(address, "t", 85, 15)

        assert broker.stop() == 0
        broker.restart()

        assert broker.bootstrap == address
        assert Confluent().read(address, "t", 85, 15) == before
        found = admin.list_topics(timeout=30)
        assert found.cluster_id == cluster
        assert [name for name in found.topics if not name.startswith("__")] == ["t"]
        assert sorted(found.topics["t"].partitions) == [0, 1, 2]
        assert str(admin.describe_topics(confluent_kafka.TopicCollection(["t"]))["t"].result(30).topic_id) == topic_id
        resource = ConfigResource(ResourceType.TOPIC, "t")
        assert admin.describe_configs([resource])[resource].result(30)["segment.bytes"].value == "2000"
        assert Confluent().write(address, "t", [Sent(b"next")]) == [100]
        with pytest.raises(AssertionError):
            Confluent().read(address, "t", 1, 14)
