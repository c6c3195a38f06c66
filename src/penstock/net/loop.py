"""Which event loop and which way of sending files this process uses, and one log line for each that falls back."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from collections.abc import Callable

logger = logging.getLogger("penstock.net")

SendFile = Callable[[int, int, int, int], int]
"""(socket, file, offset in the file, count) -> bytes sent."""


def loop_factory(uvloop_wanted: bool = True) -> Callable[[], asyncio.AbstractEventLoop]:
    """For `asyncio.Runner(loop_factory=...)`: uvloop where it is installed and wanted, else asyncio's own."""
    if not uvloop_wanted:
        logger.info("event loop: asyncio (uvloop is disabled)")
        return asyncio.new_event_loop
    if importlib.util.find_spec("uvloop") is None:
        logger.warning("event loop: asyncio (uvloop is not installed); expect a lower rate of small requests")
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def sendfile_function(sendfile_wanted: bool = True) -> SendFile | None:
    """`os.sendfile`, or None where log data has to be read and written."""
    if not sendfile_wanted:
        logger.info("fetch: log data is copied (sendfile is disabled)")
        return None
    function: SendFile | None = getattr(os, "sendfile", None)
    if function is None:
        logger.warning("fetch: log data is copied (this system has no sendfile)")
    return function
