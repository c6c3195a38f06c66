"""The one exception of the Kafka client: Kafka's own name for what went wrong, whether to try again, and a sentence.

What goes wrong on this side of the wire has Kafka's name too: a connection that broke is NETWORK_EXCEPTION, an answer that
did not come REQUEST_TIMED_OUT, a broker that is too old UNSUPPORTED_VERSION, an answer that makes no sense
CORRUPT_MESSAGE, an option that makes none INVALID_CONFIG. None of them lets an OSError through.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

_SENTENCES: Final[dict[ErrorCode, str]] = {
    ErrorCode.unknown_server_error: "unexpected error in the broker; see its log",
    ErrorCode.offset_out_of_range: "the offset is not in the log: deleted, or not written yet",
    ErrorCode.corrupt_message: "the batch is corrupt or violates a setting of the topic",
    ErrorCode.unknown_topic_or_partition: "the broker has no such topic or partition",
    ErrorCode.leader_not_available: "the partition has no leader",
    ErrorCode.not_leader_or_follower: "another broker is the leader of the partition",
    ErrorCode.request_timed_out: "the request timed out",
    ErrorCode.broker_not_available: "no broker can be reached",
    ErrorCode.message_too_large: "the batch is larger than the topic's max.message.bytes",
    ErrorCode.offset_metadata_too_large: "the metadata of the committed offset is too large",
    ErrorCode.network_exception: "the connection was lost before the response arrived",
    ErrorCode.coordinator_load_in_progress: "the coordinator is loading its state",
    ErrorCode.coordinator_not_available: "no coordinator is available",
    ErrorCode.not_coordinator: "another broker is the coordinator",
    ErrorCode.invalid_topic_exception: "invalid topic name",
    ErrorCode.not_enough_replicas: "fewer in-sync replicas than min.insync.replicas",
    ErrorCode.not_enough_replicas_after_append: "written, but to fewer replicas than min.insync.replicas",
    ErrorCode.topic_authorization_failed: "not authorized for the topic",
    ErrorCode.group_authorization_failed: "not authorized for the group",
    ErrorCode.cluster_authorization_failed: "not authorized for the cluster",
    ErrorCode.unsupported_sasl_mechanism: "the broker does not support this SASL mechanism",
    ErrorCode.illegal_sasl_state: "the broker does not expect authentication here: check security.protocol",
    ErrorCode.unsupported_version: "the broker supports no version of the request that this client supports",
    ErrorCode.topic_already_exists: "a topic with this name already exists",
    ErrorCode.invalid_partitions: "invalid number of partitions",
    ErrorCode.invalid_replication_factor: "invalid replication factor for this cluster",
    ErrorCode.invalid_config: "invalid setting",
    ErrorCode.invalid_request: "the broker rejected the request as malformed",
    ErrorCode.out_of_order_sequence_number: "gap in the producer's sequence numbers: an earlier batch was lost",
    ErrorCode.duplicate_sequence_number: "duplicate batch: it was already written",
    ErrorCode.invalid_producer_epoch: "a newer instance of the producer took over",
    ErrorCode.invalid_txn_state: "the transaction is not in a state that allows this",
    ErrorCode.invalid_producer_id_mapping: "the producer id does not belong to this transactional id",
    ErrorCode.invalid_transaction_timeout: "the transaction timeout exceeds the maximum of the broker",
    ErrorCode.concurrent_transactions: "the previous transaction of this id is still being completed",
    ErrorCode.transactional_id_authorization_failed: "not authorized for the transactional id",
    ErrorCode.kafka_storage_error: "the broker cannot access the disk of this log",
    ErrorCode.sasl_authentication_failed: "invalid user name or password",
    ErrorCode.unknown_producer_id: "the broker has no state of this producer on the partition",
    ErrorCode.fenced_leader_epoch: "the leader epoch of the request is older than the broker's",
    ErrorCode.unknown_leader_epoch: "the leader epoch of the request is newer than the broker's",
    ErrorCode.unsupported_compression_type: "the broker does not support this compression",
    ErrorCode.offset_not_available: "a new leader does not know its high watermark yet",
    ErrorCode.invalid_record: "the batch violates a setting of the topic",
    ErrorCode.unstable_offset_commit: "a transaction that commits this offset is still open",
    ErrorCode.producer_fenced: "a newer instance with the same transactional id took over",
    ErrorCode.unknown_topic_id: "the broker has no topic with this id",
    ErrorCode.transactional_id_not_found: "unknown transactional id",
    ErrorCode.transaction_abortable: "the transaction must be aborted",
}

NEW_LEADER: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""After these the partition may have another leader: metadata is asked for again."""

NEW_COORDINATOR: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)
"""After these the group or transactional id may have another coordinator."""


class KafkaError(Exception):
    """A request that failed. `name` is Kafka's: UNKNOWN_TOPIC_OR_PARTITION; `topic` and `partition` where one is meant."""

    def __init__(
        self,
        code: int,
        detail: str = "",
        *,
        where: str = "",
        topic: str | None = None,
        partition: int | None = None,
        retriable: bool | None = None,
    ) -> None:
        self.error_code = error_code(code)
        self.code = code
        self.name = error_name(code)
        self.retriable = self.error_code.retriable if retriable is None else retriable
        """Whether the same request may succeed later."""
        self.text = detail or _SENTENCES.get(self.error_code, "the broker rejected the request")
        self.where = where
        self.topic = topic
        self.partition = partition
        place = f"{topic}-{partition}" if topic is not None and partition is not None else topic or ""
        shown = ", ".join(part for part in (where, place) if part)
        super().__init__(f"{self.name}: {f'{shown}: ' if shown else ''}{self.text}")

    def __reduce__(self) -> tuple[object, ...]:
        # Raised in a Spark task it travels to the driver as a pickle.
        return _again, (self.code, self.text, self.where, self.topic, self.partition, self.retriable)


def _again(code: int, text: str, where: str, topic: str | None, partition: int | None, retriable: bool) -> KafkaError:
    return KafkaError(code, text, where=where, topic=topic, partition=partition, retriable=retriable)


def error_code(code: int) -> ErrorCode:
    """Kafka's code; one that is younger than this client is an unknown server error."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"ERROR_{code}"


def sentence(code: int) -> str:
    """What the error means, in a sentence."""
    return _SENTENCES.get(error_code(code), "the broker rejected the request")


def check(code: int, detail: str | None = "", *, where: str = "", topic: str | None = None) -> None:
    """Raise what an answer's error code says, if it says anything."""
    if code:
        raise KafkaError(code, _joined(code, detail), where=where, topic=topic)


def _joined(code: int, detail: str | None) -> str:
    """The broker's own words behind what the code means."""
    said = (detail or "").strip()
    meaning = sentence(code)
    return f"{meaning} ({said})" if said and said != meaning else meaning
