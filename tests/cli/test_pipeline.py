"""`penstock pipeline`: problems with their lines, a run that ends cleanly, and where each flow is."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, environment

FILE = """\
name: numbers
brokers: {brokers}
master: local[1]
settings: {{spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1}}
checkpoint: state
sources:
  numbers:
    topic: {topic}
    options: {{startingOffsets: earliest}}
    value: {{format: json, schema: "n INT NOT NULL"}}
    dead_letters: {topic}-dead
flows:
  even:
    from: numbers
    to: {{topic: {topic}-out}}
    trigger: 100 ms
  shown:
    from: numbers
    to: {{console: {{rows: 5}}}}
    trigger: 100 ms
"""


def write(folder: Path, brokers: str = "127.0.0.1:1", topic: str = "numbers") -> Path:
    file = folder / "p.yaml"
    file.write_text(FILE.format(brokers=brokers, topic=topic))
    return file


def test_validate_says_what_is_in_a_valid_file(penstock: Run, tmp_path: Path) -> None:
    write(tmp_path)
    ended = penstock("pipeline", "validate", "p.yaml")
    assert (ended.code, ended.text) == (0, "p.yaml is valid: 1 source, 0 transforms, 3 flows\n")
    as_json = json.loads(penstock("pipeline", "validate", "p.yaml", "--json").text)
    assert as_json == {"file": "p.yaml", "valid": True, "flows": ["even", "shown", "numbers.dead_letters"], "hints": []}


@pytest.mark.parametrize("command", ["validate", "run", "status"])
def test_an_invalid_file_is_one_line_a_problem_and_exit_code_2(penstock: Run, tmp_path: Path, command: str) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace("checkpoint: state", "chekpoint: state").replace("from: n", "from: m", 1))
    ended = penstock("pipeline", command, "p.yaml")
    assert ended.code == 2
    assert ended.err.splitlines() == [
        "penstock: 3 problems in p.yaml",
        "p.yaml:1: checkpoint is required (a directory for the progress of flows)",
        "p.yaml:5: unknown key chekpoint; did you mean checkpoint?",
        "p.yaml:14: flows.even reads mumbers, which is not declared; did you mean numbers?",
    ]


def test_validate_gives_problems_as_json(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: [")
    ended = penstock("pipeline", "validate", "p.yaml", "--json")
    assert ended.code == 2
    assert json.loads(ended.text)["problems"][0]["line"] == 1


def test_validate_names_what_no_flow_uses(penstock: Run, tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace("flows:", "  idle: {table: x}\nflows:"))
    ended = penstock("pipeline", "validate", "p.yaml")
    assert (ended.code, ended.err) == (0, "penstock: p.yaml:12: sources.idle is not used by any flow\n")


def test_a_file_that_is_not_there_is_one_line(penstock: Run) -> None:
    ended = penstock("pipeline", "validate", "none.yaml")
    assert (ended.code, ended.err) == (2, "penstock: none.yaml:1: cannot read the file: No such file or directory\n")


def test_a_flow_that_the_file_does_not_have_is_named_with_the_nearest(penstock: Run, tmp_path: Path) -> None:
    write(tmp_path)
    ended = penstock("pipeline", "status", "p.yaml", "--flow", "evn")
    assert (ended.code, ended.err) == (2, "penstock: p.yaml has no flow evn; did you mean even?\n")


def test_a_master_that_is_none_is_one_line(penstock: Run, tmp_path: Path) -> None:
    write(tmp_path)
    ended = penstock("pipeline", "run", "p.yaml", "--master", "nonsense")
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("penstock: --master 'nonsense' is not local[N], ")


def test_status_before_the_first_run(penstock: Run, tmp_path: Path) -> None:
    write(tmp_path)
    ended = penstock("pipeline", "status", "p.yaml", "--flow", "even")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.text.splitlines()] == ["flow", "even", "numbers.dead_letters"]
    assert "not started" in ended.text


class _Lines:
    """The JSON lines of a process, waited for with a bound."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.seen: list[dict[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        assert process.stdout is not None
        self._output = process.stdout
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, **wanted: Any) -> dict[str, Any]:
        """The first line from here on with these fields."""
        while (line := self._lines.get(timeout=300)) is not None:
            self.seen.append(json.loads(line))
            if wanted.items() <= self.seen[-1].items():
                return self.seen[-1]
        raise AssertionError(f"it ended; it said {self.seen}")

    def close(self) -> None:
        """After the process has ended."""
        self._thread.join(timeout=60)
        self._output.close()

    def rest(self) -> list[dict[str, Any]]:
        self._thread.join(timeout=60)
        while (line := self._lines.get(timeout=60)) is not None:
            self.seen.append(json.loads(line))
        return self.seen


@pytest.mark.timeout(600)
def test_a_run_tells_json_lines_ends_at_sigterm_with_exit_code_0_and_goes_on_where_it_was(
    penstock: Run, tmp_path: Path, broker_address: str
) -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    bootstrap = ("--bootstrap", broker_address)
    for topic in ("cli-numbers", "cli-numbers-out", "cli-numbers-dead"):
        assert penstock("topics", "create", topic, "--partitions", "1", *bootstrap).code == 0
    penstock("produce", "cli-numbers", *bootstrap, stdin=b'{"n": 1}\n{"n": 2}\nnonsense\n')
    file = write(tmp_path, broker_address, "cli-numbers")
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "pipeline", "run", str(file), "--flow", "even"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=(errors := (tmp_path / "stderr").open("w+")),
        text=True,
    )
    lines = _Lines(process)
    try:
        for flow in ("even", "numbers.dead_letters"):
            lines.until(event="started", flow=flow)
        lines.until(event="batch", flow="numbers.dead_letters")
        penstock("produce", "cli-numbers", *bootstrap, stdin=b'{"n": 3}\n')
        while penstock("consume", "cli-numbers-out", *bootstrap).out.count(b"\n") < 3:
            lines.until(event="batch")
        process.send_signal(signal.SIGTERM)
        said = lines.rest()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        lines.close()
        errors.seek(0)
        wrote = errors.read()
        errors.close()
    assert "Traceback" not in wrote
    assert {line["flow"]: line["state"] for line in said if line["event"] == "ended"} == {
        "even": "stopped",
        "numbers.dead_letters": "stopped",
    }
    batch = next(line for line in said if line["event"] == "batch" and line["flow"] == "even")
    assert {"rows", "rows_per_s", "lag", "batch_ms", "batch", "time"} <= batch.keys()
    found = json.loads(penstock("pipeline", "status", str(file), "--json").text)
    even = next(flow for flow in found["flows"] if flow["flow"] == "even")
    assert (even["state"], even["lag"]) == ("between batches", 0)
    assert even["partitions"] == [{"topic": "cli-numbers", "partition": 0, "offset": 4, "end_offset": 4, "lag": 0}]


def test_a_terminal_shows_each_flow_with_rows_a_second_lag_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.pipeline_view import LiveTable
    from penstock.pipeline.progress import BatchDone, FlowEnded, FlowRestarting, FlowStarted
    from penstock.pipeline.reading import read_pipeline

    pipeline = read_pipeline(write(tmp_path), {})
    with LiveTable(pipeline.name, list(pipeline.flows.values())) as view:
        view.tell(FlowStarted("even", 0))
        view.tell(BatchDone("even", 0, 1_000, 2_000.0, 70, 500, None))
        view.tell(BatchDone("even", 1, 500, 4_100.4, 12_345, 1_240, None))
        view.tell(FlowRestarting("shown", 2, 2_000, "[it] broke"))
        view.show("shown", 7, [{"n": 1, "name": None}], True)
        view.tell(FlowEnded("numbers.dead_letters", "done", None))
    shown = capsys.readouterr().out
    assert "shown failed, restarting in 2 s: [it] broke" in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert rows["even"] == ["running", "1", "1,500", "4,100", "12,345", "1.24", "s"]
    assert rows["numbers.dead_letters"] == ["done"]
    assert rows["1"] == ["null"]


def test_a_pipe_gets_rows_of_any_type_as_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.pipeline_view import JsonLines

    rows = [{"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "price": Decimal("1.50"), "odd": {1: complex(1)}}]
    with JsonLines("p") as view:
        view.show("shown", 3, rows, False)
    line = json.loads(capsys.readouterr().out)
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "rows",
        "pipeline": "p",
        "flow": "shown",
        "batch": 3,
        "rows": [{"n": 1, "at": "2026-01-01T00:00:00Z", "price": "1.50", "odd": {"1": "(1+0j)"}}],
        "more": False,
    }
