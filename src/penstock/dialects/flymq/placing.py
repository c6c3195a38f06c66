"""Where produced records go: topics made when they are missing, partitions chosen, runs appended, offsets told apart.

A run may be spread over partitions (FNV-1a of the key, round robin without one), and records with timestamps of their own
are cut where the timestamp changes. Each piece is one append; what became of each record is put together again in the
order of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, NamedTuple

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Bytes, NewTopic, RunAppended, TopicResult
from penstock.dialects.flymq.turns import follow
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.ids import topic_name
from penstock.model.listeners import ListenerSettings
from penstock.model.pending import Pending, gather, when
from penstock.model.slices import Work, all_of, at_once
from penstock.records.builder import NewRecord
from penstock.records.record import Headers

TIMESTAMP_CHANGES_MAX = 8
"""A run whose timestamp changes more often than at every eighth record becomes one batch record by record: slower to make
than a bare run, but not many small batches."""
PLACED_AT_ONCE = 1_000
"""Records placed without a pause. More records are placed in slices with batches of their own."""
SPREAD_AT_ONCE = 32
"""Partitions that records are spread over without a pause."""
HASHED_AT_ONCE = 8 * 1024
"""Bytes of a key hashed without a pause: about a millisecond."""
_FNV_START = 0x811C9DC5
NEEDS_KEY = "a record of a compacted topic needs a key"


class Contiguous(NamedTuple):
    """Every record of the run is in this partition, from `base_offset` on."""

    partition: int
    base_offset: int


class Placed(NamedTuple):
    """What became of one record."""

    fault: Fault
    partition: int = -1
    offset: int = -1
    text: str = ""


Outcome = Contiguous | list[Placed]


class Columns(NamedTuple):
    """Records of a run, a list for each of their fields."""

    values: Sequence[Bytes]
    keys: Sequence[Bytes | None] | None = None
    timestamps: Sequence[int] | int = 0
    """One for all, or one each; 0 or less is the time of the append."""
    headers: Sequence[Headers] | None = None


class Placing:
    def __init__(self, engine: EmbeddedEngine, settings: ListenerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._partitions: dict[str, int] = {}
        self._catalogue_version = -1
        self._turns: dict[str, int] = {}
        """Records without a key so far, of topics with several partitions."""

    def partitions(self, topic: str) -> int:
        """How many the topic has; 0 when there is none."""
        engine = self._engine
        if self._catalogue_version != engine.catalogue_version:
            self._catalogue_version = engine.catalogue_version
            self._partitions = {}
        count = self._partitions.get(topic)
        if count is None:
            info = engine.topic(topic)
            count = 0 if info is None else len(info.partitions)
            if count:
                self._partitions[topic] = count
            else:
                self._turns.pop(topic, None)
        return count

    def create(self, topic: str) -> Pending[Any]:
        """Make a topic that a produce names; completes with None or a BrokerError. Raises BrokerError if it may not be."""
        topic_name(topic)
        if not self._settings.creates_topics:
            raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"topic not found: {topic}")
        made = self._engine.create_topics([NewTopic(topic, self._settings.partitions or 1)], validate_only=False)

        def created(results: list[TopicResult]) -> None:
            result = results[0]
            # Somebody else may have made it meanwhile.
            if result.fault not in (NO_FAULT, Fault.TOPIC_EXISTS):
                raise BrokerError(result.fault, result.text or "")

        created_later: Pending[Any] = follow(made, created)
        return created_later

    def write(
        self, topic: str, partition: int, values: Sequence[Bytes], keys: Sequence[Bytes | None] | None, timestamp: int
    ) -> RunAppended | Outcome | Pending[RunAppended] | Pending[Outcome]:
        """Append the records of as many requests to one partition, with one timestamp; 0 or less is the time of the append.
        `outcome_of` tells what the result means."""
        appended = self._engine.append_run(topic, partition, values, keys, self._settings.acks, timestamp)
        if type(appended) is RunAppended and appended.fault is Fault.INVALID_RECORD:
            return self._place_in(topic, partition, Columns(values, keys, timestamp))
        return appended

    def _append_run(
        self, topic: str, partition: int, values: Sequence[Bytes], keys: Sequence[Bytes | None] | None, timestamp: int
    ) -> RunAppended | Pending[RunAppended]:
        return self._engine.append_run(topic, partition, values, keys, self._settings.acks, timestamp)

    def place(self, topic: str, asked: int, records: Columns) -> Outcome | Pending[Outcome]:
        """Append to partition `asked`; to chosen ones when it is negative. The topic is there."""
        count = self.partitions(topic)
        if is_long(records, asked, count):
            return self._engine.in_slices(self.place_in_slices(topic, asked, records), borrows=True)  # type: ignore[no-any-return]
        if asked >= 0 or count <= 1:
            return self._place_in(topic, max(asked, 0), records)
        return self._spread(topic, self.choose(topic, records, count), records)

    def place_in_slices(self, topic: str, asked: int, records: Columns) -> Work[Outcome]:
        """As `place`, for many records, which are appended in several steps."""
        count = self.partitions(topic)
        places: dict[int, list[int]] = {}
        if asked >= 0 or count <= 1:
            places[max(asked, 0)] = list(range(len(records.values)))
        else:
            chosen = yield from self._choose_in_slices(topic, records, count)
            for at, partition in enumerate(chosen):
                places.setdefault(partition, []).append(at)
        pieces: list[list[int]] = []
        outcomes: list[Any] = []
        for partition, rows in places.items():
            for piece in _pieces(rows, records.headers):
                pieces.append(piece)
                outcomes.append(self._place_in(topic, partition, _picked(records, piece)))
                yield None
        results = yield from all_of(outcomes)
        placed = [Placed(Fault.UNKNOWN)] * len(records.values)
        for piece, outcome in zip(pieces, results, strict=True):
            for at, row in zip(piece, each(outcome, len(piece)), strict=True):
                placed[at] = row
            yield None
        return placed

    def choose(self, topic: str, records: Columns, count: int) -> list[int]:
        """A partition for each record."""
        return at_once(self._choose_in_slices(topic, records, count))

    def _choose_in_slices(self, topic: str, records: Columns, count: int) -> Work[list[int]]:
        turn = self._turns.get(topic, 0)
        chosen = []
        for key in records.keys or [None] * len(records.values):
            if key:
                hashed = fnv1a(bytes(key)) if len(key) <= HASHED_AT_ONCE else (yield from _fnv1a_in_slices(bytes(key)))
                chosen.append(hashed % count)
            else:
                chosen.append(turn % count)
                turn += 1
            if len(chosen) % PLACED_AT_ONCE == 0:
                yield None
        self._turns[topic] = turn
        return chosen

    def refusal(self, topic: str, records: Columns) -> BrokerError | None:
        """Why the topic's rules refuse one of the records, or None. The rules are the same for all partitions, so a request
        that is checked before it is divided is written as a whole or not at all."""
        found = self._engine.partition(topic, 0)
        if found is None:
            return None
        values, keys, timestamps, _ = records
        if found.compacts and not all(keys or [None] * len(values)):
            return BrokerError(Fault.INVALID_RECORD, NEEDS_KEY)
        stamps = [timestamp for timestamp in _each_of(timestamps) if timestamp > 0]
        return found.timestamp_refusal(min(stamps), max(stamps), self._engine.now_ms()) if stamps else None

    def _place_in(self, topic: str, partition: int, records: Columns) -> Outcome | Pending[Outcome]:
        found = self._engine.partition(topic, partition)
        if found is not None and found.compacts and records.keys is not None and not all(records.keys):
            return self._place_keyed(topic, partition, records, records.keys)
        pieces = self._appended(topic, partition, records)
        size = len(records.values)
        if len(pieces) == 1:
            return when(pieces[0][1], lambda appended: _told(partition, size, appended))
        counts = [count for count, _ in pieces]
        return when(
            gather([appended for _, appended in pieces]),
            lambda results: _joined([_told(partition, *piece) for piece in zip(counts, results, strict=True)], counts),
        )

    def _place_keyed(
        self, topic: str, partition: int, records: Columns, keys: Sequence[Bytes | None]
    ) -> Outcome | Pending[Outcome]:
        """A compacted topic takes records with keys alone; those of other requests must not be refused with the rest."""
        keyed = [at for at, key in enumerate(keys) if key]

        def put_back(outcome: Outcome) -> Outcome:
            rows = [Placed(Fault.INVALID_RECORD, partition, -1, NEEDS_KEY)] * len(keys)
            for at, row in zip(keyed, each(outcome, len(keyed)), strict=True):
                rows[at] = row
            return rows

        if not keyed:
            return put_back([])
        placed: Any = self._place_in(topic, partition, _picked(records, keyed))
        together: Outcome | Pending[Outcome] = when(placed, put_back)
        return together

    def _spread(self, topic: str, chosen: list[int], records: Columns) -> Outcome | Pending[Outcome]:
        """A part for each partition, in the order of the run within it."""
        places: dict[int, list[int]] = {}
        for at, partition in enumerate(chosen):
            places.setdefault(partition, []).append(at)
        parts: list[Any] = [
            self._place_in(topic, partition, _picked(records, rows)) for partition, rows in places.items()
        ]

        def put_back(outcomes: list[Outcome]) -> Outcome:
            if len(outcomes) == 1:
                return outcomes[0]
            placed = [Placed(Fault.UNKNOWN)] * len(chosen)
            for rows, outcome in zip(places.values(), outcomes, strict=True):
                for at, row in zip(rows, each(outcome, len(rows)), strict=True):
                    placed[at] = row
            return placed

        together: Outcome | Pending[Outcome] = when(gather(parts), put_back)
        return together

    # ------------------------------------------------------------------------------------------------ appending

    def _appended(
        self, topic: str, partition: int, records: Columns
    ) -> list[tuple[int, RunAppended | Pending[RunAppended]]]:
        """The appends that the records became, each with how many it took. Where the topic's rules are against a timestamp,
        each run of one timestamp is an append: the others must not be refused with it."""
        values, keys, timestamps, headers = records
        bare = headers is None or not any(headers)
        if isinstance(timestamps, int):
            if bare:
                return [(len(values), self._append_run(topic, partition, values, keys, timestamps))]
            return [(len(values), self._append_each(topic, partition, records))]
        runs = [(timestamp, len(list(run))) for timestamp, run in groupby(timestamps)]
        together = not bare or (len(runs) > 1 and len(runs) * TIMESTAMP_CHANGES_MAX > len(values))
        if together and self.refusal(topic, records) is None:
            return [(len(values), self._append_each(topic, partition, records))]
        pieces = []
        start = 0
        for timestamp, count in runs:
            some = _picked(records, range(start, start + count))
            if bare:
                pieces.append((count, self._append_run(topic, partition, some.values, some.keys, timestamp)))
            else:
                pieces.append((count, self._append_each(topic, partition, some)))
            start += count
        return pieces

    def _append_each(self, topic: str, partition: int, records: Columns) -> RunAppended | Pending[RunAppended]:
        values, keys, timestamps, headers = records
        count = len(values)
        now_ms = self._engine.now_ms()
        stamps = [timestamps] * count if isinstance(timestamps, int) else timestamps
        rows = [
            NewRecord(stamp if stamp > 0 else now_ms, key, value, some)
            for stamp, key, value, some in zip(
                stamps, keys or [None] * count, values, headers or [()] * count, strict=True
            )
        ]
        return self._engine.append_new(topic, partition, rows, self._settings.acks)


def outcome_of(written: RunAppended | Outcome, partition: int, count: int) -> Outcome:
    """What became of the records of a run of so many that went to `partition`, or to where the outcome says."""
    return _told(partition, count, written) if isinstance(written, RunAppended) else written


def _told(partition: int, size: int, appended: RunAppended) -> Outcome:
    fault, base_offset, count, text = appended
    if fault is NO_FAULT:
        return Contiguous(partition, base_offset)
    placed = [Placed(NO_FAULT, partition, base_offset + at) for at in range(count)]
    return placed + [Placed(fault, partition, -1, text or fault.value)] * (size - count)


def _joined(outcomes: list[Outcome], counts: list[int]) -> Outcome:
    """Pieces of one partition, one behind the other."""
    first = outcomes[0]
    end = 0
    if isinstance(first, Contiguous):
        end = first.base_offset
        for outcome, count in zip(outcomes, counts, strict=True):
            if not isinstance(outcome, Contiguous) or outcome.base_offset != end:
                break
            end += count
        else:
            return first
    return list(chain.from_iterable(each(outcome, count) for outcome, count in zip(outcomes, counts, strict=True)))


def each(outcome: Outcome, count: int) -> list[Placed]:
    if isinstance(outcome, Contiguous):
        partition, base_offset = outcome
        return [Placed(NO_FAULT, partition, base_offset + at) for at in range(count)]
    return outcome


def _each_of(timestamps: Sequence[int] | int) -> Sequence[int]:
    return [timestamps] if isinstance(timestamps, int) else timestamps


def _picked(records: Columns, rows: Sequence[int]) -> Columns:
    values, keys, timestamps, headers = records
    return Columns(
        [values[at] for at in rows],
        None if keys is None else [keys[at] for at in rows],
        timestamps if isinstance(timestamps, int) else [timestamps[at] for at in rows],
        None if headers is None else [headers[at] for at in rows],
    )


def _pieces(rows: list[int], headers: Sequence[Headers] | None) -> Iterator[list[int]]:
    """The rows of one partition, in pieces that are placed without a pause. A header counts as a record."""
    if headers is None or not any(headers):
        for start in range(0, len(rows), PLACED_AT_ONCE):
            yield rows[start : start + PLACED_AT_ONCE]
        return
    piece: list[int] = []
    left = PLACED_AT_ONCE
    for at in rows:
        piece.append(at)
        left -= 1 + len(headers[at])
        if left <= 0:
            yield piece
            piece, left = [], PLACED_AT_ONCE
    if piece:
        yield piece


def is_long(records: Columns, asked: int, partitions: int) -> bool:
    """Whether placing the records takes long: many records, many partitions, or a long key."""
    count = len(records.values)
    if count > PLACED_AT_ONCE:
        return True
    if asked >= 0 or partitions <= 1:
        return False
    if count > SPREAD_AT_ONCE and partitions > SPREAD_AT_ONCE:
        return True
    return records.keys is not None and any(key and len(key) > HASHED_AT_ONCE for key in records.keys)


@lru_cache(maxsize=16_384)
def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits: how FlyMQ's clients and servers spread keys."""
    return _fnv1a(key, _FNV_START)


def _fnv1a(key: bytes, value: int) -> int:
    for byte in key:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _fnv1a_in_slices(key: bytes) -> Work[int]:
    value = _FNV_START
    for start in range(0, len(key), HASHED_AT_ONCE):
        value = _fnv1a(key[start : start + HASHED_AT_ONCE], value)
        yield None
    return value
