"""Reading a pipeline's file: `read_pipeline` gives a checked declaration, or raises InvalidPipeline with every problem.

Nothing here starts Spark or asks a broker. Functions named by `python:` are imported, because one that cannot be is a
problem of the file; the file's folder is where Python looks first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.pipeline import topic_options
from penstock.pipeline.declaration import (
    AnyFlow,
    DeadLetterFlow,
    Delivery,
    Pipeline,
    Restarts,
    Source,
    TopicSource,
    Transform,
    Trigger,
)
from penstock.pipeline.graph import check_graph
from penstock.pipeline.keys import Keys
from penstock.pipeline.problems import Problems
from penstock.pipeline.reading_flows import FlowDefaults, read_delivery, read_flow, read_trigger
from penstock.pipeline.reading_sources import NAME, Shared, checked_options, read_source, read_transform
from penstock.pipeline.tree import read_tree

MASTER: Final = "local[*]"
RESTARTS_MAX: Final = 1_000_000
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|(spark|k8s)://.+|yarn")
DEAD_LETTERS: Final = "dead_letters"


def read_pipeline(file: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    root, problems = read_tree(file, environment)
    keys = Keys(root, "", problems)
    keys.line = 1
    name = _label(keys, "name", file.stem)
    master = keys.text("master", "a Spark master") or MASTER
    wrong = problem_with_master(master)
    if wrong is not None:
        keys.problem(f"master = {wrong}", keys.line_of("master"))
    settings = keys.plain("settings")
    for setting, scalar in settings.items():
        if not setting.startswith("spark."):
            keys.problem(f"settings.{setting}: Spark settings start with spark.", scalar.line)
    shared = Shared(file.absolute().parent, _topic_options(keys))
    checkpoint = keys.text("checkpoint", "a directory for the progress of flows", required=True)
    defaults = FlowDefaults(
        read_trigger(keys, Trigger()),
        read_delivery(keys, Delivery.AT_LEAST_ONCE),
        shared.place(checkpoint or "checkpoint"),
    )
    restarts = _restarts(keys)
    sources = _sources(keys, shared)
    transforms = _transforms(keys, sources)
    flows = _flows(keys, shared, defaults)
    keys.done()
    pipeline = Pipeline(
        name,
        file,
        master,
        {setting: scalar.text for setting, scalar in settings.items()},
        restarts,
        sources,
        transforms,
        flows,
    )
    check_graph(pipeline, problems)
    problems.raise_if_any()
    whole = _with_dead_letters(pipeline, shared, defaults, problems)
    problems.raise_if_any()
    return whole


def problem_with_master(master: str) -> str | None:
    """What is wrong with the name of a Spark master, or None."""
    return None if _MASTER.fullmatch(master) else f"{master!r} is not local[N], spark://HOST:PORT, k8s://... or yarn"


def _label(keys: Keys, key: str, default: str) -> str:
    found = keys.text(key, "a name")
    if found is None:
        return re.sub(r"[^A-Za-z0-9_-]", "-", default)
    if _LABEL.fullmatch(found) is None:
        keys.problem(f"{key} = {found!r}: a name may only contain letters, digits, - and _", keys.line_of(key))
    return found


def _topic_options(keys: Keys) -> dict[str, str]:
    options = checked_options(keys, "topic_options", topic_options.SOURCE)
    brokers = keys.texts("brokers", "HOST:PORT, or a list of them")
    if brokers:
        if topic_options.has(options, topic_options.BOOTSTRAP):
            keys.problem(
                f"brokers and topic_options.{topic_options.BOOTSTRAP} cannot be combined: set one of them",
                keys.line_of("brokers"),
            )
        options[topic_options.BOOTSTRAP] = ",".join(scalar.text for scalar in brokers)
    return options


def _restarts(keys: Keys) -> Restarts:
    inner = keys.section("restarts")
    if inner is None:
        return Restarts()
    usual = Restarts()
    restarts = Restarts(
        inner.whole("max", usual.max, 0, RESTARTS_MAX),
        inner.duration("backoff", usual.backoff_ms),
        inner.duration("backoff_max", usual.backoff_ms_max),
    )
    inner.done()
    if restarts.backoff_ms_max < restarts.backoff_ms:
        inner.problem("restarts.backoff_max is less than restarts.backoff", inner.line_of("backoff_max"))
    return restarts


def _sources(keys: Keys, shared: Shared) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    section = keys.section("sources", required=True)
    for name, inner in () if section is None else section.sections():
        _check_view_name(name, inner)
        source = read_source(name, inner, shared)
        if source is not None:
            sources[name] = source
    return sources


def _transforms(keys: Keys, sources: Mapping[str, Source]) -> dict[str, Transform]:
    transforms: dict[str, Transform] = {}
    section = keys.section("transforms")
    taken = {name.lower() for name in sources}
    for name, inner in () if section is None else section.sections():
        _check_view_name(name, inner)
        if name.lower() in taken:
            inner.problem(f"{inner.path}: a source or transform {name} already exists")
        taken.add(name.lower())
        transform = read_transform(name, inner)
        if transform is not None:
            transforms[name] = transform
    return {name: _with_declared_names(one, [*sources, *transforms]) for name, one in transforms.items()}


def _with_declared_names(transform: Transform, names: list[str]) -> Transform:
    """As SQL does not mind the case of letters."""
    by_lower = {name.lower(): name for name in names}
    return replace(transform, inputs=tuple(by_lower.get(name.lower(), name) for name in transform.inputs))


def _check_view_name(name: str, keys: Keys) -> None:
    if NAME.fullmatch(name) is None:
        keys.problem(f"{keys.path}: {name!r} is not a valid SQL name: use letters, digits and _")


def _flows(keys: Keys, shared: Shared, defaults: FlowDefaults) -> dict[str, AnyFlow]:
    flows: dict[str, AnyFlow] = {}
    section = keys.section("flows", required=True)
    for name, inner in () if section is None else section.sections():
        if _LABEL.fullmatch(name) is None:
            inner.problem(f"{inner.path}: a flow name may only contain letters, digits, - and _")
        flow = read_flow(name, inner, shared, defaults)
        if flow is not None:
            flows[name] = flow
    if section is not None and not section.names():
        section.problem("flows is empty")
    return flows


def _with_dead_letters(pipeline: Pipeline, shared: Shared, defaults: FlowDefaults, problems: Problems) -> Pipeline:
    """The pipeline with a flow more for each dead-letter topic, which goes on as long as any flow that reads its origin."""
    triggers: dict[str, list[Trigger]] = {}
    for flow in pipeline.flows.values():
        for origin in pipeline.upstream(flow.origin):
            if origin.rules.dead_letters is not None:
                triggers.setdefault(origin.name, []).append(flow.trigger)
    flows = dict(pipeline.flows)
    for name, wanted in triggers.items():
        origin = pipeline.origin(name)
        assert origin.rules.dead_letters is not None
        reach = origin.options if isinstance(origin, TopicSource) else shared.topic_options
        if not topic_options.has(reach, topic_options.BOOTSTRAP):
            problems.add(origin.line, f"the dead_letters of {name} have no broker: set brokers at the top level")
        own = f"{name}.{DEAD_LETTERS}"
        flows[own] = DeadLetterFlow(
            own,
            origin.line,
            name,
            origin.rules.dead_letters,
            topic_options.for_sink(reach),
            next((trigger for trigger in wanted if trigger.kind == "interval"), wanted[0]),
            defaults.delivery,
            f"{defaults.checkpoint}/{own}",
        )
    return replace(pipeline, flows=flows)
