"""The requests of one connection whose answers have not left, in the order in which they came.

Each goes with its result, or with the `Pending` that will have it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.model.pending import Pending

Parked = deque[tuple[Any, Any]]
"""Of (request, result). A plain deque: it is looked at for every request."""


def bring_forward(parked: Parked) -> None:
    """Put the answers that may leave before those that wait; among requests of one key the order stays."""
    waiting_keys: set[Any] = set()
    come: list[tuple[Any, Any]] = []
    waiting: list[tuple[Any, Any]] = []
    for entry in parked:
        request, result = entry
        key = request.unordered_key
        if key in waiting_keys or (isinstance(result, Pending) and not result.done):
            waiting_keys.add(key)
            waiting.append(entry)
        else:
            come.append(entry)
    parked.clear()
    parked.extend(come)
    parked.extend(waiting)


def abandon(parked: Parked) -> None:
    """Nobody will take these answers: who works on them may stop."""
    for _request, result in parked:
        if isinstance(result, Pending):
            result.abandon()
