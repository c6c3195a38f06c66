"""Every promise of the network is tried on both event loops, and those about files with and without sendfile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import pytest

from penstock.net.settings import Deadlines, NetSettings
from tests.net.fakes import FakeSession, Server

DEADLINES = tuple(field.name for field in fields(Deadlines))


@pytest.fixture(params=["uvloop", "asyncio"])
def uvloop(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "uvloop")


@pytest.fixture(params=["sendfile", "read"])
def sendfile(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "sendfile")


@pytest.fixture
def serve(uvloop: bool, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., Server]]:
    """Start a server with settings of one's own; it is stopped, and its accounts are checked, at the end."""
    caplog.set_level(logging.DEBUG, logger="penstock.net")
    with ExitStack() as stack:

        def start(
            session_factory: Callable[[Any], Any] = FakeSession, host: str = "127.0.0.1", **settings: Any
        ) -> Server:
            settings = {"sweep_interval_ms": 20, "stop_grace_ms": 200, **settings}
            deadlines = Deadlines(**{name: settings.pop(name) for name in DEADLINES if name in settings})
            net_settings = NetSettings(uvloop=uvloop, **settings)
            return stack.enter_context(Server(net_settings, session_factory, host, deadlines))

        yield start


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the network has logged about connections."""
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name == "penstock.net" and "connection" in record.getMessage()
    ]
