"""How a produce of a dialect without topic requests gets its partition: the topic is made, or grows, up to a bound.

Any partition number opens a log in the originals. Here a produce makes the topic with as many partitions as that number
needs, or lets an existing topic grow to it, if the listener's settings allow it.
"""

from __future__ import annotations

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import NewTopic, TopicResult
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import topic_name
from penstock.model.listeners import ListenerSettings
from penstock.model.pending import Pending


def make_partition(
    engine: EmbeddedEngine, settings: ListenerSettings, topic: str, partition: int
) -> BrokerError | Pending[BrokerError | None]:
    """Make a partition that is not there; why it cannot be, or None when it is made."""
    try:
        topic_name(topic)
    except BrokerError as error:
        return error
    if not settings.creates_topics:
        return BrokerError(
            Fault.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}, and this listener makes no topics"
        )
    if partition >= settings.partitions_max:
        return BrokerError(
            Fault.INVALID_PARTITIONS, f"partition {partition} is past the {settings.partitions_max} of a topic"
        )
    answer: Pending[BrokerError | None] = Pending()

    def changed(results: list[TopicResult]) -> None:
        # Others make and grow topics at the same time: what counts is whether the partition is there now.
        [result] = results
        if engine.partition(topic, partition) is not None:
            answer.complete(None)
        elif result.fault is Fault.TOPIC_EXISTS:
            grow()
        elif result.fault is Fault.NONE:
            answer.complete(BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            answer.complete(BrokerError(result.fault, result.text or ""))

    def grow() -> None:
        engine.add_partitions([(topic, partition + 1)], validate_only=False).then(changed)

    if engine.topic(topic) is None:
        new = NewTopic(topic, max(settings.partitions, partition + 1))
        engine.create_topics([new], validate_only=False).then(changed)
    else:
        grow()
    return answer
