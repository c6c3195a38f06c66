from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import limits
from penstock.model.errors import BrokerError, Fault
from penstock.model.topic_config import KEYS, LONG_MAX, KeyType, TopicConfig, parse

# Kafka 4's documentation of topic configs, https://kafka.apache.org/documentation/#topicconfigs
KAFKA_DEFAULTS = {
    "cleanup.policy": ("LIST", "delete"),
    "compression.type": ("STRING", "producer"),
    "delete.retention.ms": ("LONG", "86400000"),
    "file.delete.delay.ms": ("LONG", "60000"),
    "flush.messages": ("LONG", "9223372036854775807"),
    "flush.ms": ("LONG", "9223372036854775807"),
    "index.interval.bytes": ("INT", "4096"),
    "max.compaction.lag.ms": ("LONG", "9223372036854775807"),
    "max.message.bytes": ("INT", "1048588"),
    "message.timestamp.after.max.ms": ("LONG", "3600000"),
    "message.timestamp.before.max.ms": ("LONG", "9223372036854775807"),
    "message.timestamp.type": ("STRING", "CreateTime"),
    "min.cleanable.dirty.ratio": ("DOUBLE", "0.5"),
    "min.compaction.lag.ms": ("LONG", "0"),
    "min.insync.replicas": ("INT", "1"),
    "preallocate": ("BOOLEAN", "false"),
    "retention.bytes": ("LONG", "-1"),
    "retention.ms": ("LONG", "604800000"),
    "segment.bytes": ("INT", "1073741824"),
    "segment.index.bytes": ("INT", "10485760"),
    "segment.jitter.ms": ("LONG", "0"),
    "segment.ms": ("LONG", "604800000"),
    "unclean.leader.election.enable": ("BOOLEAN", "false"),
}


def refusal(overrides: dict[str, str], defaults: dict[str, str] | None = None) -> str:
    with pytest.raises(BrokerError) as caught:
        parse(overrides, defaults or {})
    assert caught.value.fault is Fault.INVALID_CONFIG
    return caught.value.text


def test_every_config_of_kafkas_has_kafkas_type_and_default() -> None:
    ours = {name: (key.type.value, key.default) for name, key in KEYS.items() if not name.startswith("penstock.")}
    assert ours == KAFKA_DEFAULTS


def test_every_key_has_a_field_and_every_field_a_key() -> None:
    assert [key.field for key in KEYS.values()] == [field.name for field in dataclasses.fields(TopicConfig)]
    assert list(KEYS) == sorted(KEYS)
    assert all(key.doc.endswith(".") for key in KEYS.values())


def test_a_topic_without_configs_has_the_defaults() -> None:
    config = parse({}, {})
    assert config.segment_bytes == 1024**3
    assert config.flush_ms == LONG_MAX
    assert config.deletes
    assert not config.compacts
    assert not config.has_log_append_time
    assert config.penstock_flush is None


def test_a_topics_own_value_beats_the_brokers_which_beats_kafkas() -> None:
    config = parse({"retention.ms": "1"}, {"retention.ms": "2", "retention.bytes": "3"})
    assert (config.retention_ms, config.retention_bytes, config.segment_ms) == (1, 3, 604_800_000)


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("delete", {"delete"}),
        ("compact", {"compact"}),
        ("compact,delete", {"compact", "delete"}),
        (" delete , compact", None),
    ],
)
def test_cleanup_policy_takes_kafkas_spellings(text: str, policies: set[str] | None) -> None:
    assert parse({"cleanup.policy": text}, {}).cleanup_policy == (policies or {"compact", "delete"})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("cleanup.policy", "shred", "is not delete, compact"),
        ("cleanup.policy", "", "is not delete, compact"),
        ("compression.type", "zstd", "as the producer sent them"),
        ("compression.type", "brotli", "is not one of"),
        ("max.message.bytes", "-1", "is less than 0"),
        ("max.message.bytes", str(2**31), "32 bits"),
        ("message.timestamp.type", "createtime", "is not one of CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.1", "between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "between 0 and 1"),
        ("min.insync.replicas", "2", "with a single broker"),
        ("min.insync.replicas", "0", "is less than 1"),
        ("penstock.flush", "never", "is not one of acks, always, interval, os"),
        ("preallocate", "true", "segments grow"),
        ("preallocate", "yes", "neither true nor false"),
        ("retention.ms", "-2", "is less than -1"),
        ("retention.ms", "a week", "is not an integer"),
        ("retention.ms", str(2**63), "64 bits"),
        ("segment.bytes", "13", "is less than 14"),
        ("segment.ms", "0", "is less than 1"),
        ("unclean.leader.election.enable", "TRUE", "no leader election"),
    ],
)
def test_a_value_that_would_not_be_honoured_is_refused_with_key_and_reason(name: str, text: str, reason: str) -> None:
    said = refusal({name: text})
    assert said.startswith(f"{name} = {text!r}")
    assert reason in said
    assert refusal({}, {name: text}) == said


def test_an_unknown_config_is_refused_with_the_nearest_known() -> None:
    assert refusal({"retention.millis": "1"}) == "unknown topic config retention.millis; did you mean retention.ms?"
    assert refusal({"follower.replication.throttled.replicas": "*"}).startswith(
        "unknown topic config follower.replication"
    )
    assert refusal({"x": "1"}) == "unknown topic config x"


def test_compaction_lags_must_leave_room_between_them() -> None:
    said = refusal({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
    assert "min.compaction.lag.ms = 10 is more than max.compaction.lag.ms = 9" in said


def test_a_long_value_is_cut_in_the_refusal() -> None:
    assert len(refusal({"retention.ms": "x" * 10_000})) < 200


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=30))
def test_any_text_is_parsed_or_refused(name: str, text: str) -> None:
    try:
        config = parse({name: text}, {})
    except BrokerError as error:
        assert error.fault is Fault.INVALID_CONFIG
        assert error.text.startswith(name)
    else:
        assert dataclasses.asdict(config)[KEYS[name].field] is not None


@given(st.sampled_from([key for key in KEYS.values() if key.type is KeyType.LONG]), st.integers(-(2**65), 2**65))
def test_a_number_that_is_taken_is_kept(key: object, number: int) -> None:
    try:
        config = parse({key.name: str(number)}, {})  # type: ignore[attr-defined]
    except BrokerError:
        assert number < 1 or number > LONG_MAX or "compaction" in key.name  # type: ignore[attr-defined]
    else:
        assert getattr(config, key.field) == number  # type: ignore[attr-defined]


def test_an_index_interval_above_the_limit_acts_like_it() -> None:
    for asked, acts in ((100, 100), (limits.INDEX_INTERVAL_BYTES_MAX, 32_768), (2**31 - 1, 32_768)):
        assert parse({"index.interval.bytes": str(asked)}, {}).index_interval_bytes == acts
