from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from tests.audit.logs import batch, write
from tests.cli.conftest import Run
from tests.imports.directories import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = ("--engine", "local")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "line"):
            self.open.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag != "line":
            assert self.open.pop() == tag, "an element ends inside of another"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_exit_codes_are_0_for_clean_1_for_findings_2_for_usage(penstock: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "d", "t-0", 0, [batch(0), batch(10)])
    ended = penstock("logs", "audit", str(tmp_path / "d"), *LOCAL)
    assert ended.code == 0
    assert ended.text.splitlines()[1].split() == [
        "t",
        "0",
        "20",
        "0",
        "1",
        str(path.stat().st_size),
        "0",
        "20",
        "7",
        "-",
    ]
    assert "20 records: clean" in ended.err
    flip(path, 90)
    ended = penstock("logs", "audit", str(tmp_path / "d"), *LOCAL)
    assert ended.code == 1
    assert f"crc: t-0 {path.name}: at 0" in ended.text
    assert penstock("logs", "audit", str(tmp_path / "d"), *LOCAL, "--allow", "crc", "--allow", "gap").code == 0
    for arguments, code in (
        ((), 2),
        (("--bootstrap", "a:1"), 2),
        ((str(tmp_path / "d"), "--allow", "nonsense"), 2),
        ((str(tmp_path / "work-none"),), 2),
        ((str(tmp_path / "d"), "--topic", "other", *LOCAL), 1),
        (("--table", str(tmp_path / "nothing"), *LOCAL), 1),
    ):
        ended = penstock("logs", "audit", *arguments)
        assert ended.code == code, (arguments, ended.err)


def test_json_and_page_say_the_same_and_the_page_needs_no_network(penstock: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "d", "t<b>-0", 0, [batch(0), batch(10), batch(20)])
    flip(path, len(batch(0)) + 90)
    page_path = tmp_path / "audit.html"
    ended = penstock("logs", "audit", str(tmp_path / "d"), *LOCAL, "--json", "--html", str(page_path))
    found = json.loads(ended.out)
    assert (ended.code, found["clean"], found["counts"]) == (1, False, {"crc": 1, "gap": 10})
    page = _Page()
    page.feed(page_path.read_text())
    assert page.open == []
    assert page.tags.count("svg") == 4
    assert page.sources == []
    assert "script" not in page.tags
    assert "b" not in page.tags, "names are escaped"
    assert "11 findings" in page.text
    assert all(finding["text"] in page.text for finding in found["findings"])


def test_spark_finds_what_threads_find(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.arrow.decode import decode_batches
    from penstock.audit.job import AuditRequest, audit
    from penstock.audit.row_facts import DECODED_COLUMNS, renamed
    from penstock.imports.engine import LocalEngine
    from penstock.records.batch import whole_batches
    from penstock.spark.import_job import SparkEngine

    write(tmp_path, "t-0", 0, [batch(0), batch(20)])
    flip(write(tmp_path, "t-1", 0, [batch(0), batch(10)]), 90)
    with_spark = audit(AuditRequest(SparkEngine(spark), tmp_path))
    assert with_spark.as_dict() == audit(AuditRequest(LocalEngine(), tmp_path)).as_dict()
    assert not with_spark.is_clean
    rows = [
        renamed(decoded)
        for decoded in decode_batches(whole_batches(memoryview(batch(0) + batch(20))), "t", 0, columns=DECODED_COLUMNS)
    ]
    changed = pa.Table.from_batches(rows).drop_columns("value").append_column("value", pa.array([b"other"] * 20))
    (tmp_path / "table").mkdir()
    pq.write_table(changed, tmp_path / "table" / "0.parquet")
    compared = audit(AuditRequest(SparkEngine(spark), tmp_path, str(tmp_path / "table"), topics=["t"]))
    assert compared.comparison.counts == {"content": 20, "missing": 10}


def test_the_page_about_audits_names_every_kind_and_options_that_exist(penstock: Run) -> None:
    import re

    from penstock.audit.facts import KINDS

    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    offered = penstock("logs", "audit", "--help").text
    for option in set(re.findall(r"`(--[a-z-]+)", page)):
        assert option in offered, option
    for kind in KINDS:
        assert f"| `{kind}` |" in page, kind
