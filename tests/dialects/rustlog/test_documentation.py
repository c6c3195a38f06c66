"""What docs/dialects/rustlog.md says is true: its conversation happens so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dialects.in_process import Broker
from tests.dialects.rustlog.peer import Peer

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs/dialects/rustlog.md").read_text()


def test_the_conversation_of_the_page_happens_so(broker: Broker) -> None:
    peer = Peer(broker)
    block = PAGE.split("## A conversation")[1].split("```")[1]
    turns = re.findall(r"^> (.+)\n< (.+)$", block, re.MULTILINE)
    assert len(turns) > 5
    for sent, answer in turns:
        assert peer.send(bytes.fromhex(sent)).hex() == bytes.fromhex(answer).hex()
