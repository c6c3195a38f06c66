"""File descriptors of the process: the limit is raised at start, then shared between log files and connections.

A broker that runs out of descriptors can neither accept clients nor open logs, so both are kept within the limit: the least
recently used log files are closed and opened again when needed, and connections beyond their share are refused.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from penstock.model import limits
from penstock.model.errors import StartError

logger = logging.getLogger("penstock.server")


class Share(NamedTuple):
    log_files: int
    connections: int
    connections_per_ip: int


def raise_limit(wanted: int) -> int | None:
    """Raise the soft limit of open files to `wanted`, or as far as the system allows. Return it, or None if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError) as error:
            logger.warning("cannot raise the open file limit from %d to %d: %s", soft, target, error)
    return soft


def share(limit: int, log_files_max: int, connections_max: int, connections_per_ip_max: int) -> Share:
    """Divide `limit` descriptors between log files and connections: as configured, or at least half each."""
    available = limit - limits.DESCRIPTORS_RESERVED
    if available < limits.DESCRIPTORS_MIN:
        needed = limits.DESCRIPTORS_RESERVED + limits.DESCRIPTORS_MIN
        raise StartError(f"the open file limit is {limit}; at least {needed} are required (ulimit -n)")
    log_files = min(log_files_max, max(available // 2, available - connections_max))
    connections = min(connections_max, available - log_files)
    per_ip = connections_per_ip_max
    if connections < connections_max:
        per_ip = min(per_ip, connections - connections // 10)  # other hosts keep a tenth
    return Share(log_files, connections, per_ip)


def claim(log_files_max: int, connections_max: int, connections_per_ip_max: int) -> Share:
    """Raise the limit to what the config needs, then divide the descriptors."""
    wanted = log_files_max + connections_max + limits.DESCRIPTORS_RESERVED
    limit = raise_limit(wanted)
    if limit is None or limit >= wanted:
        return Share(log_files_max, connections_max, connections_per_ip_max)
    shared = share(limit, log_files_max, connections_max, connections_per_ip_max)
    logger.warning(
        "the open file limit is %d instead of %d: at most %d log files stay open and %d connections are accepted",
        limit,
        wanted,
        shared.log_files,
        shared.connections,
    )
    return shared
