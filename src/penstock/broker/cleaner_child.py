"""The niced child process that cleans logs (storage/cleaner_process.py), as the broker sees it: one job at a time.

A child that died, or answers what cannot be read, is replaced for the next job.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import msgspec

from penstock.storage.cleaner import CleaningJob, CleaningResult
from penstock.storage.cleaner_process import Reply

REPLY_BYTES_MAX = 64 * 1024 * 1024
END_S_MAX = 5.0
"""Time for a child that has closed its output to exit by itself."""


class CleaningFailed(Exception):
    """A log could not be cleaned. The next one may be."""


class ChildNotStarted(Exception):
    """There is no child process: no log can be cleaned now."""


class CleanerChild:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def clean(self, job: CleaningJob) -> CleaningResult:
        """Raises CleaningFailed or ChildNotStarted."""
        process = await self._started()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readuntil(b"\n")
            reply = msgspec.json.decode(line, type=Reply)
        except asyncio.IncompleteReadError:
            status = await self.end()
            raise CleaningFailed(f"the cleaner process ended with status {status}") from None
        except (OSError, asyncio.LimitOverrunError, msgspec.DecodeError) as error:
            await self.end()
            raise CleaningFailed(f"the cleaner process failed: {error!r}") from error
        if reply.result is None:
            raise CleaningFailed(reply.error)
        return reply.result

    async def end(self) -> int | None:
        """Kill the child if it runs; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdout is not None
        if process.stdout.at_eof():
            # It has exited or is about to. asyncio collects its status; waiting for it here would take the status away.
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(process.wait(), END_S_MAX)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "penstock.storage.cleaner_process",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=REPLY_BYTES_MAX,
                )
            except OSError as error:
                raise ChildNotStarted(f"the cleaner process cannot be started: {error}") from error
        return self._process
