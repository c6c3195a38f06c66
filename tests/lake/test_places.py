from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.lake import lock
from penstock.lake.errors import ArchiveError, Held
from penstock.lake.lock import LOCK, locked
from penstock.lake.places import Place, place_of


@pytest.fixture(params=["path", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        pytest.importorskip("fsspec")
    urls = {"path": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory:/{tmp_path}"}
    return place_of(urls[request.param])


def test_files_are_written_found_and_deleted(place: Place) -> None:
    place.write("a/b/one.json", b"1")
    place.write("a/b/one.json", b"one")
    place.write("a/two.json", b"two")
    assert place.read("a/b/one.json") == b"one"
    assert place.read("nothing") is None
    assert [(found.name, found.bytes) for found in place.found()] == [("a/b/one.json", 3), ("a/two.json", 3)]
    assert [found.name for found in place.found("a/b")] == ["a/b/one.json"]
    assert place.found("not/there") == []
    assert place.bytes_of("a/two.json") == 3
    place.delete(["a/two.json", "nothing"])
    assert [found.name for found in place.found()] == ["a/b/one.json"]


def test_a_file_is_created_once(place: Place) -> None:
    assert place.create("commits/1.json", b"mine")
    assert not place.create("commits/1.json", b"yours")
    assert place.read("commits/1.json") == b"mine"
    assert [found.name for found in place.found()] == ["commits/1.json"]


def test_a_file_whose_writer_failed_is_not_there(place: Place) -> None:
    def write_half() -> None:
        with place.sink("half.parquet") as sink:
            sink.write(b"PAR1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert place.found() == []


def test_what_a_killed_writer_left_is_cleared_away(tmp_path: Path) -> None:
    place = place_of(str(tmp_path))
    script = (
        "import os, sys; from penstock.lake.places import place_of\n"
        "with place_of(sys.argv[1]).sink('day=1/half.parquet') as sink: sink.write(b'PAR1'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=100).returncode == 9
    (left,) = place.found()
    assert left.name.startswith("day=1/.half.parquet.")
    assert place.clear_unfinished(left.changed_at_s - 1) == 0
    assert place.clear_unfinished(left.changed_at_s + 1) == 1
    assert place.found() == []


def test_a_place_goes_to_other_processes(place: Place) -> None:
    place.write("x", b"y")
    assert pickle.loads(pickle.dumps(place)).read("x") == b"y"


def test_a_url_that_nothing_opens_is_refused() -> None:
    with pytest.raises(ArchiveError, match=r"nosuch://somewhere"):
        place_of("nosuch://somewhere")


def test_a_local_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("lake/orders/").url == str(tmp_path / "lake" / "orders")


def enter(place: Place) -> None:
    with locked(place, "archive run b"):
        pass


def test_one_holds_a_table_at_a_time(place: Place) -> None:
    with locked(place, "archive run a"), pytest.raises(Held, match=r"in use by archive run a \(process"):
        enter(place)
    with locked(place, "archive run b"):
        pass


def test_a_lease_that_nobody_renews_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    place = place_of(f"memory:/{tmp_path}")
    dead = lock.Holder("elsewhere", 1, "archive run a", "x", time.time() + 60)
    place.write(LOCK, lock.msgspec.json.encode(dead))
    with pytest.raises(Held, match=r"archive run a .process 1 on elsewhere.*within a minute"):
        enter(place)
    monkeypatch.setattr(lock.time, "time", lambda: dead.until_s + 1)
    with locked(place, "archive run b"):
        assert b"archive run b" in (place.read(LOCK) or b"")
    assert place.read(LOCK) is None


def test_an_empty_path_is_no_place() -> None:
    with pytest.raises(ArchiveError, match="path of the table is empty"):
        place_of("")
