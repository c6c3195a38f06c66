from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.kafka.api_versions import ApiVersionsAnswers, Feature, software_is_valid
from penstock.dialects.kafka.apis import APIS, Advertised, advertised
from penstock.model.errors import Fault
from tests.dialects.kafka.oracle import I32S, answer_frame, decode_answer, same_in_kafka_python

API_VERSIONS = 18
every_version = pytest.mark.parametrize("version", range(5))
LEVELS = st.integers(0, 100)
FEATURES = st.lists(st.builds(Feature, st.text(min_size=1, max_size=8), LEVELS, LEVELS, LEVELS), max_size=3)


def tree_of(
    version: int, entries: tuple[Advertised, ...], features: list[Feature], epoch: int, error: int = 0
) -> dict[str, Any]:
    supported = [feature for feature in features if version >= 4 or feature.version_min > 0]
    finalized = [feature for feature in features if feature.finalized > 0]
    tree: dict[str, Any] = {
        "error_code": error,
        "throttle_time": 0,
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in entries],
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high} for name, low, high, _ in supported
        ],
    }
    if finalized:
        tree["finalized_features_epoch"] = epoch
        tree["finalized_features"] = [
            {"name": feature.name, "max_version_level": feature.finalized, "min_version_level": feature.finalized}
            for feature in finalized
        ]
    return tree


@every_version
@given(I32S, st.sets(st.sampled_from(sorted(APIS))), FEATURES, st.integers(0, 2**62))
def test_answers_are_those_of_kio(
    version: int, correlation_id: int, handled: set[int], features: list[Feature], epoch: int
) -> None:
    entries = advertised(handled)
    answers = ApiVersionsAnswers(entries, features, epoch)
    frame = answers.answer(version, correlation_id)
    assert frame == answer_frame(API_VERSIONS, version, correlation_id, tree_of(version, entries, features, epoch))
    assert answers.answer(version, correlation_id) == frame
    assert same_in_kafka_python("ApiVersionsResponse", version, correlation_id, frame)


def test_features_that_may_be_zero_are_told_only_from_version_4_on() -> None:
    answers = ApiVersionsAnswers(advertised({18}), [Feature("transaction.version", 0, 2, 2), Feature("x", 1, 1, 0)])
    old, new = (decode_answer(API_VERSIONS, version, answers.answer(version, 1)) for version in (3, 4))
    assert [feature.name for feature in old.supported_features] == ["x"]
    assert [feature.name for feature in new.supported_features] == ["transaction.version", "x"]
    assert [feature.name for feature in old.finalized_features] == ["transaction.version"]
    assert new.finalized_features_epoch == 0


@pytest.mark.parametrize("version", [5, 6, 32_767, -1, -32_768])
def test_an_unknown_version_is_answered_in_version_0_with_the_range_of_api_versions_first(version: int) -> None:
    frame = ApiVersionsAnswers(advertised(APIS), [Feature("x", 1, 1, 1)]).answer(version, 42)
    assert struct.unpack_from(">i", frame, 4)[0] == 42
    answer = decode_answer(API_VERSIONS, 0, frame)
    assert answer.error_code == 35
    assert (answer.api_keys[0].api_key, answer.api_keys[0].min_version, answer.api_keys[0].max_version) == (18, 0, 4)


@every_version
def test_a_refusal_is_in_the_version_of_the_request(version: int) -> None:
    frame = ApiVersionsAnswers(advertised(APIS), [Feature("x", 1, 1, 1)]).refusal(version, 42, Fault.INVALID_REQUEST)
    assert frame == answer_frame(API_VERSIONS, version, 42, tree_of(version, (), [], 0, error=42))


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("apache-kafka-java", "4.3.0"),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"),
        ("kafka-python", "3.0.12"),
        ("librdkafka", "2.0.2"),
        ("a", "1"),
    ],
)
def test_software_that_clients_are_called_is_valid(name: str, version: str) -> None:
    assert software_is_valid(name, version)


@pytest.mark.parametrize("word", ["", "-a", "a-", ".", "a b", "a\n", "a_b", "ä", "a" * 300 + "$"])
def test_software_that_kafka_refuses_is_not_valid(word: str) -> None:
    assert not software_is_valid(word, "1.0")
    assert not software_is_valid("name", word)
