"""Options by Kafka's names become settings, and a wrong one is an error that names it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.client.kafka_errors import KafkaError
from penstock.client.kafka_settings import KafkaSettings, Sasl, Tls, addresses

AT = {"kafka.bootstrap.servers": "a:1"}


def test_addresses() -> None:
    assert addresses("a:1, b ,[::1]:9093,SASL_SSL://c:2,a:1") == (("a", 1), ("b", 9092), ("::1", 9093), ("c", 2))
    assert [str(one) for one in addresses("a,[::1]")] == ["a:9092", "[::1]:9092"]


@pytest.mark.parametrize("text", ["a:0", "a:65536", "a:b", "a:1:2", ":1", ",", "a b:1"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(KafkaError, match=r"bootstrap\.servers") as refused:
        addresses(text)
    assert refused.value.name == "INVALID_CONFIG"
    assert not refused.value.retriable


def test_options_are_taken_with_and_without_prefix_and_in_any_case() -> None:
    settings = KafkaSettings.of_options(
        {"KAFKA.Bootstrap.Servers": "a:1", "request.timeout.ms": "5", "kafka.client.id": "me", "kafka.acks": "all"}
    )
    assert settings.bootstrap == (("a", 1),)
    assert settings.request_timeout_ms == 5
    assert settings.client_id == "me"
    assert settings.others == {"acks": "all"}
    assert settings.tls is None
    assert settings.sasl is None


def test_defaults_are_those_of_javas_client() -> None:
    assert KafkaSettings.of_options(AT) == KafkaSettings.of("a:1")
    assert KafkaSettings.of("a:1").request_timeout_ms == 30_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.bootstrap.servers": " "}, "bootstrap.servers is required"),
        ({**AT, "kafka.request.timeout.ms": "soon"}, "request.timeout.ms: 'soon'"),
        ({**AT, "kafka.retry.backoff.ms": "0"}, "retry.backoff.ms: '0'"),
        ({**AT, "kafka.security.protocol": "TLS"}, "security.protocol: 'TLS'"),
        ({**AT, "kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({**AT, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "sasl.mechanism: 'GSSAPI'"),
        ({**AT, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "sasl.username"),
        (
            {
                **AT,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "x.Krb5LoginModule required;",
            },
            "sasl.jaas.config",
        ),
        (
            {
                **AT,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "x.PlainLoginModule required;",
            },
            "no username",
        ),
        ({**AT, "kafka.ssl.truststore.type": "JKS"}, "ssl.truststore.type: JKS"),
        ({**AT, "kafka.ssl.keystore.type": "PKCS12"}, "ssl.keystore.type: PKCS12"),
        ({**AT, "kafka.ssl.keystore.key": "k"}, "must be set together"),
        ({**AT, "kafka.ssl.endpoint.identification.algorithm": "x"}, "ssl.endpoint"),
        ({**AT, "kafka.enable.ssl.certificate.verification": "x"}, "certificate.verification"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, str], said: str) -> None:
    with pytest.raises(KafkaError, match=said) as refused:
        KafkaSettings.of_options(options)
    assert refused.value.name == "INVALID_CONFIG"


@pytest.mark.parametrize(
    "login",
    [
        {"sasl.username": 'us"er', "sasl.password": "p;w=1"},
        {
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            r'username="us\"er" password="p;w=1";'
        },
        {"sasl.jaas.config": """x.PlainLoginModule  required\n  username='us"er'  password='p;w=1' ;"""},
    ],
)
def test_a_login_is_taken_from_either_form(login: dict[str, str]) -> None:
    options = {**AT, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "scram-sha-512", **login}
    settings = KafkaSettings.of_options(options)
    assert settings.sasl == Sasl("SCRAM-SHA-512", 'us"er', "p;w=1")
    assert settings.tls is None
    assert "p;w=1" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_tls_is_taken_by_the_names_of_both_clients() -> None:
    java = {**AT, "security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca"}
    java |= {"ssl.keystore.location": "/me", "ssl.key.password": "pw", "ssl.endpoint.identification.algorithm": ""}
    assert KafkaSettings.of_options(java).tls == Tls(
        ca_path="/ca", certificate_path="/me", key_password="pw", checks_hostname=False
    )
    librdkafka = {**AT, "security.protocol": "ssl", "ssl.ca.location": "/ca", "ssl.certificate.location": "/me"}
    librdkafka |= {"ssl.key.location": "/key", "enable.ssl.certificate.verification": "false"}
    assert KafkaSettings.of_options(librdkafka).tls == Tls(
        ca_path="/ca", certificate_path="/me", key_path="/key", checks_certificate=False
    )


def test_a_file_that_is_no_pem_is_named(tmp_path: Path) -> None:
    store = tmp_path / "trust.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(KafkaError, match=r"trust\.jks is not a PEM file"):
        Tls(ca_path=str(store)).context()
    with pytest.raises(KafkaError, match="No such file"):
        Tls(ca_path=str(tmp_path / "none.pem")).context()
    with pytest.raises(KafkaError, match="TLS settings"):
        Tls(identity_pem="-----BEGIN CERTIFICATE-----\n").context()
