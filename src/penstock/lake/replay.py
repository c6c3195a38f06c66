"""A table back into a topic: the same keys, values, headers and timestamps, in the same order in the same partitions.

The topic itself says how far a replay came: what it holds more than at the beginning are the first rows of each
partition, in order. So nothing is lost or doubled when a replay is killed and begun again, as long as nobody else writes to
the topic meanwhile; the last record is compared with the row that it must be, and every answer of the broker with the
offset that is due. Where the archived log had no gaps (of transactions or compaction) a new topic gets the offsets
of the old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.arrow.decode import decode_batches
from penstock.arrow.encode import Encoded, Writer, encode
from penstock.client.kafka import LATEST, ConfigKind, KafkaClient, KafkaSettings, Producer
from penstock.lake.columns import DECODED, RECORD
from penstock.lake.data_files import MIXED
from penstock.lake.errors import ArchiveError
from penstock.lake.lock import FOLDER
from penstock.lake.row_order import Bounds, ordered_rows
from penstock.lake.tables import Table
from penstock.records.batch import whole_batches

PARTITION_BYTES = 1_000_000
SETTLED_S = 1.0
"""A request of a killed replay may still be on its way into the log."""
SETTLING_TRIES_MAX = 30
_MESSAGE_BYTES_MAX = 100 * 1024 * 1024
"""What a broker takes in one request when it is not told."""


class Begun(msgspec.Struct, frozen=True):
    """What is written down when a replay begins."""

    topic_id: str | None
    bounds: Bounds
    base: dict[int, int]
    """The log end offset of each partition before the first row."""


@dataclass(frozen=True, slots=True)
class Replayed:
    rows: int
    """That this run wrote."""
    before: int
    """That earlier runs had written."""
    partitions: int
    is_complete: bool = True
    """False when somebody stopped it before all rows were written."""


class Replay:
    """Works on a table whose lock is not needed: it only reads it."""

    def __init__(
        self,
        kafka: KafkaSettings,
        table: Table,
        topic: str,
        bounds: Bounds,
        *,
        restart: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._client = KafkaClient(kafka)
        self._table = table
        self._topic = topic
        self._bounds = bounds
        self._restart = restart
        self._tell = tell
        self._files = table.files()

    def close(self) -> None:
        self._client.close()

    def run(self, stopped: Callable[[], bool] = lambda: False) -> Replayed:
        """Until all rows are written, or `stopped` says so between two requests. Raises ArchiveError, KafkaError."""
        partitions = sorted(self._table.state().offsets)
        if not partitions:
            raise ArchiveError(f"{self._table.place.url} contains no records")
        topic_id = self._prepared(partitions[-1] + 1)
        begun = self._begun(topic_id, partitions)
        ends = self._settled(partitions)
        lanes = []
        before = 0
        producer = self._client.init_producer_id()
        for partition in partitions:
            done = ends[partition] - begun.base.get(partition, 0)
            if done < 0:
                raise ArchiveError(
                    f"partition {partition} of {self._topic} lost records since the replay started; use --restart"
                )
            lanes.append(self._lane(partition, done, ends[partition], producer))
            before += done
        written = 0
        told = time.monotonic()
        while lanes and not stopped():
            lanes = [lane for lane in lanes if lane.load()]
            if not lanes:
                break
            answers = self._client.produce({(self._topic, lane.partition): lane.batch for lane in lanes})
            at = {place.partition: produced.base_offset for place, produced in answers.items()}
            for lane in lanes:
                written += lane.sent(at[lane.partition], self._topic)
            if time.monotonic() > told + 5:
                told = time.monotonic()
                self._tell(f"replayed {written:,} records")
        return Replayed(written, before, len(partitions), not lanes)

    # ------------------------------------------------------------------------------------------------ beginning

    def _prepared(self, partitions: int) -> str | None:
        """The id of the topic, made if it is not there."""
        info = self._client.metadata([self._topic]).topics.get(self._topic)
        if info is None:
            # Old records are old at once: the topic must not delete them while they come. And it must take what the
            # archived one took, whose limits are not known here.
            own = {"retention.ms": "-1", "max.message.bytes": str(_MESSAGE_BYTES_MAX)}
            self._client.create_topic(self._topic, partitions, configs=own)
            info = self._client.metadata([self._topic]).topics[self._topic]
            said = ", ".join(f"{name}={value}" for name, value in own.items())
            self._tell(f"created topic {self._topic} with {partitions} partitions, {said}")
        topic_id = None if info.topic_id is None else str(info.topic_id)
        if self._topic == self._table.settings.topic and topic_id == self._table.settings.topic_id:
            raise ArchiveError(f"{self._table.place.url} is the archive of this topic: replay it to another topic")
        if len(info.partitions) < partitions:
            raise ArchiveError(
                f"topic {self._topic} has {len(info.partitions)} partitions, but the table has {partitions}: "
                f"create the topic with {partitions}"
            )
        configs = self._client.describe_configs(ConfigKind.TOPIC, self._topic)
        kind = configs.get("message.timestamp.type")
        if kind is not None and kind.value == "LogAppendTime":
            raise ArchiveError(
                f"topic {self._topic} has message.timestamp.type=LogAppendTime and would lose the timestamps: "
                "set it to CreateTime"
            )
        retention = configs.get("retention.ms")
        if retention is not None and retention.value not in (None, "-1"):
            self._tell(f"topic {self._topic} has retention.ms={retention.value}: older records are deleted")
        return topic_id

    def _begun(self, topic_id: str | None, partitions: list[int]) -> Begun:
        """What an earlier run wrote down, if it did the same, or this one's beginning."""
        name = f"{FOLDER}/replays/{self._topic}.json"
        data = self._table.place.read(name)
        if data is not None and not self._restart:
            try:
                there = msgspec.json.decode(data, type=Begun)
            except msgspec.DecodeError as error:
                raise ArchiveError(f"{self._table.place.url}/{name} is corrupt: {error}; use --restart") from None
            if there.topic_id == topic_id:
                if there.bounds != self._bounds:
                    raise ArchiveError(
                        f"a replay of other rows into {self._topic} was started before: use the same bounds, or --restart"
                    )
                if set(there.base) >= set(partitions):
                    return there
                there = Begun(topic_id, self._bounds, {**dict.fromkeys(partitions, 0), **there.base})
                self._table.place.write(name, msgspec.json.encode(there))
                return there
        begun = Begun(topic_id, self._bounds, self._settled(partitions))
        self._table.place.write(name, msgspec.json.encode(begun))
        return begun

    def _settled(self, partitions: list[int]) -> dict[int, int]:
        """Where the partitions end, once they do not grow any more."""
        ends = self._ends(partitions)
        for _ in range(SETTLING_TRIES_MAX):
            time.sleep(SETTLED_S)
            again = self._ends(partitions)
            if again == ends:
                return ends
            ends = again
        raise ArchiveError(f"another program writes to {self._topic}: a replay must be the only writer")

    def _ends(self, partitions: list[int]) -> dict[int, int]:
        listed = self._client.list_offsets({(self._topic, partition): LATEST for partition in partitions})
        return {place.partition: offset.offset or 0 for place, offset in listed.items()}

    # ------------------------------------------------------------------------------------------------ lanes

    def _lane(self, partition: int, done: int, end: int, producer: Producer) -> Lane:
        files = [file for file in self._files if file.partition in (partition, MIXED)]
        rows = ordered_rows(self._table.place, files, self._bounds, partition)
        if done:
            rows = self._behind(rows, partition, done, end)
        return Lane(partition, rows, end, producer)

    def _behind(self, rows: Iterator[pa.RecordBatch], partition: int, done: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows that are not in the topic yet; the last that is there must be the one before them."""
        left = done
        for some in rows:
            if some.num_rows < left:
                left -= some.num_rows
                continue
            self._check(some.slice(left - 1, 1), partition, end - 1)
            if some.num_rows > left:
                yield some.slice(left)
            yield from rows
            return
        raise self._foreign(partition)

    def _check(self, row: pa.RecordBatch, partition: int, offset: int) -> None:
        (fetched,) = self._client.fetch({(self._topic, partition): offset}).values()
        batches = whole_batches(fetched.records)
        found = list(decode_batches(batches, self._topic, partition, columns=DECODED, start=offset, end=offset + 1))
        same = ("key", "value", "headers", "timestamp")
        if found:
            there = pa.RecordBatch.from_arrays(found[0].columns, schema=RECORD)
            if there.select(same).to_pylist() == row.select(same).to_pylist():
                return
        raise self._foreign(partition)

    def _foreign(self, partition: int) -> ArchiveError:
        return ArchiveError(
            f"partition {partition} of {self._topic} does not contain what this replay wrote: another program writes to it, "
            "or the table has lost rows; --restart starts again at the end of the topic"
        )


class Lane:
    """The rows of one partition on their way, a batch at a time."""

    def __init__(self, partition: int, rows: Iterator[pa.RecordBatch], end: int, producer: Producer) -> None:
        self.partition = partition
        self._end = end
        self._sequence = 0
        self._writer = Writer(producer.producer_id, producer.producer_epoch)
        self._encoded = self._encode(rows)
        self._next: Encoded | None = None

    def _encode(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Encoded]:
        for some in rows:
            yield from encode(some, writer=self._writer, base_sequence=self._sequence, batch_bytes_max=PARTITION_BYTES)

    def load(self) -> bool:
        """Whether there is another batch."""
        self._next = next(self._encoded, None)
        return self._next is not None

    @property
    def batch(self) -> bytearray:
        assert self._next is not None
        return self._next.batch

    def sent(self, base_offset: int, topic: str) -> int:
        """How many records that was. Raises ArchiveError when they are not where they must be."""
        assert self._next is not None
        if base_offset not in (-1, self._end):
            raise ArchiveError(
                f"another program writes to partition {self.partition} of {topic}: a replay must be the only writer; "
                "--restart starts again at the end of the topic"
            )
        count = self._next.records
        self._end += count
        self._sequence = self._sequence + count & 0x7FFFFFFF
        return count
