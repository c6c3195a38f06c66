from __future__ import annotations

from kio.schema.errors import ErrorCode

from penstock.dialects.kafka.errors import CODES, FAULTS, error_code, error_name
from penstock.model.errors import Fault

# Where the catalogue's word and Kafka's differ.
OTHER_NAMES = {
    "unknown": "unknown_server_error",
    "topic_exists": "topic_already_exists",
    "invalid_topic": "invalid_topic_exception",
    "not_leader": "not_leader_or_follower",
    "storage_error": "kafka_storage_error",
    "out_of_order_sequence": "out_of_order_sequence_number",
    "duplicate_sequence": "duplicate_sequence_number",
    "coordinator_loading": "coordinator_load_in_progress",
}


def test_every_fault_has_a_code_and_every_code_one_fault() -> None:
    assert set(CODES) == set(Fault)
    assert len(FAULTS) == len(CODES)
    assert all(error_code(fault) == code for code, fault in FAULTS.items())


def test_codes_are_those_of_kafka_by_name() -> None:
    for fault, code in CODES.items():
        name = fault.name.lower()
        assert ErrorCode(code).name == OTHER_NAMES.get(name, name)


def test_codes_have_names_for_people_even_unknown_ones() -> None:
    assert error_name(6) == "not_leader_or_follower"
    assert error_name(31_000) == "error 31000"
