"""The scenarios, in the order in which they run and are reported."""

from __future__ import annotations

from bench import archive, dialects, groups, spark
from bench.clients import clients
from bench.compaction import compaction
from bench.fetch import bulk_fetch, cold_fetch
from bench.produce import bulk_produce, connections, durable_produce, single_produce
from bench.scale import big_start, idle_connections, segment_growth
from bench.scenario import Scenario

SCENARIOS = (
    Scenario("bulk-produce", "Bulk produce against recv + CRC + write", bulk_produce),
    Scenario("bulk-fetch", "Bulk fetch, warm, against sendfile", bulk_fetch),
    Scenario("cold-fetch", "Cold fetch, and who waits for it", cold_fetch),
    Scenario("single-produce", "Single-record Produce, window of 100, against E", single_produce),
    Scenario("connections", "16 connections, one request in flight each, against E", connections),
    Scenario("durable-produce", "acks=all on disk", durable_produce),
    Scenario("idle-connections", "Idle connections", idle_connections),
    Scenario("segment-growth", "A log of many segments", segment_growth),
    Scenario("clients", "confluent-kafka", clients),
    Scenario("read-committed", "Bulk fetch, read_committed against read_uncommitted", groups.read_committed),
    Scenario("consumers", "Produce beside 500 consumers in 50 groups", groups.consumers),
    Scenario("commits", "Offset commits on disk, against produces", groups.commits),
    Scenario("compaction", "A topic under compaction", compaction),
    Scenario("offset-loading", "Start with many committed offsets", groups.offset_loading),
    Scenario("dialect-windows-1000", "Dialects: produce in windows of 1,000, against E", dialects.produce_in_thousands),
    Scenario("dialect-windows-100", "Dialects: produce in windows of 100, against E", dialects.produce_in_hundreds),
    Scenario("dialect-durable", "Dialects: acks=all on disk", dialects.durable_windows),
    Scenario("dialect-connections", "Dialects: 16 connections, one request in flight each", dialects.connections),
    Scenario("dialect-visits", "MiniKafka: a connection for every message", dialects.visits),
    Scenario("dialect-reads", "Dialects: single reads over 16 connections", dialects.reads),
    Scenario("rustlog-json", "RustLog: JSON, against a loop that parses and prints", dialects.rustlog_json),
    Scenario("spark-read", "Spark reads topics, against its own kafka format", spark.read),
    Scenario("spark-write", "Spark writes topics, against its own kafka format", spark.write),
    Scenario("archive", "Topics into tables, against Spark's kafka to Parquet", archive.archive),
    Scenario("import-copy", "Import of a Kafka directory, against a copy", archive.import_copy),
    Scenario("big-start", "Start over many partitions", big_start),
)
