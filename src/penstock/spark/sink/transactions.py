"""What the exactly-once sink does to transactions from outside: finish them, abort them, fence who left them.

None of these needs the producer that opened a transaction: its id, producer id and epoch are enough, and those are in a
task's message and in the journal.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.client.kafka import ConfigKind, KafkaClient, KafkaError, KafkaSettings
from penstock.spark.sink.journal import Decision, Journal, Opened
from penstock.spark.sink.options import SinkError, SinkOptions

ABORT_MS_MAX = 5_000
"""How long to try to abort when something has failed already: the broker aborts by itself in time."""
ENDED: Final = frozenset(
    {
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        "TRANSACTIONAL_ID_NOT_FOUND",
        "UNKNOWN_PRODUCER_ID",
    }
)
"""Answers to EndTxn after which the transaction is not open any more; whether it was committed they do not say."""
_TIMEOUT = "transaction.max.timeout.ms"


def finish(client: KafkaClient, journal: Journal, decision: Decision, tasks: Iterable[int]) -> None:
    """Commit the decided transactions of these tasks, and wait until the journal says how they ended."""
    todo = [decision.opened[task] for task in tasks if journal.state.committed.get(task) != decision.batch]
    for opened in todo:
        try:
            client.end_txn(*opened, commit=True)
        except KafkaError as error:
            if error.name not in ENDED:
                raise
    journal.read_until(
        lambda state: not any(state.is_pending(opened) for opened in todo),
        f"the transactions of batch {decision.batch} have not ended",
    )


def fence(client: KafkaClient, options: SinkOptions, query: str, keep: Iterable[Opened]) -> None:
    """Abort every open transaction of the query but these, and fence the producer that opened it."""
    kept = {one.transactional_id for one in keep}
    of_query = re.compile(re.escape(query) + r"-\d+-\d+")
    try:
        listed = client.list_transactions(f"{query}-", states=["Ongoing"])
    except KafkaError as error:
        if error.name != "UNSUPPORTED_VERSION":
            raise
        # Brokers before 3.0 cannot be asked; what is left over there ends with its timeout.
        return
    for transaction in listed:
        name = transaction.transactional_id
        if name not in kept and of_query.fullmatch(name) is not None:
            client.init_producer_id(name, timeout_ms=options.timeout_ms)


def abort_quietly(options: SinkOptions, opened: Iterable[Opened]) -> None:
    """Abort what can be aborted soon, on a connection of its own: the other may be the reason."""
    with suppress(KafkaError), KafkaClient(impatient(options)) as client:
        for one in opened:
            with suppress(KafkaError):
                client.end_txn(*one, commit=False)


def impatient(options: SinkOptions) -> KafkaSettings:
    """The same cluster, for what is tried once more and then left."""
    soon_ms = min(ABORT_MS_MAX, options.settings.api_timeout_ms)
    return dataclasses.replace(options.settings, api_timeout_ms=soon_ms)


def with_timeout(client: KafkaClient, options: SinkOptions) -> SinkOptions:
    """The options with a transaction timeout that the broker allows: the one asked for, or else the longest."""
    allowed_ms: int | None = None
    # Who may write may not always see how the broker is configured; InitProducerId has the last word then.
    with suppress(KafkaError, KeyError, TypeError, ValueError):
        broker = min(client.metadata([]).brokers)
        allowed_ms = int(client.describe_configs(ConfigKind.BROKER, str(broker))[_TIMEOUT].value or "")
    asked_ms = options.transaction_timeout_ms
    if allowed_ms is None:
        return options
    if asked_ms is not None and asked_ms > allowed_ms:
        raise _too_long(asked_ms, f"{allowed_ms} ms")
    return dataclasses.replace(options, transaction_timeout_ms=asked_ms or allowed_ms)


@contextmanager
def explained(options: SinkOptions) -> Iterator[None]:
    """What brokers answer in the middle of a transaction, as a sentence that says what to do."""
    try:
        yield
    except KafkaError as error:
        if error.name == "INVALID_TRANSACTION_TIMEOUT":
            raise _too_long(options.timeout_ms, "less") from None
        if error.name in ENDED:
            raise SinkError(
                f"the transaction was aborted while it was written ({error.name}): it took longer than its "
                f"{options.timeout_ms / 1_000:g} s, or another run of the same query took over"
            ) from None
        raise


def _too_long(asked_ms: int, allowed: str) -> SinkError:
    return SinkError(
        f"kafka.transaction.timeout.ms={asked_ms}: the broker allows at most {allowed} ({_TIMEOUT}); use a smaller value"
    )
