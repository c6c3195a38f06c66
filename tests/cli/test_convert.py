"""`penstock config convert`: what comes of the settings of FluxGo and FlyMQ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.convert import BROKERS
from penstock.net.settings import Deadlines
from penstock.server.config import Config, load
from penstock.server.config_schema import DIALECTS
from penstock.server.deadlines import FIELDS, deadlines_of
from tests.cli.conftest import Ended, Run

BOMB = "l0: &l0 [x]\n" + "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 7))
"""Each list has ten times the one before it."""

FLUXGO_SHIPPED = """
server:
  listen_address: ":9898"
  read_timeout: 60s
  write_timeout: 60s
log:
  data_dir: "./fluxgo-data/"
  max_segment_bytes: 33554432
  max_log_bytes: 2147483648
  file_sync: true
"""


def fluxgo(penstock: Run, tmp_path: Path, text: str) -> Ended:
    (tmp_path / "server.yaml").write_text(text)
    return penstock("config", "convert", "--from", "fluxgo", "server.yaml")


def flymq(penstock: Run, tmp_path: Path, settings: dict[str, Any]) -> Ended:
    (tmp_path / "flymq.json").write_text(json.dumps(settings))
    return penstock("config", "convert", "--from", "flymq", "flymq.json")


def made(ended: Ended, tmp_path: Path) -> tuple[dict[str, Any], Config]:
    """What was printed, as YAML and as the broker understands it."""
    assert ended.code == 0, ended.err
    file = tmp_path / "made.yaml"
    file.write_text(ended.text)
    return yaml.safe_load(ended.text), load(file, {}, {})


# ---- FluxGo ------------------------------------------------------------------------------------------------------------


def test_the_config_that_fluxgo_ships_is_taken_over_whole(penstock: Run, tmp_path: Path) -> None:
    ended = fluxgo(penstock, tmp_path, FLUXGO_SHIPPED)
    config, loaded = made(ended, tmp_path)
    assert config == {
        "data_dir": "./fluxgo-data/",
        "listeners": {
            "fluxgo": [
                {
                    "host": "0.0.0.0",
                    "port": 9898,
                    "frame_deadline_ms": 60_000,
                    "idle_deadline_ms": 60_000,
                    "write_deadline_ms": 60_000,
                    "acks": "all",
                }
            ]
        },
        "storage": {"flush": "acks"},
        "topic_defaults": {"segment.bytes": 33554432, "retention.bytes": 2147483648, "retention.ms": -1},
    }
    [listener] = loaded.listeners["fluxgo"]
    assert list(loaded.listeners) == ["fluxgo"]
    assert (listener.host, listener.port, listener.acks) == ("0.0.0.0", 9898, "all")
    assert deadlines_of("fluxgo", listener, loaded) == Deadlines(60_000, 60_000, 60_000)
    assert loaded.net == Config().net
    assert "counterpart" not in ended.text + ended.err


def test_what_fluxgo_does_unsaid_is_said(penstock: Run, tmp_path: Path) -> None:
    config, loaded = made(fluxgo(penstock, tmp_path, "{}"), tmp_path)
    [listener] = config["listeners"]["fluxgo"]
    assert (listener["host"], listener["port"], listener["acks"]) == ("127.0.0.1", 9898, "all")
    assert [listener[field] for field in FIELDS] == [30_000, 30_000, 30_000]
    unset = deadlines_of("fluxgo", DIALECTS["fluxgo"], Config())
    assert unset == deadlines_of("fluxgo", loaded.listeners["fluxgo"][0], loaded)
    assert config["data_dir"] == "./fluxgo-data/"
    assert "net" not in config
    assert config["topic_defaults"] == {"segment.bytes": 1 << 24, "retention.bytes": 1 << 30, "retention.ms": -1}


def test_without_file_sync_the_system_flushes_and_no_producer_waits(penstock: Run, tmp_path: Path) -> None:
    config, loaded = made(fluxgo(penstock, tmp_path, "log: {file_sync: false}"), tmp_path)
    assert config["listeners"]["fluxgo"][0]["acks"] == "leader"
    assert loaded.storage.flush == "os"


def test_a_log_without_a_bound_stays_without_one(penstock: Run, tmp_path: Path) -> None:
    config, _ = made(fluxgo(penstock, tmp_path, "log: {max_log_bytes: 0}"), tmp_path)
    assert config["topic_defaults"]["retention.bytes"] == -1


def test_a_segment_larger_than_ours_can_be_is_said_aloud(penstock: Run, tmp_path: Path) -> None:
    ended = fluxgo(penstock, tmp_path, "log: {max_segment_bytes: 4294967296}")
    config, _ = made(ended, tmp_path)
    assert config["topic_defaults"]["segment.bytes"] == 2**31 - 1
    assert "segment.bytes is limited to 2147483647, instead of 4294967296" in ended.err


def test_settings_without_a_counterpart_are_named_in_the_file_and_beside_it(penstock: Run, tmp_path: Path) -> None:
    ended = fluxgo(penstock, tmp_path, "server: {max_frame_bytes: 16777216, read_timeout: 0s}\nextra: {of: [mine, 1]}")
    made(ended, tmp_path)
    assert "3 settings without a counterpart: server.read_timeout, server.max_frame_bytes, extra.of" in ended.err
    comments = [line for line in ended.text.splitlines() if line.startswith("#   ")]
    assert [line.split()[1] for line in comments] == ["server.read_timeout", "server.max_frame_bytes", "extra.of"]
    assert '#   extra.of = ["mine",1] (unknown setting of FluxGo)' in comments


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("30s", 30_000),
        ("+30s", 30_000),
        ("1m30s", 90_000),
        ("1.5h", 5_400_000),
        ("250ms", 250),
        ("1h0m0.5s", 3_600_500),
        ("1us", 1),
    ],
)
def test_durations_are_read_as_go_reads_them(penstock: Run, tmp_path: Path, written: str, ms: int) -> None:
    config, _ = made(fluxgo(penstock, tmp_path, f"server: {{write_timeout: {written}}}"), tmp_path)
    [listener] = config["listeners"]["fluxgo"]
    assert [listener[field] for field in FIELDS] == [30_000, 30_000, ms]


def test_each_timeout_goes_to_its_deadlines_and_to_no_other(penstock: Run, tmp_path: Path) -> None:
    config, _ = made(fluxgo(penstock, tmp_path, "server: {read_timeout: 5s, write_timeout: 0s}"), tmp_path)
    [listener] = config["listeners"]["fluxgo"]
    assert [listener.get(field) for field in FIELDS] == [5_000, 5_000, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {read_timeout: 30}", "server.read_timeout = 30 is not a duration"),
        ("server: {read_timeout: 30000000000}", "server.read_timeout = 30000000000 is not a duration"),
        ("server: {read_timeout: ++30s}", "is not a duration"),
        ("server: {read_timeout: 9999999h}", 'server.read_timeout = "9999999h" exceeds the maximum duration'),
        ("server: {read_timeout: [30s]}", 'server.read_timeout = ["30s"] is not a duration'),
        ("server: {listen_address: {host: h}}", 'server.listen_address = {"host":"h"} is not HOST:PORT'),
        ("server: 5", "server: expected a section of settings, not a single value"),
        ("server: []", "server: expected a section of settings, not a single value"),
        (
            "log: {max_log_bytes: 9223372036854775808}",
            "log.max_log_bytes = 9223372036854775808 exceeds 64 bits",
        ),
        ("log: {max_log_bytes: 0x" + "f" * 5_000 + "}", 'log.max_log_bytes = "a number of 20000 bits" exceeds'),
        ('log: {data_dir: "a\\0b"}', 'log.data_dir = "a\\u0000b" cannot be converted: data_dir must be a path'),
        ("log: {data_dir: ~nobody-of-that-name/x}", "Could not determine home directory"),
        ("when: 2020-13-01", "server.yaml: not valid YAML: month must be in 1..12"),
        ("extra: &it [*it]", "server.yaml: a value contains itself"),
        (BOMB, "server.yaml: has 2345679 values with its aliases written out, at most 100000 are allowed"),
        ("server: {read_timeout: 30 s}", 'server.read_timeout = "30 s" is not a duration'),
        ("server: {read_timeout: -1s}", "is not a duration"),
        ("server: {listen_address: nowhere}", 'server.listen_address = "nowhere" is not HOST:PORT'),
        ("server: {listen_address: 'h:70000'}", "is not HOST:PORT"),
        ("server: {listen_address: 'h:" + "1" * 5_000 + "'}", "is not HOST:PORT"),
        ("log: {max_log_bytes: -1}", "log.max_log_bytes = -1 is not an integer of at least 0"),
        ("log: {max_segment_bytes: true}", "is not an integer of at least 14"),
        ("log: {file_sync: 'yes please'}", 'log.file_sync = "yes please" is neither true nor false'),
        ("log: {data_dir: 7}", "log.data_dir = 7 is not a non-empty string"),
        ("[1, 2]", "expected a mapping of sections"),
        ("a: b: c", "server.yaml: line 1"),
    ],
)
def test_a_config_that_makes_no_sense_is_one_line_and_exit_code_2(
    penstock: Run, tmp_path: Path, text: str, message: str
) -> None:
    ended = fluxgo(penstock, tmp_path, text)
    assert (ended.code, ended.text) == (2, "")
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_section_with_nothing_in_it_says_nothing(penstock: Run, tmp_path: Path) -> None:
    nothing = fluxgo(penstock, tmp_path, "{}")
    for text in ("server: {}\nlog: {}", "server:\nlog:", "server: {read_timeout: null}"):
        assert fluxgo(penstock, tmp_path, text) == nothing


def test_an_ipv6_address_is_taken(penstock: Run, tmp_path: Path) -> None:
    _, loaded = made(fluxgo(penstock, tmp_path, "server: {listen_address: '[::1]:9898'}"), tmp_path)
    assert (loaded.listeners["fluxgo"][0].host, loaded.listeners["fluxgo"][0].port) == ("::1", 9898)


# ---- FlyMQ -------------------------------------------------------------------------------------------------------------


def test_a_config_of_flymq_is_taken_over(penstock: Run, tmp_path: Path) -> None:
    theirs = {
        "bind_addr": "10.0.0.1:19092",
        "advertise_addr": "mq.example.org:9092",
        "data_dir": "/var/lib/flymq",
        "retention_bytes": 1_000_000,
        "segment_bytes": 1_048_576,
        "log_level": "warn",
        "log_json": False,
        "partition": {"default_partitions": 6},
        "performance": {"acks": "all", "sync_interval_ms": 50, "zero_copy": False},
        "ttl": {"default_ttl": 3600, "cleanup_interval": 30},
        "discovery": {"cluster_id": "blue-1"},
    }
    ended = flymq(penstock, tmp_path, theirs)
    config, _ = made(ended, tmp_path)
    assert config == {
        "data_dir": "/var/lib/flymq",
        "listeners": {
            "flymq": [
                {
                    "host": "10.0.0.1",
                    "port": 19092,
                    "acks": "all",
                    "advertised_host": "mq.example.org",
                    "advertised_port": 9092,
                    "partitions": 6,
                }
            ]
        },
        "broker": {"cluster_id": "blue-1"},
        "storage": {"flush": "acks", "flush_interval_ms": 50, "retention_check_interval_ms": 30_000},
        "net": {"sendfile": False},
        "topic_defaults": {"segment.bytes": 1_048_576, "retention.bytes": 1_000_000, "retention.ms": 3_600_000},
        "log": {"level": "warning", "format": "text"},
    }
    assert "counterpart" not in ended.err


def test_what_flymq_does_unsaid_is_said(penstock: Run, tmp_path: Path) -> None:
    config, loaded = made(flymq(penstock, tmp_path, {}), tmp_path)
    # It reads with a deadline of five minutes, which no setting of it changes; our listener has the same.
    assert deadlines_of("flymq", loaded.listeners["flymq"][0], loaded) == Deadlines(300_000, 300_000, 60_000)
    assert config["listeners"] == {"flymq": [{"host": "0.0.0.0", "port": 9092, "acks": "leader", "partitions": 6}]}
    assert config["storage"] == {"flush": "interval", "flush_interval_ms": 5}
    assert config["topic_defaults"] == {"segment.bytes": 64 * 1024 * 1024, "retention.ms": -1}
    assert loaded.log.format == "json"


@pytest.mark.parametrize(
    ("settings", "partitions"),
    [
        ({}, 6),
        ({"cluster_addr": None}, 6),
        ({"cluster_addr": ":19093"}, 6),
        ({"cluster_addr": ""}, None),
        ({"partition": {"default_partitions": 3}}, 3),
        ({"cluster_addr": ":19093", "partition": {"default_partitions": 3}}, 3),
    ],
)
def test_topics_get_six_partitions_in_flymq_cluster_mode(
    penstock: Run, tmp_path: Path, settings: dict[str, Any], partitions: int | None
) -> None:
    """By default it is, with one node."""
    ended = flymq(penstock, tmp_path, settings)
    config, _ = made(ended, tmp_path)
    assert config["listeners"]["flymq"][0].get("partitions") == partitions
    assert ("cluster_addr" in ended.err) == bool(settings.get("cluster_addr"))


@pytest.mark.parametrize(
    ("theirs", "acks", "flush"),
    [("all", "all", "acks"), ("leader", "leader", "interval"), ("none", "leader", "os")],
)
def test_acks_of_flymq_choose_the_flush_policy(
    penstock: Run, tmp_path: Path, theirs: str, acks: str, flush: str
) -> None:
    config, loaded = made(flymq(penstock, tmp_path, {"performance": {"acks": theirs}}), tmp_path)
    assert config["listeners"]["flymq"][0]["acks"] == acks
    assert loaded.storage.flush == flush


def test_everything_of_flymq_that_is_not_served_is_named(penstock: Run, tmp_path: Path) -> None:
    theirs: dict[str, Any] = {
        "cluster_addr": ":9093",
        "advertise_cluster": "h:9093",
        "peers": [],
        "node_id": "one",
        "discovery": {"enabled": False, "cluster_id": "no good"},
        "transaction": {"enabled": True, "timeout": 60},
        "partition": {"distribution_strategy": "round-robin", "default_replication_factor": 1},
        "performance": {"async_io": True, "compression": "lz4"},
        "security": {"tls_enabled": False, "tls_cert_file": "/etc/cert.pem", "encryption_enabled": False},
        "auth": {"enabled": False, "admin_username": "admin", "acl_file": "/etc/acls"},
        "made_up": 1,
    }
    for section in ("schema", "dlq", "delayed", "grpc", "ws", "mqtt", "audit"):
        theirs[section] = {"enabled": True}
    theirs["observability"] = {"metrics": {"enabled": True}}
    ended = flymq(penstock, tmp_path, theirs)
    made(ended, tmp_path)
    named = ended.err.split("without a counterpart: ")[1].strip().split(", ")
    wanted = {"cluster_addr", "advertise_cluster", "peers", "node_id", "discovery.enabled", "discovery.cluster_id"}
    wanted |= {"transaction.enabled", "transaction.timeout", "partition.distribution_strategy", "made_up"}
    wanted |= {"performance.async_io", "performance.compression", "observability.metrics.enabled"}
    wanted |= {"security.tls_enabled", "security.tls_cert_file", "security.encryption_enabled"}
    wanted |= {"auth.enabled", "auth.admin_username", "auth.acl_file", "partition.default_replication_factor"}
    wanted |= {f"{section}.enabled" for section in ("schema", "dlq", "delayed")}
    wanted |= {f"{section}.enabled" for section in ("grpc", "ws", "mqtt", "audit")}
    assert set(named) == wanted
    assert all(f"#   {key} = " in ended.text for key in wanted)
    assert "(unknown setting of FlyMQ)" in ended.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "flymq.json"),
        ("[]", "expected a JSON object"),
        ('{"performance": {"acks": "most"}}', 'performance.acks = "most" is not one of all, leader, none'),
        ('{"log_level": "loud"}', 'log_level = "loud" is not one of'),
        ('{"partition": {"default_partitions": 0}}', "is not an integer of at least 1"),
        ('{"partition": {"default_partitions": 10001}}', "partition.default_partitions = 10001 cannot be converted: "),
        ('{"performance": {"acks": ["all"]}}', 'performance.acks = ["all"] is not one of all, leader, none'),
        ('{"performance": {"acks": {"a": 1}}}', 'performance.acks = {"a":1} is not one of all, leader, none'),
        ('{"performance": {"zero_copy": {}}}', "performance.zero_copy = {} is neither true nor false"),
        ('{"ttl": 5}', "ttl: expected a section of settings, not a single value"),
        ('{"auth": "hunter2"}', "auth: expected a section of settings, not a single value"),
        ('{"bind_addr": {"x": 1}}', 'bind_addr = {"x":1} is not HOST:PORT'),
        ('{"advertise_addr": "h:0"}', 'advertise_addr = "h:0" cannot be converted: '),
        ('{"advertise_addr": 0}', "advertise_addr = 0 is not HOST:PORT"),
        ('{"discovery": {"cluster_id": 5}}', "discovery.cluster_id = 5 is not a non-empty string"),
        ('{"log_level": ["info"]}', 'log_level = ["info"] is not one of'),
        ('{"retention_bytes": 9223372036854775808}', "retention_bytes = 9223372036854775808 exceeds 64 bits"),
        ('{"ttl": {"default_ttl": 1e3}}', "ttl.default_ttl = 1000.0 is not an integer of at least 0"),
        ('{"x": ' + "[" * 100_000, "flymq.json: nested too deeply"),
    ],
)
def test_a_flymq_config_that_makes_no_sense_is_one_line_and_exit_code_2(
    penstock: Run, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "flymq.json").write_text(text)
    ended = penstock("config", "convert", "--from", "flymq", "flymq.json")
    assert (ended.code, ended.text) == (2, "")
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_ttl_longer_than_ours_can_be_is_said_aloud(penstock: Run, tmp_path: Path) -> None:
    ended = flymq(penstock, tmp_path, {"ttl": {"default_ttl": 10**16}})
    config, _ = made(ended, tmp_path)
    assert config["topic_defaults"]["retention.ms"] == 2**63 - 1
    assert "retention.ms is limited to 9223372036854775807, instead of 10000000000000000000" in ended.err


def test_secrets_are_named_and_not_repeated(penstock: Run, tmp_path: Path) -> None:
    theirs = {
        "auth": {"enabled": False, "admin_password": "hunter2", "admin_username": "admin"},
        "security": {"tls_enabled": False, "tls_key_file": "/etc/key.pem"},
        "made_up": [{"name": "ann", "apiToken": "hunter2"}],
        "observability": {"tracing": {"endpoint": "https://ann:hunter2@traces:4317"}},
    }
    ended = flymq(penstock, tmp_path, theirs)
    made(ended, tmp_path)
    assert "hunter2" not in ended.text + ended.err
    assert "#   auth.admin_password (not supported; value hidden)" in ended.text.splitlines()
    assert '#   auth.admin_username = "admin" (not supported)' in ended.text.splitlines()
    assert '#   security.tls_key_file = "/etc/key.pem" (not supported)' in ended.text.splitlines()
    assert "auth.admin_password, auth.admin_username, security.tls_enabled" in ended.err


# ---- protection that would be lost -------------------------------------------------------------------------------------


def refused(ended: Ended) -> list[str]:
    """What a conversion was refused for, a line each."""
    assert (ended.code, ended.text) == (1, "")
    first, *lines = ended.err.splitlines()
    assert "cannot convert" in first
    assert all(line.startswith("  ") for line in lines)
    return [line.strip() for line in lines]


def test_lost_protection_is_listed_and_nothing_is_written(penstock: Run, tmp_path: Path) -> None:
    theirs = {
        "bind_addr": ":9092",
        "auth": {"enabled": True, "admin_password": "hunter2"},
        "security": {"tls_enabled": True, "encryption_enabled": True, "tls_key_file": "/etc/key.pem"},
        "partition": {"default_replication_factor": 3},
        "peers": ["b:9093"],
        "discovery": {"enabled": True},
        "performance": {"compression": "lz4"},
    }
    lines = refused(flymq(penstock, tmp_path, theirs))
    assert [line.partition(" ")[0] for line in lines] == [
        "auth.enabled",
        "security.tls_enabled",
        "security.encryption_enabled",
        "partition.default_replication_factor",
        "peers",
        "discovery.enabled",
    ]
    assert lines[0] == "auth.enabled = true: clients would not have to authenticate"
    assert lines[3] == "partition.default_replication_factor = 3: each record would have only one copy"
    assert "hunter2" not in "".join(lines)


@pytest.mark.parametrize("value", [True, "true", "yes", "on", "1", 1, [1], "false"], ids=repr)
@pytest.mark.parametrize(
    "key", ["auth.enabled", "security.tls_enabled", "security.encryption_enabled", "discovery.enabled"]
)
def test_switch_with_any_value_but_false_is_on(penstock: Run, tmp_path: Path, key: str, value: Any) -> None:
    section, name = key.split(".")
    (line,) = refused(flymq(penstock, tmp_path, {section: {name: value}}))
    assert line.startswith(f"{key} = ")


@pytest.mark.parametrize("value", [2, 1.0, "1", True, [1]], ids=repr)
def test_a_replication_factor_that_is_not_one_or_less_is_refused(penstock: Run, tmp_path: Path, value: Any) -> None:
    (line,) = refused(flymq(penstock, tmp_path, {"partition": {"default_replication_factor": value}}))
    assert line.startswith("partition.default_replication_factor = ")


@pytest.mark.parametrize("spelled", ["Auth.Enabled", "AUTH.ENABLED", "auth.enAbled"])
def test_keys_are_read_in_any_case_as_flymq_reads_them(penstock: Run, tmp_path: Path, spelled: str) -> None:
    section, name = spelled.split(".")
    assert refused(flymq(penstock, tmp_path, {section: {name: True}})) == [
        "auth.enabled = true: clients would not have to authenticate"
    ]
    config, _ = made(flymq(penstock, tmp_path, {"Bind_Addr": "127.0.0.1:19092"}), tmp_path)
    assert config["listeners"]["flymq"][0]["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    "text",
    [
        '{"auth": {"enabled": true}, "auth": {}}',
        '{"auth": {"enabled": true, "Enabled": false}}',
        '{"Auth": {}, "auth": 1}',
    ],
)
def test_duplicate_key_is_refused(penstock: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "flymq.json").write_text(text)
    ended = penstock("config", "convert", "--from", "flymq", "flymq.json")
    assert (ended.code, ended.text, "duplicate key" in ended.err) == (2, "", True)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("FLYMQ_AUTH_ENABLED", "true", "auth.enabled"),
        ("FLYMQ_AUTH_ENABLED", "1", "auth.enabled"),
        ("FLYMQ_TLS_ENABLED", "TRUE", "security.tls_enabled"),
        ("FLYMQ_ENCRYPTION_ENABLED", "yes", "security.encryption_enabled"),
        ("FLYMQ_PEERS", "a:9093,b:9093", "peers"),
        ("FLYMQ_DEFAULT_REPLICATION_FACTOR", "3", "partition.default_replication_factor"),
    ],
)
def test_protection_turned_on_by_the_environment_is_refused(
    penstock: Run, tmp_path: Path, name: str, value: str, key: str
) -> None:
    (tmp_path / "flymq.json").write_text("{}")
    (line,) = refused(penstock("config", "convert", "--from", "flymq", "flymq.json", env={name: value}))
    assert line.startswith(f"{key} = ")
    assert f"(from {name})" in line


@pytest.mark.parametrize(
    ("name", "value"),
    [("FLYMQ_AUTH_ENABLED", "false"), ("FLYMQ_AUTH_ENABLED", ""), ("FLYMQ_DEFAULT_REPLICATION_FACTOR", "1")],
)
def test_an_environment_that_turns_nothing_on_is_fine(penstock: Run, tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "flymq.json").write_text("{}")
    made(penstock("config", "convert", "--from", "flymq", "flymq.json", env={name: value}), tmp_path)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"auth": {"admin_password": "hunter2"}}, "auth.admin_password"),
        ({"auth": {"user_file": "/etc/users"}}, "auth.user_file"),
        ({"security": {"tls_cert_file": "/etc/cert.pem"}}, "security.tls_cert_file"),
    ],
)
def test_files_of_an_absent_switch_are_refused(
    penstock: Run, tmp_path: Path, settings: dict[str, dict[str, Any]], key: str
) -> None:
    (line,) = refused(flymq(penstock, tmp_path, settings))
    assert line.startswith(key)
    assert "hunter2" not in line
    section = key.split(".")[0]
    switch = {"auth": "enabled", "security": "tls_enabled"}[section]
    made(flymq(penstock, tmp_path, {section: {**settings[section], switch: False}}), tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_enabled": True},
        {"security": {"mtls": "required"}},
        {"auth": {"required": True}},
        {"authentication": {"enabled": True}},
        {"users": [{"name": "ann", "token": "hunter2"}]},
        {"replication": {"factor": 3}},
        {"min_insync": 2},
        {"ip_whitelist": ["10.0.0.0/8"]},
        {"encryption_key": "hunter2"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_unknown_key_that_suggests_protection_is_refused(
    penstock: Run, tmp_path: Path, settings: dict[str, Any]
) -> None:
    (line,) = refused(flymq(penstock, tmp_path, settings))
    assert "unknown setting of FlyMQ" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("text", ["tls: {enabled: true}", "server: {auth: yes}", "replication: {factor: 3}"])
def test_protection_in_a_config_of_fluxgo_is_refused(penstock: Run, tmp_path: Path, text: str) -> None:
    (line,) = refused(fluxgo(penstock, tmp_path, text))
    assert "unknown setting of FluxGo" in line


@pytest.mark.parametrize("text", ["tls: {enabled: false}", "server: {auth: off}", "replication: {factor: }"])
def test_disabled_protection_of_fluxgo_is_only_listed(penstock: Run, tmp_path: Path, text: str) -> None:
    ended = fluxgo(penstock, tmp_path, text)
    made(ended, tmp_path)
    assert "1 setting without a counterpart" in ended.err


# ---- what they write stays in its comment ------------------------------------------------------------------------------

LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", LINE_ENDS, ids=ascii)
@pytest.mark.parametrize("dialect", BROKERS)
def test_no_key_or_value_gets_out_of_its_comment(penstock: Run, tmp_path: Path, dialect: str, end: str) -> None:
    evil = f"x{end}data_dir: /evil #"
    theirs = {evil: 1, "made_up": {evil: {evil: evil}}, "list": [evil, {evil: evil}]}
    (tmp_path / "file").write_text(json.dumps(theirs))  # which is YAML too
    ended = penstock("config", "convert", "--from", dialect, "file")
    config, _ = made(ended, tmp_path)
    (tmp_path / "file").write_text("{}")
    plain, _ = made(penstock("config", "convert", "--from", dialect, "file"), tmp_path)
    assert config == plain
    assert len(ended.text.splitlines()) == len([line for line in ended.text.split("\n") if line])
    assert [line for line in ended.err.splitlines() if "evil" in line] == [ended.err.splitlines()[-1]]
    [line] = [
        line
        for line in ended.text.splitlines()
        if line.endswith(" = 1 (unknown setting of %s)" % BROKERS[dialect].name)
    ]
    assert line.startswith('#   "x\\')


def test_the_name_of_the_file_stays_in_its_comment(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "a\ndata_dir: evil #").write_text("{}")
    config, _ = made(penstock("config", "convert", "--from", "fluxgo", "a\ndata_dir: evil #"), tmp_path)
    assert config["data_dir"] == "./fluxgo-data/"


@pytest.mark.parametrize("data_dir", ["a\nb: c", "a\u2028b: c", "a\x85 #", "größe", "\U0001f600", "x\x1b[31m", "- {"])
def test_a_value_that_is_taken_over_is_taken_over_as_it_is(penstock: Run, tmp_path: Path, data_dir: str) -> None:
    ended = flymq(penstock, tmp_path, {"data_dir": data_dir})
    config, loaded = made(ended, tmp_path)
    assert (config["data_dir"], str(loaded.data_dir)) == (data_dir, data_dir)
    assert ("größe" in ended.text) == (data_dir == "größe")


def test_keys_that_are_not_theirs_are_named_whatever_their_value(penstock: Run, tmp_path: Path) -> None:
    theirs = {"foo": None, "bar": {}, "peers": None, "security": {"tls_enabled": None}, "performance.acks": "none"}
    ended = flymq(penstock, tmp_path, theirs)
    config, _ = made(ended, tmp_path)
    assert config["listeners"]["flymq"][0]["acks"] == "leader"
    assert 'without a counterpart: foo, bar, peers, security.tls_enabled, "performance.acks"' in ended.err
    assert "#   foo = null (unknown setting of FlyMQ)" in ended.text
    assert '#   "performance.acks" = "none" (unknown setting of FlyMQ)' in ended.text
    ended = fluxgo(penstock, tmp_path, "foo:\n1: {2020-01-01: x}\nnull: [{true: .nan}]")
    made(ended, tmp_path)
    assert 'without a counterpart: foo, 1."2020-01-01", null' in ended.err


# ---- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", BROKERS)
def test_a_file_that_is_not_there_is_one_line(penstock: Run, dialect: str) -> None:
    ended = penstock("config", "convert", "--from", dialect, "missing")
    assert ended.code == 2
    assert "cannot read config file missing: No such file or directory" in ended.err


def test_configs_of_other_brokers_are_refused(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    ended = penstock("config", "convert", "--from", "rustlog", "x")
    assert (ended.code, ended.text) == (2, "")
    assert "--from rustlog: unknown broker; expected fluxgo or flymq" in ended.err


def test_flags_of_config_itself_do_not_go_with_convert(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    ended = penstock("config", "--json", "convert", "--from", "fluxgo", "x")
    assert (ended.code, ended.text) == (2, "")
    assert "config convert does not accept --config, --data-dir, --listen or --json" in ended.err


def test_config_alone_still_prints_the_effective_values(penstock: Run) -> None:
    ended = penstock("config")
    assert ended.code == 0
    assert "storage.flush" in ended.text
