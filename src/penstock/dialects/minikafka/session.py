"""One MiniKafka connection: lines in, requests to the broker, lines out. No I/O and no clock.

A connection for each message is the normal use, so a session is three fields and makes nothing before it is asked.
Consecutive TOPIC lines for one topic are performed as one `ProduceRun`.

A consumer polls, gets one message, and acknowledges it. The connection remembers the message of its last poll, and nothing
when that poll had none: an ACK moves the group behind just that message, once. Because of this every request but a produce
that waits for its flush holds up the later ones of its connection.

The peer is wrong when a line or a payload is longer than allowed, a length negative, or SET_OFFSET has no argument: where
the next line begins cannot be known, or the original closes there too.
"""

from __future__ import annotations

from typing import Any

from penstock.broker.engine import Bytes, RunAppended
from penstock.dialects.minikafka import lines
from penstock.dialects.minikafka.lines import LINE_BYTES_MAX, Ack, Poll, ProduceRun, Request, Said, SetOffset
from penstock.dialects.minikafka.service import Delivery, Found, MiniKafkaService, Placed, Refusal
from penstock.model.chunks import Chunk
from penstock.model.errors import NO_FAULT, BrokerError
from penstock.model.fed import CUT_AT_ONCE, REQUEST_COST, Fed
from penstock.model.ids import topic_name
from penstock.model.pending import held, in_turn
from penstock.model.slices import Failed

WINDOW_BYTES = 256 * 1024
"""Lines are looked for in a copy of so much at a time; a payload that is longer is not copied."""
LONG_LINE_BYTES = 1_024
LINE_COST_SHIFT = 4
"""Long keys take time to hash: every 16 bytes of a longer line count as a record."""
JOINED_BYTES_MAX = 16 * 1024
"""Smaller messages leave in one piece with the lines around them."""


class MiniKafkaSession:
    __slots__ = ("_delivery", "_service")

    def __init__(self, service: MiniKafkaService, client_host: str = "") -> None:
        self._service = service
        self._delivery: Delivery | None = None
        """What an ACK would acknowledge."""

    # ------------------------------------------------------------------------------------------------ bytes in

    def feed(self, view: memoryview) -> Fed:
        end = len(view)
        window = view.tobytes() if end <= WINDOW_BYTES else bytes(view[:WINDOW_BYTES])
        base = at = 0
        """Where the window and the next line begin, in the view."""
        payload_bytes_max = self._service.settings.frame_bytes_max
        requests: list[Request] = []
        run: ProduceRun | None = None
        left = CUT_AT_ONCE
        while at < end:
            stop = window.find(b"\n", at - base) + base
            if stop < base:
                if base + len(window) < end and at > base:
                    base, window = at, bytes(view[at : at + WINDOW_BYTES])
                    continue
                if end - at > LINE_BYTES_MAX:
                    return Fed(at, 0, requests, f"a line of more than {LINE_BYTES_MAX} bytes")
                break
            line = window[at - base : stop - base]
            if len(line) > LINE_BYTES_MAX:
                return Fed(at, 0, requests, f"a line of {len(line)} bytes; {LINE_BYTES_MAX} are allowed")
            start = stop + 1
            if left <= 0:
                return Fed(at, start - at, requests)
            left -= 1 if len(line) <= LONG_LINE_BYTES else len(line) >> LINE_COST_SHIFT
            try:
                if not line.startswith(b"TOPIC"):
                    requests.append(lines.read_other(line))
                    left -= REQUEST_COST
                    run, at = None, start
                    continue
                read = lines.read_produce(line)
            except (lines.BadLength, lines.NoArgument) as error:
                return Fed(at, 0, requests, str(error))
            if isinstance(read, bytes):
                requests.append(Said(read))
                left -= REQUEST_COST
                run, at = None, start
                continue
            topic, key, length = read
            if length > payload_bytes_max:
                text = f"a payload of {length} bytes; {payload_bytes_max} are allowed"
                return Fed(at, 0, [*requests, Said(lines.error(text))], text)
            stop = start + length
            if stop > end:
                return Fed(at, stop - at, requests)
            value: Bytes = window[start - base : stop - base]
            if len(value) < length:
                value = view[start:stop]
            if run is None or run.topic != topic:
                run = ProduceRun(topic)
                requests.append(run)
                left -= REQUEST_COST
            run.keys.append(key)
            run.values.append(value)
            at = stop
        return Fed(at, 0, requests)

    # ------------------------------------------------------------------------------------------------ broker

    def perform(self, request: Request) -> Any:
        if type(request) is ProduceRun:
            return self._produce(request)
        if type(request) is Said:
            return None
        return held(self._ask(request))

    def _produce(self, run: ProduceRun) -> Any:
        service = self._service
        topic = run.topic.decode("latin-1")
        partitions = service.partitions(topic)
        if partitions:
            return service.append(topic, run, partitions)
        try:
            topic_name(topic)
        except BrokerError as error:
            return Refusal(error.text)
        if not service.settings.creates_topics:
            return Refusal(f"there is no topic {topic!r}")

        def made(refusal: Refusal | None) -> Any:
            return service.append(topic, run, service.partitions(topic)) if refusal is None else refusal

        return held(in_turn(service.make(topic), made), borrows=True)

    def _ask(self, request: Request) -> Any:
        if type(request) is Poll:
            self._delivery = None
            return in_turn(self._service.poll(request), self._delivered)
        if type(request) is SetOffset:
            return self._service.set_offset(request)
        assert type(request) is Ack
        delivery, self._delivery = self._delivery, None
        return Refusal("no outstanding msg") if delivery is None else self._service.acknowledge(delivery)

    def _delivered(self, found: Found) -> Found:
        if type(found) is Delivery:
            self._delivery = found
        return found

    # ------------------------------------------------------------------------------------------------ bytes out

    def answer(self, request: Request, result: Any) -> list[Chunk]:
        if type(request) is ProduceRun:
            return [_answer_run(request, result)]
        if type(request) is Said:
            return [request.answer]
        if type(result) is Refusal:
            return [lines.error(result.text)]
        if type(result) is Failed:
            raise result.error
        if type(request) is not Poll:
            return [lines.OK]
        if result is None:
            return [lines.EMPTY if request.to_offset < 0 else lines.end(request.to_offset)]
        return _message(result)

    def closed(self) -> None:
        self._delivery = None


def _answer_run(run: ProduceRun, result: RunAppended | Placed | Refusal | Failed) -> bytes:
    if type(result) is RunAppended:
        return _answer_one(result, 0)
    if type(result) is Placed:
        return b"".join([_answer_one(result.parts[part], place) for part, place in result.places])
    if type(result) is Failed:
        raise result.error
    assert type(result) is Refusal
    return lines.error(result.text) * len(run.keys)


def _answer_one(appended: RunAppended, place: int) -> bytes:
    fault, base_offset, written, text = appended
    if fault is NO_FAULT or place < written:
        return b"+OFFSET %d\n" % (base_offset + place)
    return lines.error(text or fault.value)


def _message(delivery: Delivery) -> list[Chunk]:
    record = delivery.record
    value = b"" if record.value is None else record.value
    head = lines.message_head(record.offset, len(value), delivery.partition, record.key or b"")
    if type(value) is bytes and len(value) <= JOINED_BYTES_MAX:
        return [head + value + b"\n"]
    return [head, value, b"\n"]
