"""What one client writes, every client reads: each codec, keys, headers, nulls and timestamps."""

from __future__ import annotations

import pytest

from penstock import Broker
from penstock.records.compression import Codec
from penstock.storage.segment_reader import list_segments, read_segment
from tests.clients.drivers import CLIENTS, CODECS, Client, Kcat, Seen, Sent

NOW_MS = 1_700_000_000_000
MIXED = (
    *(Sent(b"value %d" % n, b"key %d" % (n % 7), (), NOW_MS + n) for n in range(40)),
    Sent(b"with headers", b"k", (("trace", b"1a2b"), ("origin", b"test")), NOW_MS + 40),
    Sent(None, b"tombstone", (), NOW_MS + 41),
    Sent("grüße, 世界".encode(), "schlüssel".encode(), (), NOW_MS + 42),
    Sent(b"x" * 10_000, b"long", (), NOW_MS + 43),
)
CASES = [
    pytest.param(client, codec, id=f"{client.name}-{codec}")
    for client in CLIENTS
    for codec in CODECS
    if codec in client.codecs
]


def installed(client: Client) -> None:
    if isinstance(client, Kcat) and client.path is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")


def expected(writer: Client, record: Sent, offset: int, seen: Seen) -> Seen:
    """What a reader must see of `record`; timestamps that the writer chose by itself are taken as they come."""
    timestamp = record.timestamp_ms if writer.has_timestamps and record.timestamp_ms is not None else seen.timestamp_ms
    return Seen(offset, record.key, record.value, record.headers, timestamp)


@pytest.mark.parametrize(("writer", "codec"), CASES)
def test_every_client_reads_what_a_client_wrote(broker: Broker, topic: str, writer: Client, codec: str) -> None:
    installed(writer)
    offsets = writer.write(broker.bootstrap, topic, MIXED, codec=codec)
    assert offsets in ([], list(range(len(MIXED))))
    for reader in CLIENTS:
        if codec not in reader.codecs or (isinstance(reader, Kcat) and reader.path is None):
            continue
        seen = reader.read(broker.bootstrap, topic, len(MIXED))
        want = [expected(writer, record, at, found) for at, (record, found) in enumerate(zip(MIXED, seen, strict=True))]
        assert seen == want, reader.name
    segments = list_segments(broker.data_dir / f"{topic}-0")
    assert {batch.compression for path in segments for _, batch in read_segment(path)} >= {Codec[codec.upper()]}
