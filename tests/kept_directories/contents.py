"""What a kept data directory holds: every acknowledged record, and everything else that a client was told.

It is noted from acknowledgements while the directory is written, never read back from it.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).resolve().parents[1] / "data"
COMMITTED, ABORTED = "committed", "aborted"
"""What readers of committed records see, and what they do not. A transaction that was left open is aborted by its timeout,
which is over when the directory is opened again."""


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Batch(NamedTuple):
    """The last batch of an idempotent producer in a log."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    base_offset: int


@dataclass
class Topic:
    id: str
    partitions: int
    configs: dict[str, str]

    @property
    def is_compacted(self) -> bool:
        return self.configs.get("cleanup.policy") == "compact"


@dataclass
class Log:
    start: int = 0
    end: int | None = None
    """None where a transaction was left open: the marker of its end comes later."""
    rows: dict[int, tuple[Row, str]] = field(default_factory=dict)
    """By offset, with what became of the record."""

    def visible(self, *, committed: bool) -> list[Row]:
        return [
            row for row, fate in self.rows.values() if row.offset >= self.start and not (committed and fate == ABORTED)
        ]

    def newest(self) -> dict[bytes | None, Row]:
        """The last record of each key: what log cleaning must keep."""
        return {row.key: row for row in self.visible(committed=False)}


@dataclass
class Contents:
    version: str
    is_clean: bool
    """Whether the broker stopped cleanly; else it was killed."""
    cluster_id: str = ""
    topics: dict[str, Topic] = field(default_factory=dict)
    logs: dict[tuple[str, int], Log] = field(default_factory=dict)
    groups: dict[str, dict[tuple[str, int], tuple[int, str]]] = field(default_factory=dict)
    """Committed offsets with their metadata."""
    transactions: dict[str, str] = field(default_factory=dict)
    """The state that each transactional id has once open transactions have timed out."""
    producers: dict[tuple[str, int], Batch] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.version}-{'clean' if self.is_clean else 'killed'}"

    @property
    def archive(self) -> Path:
        return DATA / f"{self.name}.tar.xz"

    def unpack(self, folder: Path) -> None:
        with tarfile.open(self.archive) as archive:
            archive.extractall(folder, filter="data")

    # ------------------------------------------------------------------------------------------------ JSON

    def store(self) -> None:
        logs: dict[str, dict[str, Any]] = {
            _place(place): {
                "start": log.start,
                "end": log.end,
                "rows": [[*_coded(row), fate] for row, fate in log.rows.values()],
            }
            for place, log in self.logs.items()
        }
        whole: dict[str, Any] = {
            "version": self.version,
            "is_clean": self.is_clean,
            "cluster_id": self.cluster_id,
            "topics": {name: asdict(topic) for name, topic in self.topics.items()},
            "groups": {
                group: {_place(place): list(offset) for place, offset in offsets.items()}
                for group, offsets in self.groups.items()
            },
            "transactions": self.transactions,
            "producers": {_place(place): list(batch) for place, batch in self.producers.items()},
            "logs": logs,
        }
        text = json.dumps(whole, indent=1)
        for log in logs.values():  # a record per line
            for row in log["rows"]:
                text = text.replace(_indented(row), json.dumps(row), 1)
        assert json.loads(text) == whole
        (DATA / f"{self.name}.json").write_text(text + "\n")

    @classmethod
    def load(cls, name: str) -> Contents:
        whole = json.loads((DATA / f"{name}.json").read_text())
        contents = cls(whole["version"], whole["is_clean"], whole["cluster_id"])
        contents.topics = {topic: Topic(**fields) for topic, fields in whole["topics"].items()}
        for group, offsets in whole["groups"].items():
            contents.groups[group] = {_of_place(place): (offset, text) for place, (offset, text) in offsets.items()}
        contents.transactions = whole["transactions"]
        contents.producers = {_of_place(place): Batch(*batch) for place, batch in whole["producers"].items()}
        for place, log in whole["logs"].items():
            rows = {row[0]: (_decoded(row), row[-1]) for row in log["rows"]}
            contents.logs[_of_place(place)] = Log(log["start"], log["end"], rows)
        return contents


def kept() -> list[str]:
    """The names of all kept directories."""
    return sorted(path.stem for path in DATA.glob("*.json"))


def _place(place: tuple[str, int]) -> str:
    return f"{place[0]}-{place[1]}"


def _of_place(text: str) -> tuple[str, int]:
    topic, _, partition = text.rpartition("-")
    return topic, int(partition)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def _coded(row: Row) -> list[Any]:
    headers = [[name, _text(value)] for name, value in row.headers]
    return [row.offset, _text(row.key), _text(row.value), headers, row.timestamp_ms]


def _decoded(row: list[Any]) -> Row:
    offset, key, value, headers, timestamp_ms, _ = row
    return Row(offset, _bytes(key), _bytes(value), tuple((name, _bytes(text)) for name, text in headers), timestamp_ms)


def _indented(row: list[Any]) -> str:
    """How `json.dumps` writes the row four levels deep with an indent of 1."""
    return json.dumps(row, indent=1).replace("\n", "\n    ")
