"""The FlyMQ client against brokers of this process, and against servers that die, lie or are not the leader."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.client.flymq import FlyMQClient, FlyMQError, Group, PoolExhausted, Record
from penstock.client.flymq_connection import address_of
from penstock.client.stream import PIPELINE_BYTES_MAX
from tests.dialects.flymq.broker import Broker, op, s

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("flymq-client")) as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[FlyMQClient]:
    with FlyMQClient(f"127.0.0.1:{broker.port}") as connected:
        yield connected


# ---- what it can do -----------------------------------------------------------------------------------------------


def test_what_is_produced_is_consumed(client: FlyMQClient) -> None:
    placed = client.produce("one", b"v", b"k")
    assert (placed.topic, placed.partition, placed.offset, placed.key_size, placed.value_size) == ("one", 0, 0, 1, 1)
    assert client.consume("one", 0, 0) == (0, b"k", b"v")
    with pytest.raises(FlyMQError, match="EOF") as end:
        client.consume("one", 0, 1)
    assert (end.value.code, end.value.text) == (1, "EOF")


def test_many_are_produced_without_waiting_for_each(client: FlyMQClient) -> None:
    values = [b"%d" % at * 100 for at in range(3_000)]
    assert sum(map(len, values)) > 2 * PIPELINE_BYTES_MAX
    placed = client.produce_many("many", values, [b"k"] * 3_000)
    assert [row.offset for row in placed] == list(range(3_000))
    assert list(client.records("many", 0)) == [Record(at, b"k", value) for at, value in enumerate(values)]
    assert list(client.records("many", 0, 2_999)) == [Record(2_999, b"k", values[-1])]
    assert client.produce_many("many", []) == []
    with pytest.raises(FlyMQError, match="topic name"):
        client.produce_many("a/b", [b"x"] * 10)
    assert client.topics()  # the connection is still of use


def test_fetch_filters(client: FlyMQClient) -> None:
    client.produce_many("filtered", [b'{"a": 1}', b"other", b'{"a": 2}'])
    rows, next_offset = client.fetch("filtered", 0, 0, 10, "$.a")
    assert ([row.offset for row in rows], next_offset) == ([0, 2], 3)


def test_topics(client: FlyMQClient) -> None:
    client.create_topic("made", 3)
    assert "made" in client.topics()
    client.produce("made", b"v", partition=2)
    assert client.metadata("made") == [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 1)]
    client.delete_topic("made")
    assert "made" not in client.topics()


def test_offsets_and_groups(client: FlyMQClient) -> None:
    client.produce_many("read", [b"v"] * 5)
    assert client.committed("read", "g") is None
    assert client.subscribe("read", "g") == 5
    assert client.committed("read", "g") == 0
    client.commit("read", "g", 0, 2)
    assert client.committed("read", "g") == 2
    assert client.subscribe("read", "g", mode="commit") == 2
    assert client.lag("read", "g") == (2, 2, 5, 3)
    client.reset_offset("read", "g", 0, "latest")
    assert client.committed("read", "g") == 5
    client.reset_offset("read", "g", 0, 1)
    assert Group("read", "g", 1, {0: 1}) in client.groups()
    assert client.describe_group("read", "g") == Group("read", "g", 1, {0: 1})
    client.delete_group("read", "g")
    assert client.committed("read", "g") is None
    with pytest.raises(FlyMQError, match="unknown subscribe mode: x"):
        client.subscribe("read", "g", mode="x")


def test_transactions(client: FlyMQClient) -> None:
    with client.begin() as transaction:
        transaction.produce("txn", b"kept")
        assert list(client.records("txn", 0)) == []
    transaction = client.begin()
    with contextlib.suppress(KeyError), transaction:
        transaction.produce("txn", b"gone")
        raise KeyError
    assert [record.value for record in client.records("txn", 0)] == [b"kept"]
    with pytest.raises(FlyMQError, match="unknown or has ended"):
        transaction.commit()


def test_values_are_encrypted_in_flymqs_form(broker: Broker, client: FlyMQClient) -> None:
    with FlyMQClient(f"127.0.0.1:{broker.port}", encryption_key=KEY.hex()) as secret:
        secret.produce("secret", b"plain", b"key")
        secret.produce("secret", b"")
        with secret.begin() as transaction:
            transaction.produce("secret", b"in a transaction")
        assert [record.value for record in secret.records("secret", 0)] == [b"plain", b"", b"in a transaction"]
        assert secret.consume("secret", 0, 0) == (0, b"key", b"plain")
        stored = client.consume("secret", 0, 0).value
        assert len(stored) == 12 + 5 + 16
        assert AESGCM(KEY).decrypt(stored[:12], stored[12:], None) == b"plain"
        nonce = bytes(12)
        client.produce("secret", nonce + AESGCM(KEY).encrypt(nonce, b"of another client", None))
        assert secret.consume("secret", 0, 4).value == b"of another client"
        client.produce("secret", bytes([stored[0] ^ 1]) + stored[1:])
        with pytest.raises(FlyMQError, match="encrypted with another key"):
            secret.consume("secret", 0, 5)
        client.produce("secret", b"not encrypted")
        with pytest.raises(FlyMQError, match="is not encrypted"):
            secret.consume("secret", 0, 6)
    with pytest.raises(ValueError, match="32 bytes"):
        FlyMQClient(encryption_key=b"short")


def test_without_cryptography_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'penstock-broker\[encryption\]'"):
        FlyMQClient(encryption_key=KEY)


def test_no_two_values_have_one_nonce(broker: Broker, client: FlyMQClient) -> None:
    with FlyMQClient(f"127.0.0.1:{broker.port}", encryption_key=KEY) as secret:
        secret.produce_many("nonces", [b"same"] * 200)
    assert len({record.value[:12] for record in client.records("nonces", 0)}) == 200


# ---- servers that do not behave -----------------------------------------------------------------------------------


class Scripted:
    """A server that answers each request as it is told, and counts connections and requests."""

    def __init__(self, reply: Callable[[int, bytes], bytes | None]) -> None:
        self._reply = reply
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        self.connections = 0
        self.requests: list[int] = []
        self._peers: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        for peer in self._peers:
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with peer.makefile("rb") as stream, contextlib.suppress(OSError):
            while len(head := stream.read(8)) == 8:
                opcode, length = head[2], struct.unpack(">I", head[4:])[0]
                payload = stream.read(length)
                with self._lock:
                    self.requests.append(opcode)
                answer = self._reply(opcode, payload)
                if answer is None:
                    peer.shutdown(socket.SHUT_RDWR)
                    return
                peer.sendall(answer)


def coded(text: str) -> bytes:
    return op(0xFF, struct.pack(">i", 1) + s(text))


TOPICS = op(0x08, struct.pack(">I", 1) + s("t"))


def placed(offset: int = 0) -> bytes:
    return op(0x01, s("t") + struct.pack(">iQqii", 0, offset, 0, -1, 1))


def value_of(payload: bytes) -> bytes:
    """Of a produce to "t" without a key."""
    return payload[11:-4]


_CLOSED = itertools.count()


def closed_port() -> str:
    """Another address each time; nobody is given this port by chance, as one that was free a moment ago may be."""
    return f"127.0.0.{next(_CLOSED) % 250 + 2}:1"


def test_the_next_server_is_asked_when_one_is_dead(broker: Broker) -> None:
    alive = f"127.0.0.1:{broker.port}"
    for servers in ([closed_port(), alive], [closed_port(), closed_port(), alive], f"{closed_port()},{alive}"):
        with FlyMQClient(servers) as client:
            client.produce("rotated", b"v")
            assert client.topics()


@pytest.mark.parametrize("attempts_max", [1, 3])
def test_every_server_is_asked_before_a_request_fails(broker: Broker, attempts_max: int) -> None:
    servers = [*(closed_port() for _ in range(5)), f"127.0.0.1:{broker.port}"]
    with FlyMQClient(servers, attempts_max=attempts_max) as client:
        assert client.produce("last", b"v").topic == "last"
    with FlyMQClient(servers, attempts_max=attempts_max) as client:
        assert len(client.produce_many("last", [b"v"] * 2)) == 2
    with FlyMQClient(servers[:-1], attempts_max=attempts_max) as client:
        with pytest.raises(ConnectionError, match=f"no response after {attempts_max + 4} attempts"):
            client.produce("last", b"v")
        with pytest.raises(ConnectionError, match=f"no response after {attempts_max + 4} attempts"):
            client.produce_many("last", [b"v"] * 2)


def test_a_text_of_several_servers_may_have_blanks(broker: Broker) -> None:
    with FlyMQClient(f" {closed_port()}, 127.0.0.1:{broker.port} , ", attempts_max=1) as client:
        assert client.produce("blanks", b"v").offset == 0


def test_the_next_server_is_asked_when_one_dies_in_between() -> None:
    with Scripted(lambda *_: TOPICS) as second:
        with Scripted(lambda *_: TOPICS) as first:
            client = FlyMQClient([first.address, second.address])
            assert client.topics() == ["t"]
            assert client.topics() == ["t"]
            assert (first.connections, len(first.requests), second.connections) == (1, 2, 0)
        assert client.topics() == ["t"]
        assert client.topics() == ["t"]
        assert (second.connections, len(second.requests)) == (1, 2)  # and it stays there
        client.close()


def test_a_server_that_drops_the_connection_is_left_for_the_next() -> None:
    with Scripted(lambda *_: None) as dropping, Scripted(lambda *_: TOPICS) as good:
        with FlyMQClient([dropping.address, good.address]) as client:
            assert client.topics() == ["t"]
        assert len(dropping.requests) == 1


def test_attempts_are_bounded() -> None:
    with Scripted(lambda *_: None) as dropping:
        client = FlyMQClient(dropping.address, attempts_max=4)
        with client, pytest.raises(ConnectionError, match="no response after 4 attempts"):
            client.topics()
        assert len(dropping.requests) == 4
    with FlyMQClient([closed_port(), closed_port()]) as client, pytest.raises(ConnectionError):
        client.topics()


@pytest.mark.parametrize(
    "text", ["topic not found: t", "unknown opcode: 8", "EOF", "leader_addr=127.0.0.1:1", "a not leader", ""]
)
def test_an_error_of_the_server_is_not_tried_again(text: str) -> None:
    with Scripted(lambda *_: coded(text)) as failing, Scripted(lambda *_: TOPICS) as good:
        with FlyMQClient([failing.address, good.address]) as client:
            for _ in range(2):
                with pytest.raises(FlyMQError) as raised:
                    client.topics()
                assert (raised.value.code, raised.value.text) == (1, text)
        assert (len(failing.requests), failing.connections, good.connections) == (2, 1, 0)


@pytest.mark.parametrize("form", ["not leader: leader_addr={}", "not partition leader: partition=3 leader_addr={}"])
def test_the_leader_is_followed_and_kept(form: str) -> None:
    with Scripted(lambda *_: TOPICS) as leader, Scripted(lambda *_: coded(form.format(leader.address))) as follower:
        with FlyMQClient(follower.address) as client:
            for _ in range(3):
                assert client.topics() == ["t"]
        assert (len(follower.requests), len(leader.requests)) == (1, 3)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_leader_without_a_host_is_where_the_answer_came_from(host: str) -> None:
    with Scripted(lambda *_: placed(7)) as leader:
        port = leader.address.rpartition(":")[2]
        with Scripted(lambda *_: coded(f"not leader: leader_addr={host}:{port}")) as follower:
            named = follower.address.replace("127.0.0.1", "localhost")
            with FlyMQClient(named) as client:
                assert client.produce("t", b"v").offset == 7
                assert client._servers.current == ("localhost", int(port))


@pytest.mark.parametrize("leader", ["nobody:knows", "h:65536", "a..b:9092", "127.0.0.1:1"])
def test_a_leader_that_cannot_be_reached_is_left_for_the_next_server(leader: str) -> None:
    with (
        Scripted(lambda *_: coded(f"not leader: leader_addr={leader}")) as misled,
        Scripted(lambda *_: placed()) as good,
    ):
        with FlyMQClient([misled.address, good.address]) as client:
            assert client.produce("t", b"v").offset == 0
            assert len(client.produce_many("t", [b"v"] * 2)) == 2
        assert (len(misled.requests), len(good.requests)) == (1, 3)


def test_leaders_that_are_named_without_end_are_not_followed_without_end() -> None:
    with contextlib.ExitStack() as stack:
        leader = closed_port()
        servers = []
        for _ in range(8):
            text = f"not leader: leader_addr={leader}"
            servers.append(stack.enter_context(Scripted(lambda *_, text=text: coded(text))))
            leader = servers[-1].address
        client = stack.enter_context(FlyMQClient(leader))
        with pytest.raises(FlyMQError, match="not leader"):
            client.produce("t", b"v")
        assert [len(server.requests) for server in reversed(servers)] == [1, 1, 1, 0, 0, 0, 0, 0]


def test_many_follow_the_leader() -> None:
    with Scripted(lambda *_: placed(3)) as leader:
        follower = Scripted(lambda *_: coded(f"not leader: leader_addr={leader.address}"))
        with follower, FlyMQClient(follower.address) as client:
            assert [row.offset for row in client.produce_many("t", [b"v"] * 5)] == [3] * 5
            client.produce_many("t", [b"v"] * 5)
        assert (len(follower.requests), len(leader.requests)) == (5, 10)


def test_many_records_each_find_the_leader_of_their_partition() -> None:
    """More leaders than attempts, each of them known to the one before."""
    seen: dict[bytes, list[bytes]] = {}

    def serves(own: bytes, text: str) -> Callable[[int, bytes], bytes]:
        def reply(_: int, payload: bytes) -> bytes:
            value = value_of(payload)
            if value != own:
                return coded(text)
            seen.setdefault(own, []).append(value)
            return placed(int(own))

        return reply

    with contextlib.ExitStack() as stack:
        address = closed_port()
        for own in (b"4", b"3", b"2", b"1", b"0"):
            text = f"not partition leader: partition=9 leader_addr={address}"
            address = stack.enter_context(Scripted(serves(own, text))).address
        client = stack.enter_context(FlyMQClient(address))
        rows = client.produce_many("t", [b"%d" % (at % 5) for at in range(20)])
    assert [row.offset for row in rows] == [0, 1, 2, 3, 4] * 4
    assert seen == {b"%d" % own: [b"%d" % own] * 4 for own in range(5)}


def test_of_many_only_what_has_no_answer_is_sent_again() -> None:
    answered: list[bytes] = []
    again: list[bytes] = []

    def dies_after_three(_: int, payload: bytes) -> bytes | None:
        if len(answered) == 3:
            return None
        answered.append(value_of(payload))
        return placed(len(answered))

    def takes_all(_: int, payload: bytes) -> bytes:
        again.append(value_of(payload))
        return placed(10 + len(again))

    values = [b"%d" % at for at in range(6)]
    with Scripted(dies_after_three) as dying, Scripted(takes_all) as other:
        client = FlyMQClient([dying.address, other.address])
        assert [row.offset for row in client.produce_many("t", values)] == [1, 2, 3, 11, 12, 13]
        client.close()
    assert (answered, again) == (values[:3], values[3:])


def test_of_many_nothing_is_sent_again_once_a_server_refused_one() -> None:
    replies = iter([placed(), coded("record too large")])
    with Scripted(lambda *_: next(replies, None)) as dying, Scripted(lambda *_: placed()) as other:
        client = FlyMQClient([dying.address, other.address])
        with pytest.raises(FlyMQError, match="record too large"):
            client.produce_many("t", [b"v"] * 5)
        assert other.requests == []
        assert len(client.produce_many("t", [b"v"])) == 1
        assert dying.connections == 2, "a connection with answers to come was used again"
        client.close()


def test_a_refusal_counts_more_than_a_leader_elsewhere() -> None:
    with Scripted(lambda *_: placed()) as leader:
        replies = iter([coded(f"not leader: leader_addr={leader.address}"), coded("record too large")])
        with Scripted(lambda *_: next(replies)) as refusing:
            client = FlyMQClient(refusing.address)
            with pytest.raises(FlyMQError, match="record too large"):
                client.produce_many("t", [b"v"] * 2)
            client.close()
        assert leader.requests == []


def test_without_a_leader_the_next_server_is_asked() -> None:
    with Scripted(lambda *_: coded("not leader: no leader elected")) as one, Scripted(lambda *_: TOPICS) as other:
        with FlyMQClient([one.address, other.address]) as client:
            assert client.topics() == ["t"]
        with FlyMQClient(one.address, attempts_max=2) as client, pytest.raises(FlyMQError, match="no leader elected"):
            client.topics()


def test_the_bare_errors_of_the_original_are_understood() -> None:
    with Scripted(lambda *_: op(0xFF, b"topic not found", 0)) as original, FlyMQClient(original.address) as client:
        with pytest.raises(FlyMQError) as raised:
            client.topics()
        assert raised.value.text == "topic not found"


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", op(0x09), b"\xaf\x01\x08\x01\xff\xff\xff\xff", b"\xaf\x02" + bytes(6)],
)
def test_a_server_that_speaks_something_else_is_a_connection_error(answer: bytes) -> None:
    with Scripted(lambda *_: answer) as strange:
        client = FlyMQClient(strange.address, attempts_max=1)
        with client, pytest.raises(ConnectionError):
            client.topics()


def test_an_answer_that_is_too_short_is_a_connection_error() -> None:
    with Scripted(lambda *_: op(0x08, b"\0\0\0\x05")) as strange:
        client = FlyMQClient(strange.address)
        with client, pytest.raises(ConnectionError, match="too short"):
            client.topics()


def test_a_server_that_does_not_answer_is_a_timeout_in_the_end() -> None:
    with Scripted(lambda *_: b"") as silent:
        client = FlyMQClient(silent.address, timeout_s=0.05, attempts_max=2)
        with client, pytest.raises(ConnectionError, match="timed out"):
            client.topics()


# ---- the pool -----------------------------------------------------------------------------------------------------


def test_threads_share_no_more_connections_than_allowed() -> None:
    busy = threading.Semaphore(0)
    going = threading.Semaphore(0)

    def reply(*_: object) -> bytes:
        busy.release()
        assert going.acquire(timeout=30)
        return TOPICS

    with Scripted(reply) as server, FlyMQClient(server.address, connections_max=3) as client:
        threads = [threading.Thread(target=client.topics) for _ in range(10)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            assert busy.acquire(timeout=30)
        assert not busy.acquire(blocking=False)
        for _ in range(10):
            going.release()
        for thread in threads:
            thread.join(30)
        assert (server.connections, len(server.requests)) == (3, 10)


def test_who_gets_no_connection_in_time_is_told_and_stays_with_the_server() -> None:
    going = threading.Event()

    def reply(opcode: int, _: bytes) -> bytes:
        going.wait(30)
        return TOPICS if opcode == 0x08 else placed()

    with Scripted(reply) as server, Scripted(lambda *_: placed()) as other:
        client = FlyMQClient([server.address, other.address], connections_max=1)
        holder = threading.Thread(target=client.topics)
        holder.start()
        try:
            until(lambda: server.requests)
            client._servers._pools[address_of(server.address, 0)]._timeout_s = 0.05
            with pytest.raises(PoolExhausted, match=r"within 0.05 s: all 1 are in use \(connections_max\)"):
                client.produce("t", b"v")
            with pytest.raises(PoolExhausted):
                client.produce_many("t", [b"v"])
        finally:
            going.set()
            holder.join(30)
        assert client.produce("t", b"v").offset == 0
        assert (server.connections, other.connections) == (1, 0)
        client.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition never came"
        time.sleep(0.001)


def test_a_closed_client_is_of_no_use(broker: Broker) -> None:
    client = FlyMQClient(f"127.0.0.1:{broker.port}")
    client.topics()
    connections = broker.listener.connections
    before = broker.call(lambda: len(connections))
    client.close()
    broker.until(lambda: len(connections) == before - 1)
    asks: list[Callable[[], object]] = [client.topics, lambda: client.produce("t", b"v")]
    for ask in (*asks, lambda: client.produce_many("t", [b"v"]), client.begin):
        with pytest.raises(RuntimeError, match="the FlyMQ client is closed"):
            ask()
    client.close()
    assert broker.call(lambda: len(connections)) == before - 1


def test_who_waits_for_a_connection_when_the_client_is_closed_is_told() -> None:
    going = threading.Event()

    def reply(*_: object) -> bytes:
        going.wait(30)
        return TOPICS

    told: list[Exception] = []
    with Scripted(reply) as server:
        client = FlyMQClient(server.address, connections_max=1)
        holder = threading.Thread(target=client.topics)
        holder.start()
        until(lambda: server.requests)

        def wait() -> None:
            try:
                client.topics()
            except RuntimeError as error:
                told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        client.close()
        waiting.join(30)
        going.set()
        holder.join(30)
    assert [str(error) for error in told] == ["the FlyMQ client is closed"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", ("host", 1)),
        ("host", ("host", 9)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 9)),
        ("::1", ("::1", 9)),
        (" host:1 ", ("host", 1)),
        (":5", ("", 5)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text, 9) == address


@pytest.mark.parametrize("text", ["host:", "host:x", "host:-1", "host:65536"])
def test_an_address_without_a_port_after_its_colon_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        FlyMQClient(text)


def test_what_does_not_fit_is_refused_before_it_is_sent() -> None:
    with FlyMQClient(closed_port()) as client:
        with pytest.raises(ValueError, match="65535"):
            client.produce("x" * 65_536, b"")
        with pytest.raises(ValueError, match="FlyMQ's"):
            client.produce("t", bytes(32 * 1024 * 1024))
    with pytest.raises(ValueError, match="at least one server"):
        FlyMQClient([])
    with pytest.raises(ValueError, match="must be at least 1"):
        FlyMQClient(connections_max=0)


def test_a_client_goes_on_with_the_other_broker_when_one_stops(tmp_path: Path) -> None:
    with Broker(tmp_path / "two") as two:
        with Broker(tmp_path / "one") as one:
            client = FlyMQClient([f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}"])
            assert [client.produce("t", b"v").offset for _ in range(2)] == [0, 1]
        assert client.produce("t", b"w").offset == 0
        assert client.consume("t", 0, 0).value == b"w"
        client.close()
