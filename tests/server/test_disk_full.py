"""A full disk: writes fail with Kafka's storage error, reads go on, and with room again so does everything.

Needs a small file system of its own, so it needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from penstock import Broker
from tests.clients.drivers import Confluent, confluent_producer
from tests.clients.test_producing import create
from tests.history import History, Outcome

DISK_BYTES = 12 << 20
BALLAST_BYTES = 3 << 20


@contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """A file system that is mounted at `place`."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place.mkdir()
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs") as place:
        yield place


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """Where freed blocks become usable only when the journal was written."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(2 * DISK_BYTES)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot make an ext4 file system here: {error}")
    with mounted(tmp_path / "disk", "-o", "loop", str(image)) as place:
        yield place


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

    def __init__(self, bootstrap: str, history: History, topic: str = "t") -> None:
        self._history = history
        self._topic = topic
        self._producer = confluent_producer(
            bootstrap, **{"retries": 0, "batch.num.messages": 1, "message.max.bytes": 1_000_000, "acks": "all"}
        )
        self.sent = 0
        self.codes: list[int] = []

    def write(self, size: int) -> bool:
        """Whether it was taken."""
        value = b"%08d" % self.sent * (size // 8)
        self.sent += 1
        before = len(self.codes)
        self._producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
        assert self._producer.flush(30) == 0
        return len(self.codes) == before

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        value = message.value()
        if error is None:
            self._history.sent("writer", 0, value, Outcome.OK, message.offset())
        else:
            self.codes.append(error.code())
            self._history.sent("writer", 0, value, Outcome.FAILED)


def command(broker: Broker, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A run of `penstock`, which must end by itself."""
    line = [sys.executable, "-m", "penstock.cli.main", *arguments, "--bootstrap", broker.bootstrap]
    return subprocess.run(line, input=stdin, capture_output=True, timeout=60)


def read_back(broker: Broker, history: History, reader: str, topic: str = "t") -> None:
    count = history.count(Outcome.OK)
    seen = Confluent().read(broker.bootstrap, topic, count)
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
        wait_for_room(broker)
        again = Writer(broker.bootstrap, history)
        again.sent = 10_000
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


def wait_for(broker: Broker, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.02)


def wait_for_room(broker: Broker) -> None:
    """Until the broker takes records again: the last line of its log about the disk says so."""
    wait_for(broker, lambda: broker.log.rfind(": everything is written") > broker.log.rfind(" are refused "))


def delete(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [deleted] = admin.delete_topics([topic]).values()
    deleted.result(30)


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("flush", ["acks", "os"])
def test_deleting_a_topic_frees_the_space_of_a_full_disk(small_disk: Path, flush: str) -> None:
    with Broker(small_disk / "data", settings={"storage.flush": flush}) as broker:
        create(broker, "t")
        writer = Writer(broker.bootstrap, History())
        while writer.write(200_000):
            pass
        assert free_bytes(small_disk) < 1 << 20
        delete(broker, "t")
        assert free_bytes(small_disk) > DISK_BYTES - (1 << 20)


def test_broker_log_names_the_topic_of_refused_appends(small_disk: Path) -> None:
    with Broker(small_disk / "data") as broker:
        create(broker, "t")
        writer = Writer(broker.bootstrap, History())
        while writer.write(200_000):
            pass
        assert "write to t-0 refused" in broker.log


def test_broker_on_a_full_disk_starts_and_serves_reads(small_disk: Path) -> None:
    """After a crash a start must write its new leader epoch: the reserve has room for it."""
    history = History()
    broker = Broker(small_disk / "data", settings={"storage.flush": "os"})
    broker.start()
    try:
        writer = Writer(broker.bootstrap, history)
        assert all(writer.write(10_000) for _ in range(20))
        broker.kill()
        fill(small_disk / "ballast")
        broker.start()
        assert "leader epoch 1" in broker.log
        read_back(broker, history, "without room")
        (small_disk / "ballast").unlink()
        wait_for_room(broker)
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


@pytest.mark.parametrize("disk", ["small_disk", "small_ext4"])
def test_broker_on_a_completely_full_disk_starts_reads_deletes_and_recovers(
    request: pytest.FixtureRequest, disk: str
) -> None:
    """Also one that has no reserve, as after an update, or when others took what was freed."""
    place: Path = request.getfixturevalue(disk)
    history = History()
    with Broker(place / "data", settings={"storage.flush": "os"}) as broker:
        for topic, owner in (("t", History()), ("u", history)):
            create(broker, topic)
            writer = Writer(broker.bootstrap, owner, topic)
            assert all(writer.write(200_000) for _ in range(20))
        broker.kill()
        (place / "data" / "reserve").unlink()
        fill(place / "ballast")
        broker.restart()
        read_back(broker, history, "without room", "u")
        consumed = command(broker, "consume", "u", "--group", "g", "--count", "3")
        assert (consumed.returncode, consumed.stdout) == (1, b"")
        assert b"group g: " in consumed.stderr
        assert b"no room on the broker's disk" in consumed.stderr
        assert consumed.stderr.count(b"\n") == 1
        assert not writer.write(1_000)
        assert writer.codes == [KafkaError.KAFKA_STORAGE_ERROR]
        delete(broker, "t")
        wait_for_room(broker)
        writer = Writer(broker.bootstrap, history, "u")
        writer.sent = 1_000
        assert writer.write(1_000)
        broker.kill()
        broker.restart()
        assert "leader epoch 2" in broker.log
        assert command(broker, "consume", "u", "--group", "g", "--count", "3").returncode == 0
        read_back(broker, history, "at last", "u")
        assert writer.write(1_000)
        assert "Traceback" not in broker.log, broker.log


@pytest.mark.parametrize("flush", ["acks", "os"])
def test_cycles_of_a_full_disk_lose_nothing(small_disk: Path, flush: str) -> None:
    """Filled by a producer, emptied by deleting another topic, killed while full every second time."""
    history = History()
    # A producer of a deleted topic asks for it again and again: it must not create it.
    settings = {"storage.flush": flush, "broker.auto_create_topics": False}
    with Broker(small_disk / "data", settings=settings) as broker:
        create(broker, "t")
        for cycle in range(3):
            create(broker, "ballast")
            writer = Writer(broker.bootstrap, History(), "ballast")
            assert all(writer.write(200_000) for _ in range(15))
            writer = Writer(broker.bootstrap, history)
            writer.sent = 1_000 * cycle
            taken = history.count(Outcome.OK)
            assert writer.write(200_000)
            while history.count(Outcome.OK) < taken + 12 and writer.write(200_000):
                pass
            filler = Writer(broker.bootstrap, History(), "ballast")
            while filler.write(200_000):
                pass
            assert not writer.write(200_000)
            assert set(writer.codes) == {KafkaError.KAFKA_STORAGE_ERROR}
            read_back(broker, history, f"full {cycle}")
            if cycle % 2:
                broker.kill()
                broker.restart()
                read_back(broker, history, f"after a kill {cycle}")
            delete(broker, "ballast")
            wait_for_room(broker)
            create(broker, "ballast")
            assert Writer(broker.bootstrap, History(), "ballast").write(100)
            delete(broker, "ballast")
        read_back(broker, history, "at last")
        assert "Traceback" not in broker.log, broker.log


def test_groups_consume_and_commit_on_a_full_disk(small_disk: Path) -> None:
    """Also the first group of a broker, whose topic must be created for it."""
    with Broker(small_disk / "data") as broker:
        create(broker, "t")
        writer = Writer(broker.bootstrap, History())
        while writer.write(200_000):
            pass
        for first in (0, 3):
            consumed = command(broker, "consume", "t", "--group", "g", "--count", "3")
            assert (consumed.returncode, consumed.stderr) == (0, b"")
            assert [line[:8] for line in consumed.stdout.splitlines()] == [b"%08d" % n for n in range(first, first + 3)]
