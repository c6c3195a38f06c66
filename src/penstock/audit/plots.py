"""Plots as SVG text: columns over time, and rows by name. No library, no script, no network."""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence

WIDTH = 760
COLUMNS_MAX = 120
"""More than that are put together: a column must be wide enough to be seen."""
ROWS_MAX = 40
"""Names in one plot; the smallest of more are left to the table."""
NAME_CHARS_MAX = 34

_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 200, 56, 24, 8, 12
_ROW, _ROW_LEFT, _ROW_RIGHT = 16, 210, 56
_LABELS_MAX = 7
_STEPS_H = (1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24, 84 * 24, 364 * 24)
_DAY_H = 24
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def columns_over_time(hours: Sequence[tuple[int, int]], title: str) -> str:
    """`hours` are (hours since 1970, amount)."""
    high = max((amount for _, amount in hours), default=0)
    if not high:
        return ""
    first, last = min(hour for hour, _ in hours), max(hour for hour, _ in hours)
    step = _step(last - first + 1)
    start = first // step * step
    amounts = [0] * ((last - start) // step + 1)
    for hour, amount in hours:
        amounts[(hour - start) // step] += amount
    top, parts = _scale(max(amounts))
    width = (WIDTH - _LEFT - _RIGHT) / len(amounts)
    every = -(-len(amounts) // _LABELS_MAX)
    for at, amount in enumerate(amounts):
        x = _LEFT + at * width
        if amount:
            size = amount / top * (_HEIGHT - _BOTTOM - _TOP)
            parts.append(
                f'<rect x="{x:.1f}" y="{_HEIGHT - _BOTTOM - size:.1f}" width="{max(width - 1, 0.8):.1f}" '
                f'height="{size:.1f}"><title>{moment(start + at * step)}: {amount:,}</title></rect>'
            )
        # a label that would be cut off at the right is left out
        if at % every == 0 and (at == 0 or x < WIDTH - 50):
            label = moment(start + at * step, day_only=step >= _DAY_H or every * step >= 2 * _DAY_H)
            anchor = "start" if at == 0 else "middle"
            parts.append(
                f'<text class="mark" x="{x + (width / 2 if at else 0):.1f}" y="{_HEIGHT - 8}" '
                f'text-anchor="{anchor}">{label}</text>'
            )
    return _figure(f"{title}, {_span(step)} per column", _HEIGHT, parts)


def rows_by_name(rows: Sequence[tuple[str, int]], title: str) -> str:
    """One bar a name, in the order of `rows`."""
    high = max((amount for _, amount in rows), default=0)
    if not high:
        return ""
    if len(rows) > ROWS_MAX:
        least = sorted((amount for _, amount in rows), reverse=True)[ROWS_MAX - 1]
        title = f"{title}, the {ROWS_MAX} largest of {len(rows):,}"
        rows = [row for row in rows if row[1] >= least][:ROWS_MAX]
    room = WIDTH - _ROW_LEFT - _ROW_RIGHT
    parts = []
    for at, (name, amount) in enumerate(rows):
        y = at * _ROW
        size = amount / high * room
        parts.append(f'<text x="{_ROW_LEFT - 6}" y="{y + 12}" text-anchor="end">{html.escape(_cut(name))}</text>')
        parts.append(
            f'<rect x="{_ROW_LEFT}" y="{y + 2}" width="{size:.1f}" height="{_ROW - 4}">'
            f"<title>{html.escape(name)}: {amount:,}</title></rect>"
        )
        parts.append(f'<text x="{_ROW_LEFT + size + 5:.1f}" y="{y + 12}">{short(amount)}</text>')
    return _figure(title, len(rows) * _ROW, parts)


def _figure(title: str, height: int, parts: Sequence[str]) -> str:
    text = html.escape(title)
    return (
        f'<figure><figcaption>{text}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{text}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _step(hours: int) -> int:
    """So many hours a column that there are not too many, and days begin where columns do."""
    wanted = -(-hours // (COLUMNS_MAX - 1))
    for step in _STEPS_H:
        if step >= wanted:
            return step
    return -(-wanted // _STEPS_H[-1]) * _STEPS_H[-1]


def _span(hours: int) -> str:
    if hours % _DAY_H:
        return "1 hour" if hours == 1 else f"{hours} hours"
    return "1 day" if hours == _DAY_H else f"{hours // _DAY_H:,} days"


def _scale(high: int) -> tuple[float, list[str]]:
    """A round number above the highest column, and lines with numbers up to it."""
    unit = 10 ** (len(str(high)) - 1)
    line = next(step for part in (0.2, 0.5, 1, 2, 5) if (step := max(part * unit, 1)) * 5 >= high)
    count = int(-(-high // line))
    top = count * line
    parts = []
    for at in range(count + 1):
        y = _HEIGHT - _BOTTOM - at / count * (_HEIGHT - _BOTTOM - _TOP)
        kind = "grid" if at else "axis"
        parts.append(f'<line class="{kind}" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(at * line)}</text>')
    return top, parts


def _cut(name: str) -> str:
    """The end of a name is what tells partitions apart."""
    half = NAME_CHARS_MAX // 2
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: half - 1]}…{name[-half:]}"


def moment(hour: int, *, day_only: bool = False) -> str:
    """An hour as people write it; years that no calendar has stay numbers."""
    try:
        return (_EPOCH + datetime.timedelta(hours=hour)).strftime("%Y-%m-%d" if day_only else "%Y-%m-%d %H:00")
    except OverflowError:
        return f"hour {hour}"


def short(amount: float) -> str:
    """1234567 as 1.2 M."""
    for name in ("", " k", " M", " G", " T"):
        if amount < 999.5:
            whole = amount >= 100 or abs(amount - round(amount)) < 0.05
            return f"{amount:.0f}{name}" if whole else f"{amount:.1f}{name}"
        amount /= 1000
    return f"{amount:.0f} P"
