"""docs/limits.md and the code agree: every row has tests that exist, and every figure is the one that the code uses."""

from __future__ import annotations

import functools
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker.record_reads import OBJECTS_AT_ONCE
from penstock.coordination.group_commands import NAME_CHARS_MAX
from penstock.dialects.rustlog.json_form import OFFSET_BYTES_MAX
from penstock.model import limits, topic_config
from penstock.model.listeners import DEFAULTS
from penstock.records.compression import EXPANSION_MAX
from penstock.records.record import RECORD_BYTES_MIN
from penstock.server.config_schema import KEYS
from penstock.server.deadlines import ORIGINALS

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/limits.md"


class Proof(NamedTuple):
    tests: str
    """FILE::TEST below tests/, separated by blanks. Tests of the same file need no FILE again."""
    figures: str = ""
    """Where the figures of the row come from, separated by blanks. Names of `model.limits`, or MODULE:NAME; a class is
    called for its defaults, and NAME(PARAMETER) is the default of a parameter."""


PROOFS: dict[str, Proof] = {
    # ---- requests and answers
    "one request (frame)": Proof(
        "dialects/kafka/test_session_frames.py::test_frame_size_is_limited "
        "server/test_limits.py::test_request_of_the_maximum_size_is_answered "
        "::test_request_above_the_maximum_size_closes_the_connection "
        "net/test_connection.py::test_a_frame_that_is_too_large_is_refused_before_memory_is_taken",
        "FRAME_BYTES_MAX",
    ),
    "one request of another dialect": Proof(
        "dialects/fluxgo/test_session.py::test_a_length_that_is_not_allowed_closes_without_an_answer "
        "::test_the_largest_frame_is_taken_and_read_back "
        "dialects/rustlog/test_session.py::test_a_frame_above_the_limit_is_code_1_before_its_payload_is_there_and_closes "
        "::test_a_frame_of_the_limit_is_waited_for "
        "dialects/minikafka/test_produce.py::test_a_payload_above_the_limit_is_refused_before_it_comes_and_closes "
        "dialects/flymq/test_api_frames.py::test_the_largest_frame_is_taken_and_a_byte_more_closes "
        "dialects/day1/test_session.py::test_a_frame_that_is_too_large_closes_without_an_answer "
        "::test_the_largest_frame_is_taken",
    ),
    "one Kafka request other than Produce": Proof(
        "dialects/kafka/test_session_frames.py::test_a_request_of_the_largest_size_is_waited_for "
        "::test_a_request_that_is_too_large_is_refused_at_its_first_bytes "
        "server/test_large_requests.py::test_a_request_that_is_too_large_closes_the_connection_at_its_first_bytes",
        "REQUEST_BYTES_MAX",
    ),
    "elements of all arrays of a Kafka request (topics, partitions, groups, configs)": Proof(
        "server/test_large_requests.py::test_a_request_with_more_elements_than_allowed_closes_the_connection "
        "dialects/kafka/test_kio_reader.py::test_elements_of_a_request_are_limited",
        "REQUEST_ELEMENTS_MAX",
    ),
    "tagged fields in one tag buffer of a Kafka request": Proof(
        "dialects/kafka/test_kio_reader.py::test_thousands_of_tagged_fields_are_refused",
        "dialects.kafka.wire:TAGGED_FIELDS_MAX",
    ),
    "a string in a Kafka request": Proof(
        "dialects/kafka/test_kio_reader.py::test_length_of_a_string_is_limited", "STRING_BYTES_MAX"
    ),
    "one Kafka answer other than Fetch": Proof(
        "dialects/kafka/test_kio_bridge.py::test_an_answer_that_is_too_large_is_a_protocol_error "
        "dialects/kafka/test_metadata.py::test_topics_that_are_too_large_for_an_answer_are_refused",
        "ANSWER_BYTES_MAX",
    ),
    "one batch of a Kafka client": Proof(
        "clients/test_producing.py::test_the_largest_batch_is_taken_and_one_byte_more_is_not"
    ),
    "one fetch answer": Proof(
        "dialects/kafka/test_fetching.py::test_bytes_of_records_in_one_answer_are_limited",
        "dialects.kafka.fetching:FETCH_BYTES_MAX",
    ),
    # ---- connections
    "connections": Proof(
        "server/test_limits.py::test_connection_above_the_limit_is_closed_at_once "
        "net/test_listener.py::test_connections_in_all_are_limited",
        "CONNECTIONS_MAX",
    ),
    "connections from one address": Proof(
        "net/test_listener.py::test_connections_of_one_address_are_limited_with_one_line_for_many",
        "CONNECTIONS_PER_IP_MAX",
    ),
    "unanswered requests of a connection": Proof(
        "net/test_flow_control.py::test_no_more_requests_are_performed_than_may_be_parked", "IN_FLIGHT_REQUESTS_MAX"
    ),
    "unsent answers of a connection": Proof(
        "net/test_flow_control.py::test_a_slow_reader_stops_being_read_and_gets_everything_in_the_end",
        "WRITE_BUFFER_BYTES_HIGH",
    ),
    "requests half received or waiting for one before them, and unsent answers, in all": Proof(
        "net/test_flow_control.py::test_above_the_bound_of_all_bytes_no_new_frame_is_read_until_some_are_free "
        "net/test_holds.py::test_what_waits_behind_a_hold_is_accounted_for_and_the_rest_stays_in_the_socket",
        "IN_FLIGHT_BYTES_MAX",
    ),
    "time for a request that has begun": Proof(
        "net/test_deadlines.py::test_a_half_sent_frame_is_closed_at_its_deadline "
        "server/test_deadlines.py::test_unset_the_originals_patience_holds_where_it_is_known_and_ours_elsewhere",
        "FRAME_DEADLINE_MS",
    ),
    "time without any request": Proof(
        "net/test_deadlines.py::test_an_idle_peer_is_closed_at_its_deadline "
        "server/test_deadlines.py::test_unset_the_originals_patience_holds_where_it_is_known_and_ours_elsewhere",
        "IDLE_DEADLINE_MS",
    ),
    "time without taking a byte of a waiting answer": Proof(
        "net/test_deadlines.py::test_a_peer_that_takes_nothing_is_closed_at_the_write_deadline "
        "server/test_deadlines.py::test_unset_the_originals_patience_holds_where_it_is_known_and_ours_elsewhere",
        "WRITE_DEADLINE_MS",
    ),
    "open log files": Proof(
        "storage/test_files.py::test_the_file_cache_keeps_to_its_bound_and_held_files_stay_open "
        "::test_the_least_recently_used_file_goes_first "
        "storage/test_log.py::test_rolls_that_outrun_flushes_keep_a_bounded_number_of_files_open "
        "broker/test_flush.py::test_flushes_of_many_logs_share_the_open_files",
        "OPEN_FILES_MAX",
    ),
    "file descriptors": Proof(
        "server/test_descriptors.py::test_more_connections_than_descriptors_leave_partitions_writable "
        "::test_a_low_soft_limit_is_raised ::test_shares_never_exceed_the_limit "
        "::test_a_limit_too_low_for_anything_is_refused_at_start",
        "DESCRIPTORS_RESERVED DESCRIPTORS_MIN",
    ),
    "disk space kept in reserve": Proof(
        "storage/test_reserve.py::test_new_directory_gets_a_whole_reserve "
        "::test_reserve_takes_a_small_share_of_a_small_file_system "
        "::test_full_disk_refuses_clients_and_writes_own_batches_from_the_reserve "
        "server/test_disk_full.py::test_groups_consume_and_commit_on_a_full_disk",
        "RESERVE_BYTES",
    ),
    # ---- topics
    "bytes of log between two index entries": Proof(
        "model/test_topic_config.py::test_an_index_interval_above_the_limit_acts_like_it "
        "storage/test_segment.py::test_locate_pauses_where_the_index_lacks_entries",
        "INDEX_INTERVAL_BYTES_MAX",
    ),
    "partitions of a topic": Proof(
        "broker/test_topics.py::test_partitions_of_a_topic_are_limited", "PARTITIONS_PER_TOPIC_MAX"
    ),
    "partitions in all": Proof("broker/test_topics.py::test_partitions_of_the_broker_are_limited", "PARTITIONS_MAX"),
    "topics that one Metadata request creates": Proof(
        "dialects/kafka/test_lookups.py::test_topics_created_by_one_request_are_limited", "AUTO_CREATED_TOPICS_MAX"
    ),
    "topic name": Proof(
        "broker/test_topics.py::test_a_name_of_249_characters_is_a_topic ::test_a_name_that_is_not_valid_makes_no_file",
        "model.ids:TOPIC_NAME_CHARS_MAX",
    ),
    "assignors (protocols) that a member of a classic group offers": Proof(
        "dialects/kafka/test_groups.py::test_assignors_of_a_member_are_limited", "GROUP_PROTOCOLS_MAX"
    ),
    "members of a group, including ids assigned to members that have not joined yet": Proof(
        "coordination/test_group_consumer.py::test_the_default_size_of_a_group_is_limited "
        "coordination/test_group_classic.py::test_ids_of_members_that_have_not_joined_are_limited",
        "GROUP_MEMBERS_MAX",
    ),
    "metadata of all members of a classic group": Proof(
        "coordination/test_group_classic.py::test_the_metadata_of_a_group_has_a_greatest_size",
        "GROUP_METADATA_BYTES_MAX",
    ),
    "topics of a consumer group (KIP-848), and of one pattern": Proof(
        "coordination/test_group_consumer.py::test_the_topics_and_partitions_of_a_group_are_limited "
        "broker/test_patterns.py::test_a_pattern_may_fit_a_limited_number_of_topics",
        "CONSUMER_GROUP_TOPICS_MAX",
    ),
    "partitions of the topics of a consumer group": Proof(
        "coordination/test_group_consumer.py::test_the_topics_and_partitions_of_a_group_are_limited "
        "::test_group_whose_topics_exceed_the_limit_gets_an_error",
        "CONSUMER_GROUP_PARTITIONS_MAX",
    ),
    "names in the distinct subscriptions of a consumer group": Proof(
        "coordination/test_group_consumer.py::test_the_names_that_a_group_subscribes_to_are_limited",
        "CONSUMER_GROUP_NAMES_MAX",
    ),
    "distinct patterns of a consumer group": Proof(
        "coordination/test_group_consumer.py::test_the_patterns_of_a_group_are_limited", "CONSUMER_GROUP_PATTERNS_MAX"
    ),
    "elements of an answer that describes groups, offsets, transactions or producers": Proof(
        "server/test_crowds.py::test_repeating_a_large_object_closes_the_connection",
        "ANSWER_ELEMENTS_MAX",
    ),
    "offsets that one transaction commits": Proof(
        "coordination/test_offsets.py::test_a_transaction_commits_a_limited_number_of_offsets",
        "TRANSACTION_OFFSETS_MAX",
    ),
    "partitions of one transaction": Proof(
        "coordination/test_transactions.py::test_partitions_of_a_transaction_are_limited",
        "TRANSACTION_PARTITIONS_MAX",
    ),
    "batches remembered of an idempotent producer": Proof(
        "coordination/test_producers.py::test_a_copy_of_any_of_the_last_five_batches_gets_the_offsets_of_the_original",
        "PRODUCER_BATCHES_REMEMBERED",
    ),
    "producers remembered by a partition": Proof(
        "coordination/test_producers.py::test_the_table_is_bounded_and_the_least_recently_written_go_first "
        "::test_a_table_full_of_open_transactions_grows_rather_than_forgets_one",
        "PRODUCERS_PER_PARTITION_MAX",
    ),
    "batches of large values remembered as checked": Proof(
        "broker/test_batch_checks.py::test_number_of_remembered_checks_is_bounded", "CHECKED_BATCHES_MAX"
    ),
    "groups and partitions in the `consumer_lag` of a RustLog listener's metrics": Proof(
        "dialects/rustlog/test_binary_form.py::test_the_lags_that_are_kept_are_bounded", "RUSTLOG_LAGS_MAX"
    ),
    "failed reads remembered as logged": Proof(
        "broker/test_read_errors.py::test_each_failed_offset_is_logged_once_within_a_bound",
        "READ_ERRORS_REMEMBERED_MAX",
    ),
    # ---- batches that are looked into
    "unpacked size of a compressed batch whose records the broker reads": Proof(
        "records/test_walk.py::test_small_batches_may_unpack_to_more_of_their_size_than_large_ones "
        "broker/test_preparing.py::test_unpacked_size_above_the_limit_is_refused "
        "broker/test_long_reads.py::test_unpacked_size_above_the_limit_is_a_read_error",
        "UNPACKED_BYTES_FREE UNPACKED_RATIO_MAX DECOMPRESSED_BYTES_MAX",
    ),
    "compressed parts of a batch (members, frames, blocks)": Proof(
        "records/test_compression.py::test_parts_that_hold_nothing_are_bounded", "records.compression:PARTS_MAX"
    ),
    "window of a zstd frame": Proof(
        "records/test_compression.py::test_zstd_window_above_the_limit_is_refused",
        "records.compression:_ZSTD_WINDOW_BYTES_MAX",
    ),
    "records of a batch in a topic with rules about records (compacted, or bounded timestamps)": Proof(
        "broker/test_preparing.py::test_a_batch_of_too_many_records_is_refused", "PREPARED_RECORDS_MAX"
    ),
    "headers of a record": Proof(
        "records/test_record.py::test_as_many_headers_as_the_limit_says_are_read_and_no_more "
        "records/test_walk.py::test_headers_are_counted_before_they_are_walked",
        "HEADERS_PER_RECORD_MAX",
    ),
    "headers of a batch": Proof(
        "broker/test_preparing.py::test_a_batch_of_too_many_headers_is_refused", "HEADERS_PER_BATCH_MAX"
    ),
    "processor time for checking a batch": Proof(
        "broker/test_preparing.py::test_walk_that_exceeds_its_time_is_refused",
        "PREPARED_WALK_MS_MAX model.slices:SLICE_S",
    ),
    "batches being unpacked, in total": Proof(
        "broker/test_long_reads.py::test_batches_wait_for_memory_to_unpack_them "
        "server/test_bombs.py::test_bombs_on_many_connections_take_no_more_memory_than_is_allowed",
        "UNPACKED_BYTES_MAX",
    ),
    "batches waiting to be checked, and records of other dialects queued after them, in total": Proof(
        "broker/test_preparing.py::test_requests_keep_their_bytes_while_the_account_of_copies_is_full "
        "::test_records_of_other_dialects_are_refused_while_the_account_is_full",
        "PREPARED_BYTES_MAX",
    ),
    "time that a batch waits to be checked": Proof(
        "broker/test_preparing.py::test_appends_that_waited_too_long_are_refused", "PREPARED_WAIT_MS_MAX"
    ),
    "records and headers in one answer of a dialect that reads records": Proof(
        "broker/test_long_reads.py::test_headers_in_one_answer_are_limited ::test_long_read_lets_other_requests_run",
        "READ_OBJECTS_MAX",
    ),
    "unpacked batches cached for readers of records": Proof(
        "broker/test_record_cache.py::test_what_was_not_read_for_longest_goes_when_the_bound_is_reached "
        "::test_a_batch_larger_than_the_bound_is_there_alone",
        "broker.record_cache:RecordCache(bytes_max)",
    ),
    "memory of the process that cleans logs": Proof(
        "broker/test_cleaning.py::test_the_cleaning_process_has_a_bound_of_memory", "CLEANER_MEMORY_BYTES_MAX"
    ),
    "record count in a batch header": Proof(
        "broker/test_partition.py::test_record_count_beyond_the_payload_size_is_rejected "
        "::test_record_count_that_no_payload_holds_is_rejected ::test_smallest_records_are_accepted "
        "records/test_compression.py::test_no_payload_unpacks_to_more_than_its_codec_allows",
        "records.record:RECORD_BYTES_MIN DECOMPRESSED_BYTES_MAX",
    ),
    # ---- directories to import
    "files and folders of a directory to import": Proof(
        "imports/test_hostile.py::test_more_files_than_the_limit_are_refused", "IMPORT_ENTRIES_MAX"
    ),
    "one batch of a Kafka directory to import": Proof(
        "imports/test_hostile.py::test_a_batch_larger_than_the_limit_is_reported "
        "::test_batch_of_two_gigabytes_is_not_read_into_memory",
        "IMPORT_BATCH_BYTES_MAX",
    ),
    "an index, or a file of committed offsets, of a directory to import": Proof(
        "imports/test_hostile.py::test_an_index_of_more_bytes_than_the_limit_is_not_used "
        "::test_an_index_of_a_terabyte_is_not_read "
        "::test_committed_offsets_of_more_bytes_than_the_limit_are_reported",
        "IMPORT_SMALL_FILE_BYTES_MAX",
    ),
    "search for the next record after damage, in a file to import": Proof(
        "imports/test_hostile.py::test_a_search_for_the_next_record_ends_at_its_limits "
        "::test_a_search_in_a_kafka_segment_ends_at_its_limits",
        "imports.frames:SEARCH_BYTES_MAX imports.frames:SEARCH_TRIES_MAX "
        "imports.kafka_search:_SEARCH_BYTES_MAX imports.kafka_search:_CHECKED_BYTES_MAX",
    ),
    # ---- groups and transactions
    "name of a group": Proof(
        "coordination/test_group_classic.py::test_length_of_names_is_limited "
        "coordination/test_group_consumer.py::test_length_of_names_is_limited",
        "coordination.group_commands:NAME_CHARS_MAX",
    ),
    "client id, instance id, protocol type and assignor of a classic member": Proof(
        "coordination/test_group_classic.py::test_length_of_names_is_limited"
    ),
    "client id, member id, instance id, rack id and pattern of a member of the consumer protocol": Proof(
        "coordination/test_group_consumer.py::test_length_of_names_is_limited",
        "coordination.group_commands:NAME_CHARS_MAX",
    ),
    "session timeout of a classic member": Proof(
        "coordination/test_group_classic.py::test_the_session_timeout_has_a_range "
        "server/test_group_settings.py::test_a_session_timeout_must_be_within_the_bounds",
        "coordination.group_commands:GroupSettings.session_timeout_ms_min "
        "coordination.group_commands:GroupSettings.session_timeout_ms_max",
    ),
    "time that a new classic member waits for its first rebalance": Proof(
        "coordination/test_group_classic.py::test_a_parked_member_keeps_its_session_but_a_new_one_must_return",
        "coordination.group_commands:GroupSettings.new_member_join_timeout_ms",
    ),
    "metadata of a committed offset": Proof(
        "coordination/test_offsets.py::test_metadata_has_a_greatest_size_and_only_that_partition_is_refused",
        "coordination.group_commands:GroupSettings.offset_metadata_bytes_max",
    ),
    "time that offsets are kept after a group became empty": Proof(
        "coordination/test_offsets.py::test_offsets_expire_when_a_group_that_had_members_is_empty_for_the_retention "
        "server/test_group_settings.py::test_offsets_of_a_group_whose_members_have_left_go_after_their_retention",
        "coordination.group_commands:GroupSettings.offsets_retention_ms",
    ),
    "transactional id": Proof(
        "coordination/test_transactions.py::test_bad_names_and_timeouts_are_refused",
        "coordination.transactions:NAME_BYTES_MAX",
    ),
    "transaction timeout": Proof(
        "coordination/test_transactions.py::test_bad_names_and_timeouts_are_refused",
        "coordination.transaction_commands:TransactionSettings.transaction_timeout_ms_max",
    ),
    "transactional ids of a partition of `__transaction_state`": Proof(
        "coordination/test_transactions.py::test_the_number_of_transactional_ids_is_bounded",
        "coordination.transaction_commands:TransactionSettings.transactional_ids_max",
    ),
    "time that an unused transactional id is kept": Proof(
        "coordination/test_transactions.py::test_idle_names_expire_with_a_tombstone_and_busy_ones_do_not",
        "coordination.transaction_commands:TransactionSettings.transactional_id_expiration_ms",
    ),
    "record about a transaction": Proof(
        "coordination/test_transactions.py::test_a_transaction_that_does_not_fit_a_record_is_refused",
        "coordination.transaction_commands:TransactionSettings.record_bytes_max",
    ),
    "time that an idle producer is remembered by a partition": Proof(
        "broker/test_housekeeping.py::test_idle_producers_are_forgotten_after_seven_days "
        "coordination/test_producers.py::test_idle_producers_expire_but_not_those_in_a_transaction",
        "broker.housekeeping:PRODUCER_EXPIRATION_MS",
    ),
    "partitions in one answer to DescribeTopicPartitions": Proof(
        "dialects/kafka/test_cluster.py::test_a_page_is_never_larger_than_the_brokers_limit",
        "dialects.kafka.cluster:PAGE_PARTITIONS_MAX",
    ),
    # ---- the smaller dialects
    "partitions that produces create in a topic": Proof(
        "dialects/day1/test_requests.py::test_the_last_partition_that_a_produce_makes_is_the_1024th "
        "dialects/fluxgo/test_produce_consume.py::test_the_last_partition_that_a_produce_makes_is_the_1024th",
        "model.listeners:ListenerSettings.partitions_max",
    ),
    "name of a group in a smaller dialect": Proof(
        "dialects/minikafka/test_consume.py::test_the_longest_group_and_one_in_utf8_are_taken "
        "::test_groups_outside_the_rules_are_refused "
        "dialects/fluxgo/test_offsets.py::test_a_group_that_cannot_be_called_so_is_refused "
        "dialects/rustlog/test_binary_form.py::test_commits_that_cannot_be_kept_are_code_5 "
        "dialects/flymq/test_opcode_admin.py::test_a_commit_needs_no_topic_but_a_partition_and_a_name",
        "model.ids:GROUP_NAME_BYTES_MAX",
    ),
    "line of MiniKafka": Proof(
        "dialects/minikafka/test_session.py::test_a_line_of_the_greatest_length_is_read_and_a_longer_one_closes",
        "dialects.minikafka.lines:LINE_BYTES_MAX",
    ),
    "records in one Day1 request": Proof(
        "dialects/day1/test_requests.py::test_the_largest_number_of_records_in_a_request",
        "dialects.day1.frames:ITEMS_MAX",
    ),
    "records in one RustLog answer": Proof(
        "dialects/rustlog/test_binary_form.py::test_one_answer_holds_a_bounded_number_of_records",
        "dialects.rustlog.service:FETCH_RECORDS_MAX",
    ),
    "records in one RustLog produce as JSON": Proof(
        "dialects/rustlog/test_json_form.py"
        "::test_a_produce_whose_offsets_would_not_fit_the_answer_is_refused_before_it_is_written"
    ),
    "unpacked size of a compressed FlyMQ request": Proof(
        "dialects/flymq/test_api_frames.py::test_what_a_batch_unpacks_to_is_bounded "
        "dialects/flymq/test_opcode_records.py::test_what_a_payload_unpacks_to_is_bounded",
        "UNPACKED_BYTES_FREE UNPACKED_RATIO_MAX",
    ),
    "messages and headers in a compressed FlyMQ batch": Proof(
        "dialects/flymq/test_api_frames.py::test_messages_and_headers_of_a_compressed_batch_are_limited",
        "dialects.flymq.batches:UNPACKED_OBJECTS_MAX",
    ),
    "records in one FlyMQ FETCH": Proof(
        "dialects/flymq/test_opcode_records.py::test_fetch_gives_at_most_1000_records",
        "dialects.flymq.reading:FETCHED_RECORDS_MAX",
    ),
    "records in one FlyMQ Fetch by API key": Proof(
        "dialects/flymq/test_api_frames.py::test_a_fetch_has_at_most_ten_thousand_records_and_the_next_goes_on",
        "dialects.flymq.reading:API_FETCHED_RECORDS_MAX",
    ),
    "time that a FlyMQ Fetch waits for records": Proof(
        "dialects/flymq/test_api_frames.py::test_a_fetch_waits_no_longer_than_the_broker_allows",
        "dialects.flymq.reading:WAIT_MS_MAX",
    ),
    "filter of a FlyMQ FETCH": Proof(
        "dialects/flymq/test_opcode_records.py::test_a_filter_has_at_most_1024_bytes "
        "::test_an_expression_has_at_most_2000_instructions",
        "dialects.flymq.filters:FILTER_BYTES_MAX dialects.flymq.filters:INSTRUCTIONS_MAX",
    ),
    "bytes that a filtered FlyMQ FETCH searches": Proof(
        "dialects/flymq/test_opcode_records.py::test_a_filtered_fetch_looks_at_4_mib_and_says_where_it_stopped",
        "dialects.flymq.filters:SCANNED_BYTES_MAX",
    ),
    "items of an array of a FlyMQ request": Proof(
        "dialects/flymq/test_api_groups.py::test_an_array_has_at_most_50000_items", "REQUEST_ELEMENTS_MAX"
    ),
    "FlyMQ answer that lists topics, partitions or groups": Proof(
        "dialects/flymq/test_wire.py::test_rows_fill_a_frame_and_one_byte_more_is_refused"
    ),
    "topics of a member of a FlyMQ group": Proof(
        "dialects/flymq/test_api_groups.py::test_a_member_has_at_most_10000_topics", "FLYMQ_MEMBER_TOPICS_MAX"
    ),
    "names in the path of a FlyMQ filter": Proof(
        "dialects/flymq/test_opcode_records.py::test_a_path_has_at_most_32_names", "FLYMQ_PATH_NAMES_MAX"
    ),
    "record that a FlyMQ filter is applied to": Proof(
        "dialects/flymq/test_opcode_records.py::test_the_largest_record_makes_the_broker_no_slower "
        "::test_a_record_that_is_too_large_for_a_filter_hides_none_before_it",
        "dialects.flymq.filters:SLOW_BYTES_MAX dialects.flymq.filters:SMALL_INSTRUCTIONS_MAX "
        "dialects.flymq.filters:STEPS_MAX",
    ),
    "subscriptions of a FlyMQ connection": Proof(
        "dialects/flymq/test_opcode_records.py::test_a_connection_has_at_most_the_allowed_subscriptions",
        "dialects.flymq.session:SUBSCRIPTIONS_MAX",
    ),
    "open FlyMQ transactions": Proof(
        "dialects/flymq/test_transactions.py::test_no_more_than_the_allowed_transactions_are_open",
        "dialects.flymq.transactions:OPEN_MAX",
    ),
    "time for a FlyMQ transaction": Proof(
        "dialects/flymq/test_transactions.py::test_a_transaction_that_nobody_ends_is_aborted_in_time",
        "dialects.flymq.transactions:TIMEOUT_MS",
    ),
    "time that a FlyMQ commit waits for its records to become visible": Proof(
        "dialects/flymq/test_transactions.py::test_commit_after_an_older_open_transaction_is_answered_in_time",
        "dialects.flymq.transactions:MARKER_WAIT_MS",
    ),
    "ended FlyMQ transactions remembered": Proof(
        "dialects/flymq/test_transactions.py::test_ended_transactions_that_are_remembered_are_bounded",
        "dialects.flymq.transactions:ENDED_REMEMBERED",
    ),
    # ---- inside the broker
    "one read of a socket": Proof("net/test_connection.py::test_bytes_of_one_read_are_limited", "SCRATCH_BYTES"),
    "connections waiting to be accepted": Proof(
        "net/test_listener.py::test_accept_backlog_is_limited",
        "net.settings:NetSettings.accept_backlog",
    ),
    "time to send the last answers when a connection or the broker stops": Proof(
        "net/test_listener.py::test_a_stop_does_not_wait_for_ever "
        "net/test_connection.py::test_a_peer_that_does_not_close_after_a_fatal_frame_is_cut_after_the_grace",
        "net.settings:NetSettings.stop_grace_ms",
    ),
    "buffers of large requests kept for reuse": Proof(
        "net/test_buffers.py::test_the_pool_keeps_no_more_than_its_bound", "net.settings:NetSettings.pool_bytes_max"
    ),
    "text from a peer in a log line": Proof(
        "net/test_log_lines.py::test_any_text_becomes_one_short_printable_line", "net.log_lines:TEXT_CHARS_MAX"
    ),
    "requests parsed by one call": Proof(
        "dialects/kafka/test_session_frames.py::test_one_call_cuts_a_bounded_number_of_requests",
        "dialects.kafka.session:REQUESTS_AT_ONCE",
    ),
    "Produce requests of one partition written together": Proof(
        "dialects/kafka/test_session_frames.py::test_a_run_has_a_bounded_number_of_requests",
        "dialects.kafka.produce:RUN_ITEMS_MAX",
    ),
    "time for requests in one turn of the event loop": Proof(
        "net/test_pace.py::test_one_read_with_many_requests_leaves_time_for_others "
        "::test_many_connections_with_one_request_each_share_the_turn",
        "net.pace:PERFORM_S",
    ),
    "long requests that are performed at the same time": Proof(
        "model/test_slices.py::test_few_long_tasks_take_turns_and_the_others_wait", "model.slices:ACTIVE_MAX"
    ),
    "lookups of one ListOffsets request that wait at the same time": Proof(
        "dialects/kafka/test_lookups.py::test_concurrent_lookups_of_one_request_are_limited",
        "dialects.kafka.lookups:LOOKUPS_MAX",
    ),
    "batches unpacked for offsets by time at the same time, over all requests": Proof(
        "server/test_bombs.py::test_failed_lookups_by_time_leave_no_memory_behind",
        "broker.unpacking:LOOKUPS_AT_ONCE",
    ),
    "commands of one request to coordinators that wait at the same time": Proof(
        "dialects/kafka/test_coordinators.py::test_concurrent_commands_of_one_request_are_limited",
        "dialects.kafka.coordinators:ASKED_AT_ONCE",
    ),
    "attempts to read a partition whose data does not stay in memory": Proof(
        "broker/test_reads.py::test_data_that_never_gets_warm_is_an_error_not_a_hang "
        "::test_a_timestamp_in_data_that_never_gets_warm_is_an_error",
        "broker.reads:COLD_TRIES_MAX broker.offsets:COLD_TRIES_MAX",
    ),
    "described topics kept for Metadata answers": Proof(
        "dialects/kafka/test_metadata.py::test_kept_bytes_are_bounded", "dialects.kafka.metadata:ENTRIES_MAX"
    ),
    "prefixes of Produce answers kept": Proof(
        "dialects/kafka/test_produce.py::test_templates_that_are_kept_are_bounded",
        "dialects.kafka.produce:_TEMPLATES_MAX",
    ),
    "names of groups and topics kept while offsets are loaded": Proof(
        "coordination/test_group_records.py::test_names_that_are_remembered_are_bounded",
        "coordination.group_records:_NAMES_MAX",
    ),
    "positions of recent batches kept by a log": Proof(
        "storage/test_log.py::test_remembered_places_of_batches_are_bounded", "storage.log:PLACES_REMEMBERED"
    ),
    "corrupt batches remembered as logged": Proof(
        "broker/test_batch_checks.py::test_number_of_remembered_warnings_is_bounded",
        "broker.batch_checks:WARNINGS_REMEMBERED",
    ),
    "keys of one round of compaction": Proof(
        "broker/test_cleaning.py::test_a_full_map_cleans_in_rounds", "storage.cleaner:KEYS_MAX"
    ),
    "offsets removed by one expiry check": Proof(
        "coordination/test_offsets.py::test_many_offsets_expire_in_several_ticks",
        "coordination.group_coordinator:_EXPIRED_PER_TICK_MAX",
    ),
    "records about transactions written by one timeout check": Proof(
        "coordination/test_transactions.py::test_a_tick_writes_a_bounded_number_of_records_and_the_rest_is_due_at_once",
        "coordination.transactions:RECORDS_PER_TICK_MAX",
    ),
    "partitions of the transactions aborted by one timeout check": Proof(
        "coordination/test_transactions.py::test_large_transactions_time_out_a_few_at_a_time",
        "coordination.transactions:PARTITIONS_PER_TICK_MAX",
    ),
    "patterns of consumer groups whose topics are kept": Proof(
        "broker/test_patterns.py::test_changes_and_patterns_that_are_kept_are_limited", "broker.patterns:KEPT_MAX"
    ),
    "topic changes kept for these patterns": Proof(
        "broker/test_patterns.py::test_changes_and_patterns_that_are_kept_are_limited", "broker.patterns:CHANGES_MAX"
    ),
}


def rows() -> dict[str, str]:
    """The rows of the tables of limits, each by its first cell."""
    found: dict[str, str] = {}
    inside = False
    for line in PAGE.read_text().splitlines():
        inside = line.startswith("| limit |") or (inside and line.startswith("|"))
        if inside and not line.startswith(("| limit |", "|---")):
            name, rest = line.removeprefix("| ").split(" | ", 1)
            assert name not in found, f"{PAGE.name} has {name!r} twice"
            found[name] = rest
    return found


ROWS = rows()


def test_every_row_has_tests_and_every_entry_here_a_row() -> None:
    assert list(ROWS.keys() - PROOFS.keys()) == [], "name the tests of these rows in PROOFS"
    assert list(PROOFS.keys() - ROWS.keys()) == [], f"these rows are not in {PAGE.name}"


@functools.cache
def source(file: str) -> str:
    return (TESTS / file).read_text()


@pytest.mark.parametrize("name", PROOFS)
def test_the_tests_of_a_row_exist(name: str) -> None:
    file = ""
    assert PROOFS[name].tests
    for test in PROOFS[name].tests.split():
        place, _, function = test.partition("::")
        file = place or file
        assert re.search(rf"^(async )?def {function}\(", source(file), re.MULTILINE), f"{file} has no {function}"


def value_of(place: str) -> int | float:
    module, _, path = place.rpartition(":")
    found: Any = import_module(f"penstock.{module or 'model.limits'}")
    path, _, parameter = path.rstrip(")").partition("(")
    for part in path.split("."):
        found = getattr(found() if isinstance(found, type) else found, part)
    if parameter:
        found = inspect.signature(found).parameters[parameter].default
    assert isinstance(found, (int, float)), place
    return found


def shown(place: str, value: float) -> str:
    """The figure as the page has it."""
    if re.search(r"_S$", place):
        return f"{value * 1_000:g} ms"
    if re.search(r"_ms\b|_ms_", place, re.IGNORECASE):
        day, minute, second = 86_400_000, 60_000, 1_000
        if value % day == 0:
            return f"{value // day} days"
        return f"{value // minute} min" if value % minute == 0 and value > minute else f"{value // second} s"
    if "bytes" in place.lower():
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value % size == 0 and (unit != "KiB" or value > 1 << 16):
                return f"{value // size} {unit}"
    return f"{value:,}"


@pytest.mark.parametrize("name", [name for name, proof in PROOFS.items() if proof.figures])
def test_the_figures_of_a_row_are_those_of_the_code(name: str) -> None:
    for place in PROOFS[name].figures.split():
        figure = shown(place, value_of(place))
        assert re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,]*\d)", ROWS[name]), f"{place} is {figure}"


def test_every_limit_of_the_model_has_a_row() -> None:
    named = {place for proof in PROOFS.values() for place in proof.figures.split()}
    constants = {name for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)}
    assert sorted(constants - named) == []


DERIVED: dict[str, list[int]] = {
    "one batch of a Kafka client": [topic_config.parse({}, {}).max_message_bytes],
    "record count in a batch header": [limits.DECOMPRESSED_BYTES_MAX // RECORD_BYTES_MIN, *EXPANSION_MAX[1:]],
    "records and headers in one answer of a dialect that reads records": [limits.READ_OBJECTS_MAX + OBJECTS_AT_ONCE],
    "client id, instance id, protocol type and assignor of a classic member": [NAME_CHARS_MAX // 2],
    "records in one RustLog produce as JSON": [DEFAULTS["rustlog"].frame_bytes_max // OFFSET_BYTES_MAX],
}
"""Figures that the code computes."""


@pytest.mark.parametrize("name", DERIVED)
def test_computed_figures_of_a_row_are_those_of_the_code(name: str) -> None:
    for value in DERIVED[name]:
        assert re.search(rf"(?<![\d,.]){value:,}(?![\d,]*\d)", ROWS[name]), f"{value:,}"


def test_frame_limits_of_the_smaller_dialects_are_those_of_the_code() -> None:
    row = ROWS["one request of another dialect"]
    for dialect, settings in DEFAULTS.items():
        figure = shown("bytes", settings.frame_bytes_max)
        assert re.search(rf"{dialect}[a-z ]* {re.escape(figure)}", row), f"{dialect} has {figure}"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("time for a request that has begun", "frame_deadline_ms"),
        ("time without any request", "idle_deadline_ms"),
        ("time without taking a byte of a waiting answer", "write_deadline_ms"),
    ],
)
def test_deadlines_of_the_smaller_dialects_are_those_of_the_code(name: str, field: str) -> None:
    for dialect in ORIGINALS:
        deadline_ms = ORIGINALS[dialect].get(field, KEYS[f"net.{field}"].default)
        if deadline_ms != KEYS[f"net.{field}"].default:
            assert f"{dialect} {shown(field, deadline_ms)}" in ROWS[name]
        else:
            assert dialect not in ROWS[name]


@pytest.mark.parametrize("name", ROWS)
def test_keys_of_a_row_exist(name: str) -> None:
    key_cell = ROWS[name].split(" | ")[1]
    for key in re.findall(r"`((?:net|storage|groups|broker)\.\w+)`", key_cell):
        assert key in KEYS
