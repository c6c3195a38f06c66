"""How kept directories are written and read: batches with chosen producers and sequences, and every record of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import confluent_kafka

from penstock import Broker
from penstock.client.kafka import KafkaClient, Producer
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from tests.clients.drivers import WAIT_S, confluent_consumer
from tests.kept_directories.contents import COMMITTED, Batch, Contents, Log, Row

Place = tuple[str, int]


def produce(
    client: KafkaClient,
    contents: Contents,
    place: tuple[str, int],
    records: Sequence[NewRecord],
    *,
    codec: int = Codec.NONE,
    producer: Producer | None = None,
    base_sequence: int = -1,
    transactional_id: str | None = None,
    fate: str = COMMITTED,
) -> int:
    """Write one batch, and note what was acknowledged; the base offset."""
    producer_id, epoch = producer or (-1, -1)
    batch = build_batch(
        records,
        compression=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
        transactional=transactional_id is not None,
    )
    done = client.produce({place: batch}, transactional_id=transactional_id)
    base_offset, append_time_ms, _ = done[place]  # type: ignore[index]  # a TopicPartition is such a tuple
    log = contents.logs.setdefault(place, Log())
    for offset, (timestamp_ms, key, value, headers) in enumerate(records, base_offset):
        stamp_ms = timestamp_ms if append_time_ms < 0 else append_time_ms
        row = Row(offset, _owned(key), _owned(value), tuple((name, _owned(text)) for name, text in headers), stamp_ms)
        assert log.rows.setdefault(offset, (row, fate)) == (row, fate), "an offset was acknowledged twice"
    if producer is not None and transactional_id is None:
        contents.producers[place] = Batch(producer_id, epoch, base_sequence, len(records), base_offset)
    return base_offset


def _owned(data: bytes | bytearray | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


def transact(
    client: KafkaClient,
    contents: Contents,
    transactional_id: str,
    values: dict[tuple[str, int], list[NewRecord]],
    *,
    fate: str,
    offsets: dict[tuple[str, int], int] | None = None,
    group: str = "",
    timeout_ms: int = 60_000,
) -> Producer:
    """Begin a transaction and write all of it; its end is for the caller."""
    producer = client.init_producer_id(transactional_id, timeout_ms=timeout_ms)
    client.add_partitions_to_txn(transactional_id, producer, values)
    for place, records in values.items():
        produce(
            client,
            contents,
            place,
            records,
            producer=producer,
            base_sequence=0,
            transactional_id=transactional_id,
            fate=fate,
        )
    if offsets:
        client.add_offsets_to_txn(transactional_id, producer, group)
        client.txn_offset_commit(transactional_id, producer, group, offsets)
    return producer


def read(broker: Broker, starts: Mapping[Place, int], *, committed: bool) -> dict[Place, list[Row]]:
    """Every record of the logs from their starts on, with a consumer that has nothing to do with Penstock's code."""
    settings = {
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.wait.max.ms": 10,
    }
    found: dict[Place, list[Row]] = {place: [] for place in starts}
    left = set(starts)
    with confluent_consumer(broker.bootstrap, **settings) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(*place, start) for place, start in starts.items()])
        while left:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"no record and no end of {left}"
            error, place = message.error(), (message.topic(), message.partition())
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                left.discard(place)
                continue
            headers = tuple(message.headers() or ())
            found[place].append(Row(message.offset(), message.key(), message.value(), headers, message.timestamp()[1]))
    return found
