"""What goes wrong with an archive, as one sentence that says what to do."""

from __future__ import annotations


class ArchiveError(Exception):
    """The archive cannot do what was asked; nothing was half done."""


class Conflict(ArchiveError):
    """Somebody else committed to the table since it was looked at."""


class Held(ArchiveError):
    """Somebody else works on the table."""
