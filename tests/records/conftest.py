"""kafka-python warns of itself while it is imported (importlib.resources.read_text); its records are an oracle here."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.record.memory_records  # noqa: F401
