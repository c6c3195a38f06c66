from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.record_text import Place, TextRecord, format_hex, format_json, parse_json, parse_keyvalue

HERE = Place("t", 3, 42)

fields = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))
names = st.text(st.characters(codec="utf-8"), max_size=10)
text_records = st.builds(
    TextRecord, fields, fields, st.lists(st.tuples(names, fields), max_size=4), st.integers(0, 2**53)
)


@given(text_records)
def test_json_keeps_a_record_whole_both_ways(record: TextRecord) -> None:
    line = format_json(record, HERE)
    assert b"\n" not in line
    assert parse_json(line) == record


@given(text_records)
def test_what_is_written_as_json_is_json_to_others(record: TextRecord) -> None:
    content = json.loads(format_json(record, HERE))
    assert (content["topic"], content["partition"], content["offset"]) == HERE
    assert content["timestamp"] == record.timestamp_ms


@pytest.mark.parametrize(
    ("written", "record"),
    [
        ({"value": "v"}, TextRecord(None, b"v", [])),
        ({"key": "k", "value": None}, TextRecord(b"k", None, [])),
        ({"value": {"a": [1, 2]}}, TextRecord(None, b'{"a":[1,2]}', [])),
        ({"value": 5}, TextRecord(None, b"5", [])),
        ({"value_base64": "/w=="}, TextRecord(None, b"\xff", [])),
        ({"value": "v", "headers": {"a": "1", "b": None}}, TextRecord(None, b"v", [("a", b"1"), ("b", None)])),
        ({"value": "v", "headers": [{"name": "a", "value_base64": "/w=="}]}, TextRecord(None, b"v", [("a", b"\xff")])),
    ],
)
def test_json_may_be_written_by_hand(written: dict[str, Any], record: TextRecord) -> None:
    assert parse_json(json.dumps(written).encode()) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b'{"valeu": 1}', "unknown field 'valeu'"),
        (b'{"value": "a", "value_base64": "YQ=="}', "value and value_base64 cannot be combined"),
        (b'{"value_base64": "?"}', "value_base64 is not base64"),
        (b'{"value_base64": 5}', "value_base64 is not base64"),
        (b'{"timestamp": "now"}', "timestamp 'now' is not a number of milliseconds"),
        (b'{"timestamp": -1}', "timestamp -1"),
        (b'{"timestamp": true}', "timestamp True"),
        (b'{"headers": "a"}', "headers must be"),
        (b'{"headers": [{"value": "a"}]}', "a header must be"),
        (b'{"headers": ["a"]}', "a header must be"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        parse_json(line)


@given(st.binary(max_size=60))
def test_any_line_is_a_record_or_refused(line: bytes) -> None:
    for parse in (parse_json, lambda text: parse_keyvalue(text, b":")):
        try:
            assert isinstance(parse(line), TextRecord)
        except ValueError:
            continue


def test_the_first_separator_counts() -> None:
    assert parse_keyvalue(b"k::v:w", b"::") == TextRecord(b"k", b"v:w")
    assert parse_keyvalue(b":", b":") == TextRecord(b"", b"")
    with pytest.raises(ValueError, match="no ':' between"):
        parse_keyvalue(b"kv", b":")


def test_hex_tells_null_from_empty() -> None:
    assert format_hex(TextRecord(None, b""), HERE) == b"3\t42\t-\t"
    assert format_hex(TextRecord(b"\x00\xff", None), HERE) == b"3\t42\t00ff\t-"


def test_a_header_name_that_is_not_text_is_shown_as_base64() -> None:
    line = format_json(TextRecord(None, None, [("\udcff", b"v")]), HERE)
    assert json.loads(line)["headers"] == [{"name_base64": "/w==", "value": "v"}]
