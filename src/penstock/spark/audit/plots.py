"""Plots as SVG text: bars over time, and bars by name. No library, no script, no network."""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence

WIDTH, HEIGHT = 760, 200
BARS_MAX = 120
"""More than that are put together: a bar must be wide enough to be seen."""
_LEFT, _BOTTOM, _TOP = 70, 30, 12
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def bars_over_time(hours: Sequence[tuple[int, int]], title: str, unit: str) -> str:
    """`hours` are (hours since 1970, amount)."""
    if not hours:
        return ""
    first, last = min(hour for hour, _ in hours), max(hour for hour, _ in hours)
    step = max(1, -(-(last - first + 1) // BARS_MAX))
    amounts = [0] * ((last - first) // step + 1)
    for hour, amount in hours:
        amounts[(hour - first) // step] += amount
    labels = [moment(first + at * step) for at in range(len(amounts))]
    return _bars(amounts, labels, title, f"{unit} a {'hour' if step == 1 else f'{step} hours'}", every=6)


def bars_by_name(rows: Sequence[tuple[str, int]], title: str, unit: str) -> str:
    rows = sorted(rows, key=lambda row: row[0])[:BARS_MAX]
    return _bars([amount for _, amount in rows], [name for name, _ in rows], title, unit, every=max(1, len(rows) // 10))


def moment(hour: int) -> str:
    """An hour as people write it; years that no calendar has stay numbers."""
    try:
        return (_EPOCH + datetime.timedelta(hours=hour)).strftime("%Y-%m-%d %H:00")
    except OverflowError:
        return f"hour {hour}"


def _bars(amounts: Sequence[int], labels: Sequence[str], title: str, unit: str, every: int) -> str:
    high = max(amounts, default=0)
    if not high:
        return ""
    width = (WIDTH - _LEFT) / len(amounts)
    room = HEIGHT - _BOTTOM - _TOP
    marks_at = max(1, len(amounts) // every) if every > 1 else 1
    parts = [
        f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f'<line class="axis" x1="{_LEFT}" y1="{HEIGHT - _BOTTOM}" x2="{WIDTH}" y2="{HEIGHT - _BOTTOM}"/>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{short(high)}</text>',
        f'<text x="{_LEFT - 6}" y="{HEIGHT - _BOTTOM}" text-anchor="end">0</text>',
        f'<text x="2" y="{HEIGHT - 6}">{html.escape(unit)}</text>',
    ]
    for at, (amount, label) in enumerate(zip(amounts, labels, strict=True)):
        size = amount / high * room
        x = _LEFT + at * width
        parts.append(
            f'<rect x="{x:.1f}" y="{HEIGHT - _BOTTOM - size:.1f}" width="{max(width - 1, 0.8):.1f}" '
            f'height="{size:.1f}"><title>{html.escape(label)}: {amount:,}</title></rect>'
        )
        if at % marks_at == 0 and width * marks_at > 40:
            parts.append(f'<text class="mark" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 13}">{html.escape(label)}</text>')
    parts.append("</svg></figure>")
    return "".join(parts)


def short(amount: float) -> str:
    """1234567 as 1.2 M."""
    for name in ("", " k", " M", " G", " T"):
        if amount < 1000:
            return f"{amount:.0f}{name}" if amount >= 100 or amount == int(amount) else f"{amount:.1f}{name}"
        amount /= 1000
    return f"{amount:.0f} P"
