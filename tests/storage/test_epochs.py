from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.epochs import FILE_NAME, EpochsDamaged, EpochStart, LeaderEpochs
from penstock.storage.files import Disk


def epochs_of(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(Disk(), path)
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_the_file_is_kafkas_format_byte_for_byte(tmp_path: Path) -> None:
    epochs_of(tmp_path, (0, 0), (3, 17))
    assert (tmp_path / FILE_NAME).read_bytes() == b"0\n2\n0 0\n3 17\n"
    assert LeaderEpochs(Disk(), tmp_path).load() == [EpochStart(0, 0), EpochStart(3, 17)]


def test_an_older_or_known_epoch_changes_nothing(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 0), (5, 10), (5, 20), (4, 30))
    assert epochs.load() == [EpochStart(2, 0), EpochStart(5, 10)]
    assert epochs.latest == 5


def test_an_epoch_in_which_nothing_was_written_gives_way(tmp_path: Path) -> None:
    assert epochs_of(tmp_path, (2, 0), (5, 10), (6, 10)).load() == [EpochStart(2, 0), EpochStart(6, 10)]


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (0, (0, 5)), (1, (1, 10)), (2, (1, 10)), (4, (1, 10)), (5, (5, 99)), (6, (-1, -1))],
)
def test_end_offset_follows_kip_101(tmp_path: Path, epoch: int, answer: tuple[int, int]) -> None:
    assert epochs_of(tmp_path, (1, 5), (5, 10)).end_offset(epoch, 99) == answer


def test_without_epochs_nothing_is_known(tmp_path: Path) -> None:
    epochs = LeaderEpochs(Disk(), tmp_path)
    assert (epochs.latest, epochs.end_offset(0, 9), epochs.epoch_at(0)) == (-1, (-1, -1), -1)


starts = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=12).map(
    lambda steps: [
        (sum(step for step, _ in steps[: at + 1]), sum(step for _, step in steps[: at + 1])) for at in range(len(steps))
    ]
)


@given(entries=starts, start=st.integers(0, 70), end=st.integers(0, 70))
def test_cuts_keep_the_epoch_of_every_offset_that_stays(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, int]], start: int, end: int
) -> None:
    folder = tmp_path_factory.mktemp("epochs")
    epochs = epochs_of(folder, *entries)
    before = {offset: epochs.epoch_at(offset) for offset in range(80)}
    epochs.cut_end(end)
    epochs.cut_start(start)
    for cut in (epochs, LeaderEpochs(Disk(), folder)):
        assert all(cut.epoch_at(offset) == before[offset] for offset in range(start, end))
        assert all(entry.start_offset < end for entry in cut.load()) or start >= end
        assert all(entry.start_offset >= start for entry in cut.load())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\n1 0\n",
        b"0\n1\nx 0\n",
        b"0\n1\n1 2 3\n",
        b"0\n2\n2 5\n1 9\n",
        b"0\n2\n1 9\n2 5\n",
        b"\xff",
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(EpochsDamaged):
        LeaderEpochs(Disk(), tmp_path).load()


def test_entries_that_found_no_room_do_not_count(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def replace_whole(self, path: Path, data: object, *, durable: bool = True) -> None:
            raise OSError(28, "No space left on device")

    epochs = LeaderEpochs(FullDisk(), tmp_path)
    with pytest.raises(OSError, match="No space"):
        epochs.assign(1, 0)
    assert epochs.latest == -1
