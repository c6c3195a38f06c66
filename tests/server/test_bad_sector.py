"""A bad sector under a running broker, from a Kafka client's side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.kafka import KafkaClient
from penstock.client.kafka_errors import KafkaError
from penstock.client.kafka_settings import KafkaSettings, addresses
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records

SERVE = """
import errno, os, sys
from penstock.storage import system
place, bad = sys.argv[1:]
log = os.path.join(place, "t-0", "00000000000000000000.log")

def failing(read):
    def checked(fd, wanted, position):
        length = wanted if isinstance(wanted, int) else len(wanted)
        if os.path.exists(bad) and os.path.samestat(os.fstat(fd), os.stat(log)):
            sector = int(open(bad).read())
            if position < sector + 512 and position + length > sector:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, wanted, position)
    return checked

class Calls(system.SystemCalls):
    def __init__(self):
        super().__init__()
        self.read, self.read_now = failing(self.read), failing(self.read_now)

from penstock.storage import files
files.SystemCalls = Calls
sys.argv = ["penstock", "serve", "--data-dir", place, "--listen", "kafka=127.0.0.1:0"]
from penstock.cli.main import main
main()
"""


@contextmanager
def serving(place: Path, bad: Path, log: Path) -> Iterator[str]:
    """The address of a broker that is killed in the end."""
    command = [sys.executable, "-c", SERVE, str(place), str(bad)]
    with (
        log.open("a") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            assert said[:2] == ["listening", "kafka"], log.read_text()
            yield said[2]
        finally:
            process.kill()


def produce(client: KafkaClient, first: int, count: int) -> None:
    for at in range(first, first + count, 50):
        batch = build_batch([NewRecord(1, None, b"value %06d" % n) for n in range(at, at + 50)])
        assert client.produce({("t", 0): bytes(batch)})["t", 0].base_offset == at  # type: ignore[index]


def values(client: KafkaClient, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        (fetched,) = client.fetch({("t", 0): len(found)}).values()
        for batch in whole_batches(fetched.records):
            assert batch.crc_is_right()
            records = [record for record in read_records(batch) if record.offset >= len(found)]
            assert [record.offset for record in records] == list(range(len(found), len(found) + len(records)))
            found += [record.value for record in records]
    return found


def test_fetch_of_a_bad_sector_is_a_storage_error_and_costs_no_record(tmp_path: Path) -> None:
    place, bad, log = tmp_path / "data", tmp_path / "bad", tmp_path / "log"
    with serving(place, bad, log) as address, KafkaClient(address) as client:
        client.create_topic("t", 1)
        produce(client, 0, 3000)
        position = (place / "t-0" / "00000000000000000000.log").stat().st_size // 2  # of the batch with offset 1500
        bad.write_text(str(position // 512 * 512))
        with (
            KafkaClient(KafkaSettings(addresses(address), api_timeout_ms=0)) as impatient,
            pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"),
        ):
            impatient.fetch({("t", 0): 1510}, partition_bytes_max=1)
        produce(client, 3000, 500)
        bad.unlink()
        assert values(client, 3500) == [b"value %06d" % n for n in range(3500)]
    with serving(place, bad, log) as address, KafkaClient(address) as client:
        assert values(client, 3500) == [b"value %06d" % n for n in range(3500)]
    said = log.read_text()
    assert "t-0: offset 1510 cannot be read" in said
    assert "00000000000000000000.log: reading" in said
    assert "torn tail" not in said
    assert "Traceback" not in said
