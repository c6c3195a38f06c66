"""Everything wrong with a pipeline's file is found before Spark starts, all of it, and with its line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from penstock.pipeline.declaration import (
    BadRows,
    ConsoleSink,
    DeadLetterFlow,
    Delivery,
    FileSource,
    Flow,
    Mode,
    PythonTransform,
    Restarts,
    TableSink,
    TopicSink,
    TopicSource,
    Trigger,
    Upsert,
    Watermark,
)
from penstock.pipeline.graph import unused
from penstock.pipeline.problems import InvalidPipeline
from penstock.pipeline.reading import read_pipeline
from tests.pipeline.conftest import Write

WHOLE = """\
name: everything
brokers: [one:9092, two:9092]
master: local[4]
settings: {spark.sql.shuffle.partitions: 8}
topic_options: {kafka.security.protocol: PLAINTEXT}
checkpoint: ./checkpoints
delivery: exactly_once
trigger: 30 seconds
restarts: {max: 2, backoff: 500 ms, backoff_max: 1 minute}
sources:
  orders:
    topics: [orders, old-orders]
    key: string
    options: {startingOffsets: earliest, maxOffsetsPerTrigger: 1000}
    value:
      format: json
      schema: {id: bigint not null, at: timestamp}
      options: {timestampFormat: yyyy}
    watermark: {column: at, delay: 2 minutes}
    checks: {small: id < 10}
    dead_letters: orders-dead
  customers: {table: customers, format: delta}
  clicks: {files: clicks/*.csv, format: csv, schema: "who STRING", bad_rows: skip}
transforms:
  joined:
    sql: SELECT * FROM Orders JOIN customers USING (id)
  counted:
    python: penstock.pipeline.fields:quoted
    inputs: [joined]
    arguments: {}
flows:
  out:
    from: joined
    to: {topic: out, key: id}
    trigger: once
    delivery: at_least_once
  table:
    from: orders
    to: {table: t, format: delta, partition_by: day, upsert: {key: [id, at], order_by: at, delete_when: id = 1}}
    mode: update
    checkpoint: elsewhere
  seen:
    from: clicks
    to: {console: {rows: 3}}
    trigger: availableNow
"""


def test_a_file_becomes_what_it_declares(write: Write, tmp_path: Path) -> None:
    pipeline = read_pipeline(write(WHOLE))
    assert (pipeline.name, pipeline.master) == ("everything", "local[4]")
    assert pipeline.settings == {"spark.sql.shuffle.partitions": "8"}
    assert pipeline.restarts == Restarts(2, 500, 60_000)
    orders, clicks = pipeline.sources["orders"], pipeline.sources["clicks"]
    assert isinstance(orders, TopicSource)
    assert orders.options == {
        "kafka.bootstrap.servers": "one:9092,two:9092",
        "kafka.security.protocol": "PLAINTEXT",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
        "subscribe": "orders,old-orders",
    }
    assert orders.is_stream
    assert [field.required for field in orders.value.fields] == [True, False]
    assert orders.rules.watermark == Watermark("at", "120000 milliseconds", 19)
    assert orders.rules.bad_rows is BadRows.DEAD_LETTERS
    assert isinstance(clicks, FileSource)
    assert (clicks.path, clicks.rules.bad_rows) == (str(tmp_path / "clicks/*.csv"), BadRows.SKIP)
    assert not pipeline.sources["customers"].is_stream
    assert pipeline.transforms["joined"].inputs == ("orders", "customers")
    assert isinstance(pipeline.transforms["counted"], PythonTransform)
    out, table, seen = (pipeline.flows[name] for name in ("out", "table", "seen"))
    assert isinstance(out, Flow)
    assert (out.trigger, out.delivery) == (Trigger("once"), Delivery.AT_LEAST_ONCE)
    assert isinstance(out.sink, TopicSink)
    assert isinstance(table, Flow)
    assert table.sink == TableSink(str(tmp_path / "t"), "delta", ("day",), Upsert(("id", "at"), "at", "id = 1"))
    assert (table.mode, table.checkpoint, table.trigger) == (
        Mode.UPDATE,
        str(tmp_path / "elsewhere"),
        Trigger("interval", 30_000),
    )
    assert isinstance(seen, Flow)
    assert (seen.sink, seen.delivery, seen.trigger.kind) == (ConsoleSink(3), Delivery.AT_LEAST_ONCE, "available_now")
    dead = pipeline.flows["orders.dead_letters"]
    assert isinstance(dead, DeadLetterFlow)
    # it goes on as long as any of the flows that read its source
    assert (dead.topic, dead.delivery, dead.trigger) == ("orders-dead", Delivery.EXACTLY_ONCE, table.trigger)
    assert dead.checkpoint == str(tmp_path / "checkpoints/orders.dead_letters")
    assert list(unused(pipeline)) == [f"{tmp_path / 'pipeline.yaml'}:28: transforms.counted is not used by any flow"]


GOOD = """\
brokers: localhost:9092
checkpoint: state
sources:
  orders:
    topic: orders
    value: {format: json, schema: "id BIGINT"}
  names: {table: names}
transforms:
  all:
    sql: |
      SELECT *
      FROM orders
      JOIN names USING (id)
flows:
  out: {from: all, to: {topic: out}}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("checkpoint:", "chekpoint:", 2, "unknown key chekpoint; did you mean checkpoint?"),
        ("checkpoint: state", "", 1, "checkpoint is required"),
        ("brokers: localhost:9092", "", 4, "sources.orders: no broker is set"),
        ("brokers: localhost:9092", "brokers: 'a b:99999'", 4, "bootstrap.servers"),
        ("brokers: localhost:9092", "brokers: ${NOWHERE}", 1, "environment variable NOWHERE is not set"),
        ("    topic: orders", "    topic: or/ders", 5, "or/ders"),
        ("    topic: orders", "    topc: orders", 4, "unknown key topc; did you mean topic?"),
        ("    topic: orders", "    topic: orders\n    table: x", 6, "has topic and table"),
        ("    topic: orders", "    topic_pattern: '['", 5, "regular expression"),
        (
            "    topic: orders",
            "    topic: orders\n    options: {startingOfsets: x}",
            6,
            "did you mean startingOffsets?",
        ),
        ("    topic: orders", "    topic: orders\n    options: {startingOffsets: x}", 6, "startingOffsets=x"),
        (
            "    topic: orders",
            "    topic: orders\n    options: {subscribe: x}",
            6,
            "use topic, topics or topic_pattern",
        ),
        ("    topic: orders", "    topic: orders\n    topic: orders", 6, "duplicate key topic"),
        ("    topic: orders", "    topic: orders\n    read: sometimes", 6, "sources.orders.read = 'sometimes'"),
        (
            "    topic: orders",
            "    topic: orders\n    bad_rows: skip\n    dead_letters: x",
            6,
            "cannot be combined with bad_rows",
        ),
        ("    topic: orders", "    topic: orders\n    watermark: {column: id}", 6, "watermark.delay is required"),
        (
            "    topic: orders",
            "    topic: orders\n    watermark: {column: id, delay: soon}",
            6,
            "'soon' is not a duration",
        ),
        ('"id BIGINT"', '"id BIGNT"', 6, "unknown type BIGNT; did you mean bigint?"),
        ("format: json", "format: jsn", 6, "is not one of json, csv, string, binary; did you mean json?"),
        ('{format: json, schema: "id BIGINT"}', "json", 4, "json requires a schema"),
        ('{format: json, schema: "id BIGINT"}', "{format: json}", 6, "schema is required"),
        ('schema: "id BIGINT"', 'schema: "id BIGINT", options: {mode: FAILFAST}', 6, "options.mode cannot be set"),
        (
            "  names: {table: names}",
            "  names: {table: names, format: delta, read: stream}",
            7,
            "can only be read static",
        ),
        ("  names: {table: names}", "  names: {table: names, dead_letters: x}", 7, "dead_letters requires a stream"),
        ("  names: {table: names}", "  na-mes: {table: names}", 7, "is not a valid SQL name"),
        ("  names: {table: names}", "  names: {files: names, format: csv}", 7, "names.schema is required"),
        ("FROM orders", "FROM oders", 12, "reads oders, which is not declared; did you mean orders?"),
        ("FROM orders", "FROM (orders", 12, "unclosed "),
        ("JOIN names", "JOIN all", 9, "form a cycle: all <- all"),
        ("    sql: |", "    python: |", 10, "is not module:function"),
        ("  all:", "  orders:", 9, "a source or transform orders already exists"),
        ("from: all", "from: al", 15, "reads al, which is not declared; did you mean all?"),
        ("from: all", "from: names", 15, "reads no stream"),
        ("{topic: out}", "{topics: out}", 15, "requires one of topic, table, console"),
        ("{topic: out}", "{topic: out, options: {kafka.transactional.id: x}}", 15, "transactional.id"),
        ("{topic: out}", "{table: out, upsert: {key: id}}", 15, "upsert requires format: delta"),
        ("{topic: out}", "{table: out, format: delta, upsert: {}}", 15, "upsert.key is required"),
        ("{topic: out}", "{console: {rows: 0}}", 15, "is not an integer from 1"),
        ("{topic: out}", "{topic: out}, mode: updates", 15, "did you mean update?"),
        ("{topic: out}", "{table: out}, mode: complete", 15, "a table requires mode append, not complete"),
        ("{topic: out}", "{topic: out}, delivery: exactly once", 15, "did you mean exactly_once?"),
        ("{topic: out}", "{console: true}, delivery: exactly_once", 15, "at_least_once only"),
        (
            "{topic: out}",
            "{topic: out}, trigger: sometimes",
            15,
            "'sometimes' is not once, available_now or an interval",
        ),
        (
            "{topic: out}}",
            "{topic: out}}\n  two: {from: all, to: {topic: x}, checkpoint: state/out}",
            16,
            "same checkpoint",
        ),
        ("flows:", "restarts: {max: many}\nflows:", 14, "restarts.max = 'many'"),
        ("flows:", "restarts: {backoff: 2 min, backoff_max: 1 min}\nflows:", 14, "backoff_max is less"),
        ("flows:", "master: lokal\nflows:", 14, "master = 'lokal'"),
        ("flows:", "settings: {shuffle.partitions: 2}\nflows:", 14, "start with spark."),
        ("flows:", "name: a/b\nflows:", 14, "name = 'a/b'"),
        ("flows:", "flows: [", 16, "expected"),
        ("sources:", "sources: 5\nx:", 3, "sources must be a mapping"),
    ],
)
def test_a_problem_is_named_with_its_line(write: Write, old: str, new: str, line: int, text: str) -> None:
    assert read_pipeline(write(GOOD), {})
    assert old in GOOD
    with pytest.raises(InvalidPipeline) as invalid:
        read_pipeline(write(GOOD.replace(old, new, 1)), {})
    found = [problem for problem in invalid.value.problems if problem.line == line and text in problem.text]
    assert found, str(invalid.value)
    assert str(invalid.value).startswith(f"{invalid.value.file}:")


def test_every_problem_is_named_at_once(write: Write) -> None:
    text = GOOD.replace("checkpoint", "chekpoint").replace("FROM orders", "FROM oders").replace("topic: out", "topc: x")
    with pytest.raises(InvalidPipeline) as invalid:
        read_pipeline(write(text), {})
    assert [problem.line for problem in invalid.value.problems] == [1, 2, 12, 15]


@pytest.mark.parametrize(
    ("module", "function", "text"),
    [
        ("raise ValueError('not today')", "f", "cannot import made_up: ValueError: not today"),
        ("import nowhere_at_all", "f", "No module named 'nowhere_at_all'"),
        ("def other(frame): ...", "othr", "has no function othr; did you mean other?"),
        ("f = 5", "f", "is not a function"),
        ("def f(one, two): ...", "f", "missing a required argument: 'two'"),
        ("def f(one, *, limit): ...", "f", "missing a required argument: 'limit'"),
    ],
)
def test_a_function_that_cannot_be_called_is_found_with_its_line(
    write: Write, module: str, function: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "made_up", raising=False)
    write(module, "made_up.py")
    file = write(GOOD.replace("flows:", f"  f: {{python: 'made_up:{function}', inputs: [orders]}}\nflows:"))
    with pytest.raises(InvalidPipeline, match=text) as invalid:
        read_pipeline(file, {})
    assert [problem.line for problem in invalid.value.problems] == [14]
    sys.modules.pop("made_up", None)


def test_circles_of_several_transforms_are_found(write: Write) -> None:
    circle = "  a: {sql: SELECT * FROM b}\n  b: {sql: SELECT * FROM c}\n  c: {sql: SELECT * FROM a}\nflows:"
    with pytest.raises(InvalidPipeline, match="a <- b <- c <- a"):
        read_pipeline(write(GOOD.replace("flows:", circle)), {})


def test_the_environment_fills_in_and_has_defaults(write: Write, tmp_path: Path) -> None:
    text = GOOD.replace("localhost:9092", "${HOST}:${PORT:-9093}").replace("topic: orders", "topic: ${NAME:-orders}-x")
    source = read_pipeline(write(text), {"HOST": "here"}).sources["orders"]
    assert isinstance(source, TopicSource)
    assert source.options["kafka.bootstrap.servers"] == "here:9093"
    assert source.options["subscribe"] == "orders-x"


def test_anchors_and_merges_are_yaml(write: Write) -> None:
    text = GOOD.replace("  names:", "  other:\n    <<: *o\n    topic: others\n  names:").replace(
        "  orders:", "  orders: &o"
    )
    other = read_pipeline(write(text), {}).sources["other"]
    assert isinstance(other, TopicSource)
    assert (other.options["subscribe"], other.value.format) == ("others", "json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a",
        "a: [",
        "a: \x00",
        "a: &a [*a]",
        "a: &a {<<: *a}",
        "? [a]\n: b",
        "&a a: {<<: 5}",
        "a: !!python/object:x {}",
        "&a [" + "[" * 200,
    ],
)
def test_no_text_is_more_than_a_problem(write: Write, text: str) -> None:
    with pytest.raises(InvalidPipeline, match=r"pipeline.yaml:\d+: "):
        read_pipeline(write(text), {})


def test_a_file_that_is_not_there_or_is_no_text_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="No such file"):
        read_pipeline(tmp_path / "none.yaml", {})
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InvalidPipeline, match="UTF-8"):
        read_pipeline(tmp_path / "bytes.yaml", {})


def test_one_group_for_several_queries_is_refused(write: Write) -> None:
    text = GOOD.replace("    topic: orders", "    topic: orders\n    options: {kafka.group.id: mine}")
    assert read_pipeline(write(text), {})
    with pytest.raises(InvalidPipeline, match="read by several queries"):
        read_pipeline(write(text + "  again: {from: all, to: {console: true}}\n"), {})


def test_back_off_doubles_up_to_its_bound() -> None:
    restarts = Restarts(max=9, backoff_ms=100, backoff_ms_max=1_000)
    assert [restarts.wait_ms(failures) for failures in (1, 2, 3, 4, 5, 500)] == [100, 200, 400, 800, 1_000, 1_000]


def test_the_files_and_parts_of_files_on_the_page_are_valid(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text()
    shortest, sources, transforms, _, bad_rows, flows = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert list(read_pipeline(write(shortest), {}).flows) == ["big"]
    monkeypatch.setattr(sys, "path", list(sys.path))
    write("def score(placed, limit): ...", "scoring.py")
    top = "brokers: here:9092\ncheckpoint: state\n"
    whole = read_pipeline(write(top + sources + transforms + flows), {})
    assert [one.name for one in whole.upstream("scored")] == ["orders", "customers", "placed", "scored"]
    seen = "flows: {seen: {from: orders, to: {console: true}}}"
    assert "orders.dead_letters" in read_pipeline(write(f"{top}sources:\n{bad_rows}{seen}"), {}).flows
