"""Offsets that a group committed: read and written without being a member, as a pipeline does that keeps its own place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.client.kafka_apis import Api
from penstock.client.kafka_cluster import CoordinatorKind, KafkaCluster, by_topic, partition
from penstock.client.kafka_codec import Message
from penstock.client.kafka_errors import KafkaError
from penstock.model.ids import TopicPartition


class GroupOffset(NamedTuple):
    """Where a group goes on, and what it noted beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupRequests(KafkaCluster):
    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int | GroupOffset]) -> None:
        """For a group without members; one with members answers UNKNOWN_MEMBER_ID."""

        def failure(answer: Message) -> KafkaError | None:
            return _first_error(answer.topics, "OffsetCommit", group)

        self.ask_coordinator(
            CoordinatorKind.GROUP,
            group,
            Api.OFFSET_COMMIT,
            {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "retention_time": -1,
                "topics": commit_topics(offsets),
            },
            failure,
        )

    def fetch_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, GroupOffset]:
        """What the group committed for these partitions, or for all; a partition without a commit is not there.

        An offset that an open transaction is about to change is waited for (KIP-447).
        """
        topics = None
        if partitions is not None:
            wanted = by_topic({partition(*place): True for place in partitions})
            topics = [{"name": topic, "partition_indexes": list(rows)} for topic, rows in wanted.items()]

        def failure(answer: Message) -> KafkaError | None:
            found = _of_group(answer)
            if getattr(found, "error_code", 0):
                return KafkaError(found.error_code, where=f"OffsetFetch of {group!r}")
            return _first_error(found.topics, "OffsetFetch", group)

        answer = self.ask_coordinator(
            CoordinatorKind.GROUP,
            group,
            Api.OFFSET_FETCH,
            {
                "group_id": group,
                "topics": topics,
                "require_stable": True,
                "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
            },
            failure,
        )
        return {
            partition(topic.name, row.partition_index): GroupOffset(
                row.committed_offset, row.metadata or "", getattr(row, "committed_leader_epoch", -1)
            )
            for topic in _of_group(answer).topics
            for row in topic.partitions
            if row.committed_offset >= 0
        }


def commit_topics(offsets: Mapping[tuple[str, int], int | GroupOffset]) -> list[dict[str, Any]]:
    """The topics of OffsetCommit and TxnOffsetCommit."""
    commits = {
        partition(*place): GroupOffset(offset) if isinstance(offset, int) else offset
        for place, offset in offsets.items()
    }
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": commit.offset,
                    "committed_leader_epoch": commit.leader_epoch,
                    "committed_metadata": commit.metadata,
                }
                for index, commit in rows.items()
            ],
        }
        for topic, rows in by_topic(commits).items()
    ]


def _of_group(answer: Message) -> Any:
    """From version 8 on it answers for several groups at once (KIP-709)."""
    return answer.groups[0] if hasattr(answer, "groups") else answer


def _first_error(topics: Iterable[Any], request: str, group: str) -> KafkaError | None:
    for topic in topics:
        for row in topic.partitions:
            if row.error_code:
                return KafkaError(
                    row.error_code, where=f"{request} of {group!r}", topic=topic.name, partition=row.partition_index
                )
    return None
