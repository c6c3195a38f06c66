"""A large produce to a topic that does not exist: while the topic is created, the bytes of the records are counted."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from penstock.net.session import Peer
from penstock.server.dialects import SERVICES
from tests.dialects.day1 import frames as day1
from tests.dialects.fluxgo import frames as fluxgo
from tests.dialects.fluxgo.in_process import Serving
from tests.dialects.flymq import broker as flymq
from tests.dialects.rustlog import peer as rustlog

VALUE_BYTES = 6 * 1024 * 1024
VALUE = bytes(VALUE_BYTES)
OTHER_BYTES_MAX = 1024 * 1024
"""Memory that the broker may need besides the counted bytes."""

PRODUCES = {
    "fluxgo": fluxgo.produce("new", 0, VALUE),
    "minikafka": b"TOPIC new k %d\n" % VALUE_BYTES + VALUE,
    "rustlog": rustlog.produce(VALUE, topic="new"),
    "flymq": flymq.produce("new", VALUE),
    "flymq by key": flymq.api_produce("new", 0, flymq.message(VALUE)),
    "flymq by key, many messages": flymq.api_produce("new", 0, *[flymq.message(b"")] * 100_000),
    "day1": day1.one("new", 0, VALUE),
}


def listener(name: str) -> Callable[[EmbeddedEngine], Callable[[Peer], Any]]:
    dialect = name.partition(" ")[0]
    settings = replace(DEFAULTS[dialect], creates_topics=True, partitions=1)

    def make(engine: EmbeddedEngine) -> Callable[[Peer], Any]:
        service, session = (
            getattr(import_module(f"penstock.dialects.{dialect}.{part}"), f"{SERVICES[dialect]}{part.capitalize()}")
            for part in ("service", "session")
        )
        shared = service(engine, settings)
        return lambda peer: session(shared, peer.host)

    return make


MESSAGE = gzip.compress(flymq.message(VALUE), 1)


class HeldCreations:
    """Topic creations that start when the test releases them."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._create = engine.create_topics
        self._held: list[tuple[Any, Pending[Any]]] = []
        engine.create_topics = self._hold  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._held)

    def _hold(self, *arguments: Any, **options: Any) -> Pending[Any]:
        result: Pending[Any] = Pending()
        self._held.append(((arguments, options), result))
        return result

    def release(self) -> None:
        for (arguments, options), result in self._held:
            self._create(*arguments, **options).then(result.complete)


@pytest.mark.parametrize("name", PRODUCES)
def test_no_uncounted_copy_is_kept_while_a_topic_is_created(tmp_path: Path, name: str) -> None:
    with Serving(tmp_path / "data", listener(name)) as broker, broker.connect() as peer:
        creations = broker.call(lambda: HeldCreations(broker.engine))
        in_flight = broker.network.in_flight
        tracemalloc.start()
        try:
            peer.send(PRODUCES[name])
            broker.until(lambda: creations)
            gc.collect()
            used, counted = broker.call(lambda: (tracemalloc.get_traced_memory()[0], in_flight.bytes_held))
        finally:
            tracemalloc.stop()
        assert counted >= len(PRODUCES[name])
        assert used <= counted + OTHER_BYTES_MAX
        broker.call(creations.release)
        peer.exactly(1)
        broker.until(lambda: in_flight.bytes_held == 0)
        [record] = broker.call(lambda: broker.engine.read_records("new", 0, 0, 1, 1)).records
        assert record.value == (b"" if "many" in name else VALUE)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: flymq.op(0x01, gzip.compress(flymq.produce_payload("new", VALUE), 1), 3),
        lambda: flymq.api(0, flymq.s("new") + flymq.i32(0) + flymq.batch(b"", compression=4, packed=MESSAGE)),
    ],
    ids=["opcode", "by key"],
)
def test_unpacked_request_is_counted_while_its_topic_is_created(
    tmp_path: Path, request_of: Callable[[], bytes]
) -> None:
    with Serving(tmp_path / "data", listener("flymq")) as broker, broker.connect() as peer:
        creations = broker.call(lambda: HeldCreations(broker.engine))
        account = broker.engine.unpacking.account
        peer.send(request_of())
        broker.until(lambda: creations)
        assert broker.call(lambda: account.bytes_taken) >= VALUE_BYTES
        broker.call(creations.release)
        peer.exactly(1)
        broker.until(lambda: not account.bytes_taken)
        [record] = broker.call(lambda: broker.engine.read_records("new", 0, 0, 1, 1)).records
        assert record.value == VALUE
