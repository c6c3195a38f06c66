from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import limits
from penstock.model.errors import StartError
from penstock.server import config_doc
from penstock.server.config import Config, Listener, load, sources
from penstock.server.config_schema import DIALECTS, KEYS, SECTIONS, ConfigKey

ROOT = Path(__file__).parents[2]
BOMB = "a: &a [x: y]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("bcde", "cdef", strict=True)
)
"""Each list has ten times the one before it."""


def from_yaml(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> Config:
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    return load(file, env or {}, {})


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(StartError) as caught:
        from_yaml(tmp_path, text)
    said = str(caught.value)
    assert "\n" not in said
    return said


def env_refusal(**env: str) -> str:
    with pytest.raises(StartError) as caught:
        load(None, env, {})
    return str(caught.value)


def origin(config: Config, key: str) -> str:
    return next(source.origin for source in sources(config) if source.key == key)


def other_value(key: ConfigKey) -> object:
    """A value that the key takes and that is not its default."""
    if key.choices:
        return next(choice for choice in key.choices if choice != key.default)
    if isinstance(key.default, bool):
        return not key.default
    return "another" if key.default is None else key.default + 1


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_without_anything_the_defaults_hold() -> None:
    config = load(None, {}, {})
    assert config == Config()
    assert config.data_dir == Path("penstock-data")
    assert config.listeners["kafka"] == (Listener("127.0.0.1", 9092),)
    assert config.listeners["fluxgo"] == (Listener("127.0.0.1", 9898),)
    assert list(config.listeners) == list(DIALECTS)
    assert config.storage.flush == "acks"
    assert config.net.frame_bytes_max == limits.FRAME_BYTES_MAX
    assert {source.origin for source in sources(config)} == {"default"}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_key_can_be_set_by_file_environment_and_flag_and_the_last_counts(tmp_path: Path, key: ConfigKey) -> None:
    if key.name == "net.in_flight_bytes_max":
        value: object = limits.FRAME_BYTES_MAX
    else:
        value = other_value(key)
    file = tmp_path / "c.yaml"
    file.write_text(f"{key.section}:\n  {key.field}: {as_text(value)}\n")

    def got(config: Config) -> object:
        return getattr(getattr(config, key.section), key.field)

    by_file = load(file, {}, {})
    assert got(by_file) == value
    assert origin(by_file, key.name) == f"file {file}"
    by_env = load(None, {key.env: as_text(value)}, {})
    assert got(by_env) == value
    assert origin(by_env, key.name) == f"environment {key.env}"
    if key.default is not None:
        env_over_file = load(file, {key.env: as_text(key.default)}, {})
        assert got(env_over_file) == key.default
        flag_over_env = load(file, {key.env: as_text(key.default)}, {key.name: as_text(value)})
        assert got(flag_over_env) == value
        assert origin(flag_over_env, key.name) == "command line"


def test_every_section_and_key_says_what_it_is_for() -> None:
    assert all(struct.__doc__ for struct in SECTIONS.values())
    assert all(key.doc.endswith(".") for key in KEYS.values())


def test_an_empty_file_and_empty_sections_change_nothing(tmp_path: Path) -> None:
    assert from_yaml(tmp_path, "") == Config()
    assert from_yaml(tmp_path, "storage:\nlisteners:\ntopic_defaults:\n") == Config()


def test_listeners_are_addresses_or_mappings_one_or_many(tmp_path: Path) -> None:
    one = from_yaml(tmp_path, "listeners: {kafka: 'localhost:1'}")
    assert one.listeners == {"kafka": (Listener("localhost", 1),)}
    many = from_yaml(
        tmp_path,
        "listeners:\n  kafka:\n  - '[::1]:2'\n  - {host: 0.0.0.0, port: 3, advertised_host: b.org, advertised_port: 4}\n",
    )
    assert many.listeners == {"kafka": (Listener("::1", 2), Listener("0.0.0.0", 3, "b.org", 4))}
    assert [str(listener) for listener in many.listeners["kafka"]] == ["[::1]:2", "0.0.0.0:3 advertised as b.org:4"]


def test_listen_flags_replace_every_listener_of_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("listeners: {kafka: 'a:1'}")
    env = {"PENSTOCK_LISTENERS__KAFKA": "b:2, c:3"}
    assert load(file, env, {}).listeners["kafka"] == (Listener("b", 2), Listener("c", 3))
    flagged = load(file, env, {"listeners": ["kafka=d:0", "kafka=e:0"]})
    assert flagged.listeners == {"kafka": (Listener("d", 0), Listener("e", 0))}
    assert origin(flagged, "listeners.kafka") == "command line"
    assert load(file, {}, {"listeners": []}).listeners["kafka"] == (Listener("a", 1),)


@pytest.mark.parametrize(
    "address", ["", "9092", ":9092", "host", "host:", "host:x", "host:-1", "host:65536", "::1:9092", "h:²"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(StartError, match=r"listeners.kafka = .*write|listeners.kafka = .*HOST:PORT"):
        load(None, {}, {"listeners": [f"kafka={address}"]})


def test_the_same_address_twice_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "listeners: {kafka: ['h:1', 'h:1']}") == "listeners: duplicate address h:1"
    assert len(from_yaml(tmp_path, "listeners: {kafka: ['h:0', 'h:0']}").listeners["kafka"]) == 2


def test_an_unknown_dialect_is_refused_with_those_served() -> None:
    served = ", ".join(DIALECTS)
    with pytest.raises(StartError, match=f"unknown dialect morse; expected one of {served}"):
        load(None, {}, {"listeners": ["morse=h:1"]})
    assert env_refusal(PENSTOCK_LISTENERS__MORSE="h:1").endswith(f"unknown dialect morse; expected one of {served}")
    with pytest.raises(StartError, match="DIALECT=HOST:PORT"):
        load(None, {}, {"listeners": ["h:1"]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("storag: {}", "unknown key storag; did you mean storage?"),
        ("nonsense: 1", "unknown key nonsense"),
        ("storage: {flsh: os}", "unknown key storage.flsh; did you mean storage.flush?"),
        ("listeners: {kafka: {hots: a, port: 1}}", "unknown key listeners.kafka.hots; did you mean host?"),
        ("listeners: {kafka: {host: a}}", "port"),
        ("listeners: {kafka: {host: a, port: '1'}}", "Expected int, got str for port"),
        ("listeners: {kafka: 9092}", "expected HOST:PORT"),
        ("listeners: {kafka: []}", "listeners.kafka has no address"),
        ("listeners: {kafka: {host: a, port: 1, advertised_port: 0}}", "Expected int >= 1 for advertised_port"),
        ("listeners: {fluxgo: {host: a, port: 1, idle_deadline_ms: 0}}", "Expected int >= 1 for idle_deadline_ms"),
        ("listeners: {kafka: {host: a, port: 1, frame_deadline_ms: -1}}", "Expected int >= 1 for frame_deadline_ms"),
        ("listeners: {flymq: {host: a, port: 1, write_deadline_ms: 30s}}", "got str for write_deadline_ms"),
        ("listeners: {day1: {host: a, port: 1, write_deadline_ms: true}}", "got bool for write_deadline_ms"),
        ("listeners: {day1: {host: a, port: 1, idle_deadline_ms: 1.5}}", "got float for idle_deadline_ms"),
        ("listeners: {day1: {host: a, port: 1, idle_deadline: 1}}", "did you mean idle_deadline_ms?"),
        ("listeners: [a]", "listeners must be a mapping"),
        ("storage: acks", "storage must be a mapping of keys to values, not 'acks'"),
        (
            "listeners: {flymq: {host: h, port: 1, acks: none}}",
            "flymq.acks = none is not supported: records are written",
        ),
        ("listeners: {flymq: {host: h, port: 1, acks: some}}", "listeners.flymq: Invalid enum value 'some' for acks"),
        ("storage: {flush: never}", "storage.flush = 'never' is not one of acks, always, interval, os"),
        ("storage: {flush_interval_ms: '5'}", "storage.flush_interval_ms = '5' is invalid (expected: 1 or more)"),
        ("storage: {flush_interval_ms: 0}", "storage.flush_interval_ms = 0 is invalid (expected: 1 or more)"),
        ("storage: {flush_interval_ms: true}", "is invalid (expected: "),
        ("storage: {flush_interval_ms: }", "storage.flush_interval_ms has no value"),
        ("storage: {flush_threads: 65}", "(expected: 1 to 64)"),
        ("broker: {cluster_id: 'a b'}", "broker.cluster_id = 'a b'"),
        ("topic_defaults: {retention.ms: soon}", "topic_defaults: retention.ms = 'soon' is not an integer"),
        ("topic_defaults: {retention: {ms: 1}}", "must be a single value"),
        ("topic_defaults: {retention: 1}", "unknown topic config retention"),
        ("topic_defaults: {min.compaction.lag.ms: 2, max.compaction.lag.ms: 1}", "min.compaction.lag.ms = 2 is more"),
        ("net: {frame_bytes_max: 2000, in_flight_bytes_max: 1999}", "the largest request could never be received"),
        ("groups: {session_timeout_min_ms: 9, session_timeout_max_ms: 8}", "no member could join"),
        ("groups: {consumer_session_timeout_ms: 5000}", "every member would time out"),
        ("data_dir: [a]", "data_dir must be a path"),
        ("data_dir: ''", "data_dir must be a path"),
        ("- a", "expected a mapping of sections, not list"),
        ("storage: {flush: os", "line 1, column"),
        ("log: {level: info}\nlog: {level: debug}", "line 2, column 1: duplicate key log"),
        ("? [a]\n: b", "line 1"),
        ("\tstorage: {}", "line 1"),
        ("a: !!python/object:os.system {}", "line 1"),
        ("data_dir: ~nobody-is-called-so/data", "data_dir = '~nobody-is-called-so/data': Could not determine home"),
        ("broker: {cluster_id: 2020-13-01}", "not valid YAML: month must be in 1..12"),
        ("a: " + "[" * 5_000, "not valid YAML"),
        (BOMB, "values with its aliases written out, at most 100000 are allowed"),
        (BOMB.replace("[", "!!omap [", 1), "values with its aliases written out"),
        ("a: {b: &it {c: [*it]}}", "a value contains itself"),
    ],
)
def test_a_wrong_file_is_refused_with_one_line_that_names_the_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot read config file .*none.yaml: No such file"):
        load(tmp_path / "none.yaml", {}, {})
    (tmp_path / "latin.yaml").write_bytes(b"data_dir: \xe9\xff")
    with pytest.raises(StartError, match="is not UTF-8"):
        load(tmp_path / "latin.yaml", {}, {})


def test_topic_defaults_take_yaml_values_and_variables(tmp_path: Path) -> None:
    text = "topic_defaults:\n  retention.ms: 5\n  preallocate: false\n  cleanup.policy: [compact, delete]\n"
    config = from_yaml(tmp_path, text, {"PENSTOCK_TOPIC_DEFAULTS__RETENTION_MS": "6"})
    assert config.topic_defaults == {"retention.ms": "6", "preallocate": "false", "cleanup.policy": "compact,delete"}
    assert origin(config, "topic_defaults.retention.ms") == "environment PENSTOCK_TOPIC_DEFAULTS__RETENTION_MS"


def test_a_variable_that_sets_nothing_is_refused_with_the_nearest_that_does() -> None:
    assert env_refusal(PENSTOCK_STORAGE__FLSH="os").endswith("did you mean PENSTOCK_STORAGE__FLUSH?")
    assert env_refusal(PENSTOCK_STORAGE_FLUSH="os").endswith("did you mean PENSTOCK_STORAGE__FLUSH?")
    assert env_refusal(PENSTOCK_DATADIR="x").endswith("did you mean PENSTOCK_DATA_DIR?")
    assert env_refusal(PENSTOCK_ZZZ__QQQ="x") == "environment: PENSTOCK_ZZZ__QQQ matches no key"


def test_variables_of_others_are_left_alone() -> None:
    assert load(None, {"PENSTOCK_SOAK": "1", "HOME": "/", "PENSTOCK": "x"}, {}) == Config()


def test_data_dir_comes_from_file_environment_or_flag(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("data_dir: /a")
    assert load(file, {}, {}).data_dir == Path("/a")
    assert load(file, {"PENSTOCK_DATA_DIR": "/b"}, {}).data_dir == Path("/b")
    assert load(file, {"PENSTOCK_DATA_DIR": "/b"}, {"data_dir": "/c"}).data_dir == Path("/c")
    assert load(file, {"PENSTOCK_DATA_DIR": "~"}, {}).data_dir == Path.home()


@given(st.text(max_size=200))
def test_any_text_as_a_file_is_a_config_or_one_clear_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("config") / "c.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        load(file, {}, {})
    except StartError as error:
        assert "\n" not in str(error)


def test_the_page_of_the_docs_is_up_to_date() -> None:
    assert (ROOT / "docs" / "config.md").read_text() == config_doc.render(), "run `make docs`"
