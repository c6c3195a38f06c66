"""Every limit that a peer can run into, with its reason. Docs: docs/limits.md; config keys override the defaults."""

from __future__ import annotations

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's socket.request.max.bytes: one request; checked before anything is allocated."""

CONNECTIONS_MAX = 10_000
"""All listeners together: keeps file descriptors for the logs."""

CONNECTIONS_PER_IP_MAX = 5_000
"""One misbehaving host must not take every place."""

IN_FLIGHT_REQUESTS_MAX = 1_000
"""Unanswered requests of one connection; then its socket is not read until answers leave."""

IN_FLIGHT_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of half-received frames and unsent answers over all connections; beyond it sockets are not read."""

WRITE_BUFFER_BYTES_HIGH = 1024 * 1024
"""Unsent answers of one connection; then its requests are not read until the peer takes its answers."""

FRAME_DEADLINE_MS = 30_000
"""A frame that has begun must be complete by then (a peer that drips bytes holds a buffer)."""

IDLE_DEADLINE_MS = 600_000
"""Kafka's connections.max.idle.ms: clients keep quiet bootstrap connections for minutes."""

WRITE_DEADLINE_MS = 60_000
"""A peer that takes nothing of a waiting answer for so long is gone."""

SCRATCH_BYTES = 256 * 1024
"""The receive buffer that all connections of a loop share; only a partial frame is copied out of it."""

OPEN_FILES_MAX = 1_024
"""Log and index files kept open; least recently used ones are closed beyond it, so thousands of partitions are fine."""

PRODUCER_BATCHES_REMEMBERED = 5
"""Kafka's window of an idempotent producer: max.in.flight.requests.per.connection is at most 5."""

PRODUCERS_PER_PARTITION_MAX = 100_000
"""Idle producers expire by time; this bounds a client that asks for a new id each time (oldest go first)."""

PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_MAX = 100_000
"""Directories and catalogue entries; each costs about 1 KB of memory."""

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""What one batch may unpack to when the broker has to look inside."""

CHECKED_BATCHES_MAX = 65_536
"""Batches of large values that are remembered as checked, over all open files: about 100 bytes each."""

HEADERS_PER_RECORD_MAX = 10_000
"""Kafka has no bound; a decoded header costs about 200 bytes."""
