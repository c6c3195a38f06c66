"""What a process of Penstock's own need not import.

kio imports hypothesis wherever it is installed, for tests of its own: a quarter of a second at every start. Only processes
that are Penstock and nothing else may leave it out; in a program of a user's it may be wanted.
"""

from __future__ import annotations

import sys


def leave_out_test_tools() -> None:
    """Before anything that imports kio is imported."""
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # None: not to be found
