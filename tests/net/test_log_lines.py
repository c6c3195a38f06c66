"""Lines that hold what strangers sent."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from penstock.net.log_lines import TEXT_CHARS_MAX, RareLine, endpoint, printable


@given(st.text(max_size=2_000))
def test_any_text_becomes_one_short_printable_line(text):
    line = printable(text)
    assert line.isprintable()
    assert len(line) <= TEXT_CHARS_MAX * 10


def test_printable_text_stays_as_it_is():
    assert printable("größer als 5 'Bytes'") == "größer als 5 'Bytes'"
    assert printable("a\r\nb\x1b[0m\0") == "a\\r\\nb\\x1b[0m\\x00"


def test_an_ipv6_endpoint_has_brackets():
    assert endpoint("::1", 5) == "[::1]:5"
    assert endpoint("127.0.0.1", 5) == "127.0.0.1:5"


def test_a_rare_line_is_written_once_an_interval_and_counts_the_rest(caplog):
    line = RareLine(logging.getLogger("penstock.net"), interval_ms=1_000)
    for now_ms in (10_000, 10_500, 10_999, 11_000, 12_500):
        line.write(now_ms, f"at {now_ms}")
    assert [record.getMessage() for record in caplog.records] == [
        "at 10000",
        "at 11000 (2 earlier messages suppressed)",
        "at 12500",
    ]
