"""Where a group or a transactional id is coordinated (here), and what all requests to a coordinator share.

A coordinator answers now or later, and either with its result or with a `Fault` when it cannot serve: `when` and `in_turn`
(model/pending.py) hide the first difference, each handler looks at the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.dialects.kafka.apis import ApiKey
from penstock.model.errors import Fault

if TYPE_CHECKING:
    from penstock.coordination.group_commands import Command as GroupCommand
    from penstock.coordination.transaction_commands import Command as TransactionCommand
    from penstock.dialects.kafka.service import Caller, KafkaService

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


def find_coordinator(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    """This node, once the internal topic is there; several keys in one request from version 4 on."""
    key_type = getattr(body, "key_type", _GROUP_KEY)
    keys = body.coordinator_keys if version >= 4 else (body.key,)

    def answer(fault: Fault) -> dict[str, Any]:
        address = service.address
        found = {
            "error_code": fault,
            "error_message": None if fault is Fault.NONE else fault.value,
            "node_id": address.node_id if fault is Fault.NONE else -1,
            "host": address.host if fault is Fault.NONE else "",
            "port": address.port if fault is Fault.NONE else -1,
        }
        return {**found, "coordinators": [{**found, "key": key} for key in keys]}

    if key_type == _GROUP_KEY:
        return service.engine.groups.ensure().map(answer)
    if key_type == _TRANSACTION_KEY:
        return service.engine.transactions.ensure().map(answer)
    return answer(Fault.INVALID_REQUEST)
