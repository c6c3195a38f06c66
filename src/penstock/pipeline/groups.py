"""Under which group a flow reads a topic: one of its own for each, so that nobody overwrites another's offsets."""

from __future__ import annotations

from penstock.pipeline import topic_options
from penstock.pipeline.declaration import TopicSource


def group_of(pipeline: str, flow: str, source: TopicSource) -> str:
    """The one that the file names, or PIPELINE.FLOW.SOURCE."""
    named = next((value for name, value in source.options.items() if name.lower() == topic_options.GROUP), None)
    return named or f"{pipeline}.{flow}.{source.name}"
