"""Decompression bombs: each is refused or taken, and no other client waits for it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.broker.unpacking import LOOKUPS_AT_ONCE
from penstock.client.day1 import Day1Client, Day1Error
from penstock.client.fluxgo import FluxGoClient, FluxGoError
from penstock.client.flymq import FlyMQClient
from penstock.client.flymq_connection import FlyMQError
from penstock.client.minikafka import MiniKafkaClient, MiniKafkaError
from penstock.client.rustlog import RustLogClient, RustLogError
from penstock.model.limits import PREPARED_BYTES_MAX, UNPACKED_BYTES_MAX
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import compress
from penstock.records.walk import unpacked_bytes_max
from tests.dialects.flymq import broker as flymq
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import LIST_OFFSETS, PRODUCE, RawPeer, produce, request
from tests.server.bombs import BOMBS, MIB, PING_CPU_S_MAX, Watch, many_headers, zeros

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MESSAGE_TOO_LARGE, STORAGE_ERROR, UNKNOWN_PRODUCER_ID = 10, 56, 59
WAIT_S = 30.0
ACCEPTED = {("zeros", "snappy"), *(("records", codec) for codec in CODECS)}
"""A byte of snappy unpacks to 22 at most: what fits a batch is within the bounds."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    listen = tuple(f"{dialect}=127.0.0.1:0" for dialect in ("kafka", "day1", "fluxgo", "minikafka", "rustlog", "flymq"))
    with Broker(listen=listen, settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running


def make_topic(broker: Broker, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    named = {config.replace("_", "."): value for config, value in configs.items()}
    admin.create_topics([NewTopic(name, 4, config=named)])[name].result(WAIT_S)


def produced(broker: Broker, topic: str, batch: bytes, partition: int = 0) -> tuple[int, str | None, int]:
    """Kafka's error code, its text, and the offset that the batch was given."""
    with RawPeer(broker) as peer:
        [answer] = peer.ask(PRODUCE, 8, produce(topic, batch, partition=partition)).responses
        [result] = answer.partition_responses
        return int(result.error_code), result.error_message, result.base_offset


TOO_LARGE = re.compile(r"the records are larger than \d+ bytes|more than 1000000 headers in a batch")


def assert_nobody_waits(broker: Broker, bomb: Callable[[], object], memory_bytes_max: int) -> None:
    """No ping takes long while the bomb is handled. Threads that unpack count too while a ping waits for a processor, so
    the best of some tries tells what the broker does."""
    for _ in range(3):
        watch = Watch(broker)
        watch.during(bomb)
        assert watch.memory_growth_bytes < memory_bytes_max
        if watch.longest_cpu_s < PING_CPU_S_MAX:
            return
    pytest.fail(f"a ping took {watch.longest_cpu_s * 1000:.0f} ms of the broker's processor time")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", BOMBS)
def test_bomb_for_a_compacted_topic_does_not_block_other_clients(broker: Broker, name: str, codec: str) -> None:
    topic = f"compacted.{name.replace(' ', '-')}.{codec}"
    make_topic(broker, topic, cleanup_policy="compact", max_message_bytes="8000000")
    batch = BOMBS[name](CODECS[codec])

    def bomb() -> None:
        code, text, offset = produced(broker, topic, batch)
        if (name, codec) in ACCEPTED:
            assert (code, text) == (0, None)
        else:
            assert (code, offset) == (MESSAGE_TOO_LARGE, -1)
            assert TOO_LARGE.fullmatch(text or "")

    assert_nobody_waits(broker, bomb, unpacked_bytes_max(len(batch)) + 32 * MIB)


def answer_of(peer: RawPeer) -> tuple[int, int]:
    """Kafka's error code and the offset in the next answer to a produce."""
    frame = peer.read_frame()
    assert frame is not None
    [answer] = decode_answer(PRODUCE, 8, frame).responses
    [result] = answer.partition_responses
    return int(result.error_code), result.base_offset


def test_bombs_on_many_connections_take_no_more_memory_than_is_allowed(broker: Broker) -> None:
    make_topic(broker, "many", cleanup_policy="compact")
    bombs = [zeros(codec, 15 * MIB) for codec in (CODECS["gzip"], CODECS["lz4"], CODECS["zstd"])]

    def bomb() -> None:
        with ExitStack() as stack:
            peers = [stack.enter_context(RawPeer(broker)) for _ in range(60)]
            for at, peer in enumerate(peers):
                peer.send(produce("many", bombs[at % 3], partition=at % 4))
            assert {answer_of(peer)[0] for peer in peers} == {0}

    assert_nobody_waits(broker, bomb, PREPARED_BYTES_MAX + UNPACKED_BYTES_MAX)


def test_refused_bombs_leave_no_memory_behind(broker: Broker) -> None:
    make_topic(broker, "refused", cleanup_policy="compact")
    batch = zeros(CODECS["gzip"], 100 * MIB)

    def bomb() -> None:
        for _ in range(40):
            assert produced(broker, "refused", batch)[0] == MESSAGE_TOO_LARGE

    assert_nobody_waits(broker, bomb, 2 * unpacked_bytes_max(len(batch)) + 64 * MIB)


# ---- order ---------------------------------------------------------------------------------------------------------


def sequenced(count: int, sequence: int, codec: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    records = [NewRecord(1, b"k", b"v")] * count
    fields = {"producer_id": 77, "producer_epoch": 0, "base_sequence": sequence}
    return bytes(build_batch(records, compression=codec, **fields))


SLOW_RECORDS = 20_000


def test_slow_and_quick_batches_of_a_producer_keep_their_order(broker: Broker) -> None:
    make_topic(broker, "order", cleanup_policy="compact")
    sequences = [0]
    with RawPeer(broker) as peer:
        for _ in range(5):
            for count, codec in ((SLOW_RECORDS, CODECS["zstd"]), (1, 0), (10, CODECS["lz4"])):
                peer.send(produce("order", sequenced(count, sequences[-1], codec)))
                sequences.append(sequences[-1] + count)
        assert [answer_of(peer) for _ in sequences[1:]] == [(0, sequence) for sequence in sequences[:-1]]


def test_quick_batch_of_another_connection_is_appended_after_the_slow_one(broker: Broker) -> None:
    make_topic(broker, "order-of-two", cleanup_policy="compact")
    with RawPeer(broker) as one, RawPeer(broker) as two:
        one.send(produce("order-of-two", sequenced(SLOW_RECORDS, 0, CODECS["gzip"])))
        answer = (UNKNOWN_PRODUCER_ID, -1)
        while answer[0] == UNKNOWN_PRODUCER_ID:  # the quick one was there first, and is sent again as producers do
            two.send(produce("order-of-two", sequenced(1, SLOW_RECORDS)))
            answer = answer_of(two)
        assert answer == (0, SLOW_RECORDS)
        assert answer_of(one) == (0, 0)


# ---- reads ---------------------------------------------------------------------------------------------------------


def day1_records(broker: Broker, topic: str) -> int:
    with Day1Client(*address(broker, "day1")) as client:
        return len(client.fetch(topic, 0, 0, 8 * MIB))


def fluxgo_records(broker: Broker, topic: str) -> int:
    with FluxGoClient(*address(broker, "fluxgo")) as client:
        return len([client.consume(topic, 0, 0)])


def minikafka_records(broker: Broker, topic: str) -> int:
    with MiniKafkaClient(*address(broker, "minikafka")) as client:
        return 1 if client.consume(topic, f"group-{uuid.uuid4()}", 0) is not None else 0


def rustlog_records(broker: Broker, topic: str) -> int:
    with RustLogClient(*address(broker, "rustlog")) as client:
        return len(client.fetch(topic, 0, 0, 8 * MIB).records)


def flymq_records(broker: Broker, topic: str) -> int:
    with FlyMQClient(broker.addresses["flymq"]) as client:
        return len(client.fetch(topic, 0, 0)[0])


def offset_by_time(broker: Broker, topic: str) -> int:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1}
    tree = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [asked]}]}
    with RawPeer(broker) as peer:
        [answer] = peer.ask(LIST_OFFSETS, 4, request(LIST_OFFSETS, 4, request_body(LIST_OFFSETS, 4, tree))).topics
        if answer.partitions[0].error_code:
            raise ReadError(answer.partitions[0].error_code)
        return int(answer.partitions[0].offset == 0)


class ReadError(Exception):
    """A read of Kafka's protocol that failed."""


READERS = (day1_records, fluxgo_records, minikafka_records, rustlog_records, flymq_records, offset_by_time)
ERRORS = (Day1Error, FluxGoError, MiniKafkaError, RustLogError, FlyMQError, ReadError, ConnectionError)
UNREADABLE = {(name, codec) for name in ("headers", "zeros") for codec in CODECS if codec != "snappy"}


def address(broker: Broker, dialect: str) -> tuple[str, int]:
    host, _, port = broker.addresses[dialect].rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", BOMBS)
def test_reading_a_bomb_does_not_block_other_clients(broker: Broker, name: str, codec: str) -> None:
    topic = f"plain.{name.replace(' ', '-')}.{codec}"
    make_topic(broker, topic, max_message_bytes="8000000")
    batch = BOMBS[name](CODECS[codec])
    assert produced(broker, topic, batch) == (0, None, 0)

    for records in READERS:

        def bomb(records: Callable[[Broker, str], int] = records) -> None:
            try:
                read = records(broker, topic)
            except ERRORS:
                read = 0
            else:
                assert read or name == "zeros"
            assert (name, codec) not in UNREADABLE or not read

        assert_nobody_waits(broker, bomb, 3 * unpacked_bytes_max(len(batch)) + 64 * MIB)


def test_failed_lookups_by_time_leave_no_memory_behind(broker: Broker) -> None:
    make_topic(broker, "lookups")
    batch = zeros(CODECS["gzip"], 100 * MIB)
    assert produced(broker, "lookups", batch)[0] == 0
    rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": at} for at in range(1, 41)]
    tree = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "lookups", "partitions": rows}]}
    asked = request(LIST_OFFSETS, 4, request_body(LIST_OFFSETS, 4, tree))

    def bomb() -> None:
        with RawPeer(broker) as peer:
            [answer] = peer.ask(LIST_OFFSETS, 4, asked).topics
        assert {int(row.error_code) for row in answer.partitions} == {STORAGE_ERROR}

    assert_nobody_waits(broker, bomb, LOOKUPS_AT_ONCE * 2 * unpacked_bytes_max(len(batch)) + 64 * MIB)


def test_small_reads_of_records_with_many_headers_stop_nobody(broker: Broker) -> None:
    make_topic(broker, "headers")
    assert produced(broker, "headers", many_headers(CODECS["zstd"], 90, 10_000))[0] == 0

    def bomb() -> None:
        with Day1Client(*address(broker, "day1")) as client:
            for _ in range(5):
                assert client.fetch("headers", 0, 0, 2_000)
        with RustLogClient(*address(broker, "rustlog")) as client:
            for _ in range(5):
                assert client.fetch("headers", 0, 0, 100).records
        with FluxGoClient(*address(broker, "fluxgo")) as client:
            for offset in range(50):
                client.consume("headers", 0, offset)

    assert_nobody_waits(broker, bomb, 64 * MIB)


# ---- compressed requests -------------------------------------------------------------------------------------------

FLYMQ_CODECS = {"lz4": (1, 0x05), "snappy": (2, 0x09), "zstd": (3, 0x07), "gzip": (4, 0x03)}
"""The numbers in a batch of an API-key frame, and the flags of an opcode frame."""


@pytest.mark.parametrize("codec", FLYMQ_CODECS)
def test_compressed_flymq_request_does_not_block_other_clients(broker: Broker, codec: str) -> None:
    number, flags = FLYMQ_CODECS[codec]
    value_bytes = 10 * MIB if codec == "snappy" else 31 * MIB
    produce_zeros = flymq.s("bombs") + flymq.b(b"k") + flymq.b(bytes(value_bytes)) + flymq.i32(0)
    zeros_packed = compress(CODECS[codec], produce_zeros)
    messages = flymq.message(b"v") * 500_000
    many = flymq.s("bombs") + flymq.i32(0) + flymq.batch(compression=number, packed=compress(CODECS[codec], messages))
    few = flymq.message(b"v") * 5_000
    taken = flymq.s("bombs") + flymq.i32(0) + flymq.batch(compression=number, packed=compress(CODECS[codec], few))

    def bomb() -> None:
        with flymq.Wire(address(broker, "flymq")[1]) as wire:
            answer = wire.ask(flymq.op(0x01, zeros_packed, flags))
            if codec == "snappy":
                assert answer.opcode == 0x01
            else:
                assert "the records are larger than" in answer.text
            refused = wire.api(0, many)
            assert refused.text == "more than 5000 messages and headers in a compressed batch"
            assert wire.api(0, taken).error == 0

    assert_nobody_waits(broker, bomb, 256 * MIB)
