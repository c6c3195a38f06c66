"""What `topics delete` and `groups delete` say: what is gone, and for the rest why not."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from penstock.cli.connection import reason
from penstock.cli.failure import Failed
from penstock.cli.output import note, print_json


def report_deleted(kind: str, answers: Mapping[str, Future[None]], *, as_json: bool) -> None:
    """Wait for the broker's answer for each name; fails when one is still there."""
    from confluent_kafka import KafkaException

    deleted: list[str] = []
    failed: dict[str, str] = {}
    for name, answer in answers.items():
        try:
            answer.result()
            deleted.append(name)
        except KafkaException as error:
            failed[name] = reason(error)
    if as_json:
        print_json({"deleted": deleted, "failed": failed})
    else:
        for name in deleted:
            note(f"deleted {kind} {name}")
    if failed:
        raise Failed("cannot delete " + "; ".join(f"{kind} {name}: {why}" for name, why in failed.items()))
