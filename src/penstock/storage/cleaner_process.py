"""The child process that cleans logs: a job a line on standard input, a result a line on standard output, both JSON.

It runs at the lowest priority and ends when its input is closed, so it does not outlive the broker. A job that fails or
exceeds the memory limit is answered with the reason; the next one may succeed.
"""

from __future__ import annotations

import contextlib
import os
import sys

import msgspec

from penstock.model.limits import CLEANER_MEMORY_BYTES_MAX
from penstock.storage.cleaner import Cleaner, CleaningJob, CleaningResult

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

NICENESS = 19


class Reply(msgspec.Struct, frozen=True):
    result: CleaningResult | None = None
    error: str | None = None


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
    _limit_memory()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(reply_to(line)) + b"\n")
        sys.stdout.buffer.flush()


def _limit_memory() -> None:
    if resource is not None:
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (CLEANER_MEMORY_BYTES_MAX, hard))


def reply_to(line: bytes) -> Reply:
    try:
        job = msgspec.json.decode(line, type=CleaningJob)
        return Reply(result=Cleaner(job).run())
    except Exception as error:  # noqa: BLE001 (whatever it is, it is this log's: the next job must not suffer from it)
        return Reply(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
