"""The committed offsets of all groups of one `__consumer_offsets` partition, and those that transactions hold back.

Three rules:

1. A plain commit counts at once. A commit inside a transaction is pending until the producer's marker: a commit marker
   makes it count, an abort marker drops it.
2. The later record wins. A plain commit drops what is pending for its partition; a pending offset that becomes final drops
   the pending ones that were written before it. A tombstone drops everything of its partition.
3. Offsets expire only in a group that had members and has none now, `offsets_retention_ms` after it became empty or
   after the commit, whichever is later. Offsets with an expiry of their own (old clients) expire then. A partition with
   something pending does not expire.

State changes only through `replay` and `end_transaction`, which is what the log holds: records and markers. Who may
commit is the group's question; whether a commit is small enough is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.coordination.group_commands import (
    CommitOffsets,
    FetchedOffset,
    GroupSettings,
)
from penstock.coordination.group_records import CommittedOffset, OffsetRecord
from penstock.model.errors import Fault
from penstock.records.varint import INT64_MAX

_NOTHING = FetchedOffset(None)
_UNSTABLE = FetchedOffset(None, is_unstable=True)


class _Pending(NamedTuple):
    order: int
    value: CommittedOffset


class Offsets:
    __slots__ = ("_committed", "_order", "_pending", "_producers")

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[str, dict[tuple[str, int], _Pending]]] = {}
        self._producers: dict[str, set[int]] = {}
        """Which producers have something pending in a group."""
        self._order = 0

    # ------------------------------------------------------------------------------------------------ the log's side

    def replay(self, record: OffsetRecord, producer_id: int | None) -> None:
        group, topic, partition, value = record
        if producer_id is not None and value is not None:
            self._order += 1
            groups = self._pending.setdefault(producer_id, {})
            groups.setdefault(group, {})[topic, partition] = _Pending(self._order, value)
            self._producers.setdefault(group, set()).add(producer_id)
            return
        if group in self._producers:
            self._drop_pending(group, (topic, partition), self._order + 1)
        if value is not None:
            self._put(group, topic, partition, value)
            return
        partitions = self._committed.get(group, {}).get(topic)
        if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
            topics = self._committed[group]
            del topics[topic]
            if not topics:
                del self._committed[group]

    def end_transaction(self, producer_id: int, *, committed: bool) -> tuple[str, ...]:
        """The producer's marker is in the log: what it held pending counts or is gone. The groups it touched."""
        groups = self._pending.pop(producer_id, {})
        for group, offsets in groups.items():
            self._producers[group].discard(producer_id)
            if not self._producers[group]:
                del self._producers[group]
            if not committed:
                continue
            for (topic, partition), pending in offsets.items():
                self._put(group, topic, partition, pending.value)
                if group in self._producers:
                    self._drop_pending(group, (topic, partition), pending.order)
        return tuple(groups)

    def _put(self, group: str, topic: str, partition: int, value: CommittedOffset) -> None:
        topics = self._committed.get(group)
        if topics is None:
            topics = self._committed[group] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = value

    def _drop_pending(self, group: str, place: tuple[str, int], before: int) -> None:
        for producer_id in tuple(self._producers[group]):
            offsets = self._pending[producer_id][group]
            pending = offsets.get(place)
            if pending is not None and pending.order < before:
                del offsets[place]
                if not offsets:
                    self._forget_producer(producer_id, group)

    def _forget_producer(self, producer_id: int, group: str) -> None:
        groups = self._pending[producer_id]
        del groups[group]
        if not groups:
            del self._pending[producer_id]
        producers = self._producers[group]
        producers.discard(producer_id)
        if not producers:
            del self._producers[group]

    # ------------------------------------------------------------------------------------------------------ questions

    def has_any(self, group: str) -> bool:
        """Whether the group has an offset, committed or pending."""
        return group in self._committed or group in self._producers

    def topics(self) -> set[str]:
        """Every topic that some group has an offset of, to be compared with the topics that exist."""
        found = {topic for topics in self._committed.values() for topic in topics}
        for groups in self._pending.values():
            for offsets in groups.values():
                found.update(topic for topic, _ in offsets)
        return found

    def fetch(
        self, group: str, wanted: Mapping[str, tuple[int, ...]] | None, *, require_stable: bool
    ) -> dict[str, dict[int, FetchedOffset]]:
        """What is committed for the wanted partitions; for None, for all that have something committed."""
        committed = self._committed.get(group, {})
        unstable = self._pending_places(group) if require_stable else frozenset()
        if wanted is None:
            wanted = {topic: tuple(partitions) for topic, partitions in committed.items()}
        answer: dict[str, dict[int, FetchedOffset]] = {}
        for topic, partitions in wanted.items():
            here = committed.get(topic, {})
            found = answer[topic] = {}
            for partition in partitions:
                if unstable and (topic, partition) in unstable:
                    found[partition] = _UNSTABLE
                else:
                    value = here.get(partition)
                    found[partition] = _NOTHING if value is None else FetchedOffset(value)
        return answer

    def _pending_places(self, group: str) -> frozenset[tuple[str, int]]:
        producers = self._producers.get(group, ())
        return frozenset(place for producer_id in producers for place in self._pending[producer_id][group])

    def durable_state(self) -> object:
        """What a replay of the log must lead to again."""
        pending = {
            producer_id: {group: {place: p.value for place, p in places.items()} for group, places in groups.items()}
            for producer_id, groups in self._pending.items()
        }
        return self._committed, pending

    # ---------------------------------------------------------------------------------------------- records to write

    @staticmethod
    def commit(
        command: CommitOffsets, now_ms: int, settings: GroupSettings
    ) -> tuple[list[OffsetRecord], dict[tuple[str, int], Fault]]:
        """The records of an allowed commit, and the partitions that are refused."""
        records: list[OffsetRecord] = []
        refused: dict[tuple[str, int], Fault] = {}
        group = command.group
        expire_ms = None if command.retention_ms is None else min(now_ms + command.retention_ms, INT64_MAX)
        for topic, partition, offset, leader_epoch, metadata in command.offsets:
            if metadata and len(metadata.encode()) > settings.offset_metadata_bytes_max:
                refused[topic, partition] = Fault.OFFSET_METADATA_TOO_LARGE
                continue
            if expire_ms is None:
                value = CommittedOffset(offset, now_ms, leader_epoch, metadata)
            else:  # the only format with an expiry has neither a leader epoch nor null metadata
                value = CommittedOffset(offset, now_ms, metadata=metadata or "", expire_timestamp_ms=expire_ms)
            records.append(OffsetRecord(group, topic, partition, value))
        return records, refused

    def tombstones(self, group: str, places: Iterable[tuple[str, int]] | None = None) -> list[OffsetRecord]:
        """Records that drop these partitions of the group, as far as they have anything; for None, all of them."""
        pending = self._pending_places(group)
        committed = self._committed.get(group, {})
        if places is None:
            places = {(topic, partition) for topic, partitions in committed.items() for partition in partitions}
            places |= pending
            places = sorted(places)
        return [
            OffsetRecord(group, topic, partition, None)
            for topic, partition in places
            if partition in committed.get(topic, {}) or (topic, partition) in pending
        ]

    def tombstones_of_topics(self, topics: frozenset[str]) -> Iterator[OffsetRecord]:
        for group in sorted(self._committed.keys() | self._producers.keys()):
            committed = self._committed.get(group, {})
            places = {(topic, partition) for topic in topics for partition in committed.get(topic, ())}
            places.update(place for place in self._pending_places(group) if place[0] in topics)
            yield from self.tombstones(group, sorted(places))

    def expired(self, group: str, empty_since_ms: int, now_ms: int, retention_ms: int) -> list[OffsetRecord]:
        """Tombstones for what has expired in a group that had members and is empty since then."""
        pending = self._pending_places(group)
        return [
            OffsetRecord(group, topic, partition, None)
            for topic, partitions in self._committed.get(group, {}).items()
            for partition, value in partitions.items()
            if (topic, partition) not in pending and now_ms >= _expiry_ms(value, empty_since_ms, retention_ms)
        ]


def _expiry_ms(value: CommittedOffset, empty_since_ms: int, retention_ms: int) -> int:
    if value.expire_timestamp_ms is not None:
        return value.expire_timestamp_ms
    return max(value.commit_timestamp_ms, empty_since_ms) + retention_ms
