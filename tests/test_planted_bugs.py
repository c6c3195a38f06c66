"""scripts/planted-bugs: every patch applies to the code, and only a test that fails because of a patch catches it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

COUNTER = "def count(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n"
TESTS = """
from counter import count
def test_counts(): assert count([1, 2]) == 3
def test_empty(): assert count([]) == 0
"""
HEADER = "breaks: The count.\npromise: All values\n  are counted.\ntests: tests/test_counter.py::{test}\n\n"
DIFF = """diff --git a/src/counter.py b/src/counter.py
--- a/src/counter.py
+++ b/src/counter.py
@@ -3,3 +3,3 @@
     for value in values:
-        total += value
+        {line}
     return total
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("scripts/planted-bugs", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path, "src/counter.py", COUNTER)
    write(tmp_path, "tests/test_counter.py", TESTS)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)


def plant(project: Path, name: str, line: str, test: str = "test_counts") -> None:
    write(project, f"tests/planted/{name}.patch", HEADER.format(test=test) + DIFF.format(line=line))


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/planted-bugs", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100)


def report(project: Path) -> dict[str, dict[str, Any]]:
    bugs = json.loads((project / "reports/planted.json").read_text())["bugs"]
    return {bug["name"]: bug for bug in bugs}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tree is not a git checkout")
def test_every_planted_bug_applies_to_the_code() -> None:
    ran = run(ROOT, "--check")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(list((ROOT / "tests/planted").glob("*.patch"))) >= 12


def test_bug_that_fails_a_test_is_caught_and_another_is_not(project: Path) -> None:
    plant(project, "lost", "total = value")
    plant(project, "unseen", "total -= value", test="test_empty")
    plant(project, "wrong", "total = valeu")
    ran = run(project)
    assert ran.returncode == 1
    found = report(project)
    assert found["lost"]["outcome"] == "caught"
    assert found["lost"]["failed"] == ["tests/test_counter.py::test_counts"]
    assert found["lost"]["promise"] == "All values are counted."
    assert found["unseen"]["outcome"] == "NOT caught"
    assert found["wrong"]["outcome"] == "error"
    assert "1 of 3 caught" in ran.stdout
    assert (project / "src/counter.py").read_text() == COUNTER
    assert run(project, "unseen", "--all-tests").returncode == 0


def test_test_that_fails_without_the_patch_catches_nothing(project: Path) -> None:
    plant(project, "lost", "total = value")
    write(project, "tests/test_counter.py", TESTS.replace("== 3", "== 4"))
    assert run(project).returncode == 1
    found = report(project)
    assert found["without a patch"]["failed"] == ["tests/test_counter.py::test_counts"]
    assert found["lost"]["outcome"] == "NOT caught"


@pytest.mark.parametrize(
    ("line", "source", "reason"),
    [
        ("total = value", COUNTER.replace("total", "sum_"), "does not apply any more"),
        ("total = valeu", COUNTER, "the patched code cannot run"),
        ("total = = value", COUNTER, "the patched code cannot run"),
    ],
)
def test_patch_that_cannot_be_tried_is_an_error(project: Path, line: str, source: str, reason: str) -> None:
    plant(project, "lost", line)
    write(project, "src/counter.py", source)
    ran = run(project, "--check")
    assert ran.returncode == 1
    assert reason in ran.stdout


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("promise:", "promised:", "expected a header with breaks, promise, tests"),
        ("tests/test_counter.py", "tests/test_other.py", "tests/test_other.py does not exist"),
        ("test_counts", "test_nothing", "tests/test_counter.py has no test test_nothing"),
        ("src/counter.py", "tests/test_counter.py", "must change files in src/ and nothing else"),
    ],
)
def test_wrong_patch_is_an_error(project: Path, old: str, new: str, reason: str) -> None:
    plant(project, "lost", "total = value")
    patch = project / "tests/planted/lost.patch"
    patch.write_text(patch.read_text().replace(old, new))
    ran = run(project, "--check")
    assert ran.returncode == 1
    assert reason in ran.stdout + ran.stderr
