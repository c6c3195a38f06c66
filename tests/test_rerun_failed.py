"""scripts/rerun-failed: a test that fails by chance does not fail the run, a broken one does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PASSES = "def test_good(): pass\n"
FAILS_ONCE = """
from pathlib import Path
def test_unlucky():
    marker = Path(__file__).with_name("ran-before")
    ran_before = marker.exists()
    marker.touch()
    assert ran_before
"""
FAILS = "def test_broken(): assert False\n"
CANNOT_BE_COLLECTED = "import no_such_module_anywhere\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("scripts/rerun-failed", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=project, capture_output=True, text=True, timeout=60)


def run_then_rerun(project: Path, *, workers: int = 0, **modules: str) -> subprocess.CompletedProcess[str]:
    for name, text in modules.items():
        (project / "tests" / f"test_{name}.py").write_text(text)
    assert run(project, "-m", "pytest", "-n", str(workers), "-p", "no:cacheprovider", "tests").returncode != 0
    return run(project, "scripts/rerun-failed")


def test_a_test_that_passes_alone_is_listed_as_unsteady(project: Path) -> None:
    rerun = run_then_rerun(project, workers=2, good=PASSES, unlucky=FAILS_ONCE)
    assert rerun.returncode == 0, rerun.stdout
    assert "unsteady (failed, then passed alone):\n  tests/test_unlucky.py::test_unlucky\n" in rerun.stdout
    report = json.loads((project / "reports" / "unsteady.json").read_text())
    assert report == {"unsteady": ["tests/test_unlucky.py::test_unlucky"], "failed_twice": []}


def test_a_test_that_fails_twice_fails_the_run(project: Path) -> None:
    rerun = run_then_rerun(project, unlucky=FAILS_ONCE, broken=FAILS)
    assert rerun.returncode == 1
    assert "failed twice:\n  tests/test_broken.py::test_broken\n" in rerun.stdout
    report = json.loads((project / "reports" / "unsteady.json").read_text())
    assert report["unsteady"] == ["tests/test_unlucky.py::test_unlucky"]


def test_a_run_that_did_not_collect_its_tests_is_not_repeated(project: Path) -> None:
    rerun = run_then_rerun(project, good=PASSES, absent=CANNOT_BE_COLLECTED)
    assert rerun.returncode == 1
    assert "not with failed tests" in rerun.stderr


def test_many_failures_are_not_repeated(project: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(21))\ndef test_many(n): assert False\n"
    rerun = run_then_rerun(project, many=many)
    assert rerun.returncode == 1
    assert "21 tests failed, more than 20" in rerun.stderr


def test_a_run_without_an_outcome_is_not_repeated(project: Path) -> None:
    rerun = run(project, "scripts/rerun-failed")
    assert rerun.returncode == 1
    assert "cannot read the outcome" in rerun.stderr
