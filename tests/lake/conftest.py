"""What the tests of archives share: one broker, topics of their own, and Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from penstock import Broker
from tests.cli.conftest import penstock
from tests.lake.topics import Topic
from tests.spark.shared import spark

__all__ = ["penstock", "spark"]

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "os"}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> Iterator[Topic]:
    """A new topic with three partitions."""
    with Topic(broker.bootstrap, f"archived-{next(_NUMBERS)}", 3) as made:
        yield made


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def format_(request: pytest.FixtureRequest) -> str:
    """Each of the three, as far as its library is installed."""
    name: str = request.param
    if name != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[name])
    return name
