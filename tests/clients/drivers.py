"""One way to write and read for four Kafka clients: confluent-kafka, aiokafka, kafka-python and kcat.

Each is used as its users would; what a client cannot say (kcat: timestamps, several headers of one name) is left out by it.
Reading is by `assign`, from a given offset, without a group.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import aiokafka
import aiokafka.codec
import aiokafka.structs
import confluent_kafka

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.codec

for _noisy in ("aiokafka", "kafka"):
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 30.0

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record to write; a timestamp of None is the client's own clock."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Seen(NamedTuple):
    """A record as a client gave it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Client(Protocol):
    name: str
    codecs: tuple[str, ...]
    has_timestamps: bool

    def write(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> list[int]:
        """Write to partition 0, in as few batches as the client likes; the offsets (none with acks 0)."""
        ...

    def read(self, bootstrap: str, topic: str, count: int, offset: int = 0) -> list[Seen]:
        """The first `count` records of partition 0 from `offset` on."""
        ...


class Confluent:
    name = "confluent-kafka"
    codecs = CODECS
    has_timestamps = True

    def write(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> list[int]:
        # flush() does not wait for the linger, so all that fits goes out in one batch, however slow the machine; the
        # partition has to be known before, or flush() finds some records in its queue and others on their way there
        producer = confluent_producer(bootstrap, acks=acks, **{"compression.type": codec, "linger.ms": 10_000, **more})
        producer.list_topics(topic, WAIT_S)
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            (errors.append(error) if error else offsets.append(message.offset()))

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=0,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=delivered,
            )
        assert producer.flush(WAIT_S) == 0
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return offsets if acks else []

    def read(self, bootstrap: str, topic: str, count: int, offset: int = 0) -> list[Seen]:
        with confluent_consumer(bootstrap) as consumer:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
            seen = []
            while len(seen) < count:
                messages = consumer.consume(count - len(seen), WAIT_S)
                assert messages, f"{len(seen)} of {count} records came"
                for message in messages:
                    assert message.error() is None, message.error()
                    headers = tuple(message.headers() or ())
                    seen.append(Seen(message.offset(), message.key(), message.value(), headers, message.timestamp()[1]))
            return seen


def confluent_producer(bootstrap: str, **settings: Any) -> Any:
    return confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200, **settings}
    )


@contextmanager
def confluent_consumer(bootstrap: str, **settings: Any) -> Iterator[Any]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
            **settings,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


class Aiokafka:
    name = "aiokafka"
    codecs = CODECS
    has_timestamps = True

    def write(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> list[int]:
        return asyncio.run(self._write(bootstrap, topic, records, codec, acks, more))

    async def _write(
        self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str, acks: int, more: dict[str, Any]
    ) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            linger_ms=50,
            **more,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=0,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            done = [await future for future in futures]
        finally:
            await producer.stop()
        return [metadata.offset for metadata in done] if acks else []

    def read(self, bootstrap: str, topic: str, count: int, offset: int = 0) -> list[Seen]:
        return asyncio.run(asyncio.wait_for(self._read(bootstrap, topic, count, offset), WAIT_S))

    async def _read(self, bootstrap: str, topic: str, count: int, offset: int) -> list[Seen]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        try:
            partition = aiokafka.structs.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            seen = []
            while len(seen) < count:
                message = await consumer.getone()
                seen.append(Seen(message.offset, message.key, message.value, tuple(message.headers), message.timestamp))
            return seen
        finally:
            await consumer.stop()


class KafkaPython:
    name = "kafka-python"
    codecs = CODECS if kafka.codec.has_snappy() else tuple(codec for codec in CODECS if codec != "snappy")
    has_timestamps = True

    def write(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            linger_ms=50,
            **{"enable_idempotence": acks == -1, **more},
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=0,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            producer.flush(timeout=WAIT_S)
            done = [future.get(timeout=WAIT_S) for future in futures]
        finally:
            producer.close(timeout=WAIT_S)
        return [metadata.offset for metadata in done] if acks else []

    def read(self, bootstrap: str, topic: str, count: int, offset: int = 0) -> list[Seen]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            consumer_timeout_ms=WAIT_S * 1000,
        )
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            seen: list[Seen] = []
            for message in consumer:
                seen.append(Seen(message.offset, message.key, message.value, tuple(message.headers), message.timestamp))
                if len(seen) == count:
                    break
            assert len(seen) == count
            return seen
        finally:
            consumer.close()


class Kcat:
    """One process for the records of one set of headers, fields between bytes that no test record has."""

    name = "kcat"
    codecs = CODECS
    has_timestamps = False
    path = shutil.which("kcat") or shutil.which("kafkacat")

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        assert self.path is not None
        return subprocess.run([self.path, *arguments], input=stdin, capture_output=True, timeout=WAIT_S, check=False)

    def write(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, codec: str = "none", acks: int = -1, **more: Any
    ) -> list[int]:
        settings = {"acks": acks, "compression.codec": codec, "linger.ms": 50, **more}
        options = [f"-X{name}={value}" for name, value in settings.items()]
        first = 0
        while first < len(records):
            headers = records[first].headers
            last = first
            while last < len(records) and records[last].headers == headers:
                last += 1
            lines = b"".join(
                (record.key or b"") + b"\x1f" + (record.value or b"") + b"\x1e" for record in records[first:last]
            )
            done = self.run(
                "-P", "-b", bootstrap, "-t", topic, "-p0", "-K\x1f", "-D\x1e", "-Z",
                *(f"-H{name}={value.decode()}" for name, value in headers if value is not None), *options,
                stdin=lines,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr.decode()
            first = last
        return []

    def read(self, bootstrap: str, topic: str, count: int, offset: int = 0) -> list[Seen]:
        form = "%o %T %K %S %h\x1f%k\x1f%s\x1e"
        done = self.run(
            "-C", "-q", "-b", bootstrap, "-t", topic, "-p0", f"-o{offset}", f"-c{count}", "-f", form,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        seen = []
        for line in done.stdout.split(b"\x1e")[:-1]:
            head, key, value = line.split(b"\x1f")
            at, timestamp, key_bytes, value_bytes, headers = head.split(b" ", 4)
            pairs = (pair.split(b"=", 1) for pair in headers.split(b",") if pair)
            seen.append(
                Seen(
                    int(at),
                    None if int(key_bytes) < 0 else key,
                    None if int(value_bytes) < 0 else value,
                    tuple((name.decode(), text) for name, text in pairs),
                    int(timestamp),
                )
            )
        return seen


CLIENTS: tuple[Client, ...] = (Confluent(), Aiokafka(), KafkaPython(), Kcat())
