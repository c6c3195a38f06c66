"""The examples of docs/spark.md, in their order, against a broker: what they assert holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Broker
from penstock.spark.sink.options import _OWN as SINK_OPTIONS
from penstock.spark.source.options import KNOWN as SOURCE_OPTIONS
from tests.maven import Unresolved
from tests.spark.jvm import connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def examples() -> list[tuple[int, str]]:
    """Line and text of each Python block."""
    text = PAGE.read_text()
    return [
        (text.count("\n", 0, found.start()) + 2, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.timeout(300)
def test_every_example_of_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path / "penstock") as broker:
        names: dict[str, object] = {"spark": spark}
        for line, text in examples():
            text = text.replace("127.0.0.1:9092", broker.bootstrap).replace('"/data/', f'"{tmp_path}/')
            code = compile("\n" * (line - 1) + text, str(PAGE), "exec")
            exec(code, names)
        assert names["spark"] is spark
        try:
            connector()
        except Unresolved:
            return
        # the chapter about moving says that the same options work with Spark's own connector
        topic_as_table = names["topic_as_table"]
        ours, theirs = (topic_as_table(name) for name in ("penstock", "kafka"))  # type: ignore[operator]
        assert ours.schema == theirs.schema
        assert sorted(ours.collect()) == sorted(theirs.collect())


def test_the_page_has_every_option() -> None:
    page = PAGE.read_text()
    missing = [name for name in (*SOURCE_OPTIONS, *SINK_OPTIONS) if f"`{name}`" not in page]
    assert not missing
