"""The swap of cleaned segments, step by step: power cuts in it, and swap files that do not fit their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from penstock.storage.cleaner import CleaningResult, SourceSegment, cleaned_tag
from penstock.storage.files import Disk, write_checked
from penstock.storage.legacy_swap import FILE_NAME, SwapRejected
from penstock.storage.segment import file_name
from penstock.storage.swap import SUFFIXES, Swap, recover, sweep
from tests.storage.simulated_disk import PowerCut, SimulatedDisk

ID = "0123456789abcdef"
OLD = (0, 10, 20, 30)
"""The log's segments; the last one is the active one."""
NEW = (0, 20)

Files = dict[str, bytes]


def content(base: int, suffix: str, kind: str) -> bytes:
    """Many sectors, so that a file that was not synced is torn."""
    return b"%s of %d, %s. " % (suffix.encode(), base, kind.encode()) * (150 if suffix == ".log" else 5)


OLD_FILES: Files = {
    file_name(base, suffix): content(base, suffix, "old") for base in OLD for suffix in (".log", ".index", ".timeindex")
} | {file_name(10, ".txnindex"): content(10, ".txnindex", "old")}
ACTIVE_FILES = {name: data for name, data in OLD_FILES.items() if name.startswith(file_name(30, ""))}
NEW_FILES: Files = {file_name(base, suffix): content(base, suffix, "new") for base in NEW for suffix in SUFFIXES}
AFTER_FILES = NEW_FILES | ACTIVE_FILES

RESULT = CleaningResult(
    tuple(SourceSegment(base, len(NEW_FILES[file_name(base, ".log")])) for base in NEW),
    {name: len(data) for name, data in NEW_FILES.items()},
    (0, 10, 20),
    30,
    100,
    10,
    1000,
    100,
)


def write(disk: Disk, path: Path, data: bytes) -> None:
    file = disk.open(path, create=True)
    disk.write_at(file, 0, (data,), len(data))
    disk.sync(file)


def written(folder: Path, disk: Disk) -> Swap:
    """State 1: the old log, and the new files beside it."""
    disk.make_directory(folder)
    for name, data in OLD_FILES.items():
        write(disk, folder / name, data)
    disk.sync_directory(folder)
    for name, data in NEW_FILES.items():
        write(disk, folder / (name + cleaned_tag(ID)), data)
    return Swap(disk, folder, ID, RESULT)


def steps(swap: Swap, folder: Path, disk: Disk) -> list[Callable[[], None]]:
    return [swap.decide, swap.place, swap.commit, lambda: sweep(disk, folder)]


def files_in(folder: Path, disk: Disk) -> Files:
    return {name: disk.read_whole(folder / name) for name in disk.names(folder)}


def test_the_whole_swap_leaves_the_new_files_alone(tmp_path: Path) -> None:
    disk = Disk()
    swap = written(tmp_path / "t-0", disk)
    for step in steps(swap, tmp_path / "t-0", disk):
        step()
    assert files_in(tmp_path / "t-0", disk) == AFTER_FILES


def test_new_files_are_under_the_name_that_is_read_at_every_change(tmp_path: Path) -> None:
    """Under the tag from the decision until the log's names are there, and under those from then on."""
    folder = tmp_path / "t-0"

    class Watched(SimulatedDisk):
        names_read: tuple[str, ...] = ()

        def _change(self, change: object) -> None:
            super()._change(change)  # type: ignore[arg-type]
            for name in self.names_read:
                assert self.exists(folder / name)

    disk = Watched(tmp_path)
    swap = written(folder, disk)
    swap.decide()
    disk.names_read = tuple(name + cleaned_tag(ID) for name in NEW_FILES)
    swap.place()
    disk.names_read = tuple(NEW_FILES)
    swap.commit()
    sweep(disk, folder)


def test_a_power_cut_at_any_change_leaves_the_old_files_or_the_new_ones(tmp_path: Path) -> None:
    """Even if the power goes again during the recovery."""
    folder = tmp_path / "t-0"
    outcomes = []
    changes = 0
    finished = False
    while not finished:
        for seed in range(12):
            random = Random(seed * 1000 + changes)
            disk = SimulatedDisk(tmp_path)
            disk.make_directory(folder)
            disk.sync_directory(tmp_path)
            swap = written(folder, disk)
            disk.changes_left = changes
            done = 0
            try:
                for step in steps(swap, folder, disk):
                    step()
                    done += 1
                finished = True
            except PowerCut:
                pass
            disk = disk.after_cut(random)
            for left in (random.randrange(30), None):
                disk.changes_left = left
                try:
                    recover(disk, folder, disk.names(folder))
                    break
                except PowerCut:
                    disk = disk.after_cut(random)
            disk.changes_left = None
            found = files_in(folder, disk)
            assert found in (OLD_FILES, AFTER_FILES), f"{changes} changes, seed {seed}"
            if done < 2:
                assert found == OLD_FILES, "not committed"
            if done >= 3:
                assert found == AFTER_FILES, "committed"
            outcomes.append(found == OLD_FILES)
        changes += 1
    assert 200 < sum(outcomes) < len(outcomes) - 50


@pytest.mark.parametrize("name", [file_name(0, ".log"), file_name(10, ".txnindex"), file_name(20, ".log")])
@pytest.mark.parametrize("place", [False, True], ids=["decided", "placed"])
@pytest.mark.parametrize("harm", ["missing", "short"])
def test_a_swap_file_without_all_old_files_is_rejected_and_nothing_changes(
    tmp_path: Path, name: str, place: bool, harm: str
) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    swap = written(folder, disk)
    swap.decide()
    if place:
        swap.place()
        name = f"{name}.{ID}.replaced"
    (folder / name).unlink()
    if harm == "short":
        (folder / name).write_bytes(b"short")
    elif place:
        (folder / name.removesuffix(f".{ID}.replaced")).unlink(missing_ok=True)
    before = files_in(folder, disk)
    with pytest.raises(SwapRejected, match=name[:20]):
        recover(disk, folder, disk.names(folder))
    assert files_in(folder, disk) == before


@pytest.mark.parametrize("damage", [b"", b"garbage", b"crc32c 00000000\n{}"])
def test_a_damaged_swap_file_is_dropped_if_no_file_was_moved(tmp_path: Path, damage: bytes) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    swap = written(folder, disk)
    swap.decide()
    (folder / FILE_NAME).write_bytes(damage)
    assert recover(disk, folder, disk.names(folder)) is not None
    assert files_in(folder, disk) == OLD_FILES


def test_a_damaged_swap_file_is_rejected_if_files_were_moved(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    swap = written(folder, disk)
    swap.decide()
    swap.place()
    (folder / FILE_NAME).write_bytes(b"garbage")
    before = files_in(folder, disk)
    with pytest.raises(SwapRejected, match="damaged"):
        recover(disk, folder, disk.names(folder))
    assert files_in(folder, disk) == before


def test_a_swap_file_of_an_unknown_format_is_not_acted_upon(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    swap = written(folder, disk)
    swap.decide()
    swap.place()
    write_checked(disk, folder / FILE_NAME, msgspec.json.encode({"new": [0], "old": [0, 10], "version": 7}))
    before = files_in(folder, disk)
    with pytest.raises(SwapRejected):
        recover(disk, folder, disk.names(folder))
    assert files_in(folder, disk) == before


def test_new_files_that_are_not_as_they_were_written_are_not_swapped_in(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    swap = written(folder, disk)
    (folder / (file_name(20, ".log") + cleaned_tag(ID))).write_bytes(b"short")
    with pytest.raises(SwapRejected, match=r"00020\.log"):
        swap.decide()
    assert FILE_NAME not in disk.names(folder)


def test_left_overs_of_other_cleanings_go(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    written(folder, disk)
    for name in ("0.log.cleaned", f"0.log.{'f' * 32}.cleaned", "0.log.abc.replaced", "0.txnindex.abc.cleaned.tmp"):
        (folder / name).write_bytes(b"left over")
    (folder / "swap.tmp").write_bytes(b"left over")
    assert recover(disk, folder, disk.names(folder)) is None
    assert files_in(folder, disk) == OLD_FILES


def test_left_overs_stay_while_a_swap_is_not_finished(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    written(folder, disk).decide()
    before = files_in(folder, disk)
    with pytest.raises(SwapRejected):
        sweep(disk, folder)
    assert files_in(folder, disk) == before


def test_a_swap_that_was_abandoned_leaves_the_old_files(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "t-0"
    swap = written(folder, disk)
    swap.decide()
    swap.abandon()
    sweep(disk, folder)
    assert files_in(folder, disk) == OLD_FILES
