"""Where a group or a transactional id is coordinated (here), and what all requests to a coordinator share.

A coordinator answers now or later, and either with its result or with a `Fault` when it cannot serve: `when` and `in_turn`
(model/pending.py) hide the first difference, each handler looks at the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.dialects.kafka.apis import ApiKey
from penstock.model import limits
from penstock.model.errors import Fault, ProtocolError
from penstock.model.pending import Pending
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.broker.groups import Groups
    from penstock.broker.transactions import Transactions
    from penstock.coordination.group_commands import Command as GroupCommand
    from penstock.coordination.transaction_commands import Command as TransactionCommand
    from penstock.dialects.kafka.service import Caller, KafkaService

T = TypeVar("T")

_GROUP_KEY = 0
_TRANSACTION_KEY = 1

_FENCED_FROM: Mapping[int, int] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
    ApiKey.TXN_OFFSET_COMMIT: 3,
}
"""The first version whose clients know PRODUCER_FENCED (KIP-588, KIP-360)."""

_ABORTABLE_FROM: Mapping[int, int] = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 5,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
"""The first version whose clients know TRANSACTION_ABORTABLE (KIP-890)."""


def known_fault(fault: Fault, key: ApiKey, version: int) -> Fault:
    """The fault of a transaction in words that clients of that version know."""
    if fault is Fault.PRODUCER_FENCED and version < _FENCED_FROM[key]:
        return Fault.INVALID_PRODUCER_EPOCH
    if fault is Fault.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM[key]:
        return Fault.INVALID_TXN_STATE
    return fault


def ask_group(service: KafkaService, group: str, command: GroupCommand) -> Any:
    """What the group's coordinator answers, or a Fault: at once or as a `Pending`."""
    return service.engine.groups.ask(group, command)


def ask_transaction(service: KafkaService, transactional_id: str, command: TransactionCommand) -> Any:
    """What the transaction's coordinator answers, or a Fault: at once or as a `Pending`."""
    return service.engine.transactions.ask(transactional_id, command)


class Room:
    """Number of elements that may still be added to an answer."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = limits.ANSWER_ELEMENTS_MAX

    def take(self, count: int) -> None:
        """Raises ProtocolError if the answer becomes too large."""
        self._left -= count
        if self._left < 0:
            raise ProtocolError(f"the answer has more than {limits.ANSWER_ELEMENTS_MAX} elements; ask for less at once")


ASKED_AT_ONCE = 64
"""Commands of one request that wait for a flush at the same time."""


def ask_each(names: Sequence[str], ask: Callable[[str], Any], row: Callable[[str, Any], T]) -> Work[list[T]]:
    """Send a command for each name and build a row from each answer, in order."""
    rows: list[T] = []
    waiting: deque[tuple[str, Any]] = deque()
    for name in names:
        waiting.append((name, ask(name)))
        if len(waiting) >= ASKED_AT_ONCE:
            first, answer = waiting.popleft()
            rows.append(row(first, (yield answer) if isinstance(answer, Pending) else answer))
        yield None
    for first, answer in waiting:
        rows.append(row(first, (yield answer) if isinstance(answer, Pending) else answer))
        yield None
    return rows


def find_coordinator(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """This node, once the internal topic exists; several keys per request from version 4 on.

    A coordinator that cannot store anything is still found, because it answers requests that store nothing. The error
    message, next to the error code of success, says why it refuses the others; their answers have no field for a message.
    """
    engine = service.engine
    key_type = getattr(body, "key_type", _GROUP_KEY)
    coordinators: Groups | Transactions | None = None
    if key_type in (_GROUP_KEY, _TRANSACTION_KEY):
        coordinators = engine.groups if key_type == _GROUP_KEY else engine.transactions
    if coordinators is None:
        fault = Fault.INVALID_REQUEST
    elif not coordinators.is_open and engine.coordination_problem is not None:
        fault = Fault.COORDINATOR_NOT_AVAILABLE
    else:
        fault = yield coordinators.ensure()

    def row(key: str) -> dict[str, Any]:
        problem = None if coordinators is None else engine.coordination_problem or coordinators.problem_of(key)
        address = service.address
        return {
            "error_code": fault,
            "error_message": problem or (None if fault is Fault.NONE else fault.value),
            "node_id": address.node_id if fault is Fault.NONE else -1,
            "host": address.host if fault is Fault.NONE else "",
            "port": address.port if fault is Fault.NONE else -1,
        }

    if version < 4:
        return row(body.key)
    rows = []
    for key in body.coordinator_keys:
        rows.append({"key": key, **row(key)})
        yield None
    return {"coordinators": rows}
