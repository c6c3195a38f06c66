"""What docs/dialects/minikafka.md says is true: its conversation happens so, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dialects.in_process import Broker
from tests.dialects.minikafka.conftest import Peer

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs/dialects/minikafka.md").read_text()
COVERAGE = (HERE.parents[2] / "docs/dialects/coverage-minikafka.md").read_text()


def test_the_conversation_of_the_page_happens_so(broker: Broker) -> None:
    peer = Peer(broker)
    block = PAGE.split("## A conversation")[1].split("```")[1]
    turns = re.findall(r"^> (.+)\n< (.+)$", block, re.MULTILINE)
    assert len(turns) > 5
    for sent, answer in turns:
        assert peer.send(bytes.fromhex(sent)).hex() == bytes.fromhex(answer).hex()


def test_every_test_that_the_pages_name_exists() -> None:
    files = [*HERE.glob("test_*.py"), HERE.parents[1] / "client/test_minikafka.py"]
    there = set(re.findall(r"def (test_\w+)", "".join(path.read_text() for path in files)))
    named = set(re.findall(r"`(test_\w+)`", PAGE + COVERAGE))
    assert len(named) > 20
    assert named <= there, named - there
