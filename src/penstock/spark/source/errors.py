"""What a reader of topics is told when it cannot go on: one line that says what is wrong and what to do about it.

Spark shows an exception of a Python data source with its class and its text, so the text is all there is. Raised in a task
it travels to the driver as a pickle. `lost` is for what failOnDataLoss decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from penstock.client.kafka import KafkaError, KafkaSettings

log = logging.getLogger("penstock.spark")


class SourceError(RuntimeError):
    """A read that cannot be done, or not without losing records."""


class DataLost(SourceError):
    """Records that were asked for are gone."""


def lost(text: str, fails: bool) -> None:
    """Raise DataLost, or with failOnDataLoss=false say so in the log and let the caller go on."""
    if fails:
        raise DataLost(f"{text}; set failOnDataLoss=false to continue with the available records")
    log.warning("%s; continuing with the available records (failOnDataLoss=false)", text)


def recreated(topic: str, known: str, now: str) -> str:
    """The message for a topic whose id has changed."""
    return (
        f"topic {topic} was deleted and created again: its id was {known} and is now {now}; unread records of the old topic "
        "are lost"
    )


@contextmanager
def explained(settings: KafkaSettings) -> Iterator[None]:
    """A KafkaError becomes a SourceError that names the cluster."""
    try:
        yield
    except KafkaError as error:
        servers = ",".join(str(address) for address in settings.bootstrap)
        if error.error_code is ErrorCode.broker_not_available:
            text = (
                f"{error.text}; check that the broker is running and that kafka.bootstrap.servers={servers} is correct"
            )
        else:
            text = f"error from the cluster at {servers}: {error}"
        raise SourceError(text) from None
