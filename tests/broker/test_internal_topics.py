"""Data directories in which an earlier version let clients create or reconfigure an internal topic."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from penstock.broker import catalogue, internal_topics
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.groups import OFFSETS_TOPIC
from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from penstock.model.errors import Fault
from penstock.storage.data_directory import DataDirectory
from tests.broker.failing_disk import CueDisk, answer_of, engine_on

WRONG_CONFIGS = {"cleanup.policy": "delete", "retention.bytes": "0", "segment.bytes": "100"}
GROUPS = [f"group-{at}" for at in range(20)]


async def commit(engine: EmbeddedEngine, offset: int) -> None:
    for group in GROUPS:
        place = OffsetToCommit("orders", 0, offset, -1, "")
        command = CommitOffsets(group, NO_MEMBER, None, NO_GENERATION, (place,))
        assert (await answer_of(engine.groups.ask(group, command))).fault is Fault.NONE


async def committed(engine: EmbeddedEngine) -> list[int]:
    found = []
    for group in GROUPS:
        result = await answer_of(engine.groups.ask(group, FetchOffsets(group, {"orders": (0,)})))
        found.append(result.offsets["orders"][0].value.offset)
    return found


def set_configs(path: Path, configs: dict[str, str]) -> None:
    """Change the catalogue as AlterConfigs of an earlier version did."""
    directory = DataDirectory(path)
    entries = catalogue.decode(directory.read_state(catalogue.FILE_NAME))
    entries[OFFSETS_TOPIC] = entries[OFFSETS_TOPIC].with_configs(configs)
    directory.write_state(catalogue.FILE_NAME, catalogue.encode(entries))
    directory.close((), clean=False)


def test_wrong_configs_of_internal_topic_are_replaced_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, CueDisk(), topic=None, internal_partitions=1) as engine:
            await commit(engine, 1)
        set_configs(tmp_path, WRONG_CONFIGS)
        async with engine_on(tmp_path, CueDisk(), topic=None) as engine:
            await engine.groups.loaded()
            await commit(engine, 2)
            await engine.housekeeping.retain()
        async with engine_on(tmp_path, CueDisk(), topic=None) as engine:
            await engine.groups.loaded()
            assert await committed(engine) == [2] * len(GROUPS)
            assert engine.topic_configs(OFFSETS_TOPIC) == internal_topics.CONFIGS
            info = engine.topic(OFFSETS_TOPIC)
            assert info is not None
            assert len(info.partitions) == 1

    with caplog.at_level(logging.WARNING, "penstock.broker.internal_topics"):
        asyncio.run(run())
    text = (
        f"internal topic __consumer_offsets: configs {WRONG_CONFIGS} from the catalogue are ignored, "
        f"internal topics always have {internal_topics.CONFIGS}"
    )
    assert [record.getMessage() for record in caplog.records] == [text, text]


def test_internal_topics_of_the_broker_need_no_repair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        for _ in range(2):
            async with engine_on(tmp_path, CueDisk(), topic=None) as engine:
                await engine.groups.loaded()
                await commit(engine, 1)

    asyncio.run(run())
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == []
