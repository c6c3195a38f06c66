from __future__ import annotations

import pytest
from kio.index import load_request_schema, load_response_schema

from penstock.dialects.kafka.apis import (
    APIS,
    Advertised,
    ApiKey,
    advertised,
    answer_header_is_flexible,
    api_name,
    is_flexible,
    is_served,
)


@pytest.mark.parametrize("key", APIS)
def test_every_served_version_has_a_codec_and_the_header_that_kafka_gives_it(key: int) -> None:
    api = APIS[key]
    for version in range(api.version_min, api.version_max + 1):
        assert is_flexible(key, version) == load_request_schema(key, version).__flexible__
        answer = load_response_schema(key, version)
        assert answer_header_is_flexible(key, version) == (answer.__header_schema__.__flexible__)


def test_every_key_has_a_row() -> None:
    assert set(APIS) == {int(key) for key in ApiKey}


def test_only_apis_with_handlers_are_advertised_in_the_order_of_their_keys() -> None:
    assert advertised({18, 0}) == (Advertised(0, 0, 13), Advertised(18, 0, 4))
    with pytest.raises(KeyError):
        advertised({71})


def test_old_produce_versions_are_advertised_for_librdkafka_but_not_served() -> None:
    assert advertised({0})[0].version_min == 0
    assert not is_served(0, 2)
    assert is_served(0, 3)
    assert is_served(0, 13)
    assert not is_served(0, 14)


def test_ranges_that_clients_depend_on_start_where_they_look() -> None:
    lows = {entry.key: entry.version_min for entry in advertised(APIS)}
    assert lows[ApiKey.JOIN_GROUP] == 0  # librdkafka before 2.11 with GSSAPI, kafka-go
    assert lows[ApiKey.OFFSET_FOR_LEADER_EPOCH] == 2  # librdkafka
    assert lows[ApiKey.DESCRIBE_CONFIGS] == 1  # librdkafka


def test_never_flexible_apis_and_the_answer_of_api_versions_have_no_tag_buffer() -> None:
    assert not is_flexible(ApiKey.SASL_HANDSHAKE, 1)
    assert not is_flexible(ApiKey.OFFSET_DELETE, 0)
    assert is_flexible(ApiKey.API_VERSIONS, 4)
    assert not answer_header_is_flexible(ApiKey.API_VERSIONS, 4)


def test_a_key_that_is_not_known_is_not_served_and_has_its_number_for_a_name() -> None:
    assert not is_served(71, 0)
    assert not is_flexible(71, 0)
    assert api_name(71) == "api key 71"
    assert api_name(0) == "Produce"
