from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.lake.kill_run import kill_run
from tests.lake.topics import Topic


@pytest.mark.timeout(600)
def test_an_archiver_that_is_killed_leaves_every_offset_once(topic: Topic, tmp_path: Path, format_: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    figures = kill_run(topic, tmp_path / "table", format_, 3, seed)
    assert figures.records >= 3 * 3 * 600
    assert figures.commits_seen >= figures.kills
