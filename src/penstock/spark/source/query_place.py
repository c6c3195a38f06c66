"""Where a stream began and how far it got, kept on the cluster as the committed offsets of its group.

Spark asks a Python source again where it begins when the first batch of a query failed, and does not tell it where the
checkpoint is. A stream that began at the log's end would then begin at another end, and lose what lay between. So the
offsets of the beginning are committed under kafka.group.id before Spark sees them, with a note that says so; whoever finds
that note begins there too. Once a batch is through, the group's offsets are the query's progress: every tool that shows
the lag of a group shows that of the query, and the note is gone. A group belongs to one query.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from penstock.client.kafka import GroupOffset, KafkaError
from penstock.model.ids import TopicPartition
from penstock.spark.source.errors import SourceError, log
from penstock.spark.source.offsets import Offsets
from penstock.spark.source.options import Bound
from penstock.spark.source.topics import Topics

PROGRESS = "penstock progress"
_START = "penstock start"


class QueryPlace:
    def __init__(self, topics: Topics, group: str | None, prefix: str | None, starting: Bound) -> None:
        """Without a group there is no beginning to be found again; with a prefix alone there is progress to be seen."""
        self._topics = topics
        self._keeps_start = group is not None
        self._group = group or (f"{prefix}-{uuid.uuid4()}" if prefix else None)
        # Another starting option is another question: its answer is not the one that was kept.
        self._note = f"{_START} {hashlib.sha256(repr(starting).encode()).hexdigest()[:12]}"
        self._advanced: Offsets | None = None
        self._was_refused = False

    @property
    def keeps_start(self) -> bool:
        return self._keeps_start

    def start(self, places: Iterable[TopicPartition]) -> Offsets | None:
        """Where the query began, if it began and no batch of it is through."""
        if not self._keeps_start or self._group is None:
            return None
        group = self._group
        wanted = list(places)
        found = self._topics.ask(lambda client: client.fetch_offsets(group, wanted)) if wanted else {}
        if any(kept.metadata == PROGRESS for kept in found.values()):
            return None
        return {where: kept.offset for where, kept in found.items() if kept.metadata == self._note} or None

    def keep_start(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises SourceError if it cannot be kept: a start that may be lost is none."""
        if not self._keeps_start or self._group is None or not offsets:
            return
        group = self._group
        commits = _commits(offsets, self._note)
        try:
            self._topics.client.commit_offsets(group, commits)
        except KafkaError as error:
            raise SourceError(
                f"cannot store the start offsets of the query in kafka.group.id={group}: {_reason(error)}"
            ) from None

    def advance(self, offsets: Offsets) -> None:
        """Show how far the query is; if that fails only the display is behind, the checkpoint is the truth."""
        if self._group is None or not offsets or offsets == self._advanced:
            return
        commits = _commits(offsets, PROGRESS)
        try:
            self._topics.client.commit_offsets(self._group, commits)
        except KafkaError as error:
            if not self._was_refused:
                log.warning("the lag of group %s is not up to date: %s", self._group, _reason(error))
            self._was_refused = True
            return
        self._advanced = dict(offsets)


def _commits(offsets: Mapping[TopicPartition, int], note: str) -> dict[tuple[str, int], int | GroupOffset]:
    return {(where.topic, where.partition): GroupOffset(offset, note) for where, offset in offsets.items()}


def _reason(error: KafkaError) -> str:
    if error.error_code is ErrorCode.unknown_member_id:
        return "the group has members; a query requires a group of its own"
    return str(error)
