"""Producer ids: never given twice, not even across crashes. A block is reserved on disk before its ids are handed out."""

from __future__ import annotations

from penstock.storage.data_directory import DataDirectory

FILE_NAME = "producer-ids"
BLOCK = 1_000


class ProducerIds:
    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._reserved = int(directory.read_state(FILE_NAME) or b"0")
        self._next = self._reserved

    @property
    def exhausted(self) -> bool:
        return self._next >= self._reserved

    def reserve(self) -> int:
        """Write the next block to disk (off the loop); its end."""
        end = self._reserved + BLOCK
        self._directory.write_state(FILE_NAME, b"%d\n" % end)
        return end

    def reserved(self, end: int) -> None:
        self._reserved = end

    def take(self) -> int:
        assert not self.exhausted
        taken = self._next
        self._next += 1
        return taken
