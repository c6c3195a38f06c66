"""Large produces by API key: batches of many messages, read, placed and answered in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.dialects.flymq import api_frames
from penstock.dialects.flymq.api_frames import BatchRun
from penstock.dialects.flymq.batches import Message, messages_in_slices, open_batch
from penstock.dialects.flymq.placing import Columns
from penstock.dialects.flymq.wire import Reader
from penstock.model.errors import BrokerError
from penstock.model.pending import Pending
from penstock.model.slices import Work
from penstock.records.builder import Bytes
from penstock.records.record import Headers

if TYPE_CHECKING:
    from penstock.dialects.flymq.session import FlyMQSession

LARGE_BYTES = 16 * 1024
"""Size above which batches are read in slices: they may have hundreds of messages."""
_COLUMNS_AT_ONCE = 2_000


def produce(session: FlyMQSession, topic: str, asked: int, plain: Bytes) -> Work[bytes]:
    """The answer to a Produce of these messages. Raises BrokerError."""
    messages = yield from messages_in_slices(plain)
    if not session.placing.partitions(topic):
        del messages  # only the counted bytes of the request are kept while the topic is created
        yield from _when_there(session, topic, asked)
        messages = yield from messages_in_slices(plain)
    yield from _when_there(session, topic, asked)
    records = yield from _columns(messages)
    placing = session.placing
    refusal = placing.refusal(topic, records)
    if refusal is not None:
        raise refusal
    outcome = yield from placing.place_in_slices(topic, asked, records)
    return (yield from api_frames.places_in_slices(outcome, len(messages)))


def produce_batches(session: FlyMQSession, run: BatchRun) -> Work[bytes]:
    """The answers to the Produces of a run. Raises BrokerError."""
    placing = session.placing
    batches = yield from _batches(run)
    if not all(isinstance(batch, BrokerError) for batch in batches):
        if not placing.partitions(run.topic):
            del batches  # as in `produce`
            yield from _when_there(session, run.topic, run.asked)
            batches = yield from _batches(run)
        yield from _when_there(session, run.topic, run.asked)
    for at, read in enumerate(batches):
        if not isinstance(read, BrokerError):
            columns = yield from _columns(read)
            batches[at] = placing.refusal(run.topic, columns) or read
    run.counts = [batch if isinstance(batch, BrokerError) else len(batch) for batch in batches]
    messages = [message for batch in batches if isinstance(batch, list) for message in batch]
    outcome: Any = []
    if messages:
        records = yield from _columns(messages)
        outcome = yield from placing.place_in_slices(run.topic, run.asked, records)
    return (yield from api_frames.answer_batches(run, outcome))


def _batches(run: BatchRun) -> Work[list[list[Message] | BrokerError]]:
    batches: list[list[Message] | BrokerError] = []
    for batch in run.batches:
        try:
            _, plain = open_batch(Reader(batch))
            batches.append((yield from messages_in_slices(plain)))
        except BrokerError as error:
            batches.append(error)
    return batches


def _when_there(session: FlyMQSession, topic: str, asked: int) -> Work[None]:
    made = session.place(topic, asked, lambda: None)
    if isinstance(made, Pending):
        made = yield made
    if isinstance(made, BrokerError):
        raise made


def _columns(messages: list[Message]) -> Work[Columns]:
    values: list[Bytes] = []
    keys: list[Bytes | None] = []
    timestamps: list[int] = []
    headers: list[Headers] = []
    for start in range(0, len(messages), _COLUMNS_AT_ONCE):
        for key, value, some, timestamp in messages[start : start + _COLUMNS_AT_ONCE]:
            values.append(value)
            keys.append(key)
            timestamps.append(timestamp)
            headers.append(some)
        yield None
    return Columns(values, keys if any(keys) else None, timestamps, headers)
