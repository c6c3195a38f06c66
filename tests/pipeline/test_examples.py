"""The worked examples do what their first lines say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.conftest import Run, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


def headers_of(message: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers() or []}


@pytest.fixture
def environment(topics: Topics, tmp_path: Path) -> dict[str, str]:
    return {
        "BROKERS": topics.bootstrap,
        "STATE": str(tmp_path / "state"),
        "TABLES": str(tmp_path / "tables"),
        "CUSTOMERS": str(tmp_path / "customers"),
    }


def test_order_revenue_sums_good_orders_a_minute_and_country_and_keeps_the_others_with_a_reason(
    run: Run, topics: Topics, spark: SparkSession, environment: dict[str, str]
) -> None:
    for name in ("orders", "revenue", "orders-refused"):
        topics.ensure(name)
    spark.createDataFrame([(1, "CH"), (2, "NO")], "customer_id BIGINT, country STRING").write.parquet(
        environment["CUSTOMERS"]
    )

    def order(number: int, customer: int, amount: str, at: str) -> dict[str, Any]:
        return {"order_id": number, "customer_id": customer, "amount": amount, "ordered_at": f"2026-01-01T{at}Z"}

    topics.write(
        "orders",
        [
            order(1, 1, "10.50", "10:00:10"),
            order(2, 1, "4.50", "10:00:50"),
            order(3, 2, "7.00", "10:00:20"),
            order(4, 9, "1.00", "10:01:00"),
            "{broken",
            order(5, 1, "-3.00", "10:00:30"),
            {"order_id": 6, "customer_id": 1, "amount": "1.00"},
            # closes the minutes before it: the watermark follows at a minute's distance
            order(7, 1, "99.00", "10:30:00"),
        ],
    )
    run(EXAMPLES / "order_revenue.yaml", environment)
    revenue = {(row["minute"], row["country"]): (row["orders"], row["revenue"]) for row in topics.values("revenue")}
    assert revenue == {
        ("2026-01-01T10:00:00.000Z", "CH"): (2, 15.0),
        ("2026-01-01T10:00:00.000Z", "NO"): (1, 7.0),
        ("2026-01-01T10:01:00.000Z", "unknown"): (1, 1.0),
    }
    refused = {message.value(): headers_of(message) for message in topics.read("orders-refused")}
    reasons = [headers["penstock.reason"] for headers in refused.values()]
    assert sorted(reasons) == [
        "check failed: amount must be positive",
        "ordered_at is null or missing",
        "the value is not JSON",
    ]
    broken = refused[b"{broken"]
    assert (broken["penstock.topic"], broken["penstock.partition"], broken["penstock.offset"]) == ("orders", "0", "4")


def test_log_alerting_counts_errors_and_joins_them_with_the_deploy_before(
    run: Run, topics: Topics, environment: dict[str, str]
) -> None:
    for name in ("logs", "deploys", "alerts", "deploy-errors"):
        topics.ensure(name)

    def line(service: str, level: str, at: str) -> dict[str, str]:
        return {"service": service, "level": level, "message": f"{service} broke", "at": f"2026-01-01T{at}Z"}

    topics.write(
        "logs",
        [
            *(line("shop", "error", f"10:00:{second:02}") for second in range(5)),
            *(line("mail", "ERROR", f"10:00:{second:02}") for second in range(2)),
            line("shop", "INFO", "10:00:09"),
            line("mail", "FATAL", "10:20:00"),
            "no line at all",
        ],
    )
    topics.write("deploys", ["shop,v7,2026-01-01T09:55:00Z", "mail,v3,2026-01-01T10:01:00Z", "nonsense"])
    ran = run(EXAMPLES / "log_alerting.yaml", environment)
    (alert,) = topics.read("alerts")
    assert alert.key() == b"shop"
    assert json.loads(alert.value())["text"] == "5 errors in a minute, such as: shop broke"
    joined = [(row["service"], row["version"]) for row in topics.values("deploy-errors")]
    assert joined == [("shop", "v7")] * 5
    assert sorted((row["service"], row["errors"]) for row in ran.shown) == [("mail", 1), ("mail", 2), ("shop", 5)]


def test_change_data_keeps_each_row_as_it_is_now_and_a_history_beside_it(
    run: Run, topics: Topics, spark: SparkSession, environment: dict[str, str]
) -> None:
    from deltalake import DeltaTable

    for name in ("inventory-changes", "inventory-refused"):
        topics.ensure(name)
    number = iter(range(1, 100))

    def change(op: str, row_id: int | None, stock: int | None = None) -> dict[str, Any]:
        return {"op": op, "change": next(number), "row": {"id": row_id, "name": f"n{row_id}", "stock": stock}}

    def stock() -> dict[int, int]:
        rows = DeltaTable(f"{environment['TABLES']}/inventory").to_pyarrow_table().to_pylist()
        return {row["id"]: row["stock"] for row in rows}

    file = EXAMPLES / "change_data.yaml"
    topics.write("inventory-changes", [change("c", 1, 5), change("c", 2, 6), change("u", 1, 4), change("x", 1)])
    run(file, environment, flows=["inventory"])
    assert stock() == {1: 4, 2: 6}
    topics.write("inventory-changes", [change("d", 2), change("c", 3, 1), change("u", None)])
    run(file, environment)
    assert stock() == {1: 4, 3: 1}
    assert spark.read.parquet(f"{environment['TABLES']}/inventory-history").count() == 5
    reasons = [headers_of(message)["penstock.reason"] for message in topics.read("inventory-refused")]
    assert reasons == ["check failed: the operation is one of c, u, d", "check failed: the row has an id"]
