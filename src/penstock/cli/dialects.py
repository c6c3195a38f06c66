"""`--dialect NAME` of `produce` and `consume`: its listener's address, and a connection whose failures are one line."""

from __future__ import annotations

import contextlib
import enum
import struct
from collections.abc import Iterator
from typing import Annotated

import typer

from penstock.cli.connection import TIMEOUT_S, reach
from penstock.cli.dialect_clients import CLIENTS, DialectClient
from penstock.cli.failure import Failed, Misused
from penstock.model.listeners import PORTS


class DialectName(enum.StrEnum):
    fluxgo = "fluxgo"
    minikafka = "minikafka"
    rustlog = "rustlog"
    flymq = "flymq"
    day1 = "day1"


DialectOption = Annotated[
    DialectName | None,
    typer.Option(
        "--dialect",
        help="Protocol to use instead of Kafka's. Connects to --bootstrap or to the dialect's port on 127.0.0.1.",
    ),
]


def given(context: typer.Context, option: str) -> bool:
    """Whether it stands on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def dialect_address(context: typer.Context, name: DialectName, bootstrap: str) -> str:
    """Where that listener is: as given on the command line, else on this machine at the dialect's own port. What the
    environment says is where Kafka is spoken."""
    return bootstrap if given(context, "bootstrap") else f"127.0.0.1:{PORTS[name]}"


@contextlib.contextmanager
def speaking(name: DialectName, address: str, timeout_s: float = TIMEOUT_S) -> Iterator[DialectClient]:
    """A connected client; whatever goes wrong with it becomes `Failed`."""
    addresses = reach(address, name)
    try:
        with contextlib.closing(client := CLIENTS[name](addresses, timeout_s)):
            try:
                yield client
            except client.failure as error:
                raise Failed(f"{name} at {address}: {error}") from None
    except (struct.error, OverflowError) as error:
        raise Misused(f"a number is out of range for --dialect {name}: {error}") from None
    except TimeoutError:
        raise Failed(f"{name} at {address}: the broker does not answer") from None
    except OSError as error:
        raise Failed(f"{name} at {address}: {error.strerror or error}") from None
