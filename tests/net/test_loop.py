"""The choice of event loop and of sendfile, and the line that says when it falls back."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os

import pytest

from penstock.net.loop import loop_factory, sendfile_function


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO, logger="penstock.net")
    return caplog


def test_uvloop_is_taken_in_silence_where_it_is_installed(log):
    uvloop = pytest.importorskip("uvloop")
    loop = loop_factory()()
    assert isinstance(loop, uvloop.Loop)
    loop.close()
    assert not log.records


def test_uvloop_switched_off_is_asyncio_and_says_so(log):
    assert loop_factory(False) is asyncio.new_event_loop
    assert [record.getMessage() for record in log.records] == ["event loop: asyncio (uvloop is disabled)"]


def test_uvloop_missing_is_asyncio_and_says_so(log, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert loop_factory() is asyncio.new_event_loop
    (record,) = log.records
    assert record.levelno == logging.WARNING
    assert "uvloop is not installed" in record.getMessage()


def test_sendfile_is_taken_in_silence_where_it_is(log):
    assert sendfile_function() is os.sendfile
    assert not log.records


def test_sendfile_switched_off_says_so(log):
    assert sendfile_function(False) is None
    assert "sendfile is disabled" in log.records[0].getMessage()


def test_sendfile_missing_says_so(log, monkeypatch):
    monkeypatch.delattr(os, "sendfile")
    assert sendfile_function() is None
    assert "this system has no sendfile" in log.records[0].getMessage()
