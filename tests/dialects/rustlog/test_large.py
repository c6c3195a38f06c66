"""Long JSON texts are read piece by piece, and give what they give as a whole."""

from __future__ import annotations

import json
import random

import pytest

from penstock.dialects.rustlog.json_form import ParseError
from penstock.dialects.rustlog.large import JsonProduce, json_request
from penstock.model.slices import at_once

FRAME_BYTES_MAX = 10 * 1024 * 1024


def produce(records: str, topic: str = "t") -> bytes:
    return f'{{"Produce":{{"topic":"{topic}","partition":7,"records":{records}}}}}'.encode()


def read(payload: bytes) -> list[bytes]:
    request = at_once(json_request(payload, FRAME_BYTES_MAX))
    assert isinstance(request, JsonProduce)
    assert request.partition == 7
    return [bytes(value) for value in request.values]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : ")])
def test_records_of_any_size_are_read_as_they_were_written(indent: int | None, separators: tuple[str, str]) -> None:
    pick = random.Random(1)
    sizes = [0, 1, 5, 16_384, 100_000, *(pick.randint(0, 40) for _ in range(3_000)), 70_000, 0]
    records = [pick.randbytes(size) for size in sizes]
    text = json.dumps([list(record) for record in records], indent=indent, separators=separators)
    assert read(produce(f" {text} ")) == records
    assert read(produce(text, "\\u0074")) == records


def test_a_long_text_without_records_is_read() -> None:
    assert read(produce("[" + " " * 50_000 + "]")) == []


@pytest.mark.parametrize(
    "records",
    [
        "[" + "[1]," * 9_000 + "[256]]",
        "[" + "[1]," * 9_000 + '["]"]]',
        "[" + "[1]," * 9_000 + "[[1]]]",
        "[" + "[1]," * 9_000 + "1]",
        "[" + "[1]," * 9_000 + "]",
        "[[" + "1," * 40_000 + "-1]]",
        '[["' + "1" * 40_000 + '"]]',
        '["' + "x" * 40_000 + '"]',
        '"' + "x" * 40_000 + '"',
        "[" * 40_000,
    ],
)
def test_a_long_text_that_is_wrong_anywhere_is_refused(records: str) -> None:
    with pytest.raises(ParseError):
        read(produce(records))


@pytest.mark.parametrize("first", ["", '"Unknown":1,', '"Produce":{},', '"\\u0050roduce":[1],', '"Fetch":null,'])
def test_a_second_name_is_found(first: str) -> None:
    body = '"Produce":{"topic":"t","partition":7,"records":[[1]]}'
    payload = f" {{ {first} {body} }} ".encode()
    if first:
        with pytest.raises(ParseError):
            read(payload)
    else:
        assert read(payload) == [b"\x01"]
