"""What a query's checkpoint says, read without Spark: which batches were planned and committed, and up to which offsets.

Spark writes `offsets/N` when it plans batch N and `commits/N` when it is through. An offsets file has a line with the
version, one with metadata, and one for each source. Local paths are read as they are, URLs through pyarrow.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.pipeline.progress import topic_offsets

Offsets = dict[tuple[str, int], int]
_BATCH = re.compile(r"\d+")


class UnreadableCheckpoint(Exception):
    """One line that says which and why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    query_id: str
    committed_batch: int | None
    """The last batch that is through; None before the first."""
    planned_batch: int | None
    """The last batch that was begun."""
    batch_time_ms: int | None
    """When the last committed batch was planned."""
    watermark_ms: int | None
    offsets: Offsets
    """Where the next batch begins, of all topics that the query reads."""

    @property
    def is_in_batch(self) -> bool:
        """Whether a batch was begun that is not through: it runs now, or was cut off."""
        return self.planned_batch is not None and self.planned_batch != self.committed_batch


def read_checkpoint(path: str) -> Checkpoint | None:
    """None when no query ever began there."""
    folder = _Folder(path)
    metadata = folder.read("metadata")
    if metadata is None:
        return None
    try:
        query_id = json.loads(metadata)["id"]
        committed, planned = folder.batches("commits"), folder.batches("offsets")
        last = max(committed, default=None)
        text = None if last is None else folder.read(f"offsets/{last}")
        head, offsets = ({}, {}) if text is None else _offsets_file(text)
    except (ValueError, KeyError, IndexError, TypeError):
        raise UnreadableCheckpoint(f"checkpoint {path} is corrupt or was not written by Spark") from None
    return Checkpoint(
        query_id,
        last,
        max(planned, default=None),
        head.get("batchTimestampMs"),
        head.get("batchWatermarkMs") or None,
        offsets,
    )


def _offsets_file(text: str) -> tuple[dict[str, Any], Offsets]:
    version, metadata, *sources = text.splitlines()
    if not version.startswith("v"):
        raise ValueError(version)
    found: Offsets = {}
    for line in sources:
        for place, offset in (topic_offsets(line) or {}).items():
            # a topic that two sources of the flow read is as far as the slower of them
            found[place] = min(offset, found.get(place, offset))
    head = json.loads(metadata)
    return head, found


class _Folder:
    """Files below a path or a URL."""

    def __init__(self, path: str) -> None:
        self._name = path
        parts = urlsplit(path)
        self._local = Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)
        self._remote: tuple[Any, str] | None = None
        if parts.scheme and parts.scheme != "file":
            from pyarrow import ArrowInvalid
            from pyarrow.fs import FileSystem

            try:
                self._remote = FileSystem.from_uri(path)
            except (ArrowInvalid, OSError) as error:
                raise UnreadableCheckpoint(f"cannot open checkpoint {path}: {error}") from None

    def read(self, name: str) -> str | None:
        try:
            if self._remote is None:
                return (self._local / name).read_text(encoding="utf-8")
            files, root = self._remote
            with files.open_input_stream(f"{root}/{name}") as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableCheckpoint(f"cannot read checkpoint {self._name}: {error}") from None

    def batches(self, name: str) -> list[int]:
        try:
            if self._remote is None:
                names = [entry.name for entry in (self._local / name).iterdir()]
            else:
                from pyarrow.fs import FileSelector

                files, root = self._remote
                names = [entry.base_name for entry in files.get_file_info(FileSelector(f"{root}/{name}"))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnreadableCheckpoint(f"cannot read checkpoint {self._name}: {error}") from None
        return [int(one) for one in names if _BATCH.fullmatch(one)]
