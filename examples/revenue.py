"""The Spark job of the demo: orders in, each customer's revenue in every ten minutes out, exactly once.

    python examples/revenue.py HOST:PORT CHECKPOINT

It is an ordinary Structured Streaming job. Killed at any moment and started again with the same checkpoint, it goes on
where it was, and nobody who reads the topic `revenue` with read_committed sees anything twice. Ends with its standard input.
"""

from __future__ import annotations

import sys
import threading

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from penstock.spark.session import open_session

ORDERS, REVENUE = "orders", "revenue"


def main(bootstrap: str, checkpoint: str) -> int:
    spark = open_session("revenue", "local[2]")
    orders = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ORDERS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), "customer string, cents long, placed_at timestamp")
    revenue = (
        orders.select(order.alias("o"))
        .select("o.*")
        .withWatermark("placed_at", "1 hour")
        .groupBy(F.window("placed_at", "10 minutes"), "customer")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )
    rows = revenue.select(
        F.col("customer").alias("key"),
        F.to_json(F.struct(F.col("window.start").alias("from"), "customer", "orders", "cents")).alias("value"),
    )
    query = (
        rows.writeStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", REVENUE)
        .option("delivery", "exactly_once")
        .option("checkpointLocation", checkpoint)
        .start()
    )

    def stop_with_stdin() -> None:
        sys.stdin.read()
        query.processAllAvailable()
        query.stop()

    threading.Thread(target=stop_with_stdin, daemon=True).start()
    query.awaitTermination()
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} BROKER CHECKPOINT")
    sys.exit(main(*sys.argv[1:]))
