from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.plots import COLUMNS_MAX, ROWS_MAX, WIDTH, columns_over_time, rows_by_name, short

_YEAR_55000_H = 464_000_000
_HOURS = st.dictionaries(st.integers(-(10**6), _YEAR_55000_H) | st.integers(500_000, 500_300), st.integers(0, 10**12))


def _drawn(svg: str) -> tuple[list[ElementTree.Element], list[str]]:
    """The bars and the texts of a plot, all of which must lie inside of it."""
    figure = ElementTree.fromstring(svg)
    picture = figure.find("svg")
    assert picture is not None
    height = float(picture.attrib["viewBox"].split()[3])
    bars = picture.findall("rect")
    for one in bars:
        x, y, wide, high = (float(one.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + wide <= WIDTH + 0.1
        assert y + high <= height + 0.1
    texts = picture.findall("text")
    assert all(0 < float(text.attrib["x"]) < WIDTH and 0 < float(text.attrib["y"]) <= height for text in texts)
    return bars, [text.text or "" for text in texts]


@given(_HOURS)
def test_columns_over_time_hold_every_amount_and_stay_inside(hours: dict[int, int]) -> None:
    svg = columns_over_time(list(hours.items()), "Records")
    if not any(hours.values()):
        assert svg == ""
        return
    bars, _ = _drawn(svg)
    assert len(bars) <= COLUMNS_MAX
    told = [int(text.replace(",", "")) for text in re.findall(r"<title>[^<]*: ([\d,]+)</title>", svg)]
    assert sum(told) == sum(hours.values())


def test_days_begin_where_columns_do_and_no_label_is_cut_off() -> None:
    start = 20_000 * 24 + 17
    svg = columns_over_time([(start + hour, 7) for hour in range(40 * 24)], "Records")
    assert "Records, 12 hours per column" in svg
    _, texts = _drawn(svg)
    dates = [text for text in texts if "-" in text]
    assert 4 <= len(dates) <= 8
    assert all(len(date) == 10 for date in dates)
    assert texts[:4] == ["0", "20", "40", "60"]


def test_every_partition_has_its_row_and_the_smallest_of_too_many_go() -> None:
    few = [(f"topic-{number}", number + 1) for number in range(12)]
    bars, texts = _drawn(rows_by_name(few, "Records"))
    assert len(bars) == 12
    assert texts[0::2] == [name for name, _ in few]
    many = [(f"{'a-long-name-' * 9}{number}", number) for number in range(ROWS_MAX + 60)]
    svg = rows_by_name(many, "Records")
    bars, texts = _drawn(svg)
    assert len(bars) == ROWS_MAX
    assert "the 40 largest of 100" in svg
    assert texts[0].endswith("-60")
    assert len(texts[0]) < 40


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0"), (7, "7"), (999, "999"), (1_000, "1 k"), (1_234_567, "1.2 M"), (999_999, "1 M")]
)
def test_large_numbers_are_short(amount: int, text: str) -> None:
    assert short(amount) == text
