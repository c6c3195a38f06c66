"""Compressed requests: small ones are unpacked at once, others by a thread, within the broker's bounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.preparing import LIGHT_PACKED_BYTES_MAX, LIGHT_UNPACKED_BYTES_MAX
from penstock.dialects.flymq.turns import attempt
from penstock.model.errors import BrokerError, Fault
from penstock.model.pending import Hold, settle
from penstock.model.slices import Work, released
from penstock.records.batch import BatchError
from penstock.records.builder import Bytes
from penstock.records.compression import Codec, TooLarge, decompress
from penstock.records.walk import unpacked_bytes_max

logger = logging.getLogger(__name__)


def when_unpacked(
    engine: EmbeddedEngine,
    codec: Codec,
    packed: Bytes,
    limit_bytes: int,
    damage: Fault,
    then: Callable[[bytes], Any],
) -> Any:
    """The result of `then` for the unpacked bytes, now or as a `Hold`. Raises BrokerError with the fault `damage` if the
    bytes are damaged or unpack to more than `limit_bytes`."""
    if len(packed) <= LIGHT_PACKED_BYTES_MAX:
        try:
            return then(decompress(codec, packed, min(limit_bytes, LIGHT_UNPACKED_BYTES_MAX)))
        except TooLarge as error:
            if limit_bytes <= LIGHT_UNPACKED_BYTES_MAX:
                raise BrokerError(damage, str(error)) from None
        except BatchError as error:
            raise BrokerError(damage, str(error)) from None
    size = len(packed)
    account = engine.preparing.account
    if not account.take_now(size):
        raise BrokerError(Fault.REQUEST_TIMED_OUT, "the broker is unpacking other requests, try again")
    owned = memoryview(bytes(packed))
    hold: Hold[Any] = Hold()

    def work() -> Work[None]:
        result: Any
        try:
            limit = min(limit_bytes, unpacked_bytes_max(size))
            unpacked = yield from engine.unpacking.decompressed(codec, owned, limit)
            result = attempt(then, unpacked.data)
            yield from released(result)  # of a request whose topic is being created
            unpacked.release()
        except BatchError as error:
            result = BrokerError(damage, str(error))
        except Exception as error:
            logger.exception("a compressed request failed")
            result = BrokerError(Fault.UNKNOWN, str(error))
        account.give(size)
        settle(hold, result)

    engine.in_slices(work())
    return hold.result if hold.done else hold
