"""A read-only view of a topic's partitions, whose entries are created on access: a topic may have thousands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from penstock.broker.engine import PartitionInfo
from penstock.broker.partition import Partition


class PartitionInfos(Sequence[PartitionInfo]):
    __slots__ = ("_count", "_leader_epoch", "_partitions", "_topic")

    def __init__(
        self, partitions: Mapping[tuple[str, int], Partition], topic: str, count: int, leader_epoch: int
    ) -> None:
        self._partitions = partitions
        self._topic = topic
        self._count = count
        self._leader_epoch = leader_epoch

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> PartitionInfo: ...

    @overload
    def __getitem__(self, at: slice) -> list[PartitionInfo]: ...

    def __getitem__(self, at: int | slice) -> PartitionInfo | list[PartitionInfo]:
        numbers = range(self._count)[at]
        return self._info(numbers) if isinstance(numbers, int) else list(map(self._info, numbers))

    def _info(self, at: int) -> PartitionInfo:
        found = self._partitions.get((self._topic, at))
        return PartitionInfo(at, found is not None and found.online, self._leader_epoch)
