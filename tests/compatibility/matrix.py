"""The compatibility matrix: which client does what against Penstock, and the page that says so.

A check that ran leaves a file with what it found; the page is written from those files, and each check is compared with what
the page says. A cell is yes, no (the client does not have the feature: the reason is named) or, on the page only, not run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = Path(os.environ.get("PENSTOCK_MATRIX_RESULTS", ROOT / "reports" / "compatibility"))

CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "kcat", "kafkajs", "Java 4", "Java 3")
FEATURES = {
    "produce": "produce",
    "idempotent": "idempotent",
    "transactional": "transactional",
    "classic": "classic group",
    "cooperative": "cooperative",
    "consumer": "KIP-848",
    "static": "static membership",
    "admin": "admin calls",
}
"""The name of each feature in the checks, and on the page."""

YES, NO, NOT_RUN = "yes", "no", "not run"

_INTRO = """\
# Compatibility

<!-- Written by `make matrix` from the checks of tests/compatibility. -->

Every cell comes from a check that ran with the real client against Penstock; the tests fail when a cell no longer holds.

"""

_MEANING = """
What the checks do:

- produce: records with keys and headers, compressed, acks=all; read back by the client itself.
- idempotent: an idempotent producer, whose id the broker then knows.
- transactional: transactions that are committed and aborted, with group offsets where the client can; read_committed.
- classic group: two members share a topic, read each record once, commit and leave.
- cooperative: the same with the cooperative-sticky assignor; nobody loses what it keeps.
- KIP-848: the same with `group.protocol=consumer`, where the broker assigns.
- static membership: a member with an instance id that goes and comes back finds its partitions.
- admin calls: what the client has of topics, partitions, configs, records, offsets, groups and the cluster.

Kafka's command-line tools and Spark's `format("kafka")` have tests of their own (tests/compatibility/test_kafka_tools.py and
test_spark.py).
"""


class Cell(NamedTuple):
    word: str
    note: str = ""
    """Why not, or what of it."""
    version: str = ""
    """Of the client."""


Cells = Mapping[tuple[str, str], Cell]


class Gap(Exception):
    """The client does not have the feature; the text says what shows it."""


def leave(client: str, feature: str, cell: Cell) -> None:
    """Keep what a check found. One file a cell, so that several processes may test at once."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{client}--{feature}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"client": client, "feature": feature, **cell._asdict()}))
    part.replace(path)


def found() -> dict[tuple[str, str], Cell]:
    """What checks have left."""
    cells = {}
    for path in sorted(RESULTS.glob("*.json")):
        row = json.loads(path.read_text())
        cells[row["client"], row["feature"]] = Cell(row["word"], row["note"], row["version"])
    return cells


def render(cells: Cells) -> str:
    lines = [
        "| client | " + " | ".join(FEATURES.values()) + " |",
        "|---|" + "---|" * len(FEATURES),
    ]
    notes: dict[str, list[str]] = {YES: [], NO: [], NOT_RUN: []}
    for client in CLIENTS:
        versions = [cells[client, feature].version for feature in FEATURES if (client, feature) in cells]
        words = []
        for feature, title in FEATURES.items():
            cell = cells.get((client, feature), Cell(NOT_RUN, "its check did not run when this page was written"))
            words.append(cell.word)
            if cell.note:
                notes[cell.word].append(f"- {client}, {title}: {cell.note}")
        lines.append(f"| {client} ({max(versions, default='none here')}) | " + " | ".join(words) + " |")
    text = _INTRO + "\n".join(lines) + "\n" + _MEANING
    for word, heading in ((NO, "What clients do not have"), (YES, "In part"), (NOT_RUN, "Not run")):
        if notes[word]:
            text += f"\n## {heading}\n\n" + "\n".join(notes[word]) + "\n"
    return text


def stated(page: str) -> dict[tuple[str, str], Cell]:
    """What the page says of each cell."""
    notes = dict(re.findall(r"^- ([^:]+): (.+)$", page.partition("\n## ")[2], re.MULTILINE))
    cells = {}
    for line in page.splitlines():
        columns = [column.strip() for column in line.strip("|").split("|")]
        client, _, version = columns[0].partition(" (")
        if client in CLIENTS and len(columns) == len(FEATURES) + 1:
            for (feature, title), word in zip(FEATURES.items(), columns[1:], strict=True):
                cells[client, feature] = Cell(word, notes.get(f"{client}, {title}", ""), version.rstrip(")"))
    return cells
