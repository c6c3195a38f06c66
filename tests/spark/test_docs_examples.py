"""The examples of docs/spark.md, in their order, against a broker: what they assert holds."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.spark.sink_options import _OWN as SINK_OPTIONS
from penstock.spark.source_options import KNOWN as SOURCE_OPTIONS
from tests.maven import Unresolved
from tests.spark.jvm import connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
CUSTOMERS = ("ada", "edsger", "grace", "leslie", "tony")
ORDERS = 1_000
OPENS_AT = dt.datetime(2026, 1, 5, 8, tzinfo=dt.UTC)
FIRST_S = 1_767_600_000
"""What the page's startingTimestamp is."""


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
        _fill(broker)
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


def _fill(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic("orders", 2), *(NewTopic(name, 1) for name in ("invoices", "loud", "revenue", "monthly"))]
    for made in admin.create_topics(topics).values():
        made.result(20)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(ORDERS):
        order = {
            "customer": CUSTOMERS[number % len(CUSTOMERS)],
            "cents": number,
            "placed_at": (OPENS_AT + dt.timedelta(minutes=number)).isoformat(),
        }
        at_ms = (FIRST_S + number) * 1_000
        producer.produce("orders", json.dumps(order), order["customer"], partition=number % 2, timestamp=at_ms)
    assert producer.flush(20) == 0
