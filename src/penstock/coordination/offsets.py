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

from collections.abc import Collection, Iterable, Iterator, Mapping
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
    __slots__ = ("_committed", "_groups_of", "_holders", "_order", "_pending", "_producers")

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        """The groups with committed offsets of a topic."""
        self._pending: dict[int, dict[str, dict[tuple[str, int], _Pending]]] = {}
        self._producers: dict[str, set[int]] = {}
        """Which producers have something pending in a group."""
        self._holders: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """Producers with a pending offset for a partition of a group, in the order of their first write."""
        self._order = 0

    # ------------------------------------------------------------------------------------------------ the log's side

    def replay(self, record: OffsetRecord, producer_id: int | None) -> None:
        group, topic, partition, value = record
        if producer_id is not None and value is not None:
            self._order += 1
            groups = self._pending.setdefault(producer_id, {})
            groups.setdefault(group, {})[topic, partition] = _Pending(self._order, value)
            holders = self._holders.setdefault(group, {}).setdefault((topic, partition), {})
            holders.pop(producer_id, None)
            holders[producer_id] = None
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
            groups_of = self._groups_of[topic]
            del groups_of[group]
            if not groups_of:
                del self._groups_of[topic]
            if not topics:
                del self._committed[group]

    def end_transaction(self, producer_id: int, *, committed: bool) -> tuple[str, ...]:
        """The producer's marker is in the log: what it held pending counts or is gone. The groups it touched."""
        groups = self._pending.pop(producer_id, {})
        for group, offsets in groups.items():
            self._producers[group].discard(producer_id)
            if not self._producers[group]:
                del self._producers[group]
            for (topic, partition), pending in offsets.items():
                self._release(group, (topic, partition), producer_id)
                if not committed:
                    continue
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
            self._groups_of.setdefault(topic, {})[group] = None
        partitions[partition] = value

    def _drop_pending(self, group: str, place: tuple[str, int], before: int) -> None:
        holders = self._holders[group].get(place)
        while holders:
            producer_id = next(iter(holders))
            offsets = self._pending[producer_id][group]
            if offsets[place].order >= before:
                return
            del offsets[place]
            self._release(group, place, producer_id)
            if not offsets:
                self._forget_producer(producer_id, group)

    def _release(self, group: str, place: tuple[str, int], producer_id: int) -> None:
        places = self._holders[group]
        holders = places[place]
        del holders[producer_id]
        if not holders:
            del places[place]
            if not places:
                del self._holders[group]

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

    def count(self, group: str) -> int:
        """Number of committed offsets of the group."""
        return sum(map(len, self._committed.get(group, {}).values()))

    def has_topics(self, topics: Iterable[str]) -> bool:
        """Whether some group has an offset of one of these topics."""
        return next(self.tombstones_of_topics(frozenset(topics)), None) is not None

    def partitions_of(self, group: str) -> dict[str, list[int]]:
        return {topic: list(partitions) for topic, partitions in self._committed.get(group, {}).items()}

    def fetch(
        self, group: str, wanted: Mapping[str, tuple[int, ...]] | None, *, require_stable: bool
    ) -> dict[str, dict[int, FetchedOffset]]:
        """What is committed for the wanted partitions; for None, for all that have something committed."""
        committed = self._committed.get(group, {})
        unstable = self._pending_places(group) if require_stable else ()
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

    def _pending_places(self, group: str) -> Collection[tuple[str, int]]:
        return self._holders.get(group, {}).keys()

    def pending_count(self, producer_id: int) -> int:
        """Number of pending offsets of a producer."""
        return sum(map(len, self._pending.get(producer_id, {}).values()))

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

    def all_tombstones(self, group: str) -> Iterator[OffsetRecord]:
        """Records that remove all offsets of the group. The state must not change during the iteration."""
        committed = self._committed.get(group, {})
        for topic, partitions in committed.items():
            for partition in partitions:
                yield OffsetRecord(group, topic, partition, None)
        for topic, partition in self._pending_places(group):
            if partition not in committed.get(topic, {}):
                yield OffsetRecord(group, topic, partition, None)

    def tombstones(self, group: str, places: Iterable[tuple[str, int]]) -> list[OffsetRecord]:
        """Records that remove the offsets of these partitions of the group, if any."""
        pending = self._pending_places(group)
        committed = self._committed.get(group, {})
        return [
            OffsetRecord(group, topic, partition, None)
            for topic, partition in places
            if partition in committed.get(topic, {}) or (topic, partition) in pending
        ]

    def tombstones_of_topics(self, topics: frozenset[str]) -> Iterator[OffsetRecord]:
        """The state must not change during the iteration."""
        for topic in sorted(topics & self._groups_of.keys()):
            for group in self._groups_of[topic]:
                for partition in self._committed[group][topic]:
                    yield OffsetRecord(group, topic, partition, None)
        for producer_id in self._pending:
            for group, places in self._pending[producer_id].items():
                for topic, partition in places:
                    if topic in topics and partition not in self._committed.get(group, {}).get(topic, {}):
                        yield OffsetRecord(group, topic, partition, None)

    def expired(self, group: str, empty_since_ms: int, now_ms: int, retention_ms: int) -> Iterator[OffsetRecord]:
        """Tombstones for the expired offsets of a group that had members and has been empty since then.

        The state must not change during the iteration."""
        pending = self._pending_places(group)
        for topic, partitions in self._committed.get(group, {}).items():
            for partition, value in partitions.items():
                if (topic, partition) not in pending and now_ms >= _expiry_ms(value, empty_since_ms, retention_ms):
                    yield OffsetRecord(group, topic, partition, None)


def _expiry_ms(value: CommittedOffset, empty_since_ms: int, retention_ms: int) -> int:
    if value.expire_timestamp_ms is not None:
        return value.expire_timestamp_ms
    return max(value.commit_timestamp_ms, empty_since_ms) + retention_ms
