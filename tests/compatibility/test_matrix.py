"""Every client, every feature: what works is what docs/compatibility.md says."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic

from penstock import Broker
from tests.clients.drivers import Kcat
from tests.compatibility import checks, foreign, matrix
from tests.compatibility.java import KAFKA_3, KAFKA_4
from tests.compatibility.matrix import CLIENTS, FEATURES, NO, NOT_RUN, PAGE, YES, Cell, Gap

pytestmark = pytest.mark.timeout(300)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Groups that begin at once and members that are heard often: what is slow here is only waiting."""
    settings = {"groups.initial_rebalance_delay_ms": 0, "groups.consumer_heartbeat_interval_ms": 300}
    with Broker(settings=settings) as running:
        yield running
        assert "Traceback" not in running.log, running.log


def conclude(client: str, feature: str, cell: Cell) -> None:
    """Keep the cell, and hold the page to it if it speaks of this version of the client.

    When the page is about to be written it has no say.
    """
    matrix.leave(client, feature, cell)
    if os.environ.get("PENSTOCK_WRITE_DOCS") != "1":
        said = matrix.stated(PAGE.read_text())[client, feature]
        assert said == cell or said.version != cell.version, f"{client}, {feature}: write the page again: `make matrix`"


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("client", checks.CHECKS)
def test_a_client_driven_from_python_does_what_the_page_says(broker: Broker, client: str, feature: str) -> None:
    if client == "kcat" and Kcat.path is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    topic = f"{client}-{feature}-{next(_numbers)}"
    partitions = 3 if feature == "transactional" else 1 if feature in ("produce", "idempotent") else checks.PARTITIONS
    checks.admin_of(broker).create_topics([NewTopic(topic, partitions)])[topic].result(30)
    try:
        note = checks.CHECKS[client][feature](broker, topic)
        cell = Cell(YES, note or "", checks.versions()[client])
    except Gap as gap:
        cell = Cell(NO, str(gap), checks.versions()[client])
    conclude(client, feature, cell)


@pytest.mark.parametrize(("client", "version"), [("Java 4", KAFKA_4), ("Java 3", KAFKA_3)])
def test_java_does_what_the_page_says(broker: Broker, client: str, version: str) -> None:
    for feature, cell in foreign.run_java(version, broker.bootstrap, f"java-{version}").items():
        conclude(client, feature, cell)


def test_kafkajs_does_what_the_page_says(broker: Broker) -> None:
    for feature, cell in foreign.run_kafkajs(broker.bootstrap, "kafkajs").items():
        conclude("kafkajs", feature, cell)


# ---- the page itself --------------------------------------------------------------------------------------------------


def test_the_page_has_every_client_and_every_feature_and_names_every_gap() -> None:
    said = matrix.stated(PAGE.read_text())
    assert set(said) == set(itertools.product(CLIENTS, FEATURES))
    for (client, feature), cell in said.items():
        assert cell.word in (YES, NO, NOT_RUN), (client, feature, cell)
        assert cell.word == YES or cell.note, (client, feature)


def test_a_page_says_what_it_was_written_from() -> None:
    cells = {
        (client, feature): Cell(*((NO, "it has none") if feature == "static" else (YES,)))
        for client, feature in itertools.product(CLIENTS[:-1], FEATURES)
    }
    cells["kcat", "admin"] = Cell(YES, "some: of it")
    cells = {place: cell._replace(version="1.2, other 3") for place, cell in cells.items()}
    said = matrix.stated(matrix.render(cells))
    assert {place: said[place] for place in cells} == cells
    assert said[CLIENTS[-1], "produce"].word == NOT_RUN
    assert said[CLIENTS[-1], "produce"].note
