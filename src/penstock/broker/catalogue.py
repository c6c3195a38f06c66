"""The topics of this broker, as they are kept: names, ids, partition counts and config overrides.

The catalogue is the truth about which topics exist; a folder that it does not name is not served. It is saved whole, in
one small checked file, before a change becomes visible.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from penstock.model.errors import StartError
from penstock.model.ids import TopicName

FILE_NAME = "topics"


class TopicEntry(msgspec.Struct, frozen=True):
    name: TopicName
    id: uuid.UUID
    partitions: int
    configs: dict[str, str] = {}

    def with_partitions(self, partitions: int) -> TopicEntry:
        return TopicEntry(self.name, self.id, partitions, self.configs)

    def with_configs(self, configs: dict[str, str]) -> TopicEntry:
        return TopicEntry(self.name, self.id, self.partitions, configs)


_ENTRIES_PER_PART = 500


def encode(entries: Mapping[TopicName, TopicEntry]) -> bytes:
    return b"".join(encode_in_parts(entries))


def encode_in_parts(entries: Mapping[TopicName, TopicEntry]) -> Iterator[bytes]:
    """The encoded catalogue in parts that take about a millisecond each."""
    yield b'{\n "version": 1,\n "topics": ['
    rest = iter(entries.values())
    separator = b""
    while some := list(islice(rest, _ENTRIES_PER_PART)):
        # indented by its own brackets, which are removed
        yield separator + msgspec.json.format(msgspec.json.encode({"": some}), indent=1)[8:-5]
        separator = b","
    yield b"\n ]\n}" if entries else b"]\n}"


class _File(msgspec.Struct):
    version: int
    topics: list[TopicEntry]


def decode(payload: bytes | None) -> dict[TopicName, TopicEntry]:
    if payload is None:
        return {}
    try:
        file = msgspec.json.decode(payload, type=_File)
    except msgspec.DecodeError as error:
        raise StartError(f"the topic catalogue is not readable: {error}") from error
    if file.version != 1:
        raise StartError(f"the topic catalogue has version {file.version}; this broker reads version 1")
    return {entry.name: entry for entry in file.topics}
