"""`penstock serve`: start, serve, stop.

Starting opens the data directory and every log, then the listeners, and says `listening DIALECT HOST:PORT` on stdout for
each. SIGTERM and SIGINT stop it cleanly: no new connections, started answers leave, everything is flushed, exit code 0. What
cannot be used stops it with one line on stderr and exit code 2.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.coordination.group_commands import GroupSettings
from penstock.model.errors import BrokerError, StartError
from penstock.net.listener import Listener
from penstock.net.loop import loop_factory
from penstock.net.network import Network
from penstock.net.settings import NetSettings
from penstock.server import log_format
from penstock.server.config_schema import Config, address
from penstock.server.config_schema import Listener as Address
from penstock.server.deadlines import deadlines_of
from penstock.server.descriptors import Share, claim
from penstock.server.dialects import session_maker
from penstock.storage.data_directory import DataDirectory
from penstock.storage.system import shortfalls

GC_THRESHOLDS = (5_000, 1, 2**30)
"""Thresholds of the garbage collector, which blocks the loop: it visits 5,000 new objects in 1 ms, and three times as many
survivors in 3 ms, or 5 ms on a busy machine. The time of a full collection grows with the broker, so requests never trigger
one."""
GC_FULL_INTERVAL_S = 3_600.0
"""Interval of full collections. Neither requests nor connections create cycles, so there is little to collect."""

logger = logging.getLogger("penstock.server")

EXIT_UNUSABLE = 2
SWITCH_INTERVAL_S = 0.0005
"""How long a thread that comes back from fdatasync may wait for the interpreter: Python's 5 ms are many flushes."""


class Server:
    """One broker in this process, on the running loop."""

    def __init__(self, config: Config, *, share_ports: bool = False) -> None:
        self._config = config
        self._share_ports = share_ports
        self.listeners: list[Listener] = []

    async def start(self) -> None:
        config = self._config
        for shortfall in shortfalls():
            logger.warning(shortfall)
        descriptors = claim(
            config.storage.open_files_max, config.net.connections_max, config.net.connections_per_ip_max
        )
        try:
            directory = DataDirectory(
                config.data_dir,
                open_files_max=descriptors.log_files,
                reserve_bytes=config.storage.reserve_bytes,
            )
            try:
                self._engine = EmbeddedEngine(directory, engine_settings(config))
                self._engine.start()
            except BaseException:
                directory.close((), clean=False)
                raise
        except OSError as error:
            raise StartError(f"cannot use data directory {config.data_dir}: {error}") from error
        self._network = Network(net_settings(config, descriptors, share_ports=self._share_ports))
        self._network.turn.gatherer = self._engine
        try:
            for dialect, addresses in config.listeners.items():
                for at in addresses:
                    await self._listen(dialect, at)
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, dialect: str, at: Address) -> None:
        make_session = session_maker(dialect, self._engine, self._config, at, at.port)
        deadlines = deadlines_of(dialect, at, self._config)
        listener = Listener(dialect, at.host, at.port, make_session, self._network, deadlines)
        await listener.start()
        if at.port == 0:
            # only now is the port known that clients are to be told
            listener.session_factory = session_maker(dialect, self._engine, self._config, at, listener.port)
        self.listeners.append(listener)

    async def stop(self) -> None:
        self._engine.release_waiters()
        await asyncio.gather(*(listener.stop() for listener in self.listeners))
        await self._engine.stop()
        self._network.close()


def engine_settings(config: Config) -> EngineSettings:
    broker, storage = config.broker, config.storage
    return EngineSettings(
        node_id=broker.node_id,
        cluster_id=broker.cluster_id,
        num_partitions=broker.num_partitions,
        auto_create_topics=broker.auto_create_topics,
        delete_topics=broker.delete_topics,
        transaction_max_timeout_ms=broker.transaction_max_timeout_ms,
        flush=storage.flush,
        flush_interval_ms=storage.flush_interval_ms,
        flush_threads=storage.flush_threads,
        checkpoint_interval_ms=storage.checkpoint_interval_ms,
        retention_check_interval_ms=storage.retention_check_interval_ms,
        topic_defaults=config.topic_defaults,
        groups=group_settings(config),
    )


def group_settings(config: Config) -> GroupSettings:
    groups = config.groups
    return GroupSettings(
        initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
        session_timeout_ms_min=groups.session_timeout_min_ms,
        session_timeout_ms_max=groups.session_timeout_max_ms,
        consumer_session_timeout_ms=groups.consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=groups.consumer_heartbeat_interval_ms,
        offsets_retention_ms=groups.offsets_retention_ms,
        offsets_retention_check_interval_ms=groups.offsets_retention_check_interval_ms,
    )


def net_settings(config: Config, descriptors: Share, *, share_ports: bool) -> NetSettings:
    net = config.net
    return NetSettings(
        connections_max=descriptors.connections,
        connections_per_ip_max=descriptors.connections_per_ip,
        frame_bytes_max=net.frame_bytes_max,
        in_flight_bytes_max=net.in_flight_bytes_max,
        uvloop=net.uvloop,
        sendfile=net.sendfile,
        share_ports=share_ports,
    )


def run(config: Config, *, stop_on_eof: bool = False, share_ports: bool = False) -> int:
    """Serve until told to stop; the exit code."""
    log_format.configure(config.log.level, config.log.format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=loop_factory(config.net.uvloop)) as runner:
            runner.run(_serve(Server(config, share_ports=share_ports), stop_on_eof=stop_on_eof))
    except (StartError, BrokerError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    return 0


def _set_up_collector(loop: asyncio.AbstractEventLoop) -> None:
    # Objects created at start live as long as the process: the collector need not visit them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)

    def collect() -> None:
        gc.collect()
        loop.call_later(GC_FULL_INTERVAL_S, collect)

    loop.call_later(GC_FULL_INTERVAL_S, collect)


async def _serve(server: Server, *, stop_on_eof: bool) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stopping.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopping.set))
    await server.start()
    for listener in server.listeners:
        print(f"listening {listener.name} {address(listener.host, listener.port)}", flush=True)
    _set_up_collector(loop)
    if stop_on_eof:
        _stop_on_eof(loop, stopping)
    await stopping.wait()
    logger.info("stopping")
    await server.stop()
    logger.info("stopped")


def _stop_on_eof(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Stop when whoever holds our standard input is gone: an embedded broker does not outlive its owner."""

    def readable() -> None:
        with contextlib.suppress(OSError):
            if os.read(sys.stdin.fileno(), 4096):
                return
        loop.remove_reader(sys.stdin.fileno())
        stopping.set()

    loop.add_reader(sys.stdin.fileno(), readable)
