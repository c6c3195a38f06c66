"""A record that was acknowledged before a read is in its answer, in every dialect, though its flush is still under way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.model.pending import Pending
from penstock.storage.files import LogFile
from tests.broker.failing_disk import CueDisk, engine_on, turns, until
from tests.dialects.forms import FORMS, Form, answered, ask, performed

VALUES = [b"first", b"second", b"third"]
SEVERAL = {name: form for name, form in FORMS.items() if not form.reads_one}


class TopicWaits(CueDisk):
    """Only the syncs of the topic wait: groups go on."""

    def sync(self, file: LogFile) -> None:
        if "/t-0/" in str(file.path):
            super().sync(file)


@pytest.mark.parametrize("flushed_before", [0, 1, 2])
@pytest.mark.parametrize("form", SEVERAL.values(), ids=SEVERAL)
def test_fetch_has_every_record_acknowledged_before_it(tmp_path: Path, form: Form, flushed_before: int) -> None:
    disk = TopicWaits()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            session = form.session(engine)
            partition = engine.partition("t", 0)
            assert partition is not None
            for at, value in enumerate(VALUES):
                if at == flushed_before:
                    await until(lambda: partition.high_watermark == flushed_before)
                    disk.hold()
                [(_, acknowledged)] = performed(session, form.produce(value))
                assert not isinstance(acknowledged, Pending)
            [(request, waiting)] = performed(session, form.read(0))
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert isinstance(waiting, Pending)
            assert not waiting.done
            disk.release()
            assert form.values(await answered(session, [(request, waiting)])) == VALUES

    asyncio.run(run())


@pytest.mark.parametrize("form", [form for name, form in SEVERAL.items() if "may wait" not in name])
def test_fetch_has_no_record_of_a_later_request(tmp_path: Path, form: Form) -> None:
    disk = TopicWaits()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            session = form.session(engine)
            disk.hold()
            performed(session, form.produce(VALUES[0]))
            [(request, waiting)] = performed(session, form.read(0))
            performed(session, form.produce(b"later"))
            assert isinstance(waiting, Pending)
            assert not waiting.done
            disk.release()
            assert form.values(await answered(session, [(request, waiting)])) == VALUES[:1]

    asyncio.run(run())


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form.reads_one])
def test_single_read_has_a_record_acknowledged_before_it(tmp_path: Path, form: Form) -> None:
    disk = TopicWaits()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            session = form.session(engine)
            if form.dialect == "minikafka":
                await ask(session, b"SET_OFFSET t:g 0\n")
            disk.hold()
            performed(session, form.produce(VALUES[0]))
            read = b"t:g:0\n" if form.dialect == "minikafka" else form.read(0)
            [(request, waiting)] = performed(session, read)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert isinstance(waiting, Pending)
            assert not waiting.done
            disk.release()
            assert form.values(await answered(session, [(request, waiting)])) == VALUES[:1]

    asyncio.run(run())
