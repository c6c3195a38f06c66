"""What went wrong in Spark, as one line: its exceptions carry plans, stacks and a Python worker's traceback."""

from __future__ import annotations

import re
from typing import Final

LENGTH_MAX: Final = 500
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}")
_STREAM = re.compile(r"^\s*(?:Query \[id = [^\]]*\]\s*)?terminated with exception:\s*")
_RAISED = re.compile(r"^\s*(?:[\w.]+\.)?([A-Za-z_]\w*(?:Error|Exception|Failed|Lost|Warning)): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^: (?:[\w.$]+(?:Exception|Error): )?(.+)$", re.MULTILINE)
"""What py4j puts on its second line."""
_TELLING: Final = ("SourceError", "SinkError", "DataLost", "PipelineFailed", "KafkaError")
"""Exceptions of this package: their text is all there is to say."""


def one_line(error: BaseException) -> str:
    """The sentence that helps: the last exception of a Python traceback if there is one, else Spark's first line."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text.partition("Traceback (most recent call last)")[2])
        if raised:
            return _short(_of_python(raised))
    java = _JAVA.search(text) if text.startswith("An error occurred while calling") else None
    if java is not None:
        text = java[1]
    # a plan follows below; what is above it may take several lines
    lines = text.split("\n== ")[0].split("\n=== ")[0].splitlines()
    first = lines[0] if lines else type(error).__name__
    first = _STREAM.sub("", _CONDITION.sub("", first))
    return _short(_STATE.sub("", _CONDITION.sub("", first)).rstrip(" ;:"))


def _of_python(raised: list[tuple[str, str]]) -> str:
    own = [text for name, text in raised if name in _TELLING]
    if own:
        return own[-1]
    name, text = raised[-1]
    return f"{name}: {text}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 3] + "..."
