"""The engine without the compiled steps: an installation that had no compiler runs the same tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.checkout import project_root

pytestmark = pytest.mark.process
FILES = ["test_flow.py", "test_acks.py", "test_typed_values.py", "load/test_merged_keys.py"]


def test_the_engine_runs_without_the_compiled_steps() -> None:
    files = [str(Path("tests") / "cluster" / name) for name in FILES]
    environment = {**os.environ, "MILLRACE_PURE_PYTHON": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *files],
                          cwd=project_root(), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
