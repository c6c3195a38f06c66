"""The states of a classic group as data: where each leads, and what it answers to a member in good standing."""

from __future__ import annotations

import enum

from penstock.model.errors import Fault


class State(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING}),
    State.STABLE: frozenset({State.PREPARING}),
    State.DEAD: frozenset(),
}

HEARTBEAT_FAULT = {
    State.EMPTY: Fault.UNKNOWN_MEMBER_ID,
    State.PREPARING: Fault.REBALANCE_IN_PROGRESS,
    State.COMPLETING: Fault.NONE,
    State.STABLE: Fault.NONE,
}
SYNC_FAULT = {
    State.EMPTY: Fault.UNKNOWN_MEMBER_ID,
    State.PREPARING: Fault.REBALANCE_IN_PROGRESS,
    State.COMPLETING: Fault.NONE,
    State.STABLE: Fault.NONE,
}
