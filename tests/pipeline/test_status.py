"""`status` finds each flow's place from its checkpoint and its groups, and the lag from the broker."""

from __future__ import annotations

from pathlib import Path

from penstock.client.kafka import KafkaClient
from penstock.pipeline.reading import read_pipeline
from penstock.pipeline.status import FlowStatus, status_of
from tests.pipeline.conftest import Topics, Write
from tests.pipeline.test_checkpoints import write_checkpoint

FILE = """\
name: p
brokers: {brokers}
checkpoint: state
sources:
  orders: {{topic: {topic}}}
flows:
  out: {{from: orders, to: {{console: true}}}}
"""


def status(write: Write, brokers: str, topic: str) -> FlowStatus:
    pipeline = read_pipeline(write(FILE.format(brokers=brokers, topic=topic)), {})
    return status_of(pipeline, pipeline.flows["out"])


def test_a_flow_that_never_ran_is_not_started(write: Write, topics: Topics) -> None:
    found = status(write, topics.bootstrap, topics.create("status"))
    assert (found.state, found.lag, found.partitions, found.groups) == ("not started", None, (), ("p.out.orders",))


def test_lag_is_what_the_topic_has_beyond_the_last_committed_batch(
    write: Write, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create("status", partitions=1)
    topics.write(topic, ["x"] * 10)
    write_checkpoint(tmp_path / "state" / "out", {0: [{topic: {"0": 4}}], 1: [{topic: {"0": 9}}]}, [0])
    found = status(write, topics.bootstrap, topic)
    assert (found.state, found.lag) == ("in a batch", 6)
    assert [(one.topic, one.offset, one.end_offset) for one in found.partitions] == [(topic, 4, 10)]
    assert found.notes == ()


def test_the_groups_offsets_stand_in_for_a_checkpoint_that_cannot_be_read(
    write: Write, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create("status", partitions=1)
    topics.write(topic, ["x"] * 5)
    with KafkaClient(topics.bootstrap) as client:
        client.commit_offsets("p.out.orders", {(topic, 0): 3})
    (tmp_path / "state" / "out").mkdir(parents=True)
    (tmp_path / "state" / "out" / "metadata").write_text("?")
    found = status(write, topics.bootstrap, topic)
    assert (found.state, found.lag) == ("unreadable", 2)
    assert "was not written by Spark" in found.notes[0]


def test_a_broker_that_does_not_answer_leaves_the_lag_unknown_and_says_why(write: Write, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "state" / "out", {0: [{"orders": {"0": 4}}]}, [0])
    found = status(write, "127.0.0.1:1", "orders")
    assert (found.state, found.lag) == ("between batches", None)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("the lag is unknown: ")
