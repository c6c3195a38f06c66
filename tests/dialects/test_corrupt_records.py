"""A record that the disk changed is an error that names it and where to go on, in every dialect, and never a value."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from penstock.storage.files import Disk
from tests.broker.failing_disk import batch_of, engine_on
from tests.dialects.forms import FORMS, Failed, Form, ask

MARK = b"the byte that flips"


def flip(path: Path) -> None:
    """Change one bit of the marked value."""
    data = bytearray(path.read_bytes())
    assert data.count(MARK) == 1
    data[data.index(MARK)] ^= 1
    with open(path, "r+b") as file:
        file.write(data)


@pytest.mark.parametrize("size", [100, 5_000, 400_000, 1_500_000])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_corrupt_record_is_an_error_naming_it_and_the_next_readable_offset(
    tmp_path: Path, form: Form, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    before, behind = b"before" * (size // 12), b"behind" * (size // 12)
    corrupt = MARK + b"x" * (size - len(MARK))

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs={"max.message.bytes": "3000000"}) as engine:
            for value in (before, corrupt, behind):
                engine.append("t", 0, [batch_of(value)], 1)
            flip(tmp_path / "t-0" / "00000000000000000000.log")
            session = form.session(engine)
            for _ in range(3):
                assert form.values(await ask(session, form.read(0))) == [before]
                with pytest.raises(Failed) as failed:
                    form.values(await ask(session, form.read(1)))
                assert "record at offset 1 is corrupt; next readable offset is 2" in str(failed.value)
                assert form.values(await ask(session, form.read(2))) == [behind]

    asyncio.run(run())
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, warnings
    assert "t-0: the batch at offset 1 in 00000000000000000000.log is corrupt" in warnings[0]
    assert "the next readable offset is 2" in warnings[0]
