from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.records.batch import whole_batches
from penstock.records.record import Record, read_records
from tests.cli.conftest import penstock  # noqa: F401 - a fixture for the tests here


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One broker for all tests here; each gives its topics names of its own."""
    with Broker(settings={"storage.flush": "os"}) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[KafkaClient]:
    with KafkaClient(broker.bootstrap) as connected:
        yield connected


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is kept in the working directory."""
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))


def read_all(client: KafkaClient, topic: str, partition: int, start: int, end: int) -> list[Record]:
    """Every record of a partition from `start` to before `end`."""
    records: list[Record] = []
    while start < end:
        (fetched,) = client.fetch({(topic, partition): start}).values()
        before = start
        for batch in whole_batches(fetched.records):
            if not batch.is_control:
                records += [record for record in read_records(batch) if start <= record.offset < end]
            start = max(start, batch.next_offset)
        assert start > before, f"nothing at offset {start}"
    return records
