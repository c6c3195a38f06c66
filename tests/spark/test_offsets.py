"""Offsets as JSON: the same offsets are the same text, whatever way they came about."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source.offsets import (
    OFFSET_MAX,
    id_text,
    ids_of_json,
    of_json,
    of_text,
    partitions_of_text,
    place,
    to_json,
)

_PLACES = st.builds(place, st.sampled_from(["orders", "a.b", "Z-9"]), st.integers(0, 12))


@given(st.dictionaries(_PLACES, st.integers(0, OFFSET_MAX)), st.randoms(use_true_random=False))
def test_offsets_that_are_equal_are_equal_as_text(offsets: dict, random: object) -> None:
    shuffled = list(offsets.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    text = json.dumps(to_json(offsets))
    assert json.dumps(to_json(dict(shuffled))) == text
    assert of_json(json.loads(text)) == offsets


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    shaped = to_json({place("b", 10): 1, place("b", 9): 2, place("a", 0): 3})
    assert json.dumps(shaped) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


def test_the_id_of_a_topic_is_kept_beside_its_partitions() -> None:
    offsets = {place("b", 10): 1, place("b", 9): 2, place("a", 0): 3}
    shaped = to_json(offsets, {"b": "B", "other": "O"})
    assert json.dumps(shaped) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1, "id": "B"}}'
    assert of_json(shaped) == of_text(json.dumps(shaped)) == offsets
    assert ids_of_json(shaped) == {"b": "B"}


def test_the_id_of_a_topic_is_written_as_kafkas_tools_do() -> None:
    assert id_text(uuid.UUID("7d65d577-c422-440c-90d6-52722430dad1")) == "fWXVd8QiRAyQ1lJyJDDa0Q"


def test_offsets_of_sparks_own_kafka_source_are_read() -> None:
    assert of_text('{"t":{"1":5,"0":7}}') == {place("t", 0): 7, place("t", 1): 5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "not of the form"),
        ('{"t":5}', "t: not of the form"),
        ('{"t":{"x":5}}', '"x" is not a partition number'),
        ('{"t":{"0":"5"}}', '"5" is not an offset'),
        ('{"t":{"0":-3}}', "-3 is not an offset"),
        ('{"t":{"0":true}}', "true is not an offset"),
        ('{"t":{"0":9223372036854775808}}', "is not an offset"),
        ('{"t":{"0":5,"id":7}}', "7 is not a topic id"),
    ],
)
def test_what_is_no_offset_is_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        of_text(text, -2)


def test_assigned_partitions_are_sorted_and_named_once() -> None:
    assert partitions_of_text('{"t":[2,0,2],"a":[1]}') == [place("a", 1), place("t", 0), place("t", 2)]
    for wrong in ("{}", '{"t":[]}', '{"t":[-1]}', '{"t":0}', "x"):
        with pytest.raises(ValueError, match="not"):
            partitions_of_text(wrong)
