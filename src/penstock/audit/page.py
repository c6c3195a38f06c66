"""The report as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from penstock.audit.facts import KINDS
from penstock.audit.merging import Merged
from penstock.audit.plots import columns_over_time, rows_by_name, short
from penstock.audit.report import AuditReport

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b2733 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.verdict { padding: .6rem 1rem; border-radius: .4rem; font-weight: 600 }
.clean { background: #e2f3e6; color: #14532d } .found { background: #fde8e4; color: #7f1d1d }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .85rem }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #dde3e9 }
th { white-space: nowrap } td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
figure { margin: 1.2rem 0 } figcaption { font-weight: 600; margin-bottom: .4rem }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: #51606e }
svg rect { fill: #2f6f9f } svg .axis { stroke: #9aa7b3 } svg .grid { stroke: #e6ebf0 } svg .mark { font-size: 10px }
footer { margin-top: 2rem; color: #6b7885; font-size: .85rem }
"""


def html_page(report: AuditReport, made_at: datetime.datetime) -> str:
    found = report.found()
    what = escape(report.what + (f" against {report.compared_with}" if report.compared_with else ""))
    total = sum(found.counts.values())
    verdict = (
        '<p class="verdict clean">Clean: nothing was found.</p>'
        if not total
        else f'<p class="verdict {"clean" if report.is_clean else "found"}">{total:,} findings'
        f"{', all allowed' if report.is_clean else ''}.</p>"
    )
    body = [
        f"<h1>Audit of {what}</h1>",
        verdict,
        _findings(report),
        _plots(report.partitions),
        "<h2>Partitions</h2>",
        _partitions(report.partitions),
    ]
    if report.topic_partitions:
        body += ["<h2>The topic</h2>", _partitions(report.topic_partitions)]
    moment = made_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Audit of {what}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"{''.join(body)}<footer>penstock logs audit, {moment}</footer></body></html>\n"
    )


def _findings(report: AuditReport) -> str:
    found = report.found()
    if not found.counts:
        return ""
    kinds = [
        (kind, KINDS[kind], found.counts[kind], "allowed" if kind in report.allowed else "")
        for kind in KINDS
        if kind in found.counts
    ]
    rows = [(one.kind, one.place, one.text) for one in found.kept]
    return (
        "<h2>Findings</h2>"
        + _table(("kind", "meaning", "count", ""), kinds)
        + "<h2>Where</h2>"
        + _table(("kind", "place", "what"), rows)
    )


def _plots(partitions: Sequence[Merged]) -> str:
    hours: dict[int, tuple[int, int]] = {}
    for merged in partitions:
        for hour, (records, size) in merged.facts.hours.items():
            counted = hours.get(hour, (0, 0))
            hours[hour] = (counted[0] + records, counted[1] + size)
    known = [merged for merged in partitions if merged.facts.partition >= 0]
    plots = [
        columns_over_time([(hour, records) for hour, (records, _) in hours.items()], "Records over time"),
        columns_over_time([(hour, size) for hour, (_, size) in hours.items()], "Bytes of keys and values over time"),
        rows_by_name([(one.facts.place, one.facts.records) for one in known], "Records by partition"),
        rows_by_name([(one.facts.place, one.keys.count()) for one in known], "Distinct keys by partition"),
    ]
    return "<h2>Plots</h2>" + "".join(plots) if any(plots) else ""


def _partitions(partitions: Sequence[Merged]) -> str:
    rows = []
    for merged in partitions:
        facts = merged.facts
        keys = f"{merged.keys.count():,}" if merged.keys.is_exact else f"about {short(merged.keys.count())}"
        rows.append(
            (
                facts.place if facts.partition >= 0 else "unknown",
                facts.records,
                facts.hidden,
                facts.files,
                facts.bytes,
                facts.log_start_offset,
                facts.log_end_offset,
                keys,
                _time(facts.timestamp_min),
                _time(facts.timestamp_max),
                ", ".join(f"{kind} {count}" for kind, count in facts.found.counts.items()) or "none",
            )
        )
    head = (
        "partition",
        "records",
        "hidden",
        "files",
        "bytes",
        "start",
        "end",
        "keys",
        "oldest",
        "youngest",
        "findings",
    )
    return _table(head, rows)


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return ""
    try:
        return datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    rows = list(rows)
    numbers = [all(isinstance(row[at], int) for row in rows) for at in range(len(head))]

    def cells(tag: str, row: Sequence[Any]) -> str:
        parts = []
        for cell, is_number in zip(row, numbers, strict=True):
            text = escape(f"{cell:,}" if isinstance(cell, int) else str(cell))
            parts.append(f'<{tag} class="n">{text}</{tag}>' if is_number else f"<{tag}>{text}</{tag}>")
        return "".join(parts)

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide">{table}</div>'
