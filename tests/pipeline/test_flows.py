"""Flows run as declared: restarted when they fail, stopped between batches, and told on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.problems import InvalidPipeline, PipelineFailed
from penstock.pipeline.progress import BatchDone, FlowEnded, FlowRestarting, FlowStarted
from tests.pipeline.conftest import Ran, Run, Topics, Write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

BASE = """\
checkpoint: state
restarts: {max: 2, backoff: 10 ms}
sources:
  events: {files: in, format: json, schema: "at TIMESTAMP, kind STRING, n INT"}
"""


def put(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """A file that is there as a whole or not at all: Spark may be looking."""
    folder.mkdir(exist_ok=True)
    unfinished = folder.parent / f"{name}.unfinished"
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished.rename(folder / name)


def test_windows_and_watermarks_close_into_a_table_once(
    run: Run, write: Write, tmp_path: Path, spark: SparkSession
) -> None:
    file = write(
        """\
        checkpoint: state
        sources:
          events:
            files: in
            schema: at TIMESTAMP, kind STRING
            watermark: {column: at, delay: 1 minute}
        transforms:
          counts:
            sql: |
              SELECT window.start AS since, kind, count(*) AS n FROM events GROUP BY window(at, '1 minute'), kind
        flows:
          out: {from: counts, to: {table: out, partition_by: kind}}
        """
    )
    put(tmp_path / "in", "1.json", [{"at": f"2026-01-01T10:00:{s:02}Z", "kind": "ab"[s % 2]} for s in range(5)])
    run(file)
    put(tmp_path / "in", "2.json", [{"at": "2026-01-01T10:00:30Z", "kind": "a"}, {"at": "2026-01-01T11:00:00Z"}])
    run(file)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(row.since.isoformat(), row.kind, row.n) for row in found} == {
        ("2026-01-01T10:00:00", "a", 4),
        ("2026-01-01T10:00:00", "b", 2),
    }
    run(file)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_a_python_transform_has_its_module_in_the_workers_too(run: Run, write: Write, tmp_path: Path) -> None:
    write(
        """\
        from pyspark.sql.functions import udf

        def twice(n):
            return 2 * n

        def doubled(frame, column):
            return frame.withColumn(column, udf(twice, "int")(frame[column]))
        """,
        "doubling.py",
    )
    file = write(
        BASE
        + """\
transforms:
  doubled: {python: "doubling:doubled", inputs: [events], arguments: {column: n}}
flows:
  out: {from: doubled, to: {console: {rows: 2}}}
"""
    )
    put(tmp_path / "in", "1.json", [{"n": 21}])
    ran = run(file)
    assert [row["n"] for row in ran.shown] == [42]
    assert [type(event) for event in ran.events] == [FlowStarted, BatchDone, FlowEnded]
    (done,) = ran.of(BatchDone)
    assert (done.flow, done.rows, done.lag) == ("out", 1, None)
    assert done.rows_per_s > 0


@pytest.mark.parametrize(
    ("part", "line", "text"),
    [
        ("transforms:\n  t:\n    sql: |\n      SELECT kind,\n      nn FROM events", 9, "`nn` cannot be resolved"),
        ("transforms:\n  t:\n    sql: SELECT kind kind kind FROM events", 7, "transforms.t.sql"),
        ("transforms:\n  t: {sql: SELECT * FROM events, checks: {c: nothing > 1}}", 6, "`nothing` cannot be resolved"),
        ("transforms:\n  t: {sql: SELECT * FROM events, watermark: {column: kind, delay: 1 s}}", 6, "watermark"),
        ('transforms:\n  t: {sql: "SELECT kind, count(*) FROM events GROUP BY kind"}', 8, "output mode"),
        ("transforms:\n  t: {python: 'builtins:id', inputs: [events]}", 6, "returned int, not a DataFrame"),
        ("transforms:\n  t: {python: 'builtins:abs', inputs: [events]}", 6, "builtins:abs failed: TypeError"),
    ],
)
def test_what_only_spark_can_find_wrong_has_its_line_too(
    run: Run, write: Write, tmp_path: Path, part: str, line: int, text: str
) -> None:
    (tmp_path / "in").mkdir()
    file = write(f"{BASE}{part}\nflows:\n  out: {{from: t, to: {{console: true}}}}\n")
    with pytest.raises(InvalidPipeline, match=text) as failed:
        run(file)
    assert [problem.line for problem in failed.value.problems] == [line], str(failed.value)
    assert "\n" not in str(failed.value)


FAILING = """\
from pathlib import Path

from pyspark.sql.functions import udf

def failing(frame, place, times):
    def once_more(n):
        count = len(list(Path(place).iterdir()))
        if count < times:
            (Path(place) / str(count)).touch()
            raise ValueError(f"failure {count}")
        return n

    return frame.withColumn("n", udf(once_more, "int")("n"))
"""


def failing(write: Write, tmp_path: Path, times: int) -> Path:
    write(FAILING, "failing_on_cue.py")
    (tmp_path / "failures").mkdir()
    put(tmp_path / "in", "1.json", [{"n": 1}])
    return write(
        f"{BASE}transforms:\n"
        f"  t: {{python: 'failing_on_cue:failing', inputs: [events], "
        f"arguments: {{place: {tmp_path / 'failures'}, times: {times}}}}}\n"
        "flows:\n  out: {from: t, to: {console: true}}\n"
    )


def test_a_flow_that_fails_is_started_again_with_longer_and_longer_pauses(
    run: Run, write: Write, tmp_path: Path
) -> None:
    ran = run(failing(write, tmp_path, 2))
    assert [row["n"] for row in ran.shown] == [1]
    assert ran.of(FlowRestarting) == [
        FlowRestarting("out", 1, 10, "ValueError: failure 0"),
        FlowRestarting("out", 2, 20, "ValueError: failure 1"),
    ]
    assert [event.restarts for event in ran.of(FlowStarted)] == [0, 1, 2]
    assert ran.events[-1] == FlowEnded("out", "done", None)


def test_a_flow_that_fails_too_often_ends_the_pipeline_with_one_line(run: Run, write: Write, tmp_path: Path) -> None:
    file = failing(write, tmp_path, 99)
    file.write_text(
        file.read_text().replace("max: 2", "max: 1") + "  other: {from: events, to: {console: true}, trigger: 1 hour}\n"
    )
    with pytest.raises(PipelineFailed) as failed:
        run(file, trigger=None)
    assert str(failed.value) == "flows.out failed 2 times in a row: ValueError: failure 1"


def test_a_stop_lets_the_batch_end_and_the_next_start_goes_on_behind_it(run: Run, write: Write, tmp_path: Path) -> None:
    file = write(BASE + "flows:\n  out: {from: events, to: {console: true}, trigger: 0 seconds}\n")
    put(tmp_path / "in", "1.json", [{"n": 1}])
    ran = run(file, trigger=None, stop=lambda so_far: bool(so_far.of(BatchDone)))
    assert ran.events[-1] == FlowEnded("out", "stopped", None)
    put(tmp_path / "in", "2.json", [{"n": 2}])
    again = run(file, trigger=None, stop=lambda so_far: bool(so_far.of(BatchDone)))
    assert [row["n"] for row in ran.shown + again.shown] == [1, 2]


def test_topics_are_read_joined_with_a_table_and_written_exactly_once(
    run: Run, write: Write, topics: Topics, tmp_path: Path
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    source, target = topics.create("in"), topics.create("out")
    write_deltalake(str(tmp_path / "names"), pa.table({"id": [1, 2], "name": ["one", "two"]}))
    file = write(
        f"""\
        name: joins-{source}
        brokers: {topics.bootstrap}
        checkpoint: state
        delivery: exactly_once
        sources:
          numbers:
            topic: {source}
            key: string
            options: {{startingOffsets: earliest}}
            value: string
          names: {{table: names, format: delta}}
        transforms:
          named:
            sql: SELECT key, value, name FROM numbers LEFT JOIN names ON numbers.value = names.id
        flows:
          out: {{from: named, to: {{topic: {target}, key: key}}}}
        """
    )
    topics.write(source, ["1", "2", "3"], key=lambda value: f"key-{value}")
    ran = run(file)
    (done,) = ran.of(BatchDone)
    assert (done.rows, done.lag) == (3, 0)
    topics.write(source, ["1"])
    run(file)
    found = sorted((message.key(), json.loads(message.value())) for message in topics.read(target) if message.key())
    assert found == [
        (b"key-1", {"key": "key-1", "value": "1", "name": "one"}),
        (b"key-2", {"key": "key-2", "value": "2", "name": "two"}),
        (b"key-3", {"key": "key-3", "value": "3", "name": None}),
    ]
    assert len(topics.read(target)) == 4


def test_a_broker_that_is_not_there_is_one_line_and_tried_again(run: Run, write: Write) -> None:
    file = write(
        """\
        brokers: 127.0.0.1:1
        topic_options: {kafka.default.api.timeout.ms: 500}
        checkpoint: state
        restarts: {max: 20, backoff: 10 ms}
        sources: {lost: {topic: lost}}
        flows: {out: {from: lost, to: {console: true}}}
        """
    )

    def says_where(ran: Ran) -> bool:
        return any("127.0.0.1:1" in event.error for event in ran.of(FlowRestarting))

    ran = run(file, stop=says_where)
    assert says_where(ran)
    assert all("\n" not in event.error for event in ran.of(FlowRestarting))
    assert ran.events[-1] == FlowEnded("out", "stopped", None)


def test_a_batch_of_updates_that_is_written_again_is_in_the_topic_once(
    spark: SparkSession, topics: Topics, as_query: Callable[[str], None]
) -> None:
    from penstock.pipeline.building import TopicUpdater
    from penstock.pipeline.declaration import Delivery, TopicSink
    from penstock.spark import register

    register(spark)
    topic = topics.create("updates", partitions=1)
    sink = TopicSink(topic, None, "raw", {"kafka.bootstrap.servers": topics.bootstrap})
    writer = TopicUpdater(sink, Delivery.EXACTLY_ONCE)
    for batch_id in (0, 0, 1):
        writer(spark.createDataFrame([(f"batch {batch_id}",)], "value STRING").coalesce(1), batch_id)
    assert [message.value() for message in topics.read(topic)] == [b"batch 0", b"batch 1"]
