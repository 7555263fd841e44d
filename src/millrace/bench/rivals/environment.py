"""The other engines live in an environment of their own, `.venv-bench`: what they need does not go with what we need."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from millrace.errors import MillraceError

REQUIREMENTS = ("bytewax>=0.21,<0.22", "pathway>=0.20", "pandas>=2.2,<3", "protobuf", "pyarrow")
INSTALL_SECONDS = 900.0


def ensure_environment(root: Path, report: Callable[[str], None]) -> Path:
    """The environment's Python; made on first use, and again when the requirements change."""
    directory = root / ".venv-bench"
    python = directory / "bin" / "python"
    stamp = directory / "millrace.stamp"
    wanted = hashlib.sha256(repr((REQUIREMENTS, sys.version)).encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    report("making an environment for the other engines (some minutes, once) ...")
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], capture_output=True, text=True,
                          check=False, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise MillraceError(f"the other engines could not be installed:\n{done.stderr[-1500:]}\n"
                            "Run the benchmark with --no-rivals to leave them out.")
    _borrow_spark(directory)
    stamp.write_text(wanted)
    return python


def _borrow_spark(directory: Path) -> None:
    """PySpark is half a gigabyte and the same in both: the environment looks for it in ours, after its own packages."""
    ours = sysconfig.get_paths()["purelib"]
    theirs = next((directory / "lib").glob("python3*/site-packages"))
    (theirs / "millrace-spark.pth").write_text(f"{ours}\n")
