"""SASL from the client's side, against the examples in the RFCs and against servers that cheat."""

from __future__ import annotations

import pytest

from penstock.client.kafka_errors import KafkaError
from penstock.client.kafka_sasl import Plain, Scram, exchange
from penstock.client.kafka_settings import Sasl

# RFC 7677 section 3: user "user", password "pencil".
SHA256_NONCE = "rOprNGfwEbeRWgbNEkqO"
SHA256_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SHA256_CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SHA256_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SHA256_VERDICT = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    return Scram("user", "pencil", "SHA256", SHA256_NONCE)


def test_the_example_of_rfc_7677() -> None:
    client = scram()
    assert client.first() == SHA256_FIRST
    assert client.answer(SHA256_CHALLENGE) == SHA256_FINAL
    assert client.answer(SHA256_VERDICT) is None


def test_the_example_of_rfc_5802() -> None:
    client = Scram("user", "pencil", "SHA1", "fyko+d2lbbFgONRv9qkxdawL")
    assert client.first() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    assert client.answer(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096") == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    assert client.answer(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=") is None


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = scram()
    client.answer(SHA256_CHALLENGE)
    for verdict in (b"v=AAAA", b"v=", b"", b"v=%%%", b"\xff", SHA256_VERDICT[:-2]):
        with pytest.raises(KafkaError) as refused:
            client.answer(verdict)
        assert refused.value.name == "SASL_AUTHENTICATION_FAILED"


def test_what_the_server_says_is_passed_on() -> None:
    client = scram()
    client.answer(SHA256_CHALLENGE)
    with pytest.raises(KafkaError, match="other-error"):
        client.answer(b"e=other-error")


@pytest.mark.parametrize(
    ("challenge", "said"),
    [
        (b"r=another,s=AAAA,i=4096", "nonce"),
        (f"r={SHA256_NONCE},s=AAAA,i=4096".encode(), "nonce"),
        (f"r={SHA256_NONCE}x,s=AAAA,i=100".encode(), "100 SCRAM iterations"),
        (f"r={SHA256_NONCE}x,s=AAAA,i=2000000000".encode(), "2000000000 SCRAM iterations"),
        (f"r={SHA256_NONCE}x,s=AAAA".encode(), "malformed"),
        (f"r={SHA256_NONCE}x,i=4096".encode(), "malformed"),
        (f"r={SHA256_NONCE}x,s=!,i=4096".encode(), "malformed"),
        (f"r={SHA256_NONCE}x,s=AAAA,i=many".encode(), "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"", "nonce"),
    ],
)
def test_a_challenge_that_is_not_one_is_refused(challenge: bytes, said: str) -> None:
    with pytest.raises(KafkaError, match=said):
        scram().answer(challenge)


def test_names_with_commas_and_equal_signs_are_escaped() -> None:
    assert Scram("a=b,c", "p", "SHA512", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


def test_two_nonces_differ() -> None:
    assert Scram("u", "p", "SHA256").first() != Scram("u", "p", "SHA256").first()


def test_plain_sends_name_and_password_once() -> None:
    client = Plain("user", "päss")
    assert client.first() == b"\0user\0p\xc3\xa4ss"
    assert client.answer(b"") is None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_mechanism_decides_the_exchange(mechanism: str) -> None:
    assert isinstance(exchange(Sasl(mechanism, "u", "p")), Scram)
    assert isinstance(exchange(Sasl("PLAIN", "u", "p")), Plain)
