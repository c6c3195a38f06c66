"""`penstock.Broker`: a broker for one `with` block, that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

import penstock
from penstock import Broker
from penstock.client.flymq import FlyMQClient
from penstock.server.embedding import BrokerStartFailed
from tests.clients.drivers import Confluent, Sent
from tests.clients.test_producing import create

WAIT_S = 60.0


def is_there(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is looked at
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while is_there(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


def test_it_serves_and_leaves_nothing_behind() -> None:
    with penstock.Broker() as broker:
        assert broker.running
        data_dir, pid, log = broker.data_dir, broker.pid, broker._stderr_path
        Confluent().write(broker.bootstrap, "t", [Sent(b"v")])
        assert [seen.value for seen in Confluent().read(broker.bootstrap, "t", 1)] == [b"v"]
    assert not broker.running
    assert not data_dir.exists()
    assert not log.exists()
    wait_until_gone(pid)


def test_a_directory_of_ones_own_stays(tmp_path: Path) -> None:
    for expected in ([b"first"], [b"first", b"second"]):
        with Broker(tmp_path / "data") as broker:
            Confluent().write(broker.bootstrap, "t", [Sent(expected[-1])])
            assert [seen.value for seen in Confluent().read(broker.bootstrap, "t", len(expected))] == expected


def test_port_of_a_stopped_broker_stays_reserved() -> None:
    with Broker(listen=("kafka=127.0.0.1:0", "fluxgo=127.0.0.1:0")) as broker:
        ports = [int(address.rpartition(":")[2]) for address in broker.addresses.values()]
        broker.kill()
        for port in ports:
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", port))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
        broker.restart()
        Confluent().write(broker.bootstrap, "t", [Sent(b"v")])
    for port in ports:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))


def test_several_brokers_run_side_by_side() -> None:
    with Broker() as one, Broker() as other:
        assert one.bootstrap != other.bootstrap
        Confluent().write(one.bootstrap, "t", [Sent(b"one")])
        Confluent().write(other.bootstrap, "t", [Sent(b"other")])
        assert [seen.value for seen in Confluent().read(one.bootstrap, "t", 1)] == [b"one"]


def test_a_restarted_broker_keeps_its_address_and_its_log() -> None:
    with Broker() as broker:
        address, pid = broker.bootstrap, broker.pid
        broker.kill()
        assert not broker.running
        broker.restart()
        assert broker.bootstrap == address
        assert broker.pid != pid
        assert broker.log.count("partitions opened") == 2


def test_a_dialect_may_have_several_addresses() -> None:
    with Broker(listen=("flymq=127.0.0.1:0", "kafka=127.0.0.1:0", "flymq=127.0.0.1:0")) as broker:
        first, second = addresses = broker.addresses_of("flymq")
        assert first != second
        assert broker.addresses == {"kafka": broker.bootstrap, "flymq": first}
        assert (broker.addresses_of("kafka"), broker.addresses_of("rustlog")) == ([broker.bootstrap], [])
        with FlyMQClient(first) as one, FlyMQClient(second) as other:
            one.produce("t", b"v")
            assert [record.value for record in other.records("t", 0)] == [b"v"]
        broker.restart()
        assert broker.addresses_of("flymq") == addresses


def test_settings_are_config_keys() -> None:
    settings = {
        "broker.num_partitions": 3,
        "broker.auto_create_topics": False,
        "log.level": "warning",
        "topic_defaults.max.message.bytes": 500,
    }
    with Broker(settings=settings) as broker:
        create(broker, "t", partitions=-1)
        assert {path.name for path in broker.data_dir.glob("t-*")} == {"t-0", "t-1", "t-2"}
        assert broker.log == ""
        with pytest.raises(Exception, match="TOO_LARGE"):
            Confluent().write(broker.bootstrap, "t", [Sent(b"x" * 1_000)])


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = Broker(settings={"storage.flush": "never"})
    with pytest.raises(BrokerStartFailed, match=r"storage\.flush"), broker:
        pass
    assert not broker.data_dir.exists()
    assert not broker._stderr_path.exists()
    with Broker(tmp_path) as first:
        with pytest.raises(BrokerStartFailed, match="in use"), Broker(tmp_path):
            pass
        assert first.running


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_its_owner(number: signal.Signals) -> None:
    code = (
        "import penstock, signal\nbroker = penstock.Broker().start()\nprint(broker.pid, flush=True)\nsignal.pause()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.kill(pid, 0)
    owner.send_signal(number)
    owner.communicate()
    wait_until_gone(pid)


def test_the_pytest_fixture_is_a_broker(penstock_broker: Broker) -> None:
    Confluent().write(penstock_broker.bootstrap, "fixture", [Sent(b"v")])
    assert [seen.value for seen in Confluent().read(penstock_broker.bootstrap, "fixture", 1)] == [b"v"]


def test_a_directory_is_told_to_clients_so_that_they_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker("data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        [asked] = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "0")]).values()
        assert asked.result()["log.dirs"].value == str(tmp_path / "data")


def test_it_keeps_its_log_file_closed(tmp_path: Path) -> None:
    log = Broker(tmp_path / "data")._stderr_path
    opened = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in os.listdir("/proc/self/fd")]
    assert os.path.realpath(log) not in opened
    log.unlink()
