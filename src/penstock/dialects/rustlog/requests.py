"""What a RustLog peer can ask, as plain values: the same for both forms of the protocol.

A request remembers its form, because its answer has the same one and because the two forms differ in a few rules (where
a group starts to read, what `max_bytes` counts). Consecutive produces for one partition are one `ProduceRun`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.engine import Bytes, LargeRecord
from penstock.model.errors import Fault
from penstock.records.record import Record


class Form(enum.Enum):
    BINARY = "binary"
    JSON = "json"


BINARY = Form.BINARY
JSON = Form.JSON
"""For code that runs on every request, as `NO_FAULT`."""


class ProduceRun:
    """Produce requests in a row, of one form and for one partition."""

    __slots__ = ("counts", "form", "partition", "topic", "values")

    def __init__(self, form: Form, topic: str, partition: int, values: list[Bytes], counts: list[int] | None) -> None:
        self.form = form
        self.topic = topic
        self.partition = partition
        self.values = values
        self.counts = counts
        """Records of each request; None while every one has a single record, which is the common case."""


class Fetch(NamedTuple):
    form: Form
    group: str
    """Empty: none."""
    topic: str
    partition: int
    offset: int
    max_bytes: int


class OffsetCommit(NamedTuple):
    form: Form
    group: str
    topic: str
    partition: int
    offset: int


class OffsetFetch(NamedTuple):
    form: Form
    group: str
    topic: str
    partition: int


class CreateTopic(NamedTuple):
    topic: str
    partitions: int


class ListTopics(NamedTuple):
    pass


class DescribeTopic(NamedTuple):
    topic: str


class DescribePartition(NamedTuple):
    topic: str
    partition: int


class Metrics(NamedTuple):
    pass


class Ready(NamedTuple):
    """A request whose answer needs no broker: a ping, or one that could not be read."""

    frame: bytes


AdminRequest = CreateTopic | ListTopics | DescribeTopic | DescribePartition | Metrics
Request = ProduceRun | Fetch | OffsetCommit | OffsetFetch | AdminRequest | Ready


class Fetched(NamedTuple):
    records: Sequence[Record | LargeRecord]
    """Large ones only in the binary form."""
    next_offset: int


class Refusal(NamedTuple):
    """Why a request was not served."""

    fault: Fault
    text: str = ""
