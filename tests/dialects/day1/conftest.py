from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine
from penstock.dialects.day1.service import Day1Service
from penstock.dialects.day1.session import Day1Session
from penstock.model.listeners import DEFAULTS
from penstock.net.session import Peer
from tests.dialects.fluxgo.in_process import RawPeer, Serving


def day1(**settings: Any) -> Callable[[EmbeddedEngine], Callable[[Peer], Day1Session]]:
    """A listener of the dialect with these settings, else its defaults."""

    def make(engine: EmbeddedEngine) -> Callable[[Peer], Day1Session]:
        service = Day1Service(engine, replace(DEFAULTS["day1"], **settings))
        return lambda peer: Day1Session(service, peer.host)

    return make


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("day1") / "data", day1()) as serving:
        yield serving


@pytest.fixture
def peer(broker: Serving) -> Iterator[RawPeer]:
    with broker.connect() as peer:
        yield peer


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"
