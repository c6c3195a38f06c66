"""The dialects, and what can be set of a listener: where it listens, and what its protocol cannot say itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MEBIBYTE = 1024 * 1024


ACKS: Mapping[str, int] = MappingProxyType({"all": -1, "leader": 1})
ACKS_NAMES: Mapping[int, str] = MappingProxyType({number: name for name, number in ACKS.items()})


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    acks: int = 1
    """When a produce is answered if the protocol has no acks field: -1 after the flush, 1 after the write. The answer
    always has the offset."""
    creates_topics: bool = True
    """Whether a produce to an unknown topic makes it."""
    partitions: int = 1
    """Of a topic made by a produce; 0: as many as the partition asked for needs."""
    partitions_max: int = 1_024
    """The most that a produce may make of a topic."""
    frame_bytes_max: int = 10 * MEBIBYTE
    advertised_host: str = "127.0.0.1"
    advertised_port: int = 0


PORTS: Mapping[str, int] = MappingProxyType(
    {"kafka": 9092, "fluxgo": 9898, "minikafka": 9093, "rustlog": 9094, "flymq": 9095, "day1": 9096}
)

DEFAULTS: Mapping[str, ListenerSettings] = MappingProxyType(
    {
        "fluxgo": ListenerSettings(acks=-1, partitions=0, frame_bytes_max=10 * MEBIBYTE),
        "minikafka": ListenerSettings(acks=1, partitions=4, frame_bytes_max=100_000_000),
        "rustlog": ListenerSettings(acks=1, creates_topics=False, frame_bytes_max=10 * MEBIBYTE),
        "flymq": ListenerSettings(acks=1, partitions=1, frame_bytes_max=32 * MEBIBYTE),
        "day1": ListenerSettings(acks=-1, partitions=0, frame_bytes_max=8 * MEBIBYTE),
    }
)
"""What the original brokers do."""
