"""Options of a read: each mistake is told in one line that names the option, before a broker is asked anything."""

from __future__ import annotations

import pickle

import pytest

from penstock.client.kafka import Isolation
from penstock.spark.source.errors import SourceError
from penstock.spark.source.offsets import place
from penstock.spark.source.options import (
    Assigned,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    ReadWay,
    Subscribed,
    parse_options,
)

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse_options(BASE)
    assert options.subscription == Subscribed(("orders",))
    assert options.starting is None
    assert options.ending is None
    assert options.fail_on_data_loss
    assert options.include_headers is None
    assert options.trigger_delay_ms_max == 15 * 60 * 1_000
    assert options.offsets_per_trigger_max is None
    assert options.poll_timeout_ms == 120_000
    assert options.read is ReadWay.AUTO
    assert options.isolation is Isolation.READ_COMMITTED


def test_names_count_in_any_case_of_letters() -> None:
    options = parse_options({"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "a, b,a", "maxoffsetspertrigger": "7"})
    assert options.subscription == Subscribed(("a", "b"))
    assert options.offsets_per_trigger_max == 7


def test_a_timestamp_goes_before_timestamps_before_offsets() -> None:
    every = {**BASE, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders":{"0":5}}'}
    assert parse_options({**BASE, "startingOffsets": "earliest"}).starting is Edge.EARLIEST
    assert parse_options(every).starting == AtTimestamps({place("orders", 0): 5})
    assert parse_options({**every, "startingTimestamp": "9"}).starting == AtTimestamp(9)
    assert parse_options({**BASE, "endingOffsets": '{"orders":{"0":-1}}'}).ending == AtOffsets({place("orders", 0): -1})


def test_assign_names_partitions() -> None:
    options = parse_options({"kafka.bootstrap.servers": "h:1", "assign": '{"t":[1,0]}'})
    assert options.subscription == Assigned((place("t", 0), place("t", 1)))


@pytest.mark.parametrize(
    ("text", "ms"), [("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000), ("250", 250), ("5 ms", 5)]
)
def test_times_have_units(text: str, ms: int) -> None:
    assert parse_options({**BASE, "maxTriggerDelay": text}).trigger_delay_ms_max == ms


def test_what_the_client_does_not_know_is_let_through() -> None:
    options = parse_options({**BASE, "kafka.max.poll.records": "5", "kafka.max.partition.fetch.bytes": "1000"})
    assert options.partition_fetch_bytes_max == 1_000


def test_options_can_be_sent_to_executors_and_show_no_secret() -> None:
    options = parse_options(
        {
            **BASE,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": "hush",
        }
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "unknown option startingoffset; did you mean startingOffsets?"),
        ({"bootstrap.servers": "h:1"}, "did you mean kafka.bootstrap.servers?"),
        ({"group.id": "g"}, "did you mean kafka.group.id?"),
        ({"xyzzy": "1"}, "unknown option xyzzy"),
        ({"topic": "orders"}, "is for writes"),
        ({"path": "/tmp"}, "load\\(\\) does not accept a path"),
        ({"assign": '{"t":[0]}'}, "assign and subscribe are set: set exactly one"),
        ({"subscribe": ""}, "subscribe is empty"),
        ({"subscribe": ","}, "contains no topic"),
        ({"kafka.bootstrap.servers": "h:x"}, "is not host:port"),
        ({"startingOffsets": "soonest"}, "startingOffsets=soonest"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 is not an offset"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp=yesterday is not an integer"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":"x"}}'}, "expected milliseconds per partition"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "is not error or latest"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss=yes is neither true nor false"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger=0 is not an integer of at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "exceeds maxOffsetsPerTrigger .8."),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay=soon is not a duration"),
        ({"read": "files"}, "read=files is not one of auto, wire, segments"),
        ({"read": "segments", "kafka.isolation.level": "read_uncommitted"}, "committed records only"),
        ({"kafka.isolation.level": "dirty"}, "kafka.isolation.level=dirty"),
        ({"kafka.auto.offset.reset": "earliest"}, "cannot be set: use startingOffsets"),
        ({"kafka.value.deserializer": "x"}, "cannot be set: values are binary"),
        ({"kafka.security.protocol": "MAGIC"}, "security.protocol"),
    ],
)
def test_a_mistake_is_told_in_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        parse_options({**BASE, **options})
    assert "\n" not in str(caught.value)


def test_no_topic_and_no_broker_are_told() -> None:
    with pytest.raises(SourceError, match="no topic is set: set exactly one"):
        parse_options({"kafka.bootstrap.servers": "h:1"})
    with pytest.raises(SourceError, match=r"kafka.bootstrap.servers is required"):
        parse_options({"subscribe": "t"})
    with pytest.raises(SourceError, match="not a regular expression"):
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("})
