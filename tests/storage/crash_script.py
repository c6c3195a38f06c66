"""What a broker does to its data directory, in a process that is killed in the middle of it.

Run as a program it is a nursery: for each line `FOLDER LEDGER` on stdin it forks a child, which waits to be continued and
then runs the script in that folder; the child's process id is printed, and when it has ended, its exit status. What the
child would have acknowledged it writes to the ledger, which is not on the disk that is watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

from penstock.broker import catalogue
from penstock.broker.catalogue import TopicEntry
from penstock.broker.opening import open_partitions
from penstock.broker.partition import Partition
from penstock.coordination.producer_records import encode_snapshot
from penstock.coordination.producers import ProducerTable
from penstock.model import topic_config
from penstock.model.ids import TopicName, TopicPartition
from penstock.records.builder import NewRecord, build_batch
from penstock.storage.data_directory import DataDirectory, Identity
from penstock.storage.segment import file_name

NOW_MS = 1_700_000_000_000
CONFIGS = {"segment.bytes": "400", "index.interval.bytes": "100", "file.delete.delay.ms": "0"}
PRODUCER_ID = 77
_PR_SET_PTRACER = 0x59616D61


def value_at(incarnation: str, partition: int, offset: int) -> bytes:
    return b"%s/%d/%d" % (incarnation.encode(), partition, offset) + b"." * (offset * 7 % 40)


class Broker:
    """The steps of a broker's life, in one thread, each acknowledged after it was made safe."""

    def __init__(self, path: Path, ledger: int) -> None:
        self._ledger = ledger
        self._sequences: dict[str, int] = {}
        self.directory = DataDirectory(path)
        self.directory.identity(Identity("c" * 22, 0))
        self.entries = catalogue.decode(self.directory.read_state(catalogue.FILE_NAME))
        opened = open_partitions(
            self.directory,
            self.entries.values(),
            lambda name: topic_config.parse(self.entries[TopicName(name)].configs, {}),
            "acks",
            self.directory.leader_epoch,
            lambda _: None,
            NOW_MS,
        )
        self.partitions = {str(partition.id): partition for partition in opened.partitions}

    def acknowledge(self, *words: object) -> None:
        os.write(self._ledger, (" ".join(map(str, words)) + "\n").encode())

    def create(self, name: str, incarnation: str, partitions: int) -> None:
        entry = TopicEntry(TopicName(name), uuid.uuid4(), partitions, {**CONFIGS})
        for at in range(partitions):
            config = topic_config.parse(entry.configs, {})
            log = self.directory.create_log(f"{name}-{at}", entry.id, config)
            self.partitions[f"{name}-{at}"] = Partition(
                TopicPartition(entry.name, at),
                log,
                config,
                "acks",
                self.directory.leader_epoch,
                ProducerTable(NOW_MS),
                lambda _: None,
            )
        self.directory.sync()
        self.acknowledge("making", name, incarnation)
        self._save({**self.entries, entry.name: entry})
        self.acknowledge("made", name, incarnation)

    def delete(self, name: str) -> None:
        self.acknowledge("deleting", name)
        self._save({key: entry for key, entry in self.entries.items() if key != name})
        self.acknowledge("deleted", name)
        for folder in [folder for folder in self.partitions if folder.rpartition("-")[0] == name]:
            log = self.partitions.pop(folder).log
            assert log is not None
            self.directory.files.forget(path for segment in log.segments for path in segment.paths())
            self.directory.trash(folder)
        self.directory.empty_trash()

    def _save(self, entries: dict[TopicName, TopicEntry]) -> None:
        self.directory.write_state(catalogue.FILE_NAME, catalogue.encode(entries))
        self.entries = entries

    def append(self, folder: str, incarnation: str, batches: int) -> None:
        partition = self.partitions[folder]
        log = partition.log
        assert log is not None
        offset = log.log_end_offset
        views = []
        for _ in range(batches):
            sequence = self._sequences.get(incarnation + folder, offset)
            values = [value_at(incarnation, partition.id.partition, offset + at) for at in range(2)]
            records = [NewRecord(NOW_MS + offset, None, value) for value in values]
            data = build_batch(records, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)
            views.append(memoryview(data))
            self._sequences[incarnation + folder] = sequence + 2
            offset += 2
        results, _ = partition.append(views, NOW_MS)
        assert all(result.base_offset >= 0 for result in results), results
        job = log.begin_flush()
        assert job is not None
        job.run(self.directory.disk)
        log.end_flush(job)
        partition.flushed()
        self.acknowledge("safe", folder, incarnation, log.flushed_offset)

    def delete_records(self, folder: str, incarnation: str, offset: int) -> None:
        log = self.partitions[folder].log
        assert log is not None
        self.acknowledge("moving", folder, incarnation, offset)
        log.advance_start(offset)
        self.checkpoint()
        self.acknowledge("starts", folder, incarnation, offset)

    def checkpoint(self) -> None:
        disk = self.directory.disk
        logs = [partition.log for partition in self.partitions.values() if partition.log is not None]
        for partition in self.partitions.values():
            log = partition.log
            assert log is not None
            log.active.store_indexes(log.flushed_offset)
            data = encode_snapshot(partition.producers.snapshot())
            disk.replace_whole(log.directory / file_name(log.log_end_offset, ".snapshot"), data, durable=False)
        self.directory.write_checkpoint(self.directory.checkpoint_payload(logs))
        for log in logs:
            log.delete_dropped(log.log_start_offset, NOW_MS)
            log.sweep_doomed(NOW_MS)

    def stop(self) -> None:
        self.directory.close([p.log for p in self.partitions.values() if p.log is not None], clean=True)


def run(path: Path, ledger: int) -> None:
    broker = Broker(path, ledger)
    broker.create("a", "a", 2)
    broker.append("a-0", "a", 3)
    broker.append("a-1", "a", 1)
    broker.checkpoint()
    broker.append("a-0", "a", 4)
    broker.partitions["a-0"].leader_epoch += 1
    broker.append("a-0", "a", 2)
    broker.delete_records("a-0", "a", 7)
    broker.create("b", "b", 1)
    broker.append("b-0", "b", 3)
    broker.checkpoint()
    broker.delete("b")
    broker.create("b", "b2", 1)
    broker.append("b-0", "b2", 1)
    broker.stop()
    broker = Broker(path, ledger)
    broker.append("a-1", "a", 1)
    broker.append("b-0", "b2", 3)
    broker.checkpoint()
    broker.stop()


class Exit(NamedTuple):
    signal: int
    code: int


def main() -> None:
    for line in sys.stdin:
        folder, ledger = line.split()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(AttributeError, OSError):  # let strace attach where only parents may
                ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            try:
                run(Path(folder), os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640))
                code = 0
            finally:
                os._exit(code)
        os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(
            f"{os.WTERMSIG(status)} {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"{os.WTERMSIG(status)} 0",
            flush=True,
        )


if __name__ == "__main__":
    main()
