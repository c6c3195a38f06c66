"""ApiVersions, versions 0 to 4: the answer that every connection begins with, made once per version (KIP-511, KIP-584).

Its header never has a tag buffer, and a request of a version from the future is answered in version 0 with the range
that this broker knows.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.dialects.kafka.apis import APIS, Advertised, ApiKey
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.wire import I16, I32, I64, compact_string, uvarint
from penstock.model.errors import Fault

_API = APIS[ApiKey.API_VERSIONS]
_FIRST_FLEXIBLE = _API.first_flexible or 0
_VERSION_OF_FEATURES_FROM_ZERO = 4

_ENTRY = struct.Struct(">hhh")
_HEAD = struct.Struct(">ii")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Feature(NamedTuple):
    """A feature of the cluster that clients look at: `transaction.version`, `group.version`."""

    name: str
    version_min: int
    version_max: int
    finalized: int
    """The level in force; 0: supported but not in force."""


def software_is_valid(name: str, version: str) -> bool:
    """Whether the client's software may be called that (version 3 on); if not, the answer is INVALID_REQUEST."""
    return _SOFTWARE.fullmatch(name) is not None and _SOFTWARE.fullmatch(version) is not None


class ApiVersionsAnswers:
    """The answers of one listener."""

    __slots__ = ("_advertised", "_bodies", "_features", "_features_epoch")

    def __init__(
        self, advertised: Sequence[Advertised], features: Sequence[Feature] = (), features_epoch: int = 0
    ) -> None:
        self._advertised = tuple(advertised)
        self._features = tuple(features)
        self._features_epoch = features_epoch
        self._bodies: dict[int, bytes] = {}

    def answer(self, version: int, correlation_id: int) -> bytes:
        """The whole frame of the answer in `version`, or the fallback when that is not known."""
        body = self._bodies.get(version)
        if body is None:
            if not _API.version_min <= version <= _API.version_max:
                return self._unsupported(correlation_id)
            body = self._bodies[version] = self._body(version, 0, self._advertised)
        return _HEAD.pack(4 + len(body), correlation_id) + body

    def refusal(self, version: int, correlation_id: int, fault: Fault) -> bytes:
        """An error in the request's version, with no APIs."""
        body = self._body(version, CODES[fault], ())
        return _HEAD.pack(4 + len(body), correlation_id) + body

    def _unsupported(self, correlation_id: int) -> bytes:
        # franz-go reads the first entry, Java looks ApiVersions up, kafka-python takes its maximum.
        own = Advertised(int(_API.key), _API.advertised_min, _API.version_max)
        body = self._body(0, CODES[Fault.UNSUPPORTED_VERSION], (own,))
        return _HEAD.pack(4 + len(body), correlation_id) + body

    def _body(self, version: int, error: int, entries: Sequence[Advertised]) -> bytes:
        flexible = version >= _FIRST_FLEXIBLE
        out = bytearray(I16.pack(error))
        out += uvarint(len(entries) + 1) if flexible else I32.pack(len(entries))
        for entry in entries:
            out += _ENTRY.pack(*entry)
            if flexible:
                out += b"\x00"
        if version >= 1:
            out += I32.pack(0)
        if flexible:
            out += self._tags(version) if error == 0 else b"\x00"
        return bytes(out)

    def _tags(self, version: int) -> bytes:
        supported = [
            compact_string(feature.name) + struct.pack(">hhB", feature.version_min, feature.version_max, 0)
            for feature in self._features
            if version >= _VERSION_OF_FEATURES_FROM_ZERO or feature.version_min > 0
        ]
        finalized = [
            compact_string(feature.name) + struct.pack(">hhB", feature.finalized, feature.finalized, 0)
            for feature in self._features
            if feature.finalized > 0
        ]
        tags: list[tuple[int, bytes]] = []
        if supported:
            tags.append((0, uvarint(len(supported) + 1) + b"".join(supported)))
        if finalized:
            tags.append((1, I64.pack(self._features_epoch)))
            tags.append((2, uvarint(len(finalized) + 1) + b"".join(finalized)))
        return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)
