"""`python -m tests.compatibility.document` runs every check of the matrix and writes docs/compatibility.md from them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compatibility import matrix


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"PENSTOCK_MATRIX_RESULTS": folder, "PENSTOCK_WRITE_DOCS": "1"}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "tests/compatibility/test_matrix.py",
            "-k",
            "what_the_page_says",
        ]
        done = subprocess.run(command, cwd=matrix.ROOT, env={**os.environ, **settings}, check=False)
        if done.returncode != 0:
            return done.returncode
        matrix.RESULTS = Path(folder)
        matrix.PAGE.write_text(matrix.render(matrix.found()), encoding="utf-8")
    print(f"{matrix.PAGE.relative_to(matrix.ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
