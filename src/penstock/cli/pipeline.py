"""`penstock pipeline`: check, run and watch the flows that a file declares."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import AsJson
from penstock.cli.failure import Failed, Misused
from penstock.cli.master import check_master
from penstock.cli.output import counted, note, print_json, print_table
from penstock.cli.stopping import until_stopped
from penstock.pipeline.problems import InvalidPipeline, PipelineFailed

if TYPE_CHECKING:
    from penstock.pipeline.declaration import AnyFlow, Pipeline

app = command_app("Validate, run and monitor pipelines declared in a YAML file.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline YAML file.")]
Flows = Annotated[
    list[str] | None,
    typer.Option("--flow", metavar="NAME", help="Only this flow and its dead letters; repeatable."),
]


@app.command()
def validate(file: File, as_json: AsJson = False) -> None:
    """Check a pipeline file without starting Spark.

    Reports every problem with its line. Does not contact brokers. Exit code 2 if the file is invalid.
    """
    _check_installed()
    from penstock.pipeline.graph import unused
    from penstock.pipeline.reading import read_pipeline

    try:
        pipeline = read_pipeline(file)
    except InvalidPipeline as error:
        if as_json:
            problems = [{"line": problem.line, "text": problem.text} for problem in error.problems]
            print_json({"file": str(file), "valid": False, "problems": problems})
        raise _misused(error) from None
    hints = list(unused(pipeline))
    if as_json:
        print_json({"file": str(file), "valid": True, "flows": list(pipeline.flows), "hints": hints})
        return
    for hint in hints:
        note(f"penstock: {hint}")
    print(
        f"{file} is valid: {counted(len(pipeline.sources), 'source')}, "
        f"{counted(len(pipeline.transforms), 'transform')}, {counted(len(pipeline.flows), 'flow')}"
    )


@app.command()
def run(
    file: File,
    flow: Flows = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the available data, then exit; overrides triggers.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="Spark master; overrides the file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines even on a terminal.")] = False,
) -> None:
    """Run the flows until they finish or are stopped.

    SIGTERM and Ctrl-C stop them cleanly. Shows a live table on a terminal; otherwise prints one JSON object per event.
    """
    _check_installed()
    from penstock.cli.pipeline_view import JsonLines, LiveTable
    from penstock.spark.java import NoSpark

    check_master(master)
    with until_stopped() as stop:
        pipeline = _read(file)
        flows = _chosen(pipeline, flow, available_now=available_now)
        view = JsonLines(pipeline.name) if as_json or not sys.stdout.isatty() else LiveTable(pipeline.name, flows)
        try:
            from penstock.pipeline.supervision import Supervisor, close_session, open_for

            spark = open_for(pipeline, master)
        except ModuleNotFoundError as error:
            raise Failed(f"{error.name} is not installed: pip install 'penstock-broker[spark]'") from None
        except NoSpark as error:
            raise Failed(str(error)) from None
        # what the session's JVM has to say about failures the view says in a line
        spark.sparkContext.setLogLevel(pipeline.settings.get("spark.log.level", "OFF"))
        try:
            with view:
                Supervisor(spark, pipeline, flows, view.tell, view.show).run(lambda: stop.asked)
        except InvalidPipeline as error:
            raise _misused(error) from None
        except PipelineFailed as error:
            raise Failed(str(error)) from None
        finally:
            close_session(spark)


@app.command()
def status(file: File, flow: Flows = None, as_json: AsJson = False) -> None:
    """Show the last batch and the lag of each flow.

    Reads checkpoints and asks the broker. Does not need Spark, and works while the pipeline runs.
    """
    _check_installed()
    from penstock.cli.pipeline_view import status_json, status_rows
    from penstock.pipeline.status import status_of

    pipeline = _read(file)
    found = [status_of(pipeline, one) for one in _chosen(pipeline, flow, available_now=False)]
    if as_json:
        print_json({"pipeline": pipeline.name, "flows": [status_json(one) for one in found]})
        return
    print_table(("flow", "state", "batch", "batch time", "watermark", "lag"), status_rows(found))
    for one in found:
        for text in one.notes:
            note(f"penstock: flows.{one.flow}: {text}")


def _check_installed() -> None:
    missing = [name for name in ("pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise Failed(f"pipeline requires {', '.join(missing)}: pip install 'penstock-broker[spark]'")


def _read(file: Path) -> Pipeline:
    from penstock.pipeline.reading import read_pipeline

    try:
        return read_pipeline(file)
    except InvalidPipeline as error:
        raise _misused(error) from None


def _misused(error: InvalidPipeline) -> Misused:
    """The problems one below the other; the first line begins as every command's does."""
    count = len(error.problems)
    return Misused(str(error) if count == 1 else f"{counted(count, 'problem')} in {error.file}\n{error}")


def _chosen(pipeline: Pipeline, names: list[str] | None, *, available_now: bool) -> list[AnyFlow]:
    from dataclasses import replace

    from penstock.model.topic_config import nearest
    from penstock.pipeline.declaration import Trigger

    flows: dict[str, Any] = dict(pipeline.flows)
    for name in names or ():
        if name not in flows:
            raise Misused(f"{pipeline.file} has no flow {name}{nearest(name, flows)}")
    if names:
        needed = {one.name for name in names for one in pipeline.upstream(flows[name].origin)}
        flows = {
            name: one
            for name, one in flows.items()
            if name in names or (name.endswith(".dead_letters") and one.origin in needed)
        }
    if available_now:
        flows = {name: replace(one, trigger=Trigger("available_now")) for name, one in flows.items()}
    return list(flows.values())
