"""What of the network can be set, with the defaults of `model/limits.py`: shared by all listeners, or for each its own."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model import limits


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the peers of one listener may take; clients of each protocol are used to another patience."""

    frame_deadline_ms: int = limits.FRAME_DEADLINE_MS
    """For a frame that has begun to arrive."""
    idle_deadline_ms: int = limits.IDLE_DEADLINE_MS
    """For the next frame to begin."""
    write_deadline_ms: int = limits.WRITE_DEADLINE_MS
    """For the next byte of a waiting answer to be taken."""


@dataclass(frozen=True, slots=True)
class NetSettings:
    """Of all listeners together."""

    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_ip_max: int = limits.CONNECTIONS_PER_IP_MAX
    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    in_flight_requests_max: int = limits.IN_FLIGHT_REQUESTS_MAX
    in_flight_bytes_max: int = limits.IN_FLIGHT_BYTES_MAX
    write_buffer_bytes_high: int = limits.WRITE_BUFFER_BYTES_HIGH

    scratch_bytes: int = limits.SCRATCH_BYTES
    pool_bytes_max: int = 64 * 1024 * 1024
    """Frame buffers kept for the next large frames; those beyond it go back to the system."""

    sweep_interval_ms: int = 1_000
    """How often deadlines are checked; a deadline is never early and at most two intervals late."""
    stop_grace_ms: int = 2_000
    """How long started answers may take to leave when a listener stops or a connection has to end."""
    accept_backlog: int = 1_024
    """Connections that the system holds until they are accepted: all clients come back at once after a restart."""

    share_ports: bool = False
    """Set SO_REUSEPORT, so that the owner of an embedded broker can hold its ports while the broker restarts."""
    uvloop: bool = True
    sendfile: bool = True
    sendfile_bytes_min: int = 64 * 1024
    """Smaller ranges are cheaper to copy than to send by a call of their own."""
    reader_threads: int = 4
    """Threads that read cold ranges of log files."""
