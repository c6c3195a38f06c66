"""What Spark reports becomes rows, lag and time; what it throws becomes one line."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipeline.progress import BatchDone, batch_done, topic_offsets
from penstock.spark.failures import LENGTH_MAX, one_line


def report(**changes: Any) -> dict[str, Any]:
    return {
        "batchId": 7,
        "numInputRows": 300,
        "durationMs": {"addBatch": 100, "triggerExecution": 150},
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        "sources": [
            {"endOffset": {"a": {"0": 10, "1": 5}}, "latestOffset": {"a": {"0": 12, "1": 5, "2": 3}}},
            {"endOffset": '{"b":{"0":1,"id":"fWXVd8QiRAyQ1lJyJDDa0Q"}}', "latestOffset": '{"b":{"0":4}}'},
            {"endOffset": {"logOffset": 1}, "latestOffset": None},
        ],
        **changes,
    }


def test_a_batch_has_rows_a_second_lag_and_time() -> None:
    assert batch_done("f", report()) == BatchDone("f", 7, 300, 2000.0, 5, 150, "2026-01-01T00:00:00.000Z")


def test_a_trigger_without_a_batch_is_none() -> None:
    assert batch_done("f", report(durationMs={"latestOffset": 3, "triggerExecution": 4})) is None


def test_without_topics_there_is_no_lag() -> None:
    done = batch_done("f", report(sources=[{"endOffset": {"logOffset": 1}, "latestOffset": {"logOffset": 9}}]))
    assert done is not None
    assert done.lag is None


@pytest.mark.parametrize("offset", [None, 5, "5", "{", {}, {"a": 1}, {"a": {"x": 1}}, {"a": {"0": None}}, []])
def test_offsets_that_are_not_of_topics_are_none(offset: Any) -> None:
    assert topic_offsets(offset) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [USER_RAISED] a b SQLSTATE: P0001",
            "a b",
        ),
        ("[UNRESOLVED.X] no `a`. SQLSTATE: 42703; line 2 pos 1;\n'Project ['a]\n+- View", "no `a`.; line 2 pos 1"),
        ("[X] it failed\n=== Streaming Query ===\nIdentifier", "it failed"),
        (
            (
                "[PYTHON] Traceback (most recent call last):\n  File x\nKeyError: 'k'\n\nDuring:\n"
                "penstock.spark.source.errors.SourceError: the topic t is gone\nsomething: else"
            ),
            "the topic t is gone",
        ),
        (
            "worker: Traceback (most recent call last):\n  File y\nmy.module.OddError: what now\n\n",
            "OddError: what now",
        ),
        (
            (
                "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
                ": org.apache.spark.SparkException: Could not parse Master URL: 'x'\n\tat org.apache"
            ),
            "Could not parse Master URL: 'x'",
        ),
        ("x" * 9_000, "x" * (LENGTH_MAX - 3) + "..."),
        ("", "RuntimeError"),
    ],
)
def test_a_failure_is_one_line(text: str, line: str) -> None:
    assert one_line(RuntimeError(text)) == line
