"""A job of its own process: a topic of numbered JSON events, counted and summed in windows, exactly once into another.

`python windowed_stream.py ORDER`, ORDER being JSON (see `Order`). It ends its query when stdin does, as soon as everything
that is in the topic is in the output, and then says where it ran, on how many executors. Exit code 0 says that all is
well.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict, dataclass, field

WINDOW_S = 50
LATE_S = 2_000
"""How far apart two partitions may be read; a second is an event."""
KEYS = 4


@dataclass(frozen=True, slots=True)
class Order:
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    master: str = "local[2,4]"
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """Of the source."""
    follows: bool = True
    """Until stdin ends; or as if it had ended already."""

    def command(self) -> list[str]:
        return [sys.executable, __file__, json.dumps(asdict(self))]


def main(order: Order) -> int:
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from penstock.spark.session import open_session

    spark = open_session("windowed", order.master, order.settings)
    address = {"kafka.bootstrap.servers": order.bootstrap}
    events = (
        spark.readStream.format("penstock")
        .options(**address, subscribe=order.source, startingOffsets="earliest", maxOffsetsPerTrigger="2000")
        .options(**order.options)
        .load()
    )
    event = F.from_json(F.col("value").cast("string"), "number long, key string, amount long")
    sums = (
        events.select(event.alias("event"))
        .select("event.*", F.timestamp_seconds("event.number").alias("at"))
        .withWatermark("at", f"{LATE_S} seconds")
        .groupBy(F.window("at", f"{WINDOW_S} seconds"), "key")
        .agg(F.count("*").alias("events"), F.sum("amount").alias("amount"))
    )
    rows = sums.select(
        F.col("key"),
        F.to_json(F.struct(F.unix_timestamp("window.start").alias("start"), "key", "events", "amount")).alias("value"),
    )
    query = (
        rows.writeStream.format("penstock")
        .outputMode("append")
        .options(**address, topic=order.target, delivery="exactly_once", checkpointLocation=order.checkpoint)
        .start()
    )

    def stop_at_end() -> None:
        if order.follows:
            sys.stdin.read()
        query.processAllAvailable()
        query.stop()

    threading.Thread(target=stop_at_end, daemon=True).start()
    query.awaitTermination()
    # the driver counts itself among those that hold blocks
    count = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(json.dumps({"master": spark.sparkContext.master, "executors": count}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Order(**json.loads(sys.argv[1]))))
