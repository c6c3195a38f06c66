"""One line in the log for each part of a log that cannot be read, however often clients ask for it."""

from __future__ import annotations

import logging

from penstock.model.ids import TopicPartition
from penstock.model.limits import READ_ERRORS_REMEMBERED_MAX

logger = logging.getLogger(__name__)


class ReadErrors:
    """Logs each error once per partition and offset, until the broker restarts or too many are remembered."""

    def __init__(self) -> None:
        self._logged: set[tuple[TopicPartition | str, int, int | None]] = set()

    def note(self, partition_id: TopicPartition | str, offset: int, error: OSError) -> None:
        """A read from `offset` on failed. The error names the file, and the position where there is one."""
        key = partition_id, offset, error.errno
        if key in self._logged:
            return
        if len(self._logged) >= READ_ERRORS_REMEMBERED_MAX:
            self._logged.clear()
        self._logged.add(key)
        logger.warning("%s: offset %d cannot be read: %s", partition_id, offset, error)
