from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from penstock import Broker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One broker for all client tests of a process; each test has topics of its own."""
    with Broker(settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running


@pytest.fixture
def new_topic() -> Callable[[], str]:
    """Names that no other test has."""
    return lambda: f"topic-{next(_numbers)}"


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    return new_topic()
