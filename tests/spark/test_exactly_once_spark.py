"""The exactly-once sink under a real Spark whose processes are killed at the worst moments: kill -9 of the Python that
writes a task or commits a batch, and the query started again from its checkpoint."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.sink import exactly_once
from penstock.spark.sink.journal import Decision, Journal
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writers import ExactlyOnceStreamWriter, checked
from tests.spark.made_topics import append
from tests.spark.sink_cluster import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_S_MAX = 140
TASKS = 3
MOMENTS = (
    "a task has written its rows",
    "all tasks have written, and nothing is decided",
    "the batch is decided",
    "one transaction of three is committed",
    "two transactions of three are committed",
    "all is committed, and Spark does not know",
)

pytestmark = [
    pytest.mark.timeout(300),
    # py4j leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalWriter(ExactlyOnceStreamWriter):
    """Dies once: the file says so, and is taken away first."""

    def __init__(self, options: SinkOptions, moment: str, order: Path) -> None:
        super().__init__(options)
        self.moment = moment
        self.order = order

    def is_due(self, *moments: str) -> bool:
        if self.moment not in moments or not self.order.exists():
            return False
        self.order.unlink()
        return True

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        written = super().write(iterator)
        if self.is_due(MOMENTS[0]):
            die()
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if self.is_due(*MOMENTS[1:]):
            committed = MOMENTS.index(self.moment) - 2
            if committed < 0:
                Journal.decide = lambda journal, decision: die()  # type: ignore[method-assign]

            def finish(client: KafkaClient, journal: Journal, decision: Decision, tasks: Any) -> None:
                for task in sorted(decision.opened)[:committed]:
                    client.end_txn(*decision.opened[task], commit=True)
                die()

            exactly_once.finish = finish
        super().commit(messages, batchId)


class MortalSource(PenstockDataSource):
    moment = ""
    order = Path()

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return MortalWriter(checked(SinkOptions.of(self.options, schema)), self.moment, self.order)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_killed_at_any_moment_loses_and_doubles_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, moment: str
) -> None:
    from pyspark.errors import StreamingQueryException

    # Spark's workers do not find this module
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    MortalSource.moment = moment
    MortalSource.order = tmp_path / "die"
    spark.dataSource.register(MortalSource)
    topic = f"moment-{MOMENTS.index(moment)}"
    lines = tmp_path / "lines"
    lines.mkdir()
    for at in range(3):
        (lines / f"{at}.txt").write_text("".join(f"{at}.{line}\n" for line in range(60)))

    def run() -> None:
        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", "1")
            .load(str(lines))
            .repartition(TASKS)
            .writeStream.format("mortal")
            .options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "delivery": "exactly_once"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(RUN_S_MAX)

    expected = Counter(f"{at}.{line}".encode() for at in range(3) for line in range(60))
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, 2)
        MortalSource.order.touch()
        with pytest.raises(StreamingQueryException):
            run()
        assert not MortalSource.order.exists()
        seen = Counter(record.value for record in records(client, topic))
        assert max(seen.values(), default=1) == 1
        run()
        assert Counter(record.value for record in records(client, topic)) == expected
        assert not client.list_transactions(states=["Ongoing"])


# ---------------------------------------------------------------------------------------------------- old checkpoints


_numbers = itertools.count()


class Stream:
    """A query from `lines` or from a topic to a topic of its own, which can be run again and again."""

    def __init__(self, spark: SparkSession, broker: Broker, client: KafkaClient, folder: Path, source: str) -> None:
        self.checkpoint = folder / "checkpoint"
        self.target = f"old-checkpoint-{next(_numbers)}"
        self._spark = spark
        self._broker = broker
        self._client = client
        self._source = source
        self._lines = folder / "lines"
        self._lines.mkdir()
        self._rows = 0
        for name in (self.target, f"{self.target}-input"):
            client.create_topic(name, 2)

    def add(self, rows: int) -> None:
        """New input."""
        numbers = range(self._rows, self._rows + rows)
        self._rows += rows
        if self._source == "topic":
            append(self._broker, f"{self.target}-input", 0, numbers)
        else:
            (self._lines / f"{numbers[0]}.txt").write_text("".join(f"v{number}\n" for number in numbers))

    def run(self, value: str = "value", sink: str = "penstock") -> None:
        """Until all input is written."""
        query = (
            self._frame()
            .selectExpr(f"{value} as value")
            .writeStream.format(sink)
            .options(**{"kafka.bootstrap.servers": self._broker.bootstrap, "topic": self.target})
            .option("delivery", "exactly_once")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(RUN_S_MAX)

    def _frame(self) -> DataFrame:
        if self._source == "lines":
            return self._spark.readStream.format("text").load(str(self._lines))
        reading = self._spark.readStream.format("penstock").option("kafka.bootstrap.servers", self._broker.bootstrap)
        reading = reading.option("subscribe", f"{self.target}-input").option("startingOffsets", "earliest")
        return reading.load()

    def values(self) -> Counter[bytes | None]:
        return Counter(record.value for record in records(self._client, self.target))


def numbered(rows: int) -> Counter[bytes | None]:
    return Counter(b"v%d" % number for number in range(rows))


@pytest.fixture
def stream(request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Stream]:
    with KafkaClient(broker.bootstrap) as client:
        yield Stream(spark, broker, client, tmp_path, request.param)


@pytest.mark.parametrize("stream", ["lines", "topic"], indirect=True)
def test_new_rows_with_a_restored_checkpoint_are_an_error_and_not_dropped(stream: Stream, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(100)
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "copy")
    stream.add(100)
    stream.run()
    stream.checkpoint.rename(tmp_path / "newest")
    (tmp_path / "copy").rename(stream.checkpoint)
    stream.add(100)
    with pytest.raises(
        StreamingQueryException, match=r"batch 1 of query \S+ was already written with 100 rows and now"
    ):
        stream.run()
    assert stream.values() == numbered(200)
    shutil.rmtree(stream.checkpoint)
    (tmp_path / "newest").rename(stream.checkpoint)
    stream.run()
    assert stream.values() == numbered(300)


@pytest.mark.parametrize("stream", ["lines"], indirect=True)
def test_new_rows_after_a_lost_offsets_file_are_an_error_and_not_dropped(stream: Stream) -> None:
    from pyspark.errors import StreamingQueryException

    for _ in range(2):
        stream.add(100)
        stream.run()
    for folder in ("offsets", "commits"):
        (stream.checkpoint / folder / "1").unlink()
        (stream.checkpoint / folder / ".1.crc").unlink()
    stream.add(100)
    with pytest.raises(
        StreamingQueryException, match=r"batch 1 of query \S+ was already written with 100 rows and now"
    ):
        stream.run()
    assert stream.values() == numbered(200)


@pytest.mark.parametrize("stream", ["topic"], indirect=True)
def test_the_same_rows_with_a_restored_checkpoint_are_not_written_twice(stream: Stream, tmp_path: Path) -> None:
    stream.add(100)
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "copy")
    stream.add(100)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    (tmp_path / "copy").rename(stream.checkpoint)
    stream.run()
    assert stream.values() == numbered(200)
    stream.add(100)
    stream.run()
    assert stream.values() == numbered(300)


@pytest.mark.parametrize("stream", ["topic"], indirect=True)
def test_a_query_that_never_gives_the_same_rows_keeps_those_that_were_decided(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    MortalSource.moment = "the batch is decided"
    MortalSource.order = tmp_path / "die"
    MortalSource.order.touch()
    spark.dataSource.register(MortalSource)
    stream.add(100)
    with pytest.raises(StreamingQueryException):
        stream.run("concat(value, ' ', uuid())", "mortal")
    stream.run("concat(value, ' ', uuid())", "mortal")
    assert Counter((value or b"").split()[0] for value in stream.values().elements()) == numbered(100)
