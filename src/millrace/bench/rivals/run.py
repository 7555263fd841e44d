"""Runs another engine's script in its own environment and reads its last line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.bench.rivals.environment import ensure_environment
from millrace.errors import MillraceError

LIMIT_SECONDS = 300.0
HERE = Path(__file__).parent
SCRIPTS = {  # name -> script, its own arguments, lines at full speed, whether its latency is measured
    "bytewax": ("bytewax_words.py", (), 600_000, True),
    "bytewax_per_item": ("bytewax_words.py", ("--per-item",), 300_000, False),
    "pathway": ("pathway_words.py", (), 400_000, False),
    "spark_sql": ("spark_words.py", ("--mode", "sql"), 2_000_000, True),
    "spark_python": ("spark_words.py", ("--mode", "python"), 100_000, False),
}


def run_rival(name: str, *, seed: int, root: Path, java_home: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """One engine, measured; `MillraceError` with the end of its output if it failed or took too long."""
    python = ensure_environment(root, report)
    script, own, lines, latency = SCRIPTS[name]
    command = [str(python), str(HERE / script), "--lines", str(lines), "--seed", str(seed), *own]
    if latency:
        command += ["--rate", "1000", "--seconds", "8"]
    environment = {**os.environ, "JAVA_HOME": str(java_home), "PYSPARK_PYTHON": str(python),
                   "PYSPARK_DRIVER_PYTHON": str(python)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise MillraceError(f"{name} did not finish within {LIMIT_SECONDS:g} s") from None
    if done.returncode:
        raise MillraceError(f"{name} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
