"""Who reads whom in a pipeline: names that nobody declared, cycles, functions that cannot be called, no stream."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.topic_config import nearest
from penstock.pipeline import topic_options
from penstock.pipeline.declaration import (
    BadRows,
    Pipeline,
    PythonTransform,
    Source,
    SqlTransform,
    TopicSource,
    Transform,
)
from penstock.pipeline.functions import NoFunction, check_call, load_function
from penstock.pipeline.problems import Problems
from penstock.pipeline.sql_names import InvalidSql, view_names


def check_graph(pipeline: Pipeline, problems: Problems) -> None:
    names = [*pipeline.sources, *pipeline.transforms]
    known = {name.lower() for name in names}
    whole = True
    for transform in pipeline.transforms.values():
        for name, line in _inputs(transform):
            if name.lower() not in known:
                problems.add(
                    line, f"transforms.{transform.name} reads {name}, which is not declared{nearest(name, names)}"
                )
                whole = False
        if isinstance(transform, PythonTransform):
            _check_function(transform, pipeline, problems)
    for flow in pipeline.flows.values():
        if flow.origin not in names:
            hint = nearest(flow.origin, names)
            problems.add(flow.line, f"flows.{flow.name} reads {flow.origin}, which is not declared{hint}")
            whole = False
    if not _cycles(pipeline, problems) and whole:
        _check_streams(pipeline, problems)
        _check_places(pipeline, problems)


def _inputs(transform: Transform) -> Iterator[tuple[str, int]]:
    """Each input with the line where it is named."""
    if isinstance(transform, SqlTransform):
        try:
            for view in view_names(transform.sql):
                yield view.name, transform.sql_line + (view.line if transform.is_block else 0)
        except InvalidSql:
            return  # noted when it was read
    else:
        for name in transform.inputs:
            yield name, transform.line


def _check_function(transform: PythonTransform, pipeline: Pipeline, problems: Problems) -> None:
    if not transform.function:
        return  # noted when it was read
    try:
        function = load_function(transform.function, pipeline.file.absolute().parent)
    except NoFunction as error:
        problems.add(transform.line, f"transforms.{transform.name}: {error}")
        return
    wrong = check_call(function, len(transform.inputs), dict(transform.arguments))
    if wrong is not None:
        problems.add(transform.line, f"transforms.{transform.name}: cannot call {transform.function}: {wrong}")


def _cycles(pipeline: Pipeline, problems: Problems) -> bool:
    """Whether transforms read each other in a circle; each circle is named once, where its first transform stands."""
    done: set[str] = set()
    found = False

    def visit(name: str, path: list[str]) -> None:
        nonlocal found
        if name in path:
            circle = [*path[path.index(name) :], name]
            line = min(pipeline.transforms[one].line for one in circle)
            problems.add(line, f"transforms form a cycle: {' <- '.join(circle)}")
            found = True
            return
        if name in done or name not in pipeline.transforms:
            return
        for read in pipeline.transforms[name].inputs:
            visit(read, [*path, name])
        done.add(name)

    for name in pipeline.transforms:
        visit(name, [])
    return found


def _check_streams(pipeline: Pipeline, problems: Problems) -> None:
    """A flow needs a stream to follow, and dead letters are written by following one too."""

    def has_stream(name: str) -> bool:
        return any(getattr(one, "is_stream", False) for one in pipeline.upstream(name))

    for flow in pipeline.flows.values():
        if not has_stream(flow.origin):
            problems.add(
                flow.line,
                f"flows.{flow.name} reads no stream: at least one of its sources must be a stream (a topic, files, or a "
                "parquet table with read: stream)",
            )
    for origin in (*pipeline.sources.values(), *pipeline.transforms.values()):
        if origin.rules.bad_rows is BadRows.DEAD_LETTERS and not has_stream(origin.name):
            problems.add(
                origin.line,
                f"{_path(origin)}: dead_letters requires a stream; for a static source use bad_rows: fail or skip",
            )


def _check_places(pipeline: Pipeline, problems: Problems) -> None:
    """Two flows with one checkpoint or one group would overwrite each other's offsets."""
    taken: dict[str, str] = {}
    for flow in pipeline.flows.values():
        if flow.checkpoint in taken:
            problems.add(flow.line, f"flows.{flow.name} has the same checkpoint as flows.{taken[flow.checkpoint]}")
        taken[flow.checkpoint] = flow.name
    for source in pipeline.sources.values():
        if not isinstance(source, TopicSource) or not topic_options.has(source.options, topic_options.GROUP):
            continue
        readers = [flow.name for flow in pipeline.flows.values() if source in pipeline.upstream(flow.origin)]
        if len(readers) > 1 or (readers and source.rules.bad_rows is BadRows.DEAD_LETTERS):
            problems.add(
                source.line,
                f"sources.{source.name} has {topic_options.GROUP} and is read by several queries, which would overwrite "
                "each other's offsets: remove it, so that each query gets its own group",
            )


def _path(origin: Source | Transform) -> str:
    kind = "transforms" if isinstance(origin, SqlTransform | PythonTransform) else "sources"
    return f"{kind}.{origin.name}"


def unused(pipeline: Pipeline) -> Iterator[str]:
    """What no flow needs: no mistake that stops anything, but worth a line."""
    used = {one.name for flow in pipeline.flows.values() for one in pipeline.upstream(flow.origin)}
    for origin in (*pipeline.sources.values(), *pipeline.transforms.values()):
        if origin.name not in used:
            yield f"{pipeline.file}:{origin.line}: {_path(origin)} is not used by any flow"
