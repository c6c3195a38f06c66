"""A full disk: writes fail with Kafka's storage error, reads go on, and with room again so does everything.

Needs a small file system of its own, so it needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from penstock import Broker
from penstock.server.embedding import BrokerStartFailed
from tests.clients.drivers import Confluent, confluent_producer
from tests.clients.test_producing import create
from tests.history import History, Outcome

DISK_BYTES = 12 << 20
BALLAST_BYTES = 3 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    """Leave no room at all."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


class Writer:
    """One idempotent producer; what it was told goes into the history."""

    def __init__(self, bootstrap: str, history: History) -> None:
        self._history = history
        self._producer = confluent_producer(
            bootstrap, **{"retries": 0, "batch.num.messages": 1, "message.max.bytes": 1_000_000, "acks": "all"}
        )
        self._sent = 0
        self.codes: list[int] = []

    def write(self, size: int) -> bool:
        """Whether it was taken."""
        value = b"%08d" % self._sent * (size // 8)
        self._sent += 1
        before = len(self.codes)
        self._producer.produce("t", value, partition=0, on_delivery=self._delivered)
        assert self._producer.flush(30) == 0
        return len(self.codes) == before

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        value = message.value()
        if error is None:
            self._history.sent("writer", 0, value, Outcome.OK, message.offset())
        else:
            self.codes.append(error.code())
            self._history.sent("writer", 0, value, Outcome.FAILED)


def read_back(broker: Broker, history: History, reader: str) -> None:
    count = history.count(Outcome.OK)
    seen = Confluent().read(broker.bootstrap, "t", count)
    history.polled(reader, 0, [(s.offset, s.value) for s in seen])
    verdict = history.check()
    assert verdict, str(verdict)


@pytest.mark.parametrize("flush", ["acks", "os"])
def test_a_full_disk_loses_nothing_and_room_brings_it_back(small_disk: Path, flush: str) -> None:
    history = History()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    settings = {"storage.flush": flush, "storage.checkpoint_interval_ms": 200}
    with Broker(small_disk / "data", settings=settings) as broker:
        create(broker, "t", segment_bytes="2000000")
        writer = Writer(broker.bootstrap, history)
        while writer.write(200_000):
            assert history.count(Outcome.OK) * 200_000 < DISK_BYTES, "the disk never became full"
        assert writer.codes == [KafkaError.KAFKA_STORAGE_ERROR]
        for _ in range(3):
            assert not writer.write(200_000)
        assert set(writer.codes) == {KafkaError.KAFKA_STORAGE_ERROR}
        read_back(broker, history, "while full")

        ballast.unlink()
        again = Writer(broker.bootstrap, history)
        again._sent = 10_000
        for _ in range(5):
            assert again.write(200_000)
        read_back(broker, history, "with room")
        assert "Traceback" not in broker.log, broker.log

        broker.kill()
        broker.restart()
        read_back(broker, history, "after a crash")
        assert again.write(1_000) or not again.codes
        assert broker.stop() == 0
        assert "Traceback" not in broker.log, broker.log


def test_a_broker_on_a_disk_without_any_room_serves_or_says_so_in_one_line(small_disk: Path) -> None:
    """After a crash a start must write its new epoch: with no room it says so, and works when there is some."""
    history = History()
    broker = Broker(small_disk / "data", settings={"storage.flush": "os"})
    broker.start()
    try:
        writer = Writer(broker.bootstrap, history)
        assert all(writer.write(10_000) for _ in range(20))
        broker.kill()
        fill(small_disk / "ballast")
        with pytest.raises(BrokerStartFailed, match="exit code 2") as refused:
            broker.start()
        assert "Traceback" not in str(refused.value)
        assert "No space left" in str(refused.value)
        (small_disk / "ballast").unlink()
        broker.restart()
        read_back(broker, history, "with room")

        # a clean stop that finds no room for its marker is a stop all the same
        fill(small_disk / "ballast")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log, broker.log
        (small_disk / "ballast").unlink()
        broker.restart()
        read_back(broker, history, "at last")
    finally:
        broker.close()
