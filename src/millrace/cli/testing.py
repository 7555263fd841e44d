"""`millrace test`: linters, types and the whole test suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from millrace.errors import MillraceError


def project_root() -> Path:
    """The checkout this package runs from; the tests are not part of an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "tests").is_dir():
        raise MillraceError("the tests are only in a checkout of the project: clone it and run ./millrace test there")
    return root


def run_tests(arguments: list[str]) -> int:
    """With arguments: just pytest with them. Without: everything that must hold."""
    root = project_root()
    # Most tests wait for processes most of the time, so two files at a time take little longer than one.
    pytest = [sys.executable, "-m", "pytest", *(arguments or ["-n", "2", "--dist", "loadfile"])]
    steps = [pytest] if arguments else [[sys.executable, "-m", "ruff", "check", "."],
                                        [sys.executable, "-m", "mypy"], pytest]
    for step in steps:
        print("$", " ".join(["python", *step[1:]]), flush=True)
        code = subprocess.run(step, cwd=root, check=False).returncode
        if code:
            return code
    return 0
