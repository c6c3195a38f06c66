"""Rules for internal topics: clients read them, and only the broker creates and changes them.

A committed offset or the state of a transaction is lost when its topic has other partitions than its coordinator used,
expires records or starts at a later offset. `Topics` and the engine refuse such changes for every dialect, as Kafka does
for produces and DeleteRecords; the coordinators use `Topics.create_internal` and `InternalLog`.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.catalogue import TopicEntry
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, is_internal

logger = logging.getLogger(__name__)

CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
"""Small segments: they are cleaned early, so that the topic loads fast."""


def refusal(topic: str) -> BrokerError:
    """Why a client cannot change an internal topic."""
    return BrokerError(Fault.INVALID_TOPIC, f"{topic} is an internal topic: clients can read it but not change it")


def repair_configs(entries: dict[TopicName, TopicEntry]) -> dict[TopicName, TopicEntry]:
    """The catalogue with `CONFIGS` for internal topics.

    Earlier versions let clients create and reconfigure these topics, and some configs delete commits. Partitions stay as
    they are: commits lie where the number of partitions put them.
    """
    wrong = [entry for name, entry in entries.items() if is_internal(name) and entry.configs != CONFIGS]
    for entry in wrong:
        logger.warning(
            "internal topic %s: configs %s from the catalogue are ignored, internal topics always have %s",
            entry.name,
            entry.configs,
            CONFIGS,
        )
    return {**entries, **{entry.name: entry.with_configs(dict(CONFIGS)) for entry in wrong}}
