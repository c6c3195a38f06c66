"""What a Kafka client is told: where the brokers are, how long to wait, and how to be let in.

`KafkaSettings.of_options` takes the options of a Kafka client by Kafka's own names, with or without the `kafka.` in front
that Spark's connector puts there, in any case of letters. TLS keys are PEM, by the names that Java's client has for PEM
(KIP-651) and by librdkafka's. A setting is plain data and can be pickled; its repr shows no secret. What it does not know
is in `others`, for the caller to use or to refuse.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.client.kafka_errors import KafkaError

PORT = 9092
PREFIX = "kafka."

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS: Final = {"PLAINTEXT": (False, False), "SSL": (True, False)} | {
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_ADDRESS = re.compile(
    r"(?:[A-Za-z_]+://)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^\[\]:,\s]+))(?::(?P<port>\d{1,5}))?"
)
_JAAS_MODULE = re.compile(r"\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)\b")
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


class Address(tuple[str, int]):
    """Host and port."""

    __slots__ = ()

    def __str__(self) -> str:
        host, port = self
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths and PEM texts; `context` makes of them what a socket needs."""

    ca_path: str = ""
    ca_pem: str = field(default="", repr=False)
    certificate_path: str = ""
    key_path: str = ""
    identity_pem: str = field(default="", repr=False)
    """Private key and certificate chain in one text."""
    key_password: str = field(default="", repr=False)
    checks_hostname: bool = True
    checks_certificate: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises KafkaError when a file is not there or is no PEM."""
        try:
            context = ssl.create_default_context(
                cafile=_pem_path(self.ca_path, "ssl.truststore.location") if self.ca_path else None,
                cadata=self.ca_pem or None,
            )
            self._identify(context)
        except (OSError, ValueError) as error:
            raise _invalid(f"invalid TLS settings: {error}") from None
        context.check_hostname = self.checks_hostname and self.checks_certificate
        if not self.checks_certificate:
            context.verify_mode = ssl.CERT_NONE
        return context

    def _identify(self, context: ssl.SSLContext) -> None:
        if self.certificate_path:
            path = _pem_path(self.certificate_path, "ssl.keystore.location")
            context.load_cert_chain(path, self.key_path or None, self.key_password)
        elif self.identity_pem:
            # OpenSSL reads an identity from files alone; this one is readable by its owner only and goes at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.identity_pem)
                file.flush()
                context.load_cert_chain(file.name, password=self.key_password)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Defaults are those of Java's client."""

    bootstrap: tuple[Address, ...]
    client_id: str = "penstock"
    request_timeout_ms: int = 30_000
    """How long one request waits for its answer."""
    api_timeout_ms: int = 60_000
    """How long a call tries again."""
    connect_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    tls: Tls | None = None
    sasl: Sasl | None = None
    others: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options that this client does not know, by their names without `kafka.`."""

    @classmethod
    def of(cls, bootstrap: str) -> KafkaSettings:
        """Nothing but addresses: `host:port,host:port`."""
        return cls(addresses(bootstrap))

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> KafkaSettings:
        """Raises KafkaError, INVALID_CONFIG, with the name of the option that is wrong."""
        known = {name.lower().removeprefix(PREFIX): str(value) for name, value in options.items()}
        bootstrap = known.pop("bootstrap.servers", "")
        if not bootstrap.strip():
            raise _invalid("bootstrap.servers is required: host:port, or several separated by commas")
        times = {name: _milliseconds(known, option, cls._default(name)) for option, name in _TIMES.items()}
        tls, sasl = _security(known)
        return cls(
            addresses(bootstrap),
            client_id=known.pop("client.id", str(cls._default("client_id"))),
            tls=tls,
            sasl=sasl,
            others=known,
            **times,
        )

    @classmethod
    def _default(cls, name: str) -> int | str:
        default = cls.__dataclass_fields__[name].default
        assert isinstance(default, int | str)
        return default


_TIMES: Final = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "api_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "retry.backoff.max.ms": "retry_backoff_ms_max",
    "metadata.max.age.ms": "metadata_age_ms_max",
}


def addresses(text: str) -> tuple[Address, ...]:
    """`host:port,host:port`; an IPv6 address in brackets; 9092 where no port is said."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _ADDRESS.fullmatch(part)
        port = PORT if match is None or match["port"] is None else int(match["port"])
        if match is None or not 0 < port < 1 << 16:
            raise _invalid(f"bootstrap.servers: {part!r} is not host:port")
        found.append(Address((match["six"] or match["name"], port)))
    if not found:
        raise _invalid("bootstrap.servers names no broker")
    return tuple(dict.fromkeys(found))


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_config, text)


def _milliseconds(options: dict[str, str], name: str, default: int | str) -> int:
    text = options.pop(name, str(default))
    if not text.strip().isdecimal() or not 0 < int(text) < 1 << 31:
        raise _invalid(f"{name}: {text!r} is not a number of milliseconds")
    return int(text)


def _security(options: dict[str, str]) -> tuple[Tls | None, Sasl | None]:
    protocol = options.pop("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise _invalid(f"security.protocol: {protocol!r} is not one of {', '.join(_PROTOCOLS)}")
    with_tls, with_sasl = _PROTOCOLS[protocol]
    tls, sasl = _tls(options), _sasl(options, with_sasl)
    return (tls if with_tls else None), sasl


def _sasl(options: dict[str, str], wanted: bool) -> Sasl | None:
    mechanism = options.pop("sasl.mechanism", options.pop("sasl.mechanisms", "")).strip().upper()
    jaas = options.pop("sasl.jaas.config", "")
    username, password = options.pop("sasl.username", ""), options.pop("sasl.password", "")
    if not wanted:
        return None
    if mechanism not in MECHANISMS:
        raise _invalid(f"sasl.mechanism: {mechanism or 'nothing'!r} is not one of {', '.join(MECHANISMS)}")
    if jaas:
        username, password = _jaas_login(jaas)
    if not username:
        raise _invalid("SASL requires sasl.jaas.config, or sasl.username and sasl.password")
    return Sasl(mechanism, username, password)


def _jaas_login(text: str) -> tuple[str, str]:
    """User name and password of a login module: `org...ScramLoginModule required username="u" password="p";`."""
    module = _JAAS_MODULE.match(text)
    if module is None or not module[1].endswith(("PlainLoginModule", "ScramLoginModule")):
        raise _invalid("sasl.jaas.config: expected PlainLoginModule or ScramLoginModule")
    found = {
        name: re.sub(r"\\(.)", r"\1", double or single or bare)
        for name, double, single, bare in _JAAS_OPTION.findall(text, module.end())
    }
    if "username" not in found or "password" not in found:
        raise _invalid("sasl.jaas.config has no username and password")
    return found["username"], found["password"]


def _tls(options: dict[str, str]) -> Tls:
    for store in ("truststore", "keystore"):
        kind = options.pop(f"ssl.{store}.type", "PEM").strip().upper()
        if kind != "PEM":
            raise _invalid(f"ssl.{store}.type: {kind} is a Java format; export it as PEM and set ssl.{store}.type=PEM")
        # Guards a Java store; a PEM file has no password but its key's.
        options.pop(f"ssl.{store}.password", None)
    key, chain = options.pop("ssl.keystore.key", ""), options.pop("ssl.keystore.certificate.chain", "")
    if bool(key) != bool(chain):
        raise _invalid("ssl.keystore.key and ssl.keystore.certificate.chain must be set together")
    checks = options.pop("enable.ssl.certificate.verification", "true").strip().lower()
    if checks not in ("true", "false"):
        raise _invalid(f"enable.ssl.certificate.verification: {checks!r} is neither true nor false")
    algorithm = options.pop("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", "", "none"):
        raise _invalid(f"ssl.endpoint.identification.algorithm: {algorithm!r} is neither https nor none")
    return Tls(
        ca_path=options.pop("ssl.ca.location", options.pop("ssl.truststore.location", "")),
        ca_pem=options.pop("ssl.ca.pem", options.pop("ssl.truststore.certificates", "")),
        certificate_path=options.pop("ssl.certificate.location", options.pop("ssl.keystore.location", "")),
        key_path=options.pop("ssl.key.location", ""),
        identity_pem=f"{key}\n{chain}\n" if key else "",
        key_password=options.pop("ssl.key.password", ""),
        checks_hostname=algorithm == "https",
        checks_certificate=checks == "true",
    )


def _pem_path(path: str, option: str) -> str:
    if b"-----BEGIN" not in Path(path).read_bytes():
        raise ValueError(f"{path} is not a PEM file; export Java key stores as PEM ({option})")
    return path
