"""What an answer is made of: bytes in memory, or a range of a log file that may leave by sendfile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class OpenFile(Protocol):
    """An open file that lives as long as somebody holds it; closing is the owner's business."""

    def fileno(self) -> int: ...


class FileRange:
    """`length` bytes of `file` from `position`: immutable bytes of a log, safe to read until the range is dropped."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: OpenFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileRange(fd={self.file.fileno()}, position={self.position}, length={self.length})"


Chunk = bytes | bytearray | memoryview | FileRange


def joined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same answer in as few chunks as it can have."""
    try:
        return [b"".join(chunks)]  # type: ignore[arg-type]  # a range cannot be joined
    except TypeError:
        pass
    few: list[Chunk] = []
    held: list[bytes | bytearray | memoryview] = []
    for chunk in chunks:
        if not isinstance(chunk, FileRange):
            held.append(chunk)
            continue
        if held:
            few.append(b"".join(held))
            held = []
        few.append(chunk)
    if held:
        few.append(b"".join(held))
    return few
