"""The virtual environment of the other engines, made on first use.

They bring some eighty packages with them, and versions that Millrace cannot use: Spark's stateful operator in
Python needs a pandas older than 3. So they stay out of Millrace's own environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from millrace.errors import MillraceError

DIRECTORY = ".venv-bench"
REQUIREMENTS = (
    "bytewax>=0.21,<1",
    "pathway>=0.33,<1",
    # The two that Spark's transformWithStateInPandas asks for; it fails with pandas 3.
    "pandas>=2.2,<3",
    "protobuf>=5",
    "pyarrow>=18",
)
SPARK = "pyspark>=4.1,<5"
_STAMP = "millrace-bench.json"
_REPORT_EVERY_SECONDS = 5.0
_TAIL_LINES = 15
_TAIL_BYTES = 4_000


class EnvironmentFailed(MillraceError):
    """The engines' environment could not be made; the message ends with the installer's last output."""


def ensure_environment(root: Path, report: Callable[[str], None]) -> Path:
    """Return the Python of the engines' environment under `root`, making it first if it is missing.

    `report` gets a line periodically while it is being made, which takes minutes; it is not called otherwise. An environment
    that was made for other requirements, or only in part, is replaced.
    """
    directory = root / DIRECTORY
    python = directory / "bin" / "python"
    stamp = directory / _STAMP
    wanted = _wanted()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    report(f"Making {directory} for the other engines: once only, about two minutes and 2 GB.")
    _run([sys.executable, "-m", "venv", "--clear", str(directory)], report)
    shared = _shared_packages()
    requirements = REQUIREMENTS if shared else (*REQUIREMENTS, SPARK)
    _run([str(python), "-m", "pip", "install", "--progress-bar", "off", *requirements], report)
    # After the installation: the installer must not touch packages of another environment.
    _share(python, directory / "shared", shared)
    # Last, and in one step: an interrupted installation must not look finished.
    unfinished = stamp.with_suffix(".part")
    unfinished.write_text(wanted)
    os.replace(unfinished, stamp)
    report(f"{directory} is ready.")
    return python


def _wanted() -> str:
    """The text of the stamp: everything that the environment depends on."""
    requirements = hashlib.sha256("\n".join((*REQUIREMENTS, SPARK)).encode()).hexdigest()[:16]
    shared = [str(package) for package in _shared_packages()]
    return json.dumps({"requirements": requirements, "python": sys.version.split()[0], "shared": shared}, indent=1)


def _shared_packages() -> list[Path]:
    """The directories of Spark and of the packages it imports, in the running interpreter; empty if it has no Spark."""
    specs = [importlib.util.find_spec(name) for name in ("pyspark", "py4j")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return [Path(origin).parent for origin in origins] if len(origins) == len(specs) else []


def _share(python: Path, directory: Path, packages: list[Path]) -> None:
    """Let the new environment import `packages`, and nothing else, of the running one.

    Spark is half a gigabyte, and the comparison should be with the Spark that Millrace runs on. The two packages are linked one
    by one: a path to their folder would bring Millrace's numpy and pyarrow along.
    """
    if not packages:
        return
    directory.mkdir()
    for package in packages:
        (directory / package.name).symlink_to(package, target_is_directory=True)
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.run([str(python), "-c", query], check=True, capture_output=True, text=True)
    Path(answer.stdout.strip(), "millrace-shared.pth").write_text(f"{directory}\n")


def _run(command: list[str], report: Callable[[str], None]) -> None:
    """Run an installer's command; every few seconds, report how long it has run and its last line."""
    started = time.monotonic()
    # A file and not a pipe: the installer is silent for a minute while it unpacks, and a read would wait for it.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while (code := _exit_code(process, _REPORT_EVERY_SECONDS)) is None:
                newest = _tail(output, lines=1).strip()
                report(f"{time.monotonic() - started:.0f} s: {newest[:100]}")
        finally:
            # The installer is still at work here only after an interrupt.
            if process.poll() is None:
                process.terminate()
                process.wait()
        last_lines = _tail(output, _TAIL_LINES)
    if code:
        raise EnvironmentFailed(
            f"could not make the environment for the other engines: {' '.join(command[:4])} … ended with exit code "
            f"{code}. Check the network and the free disk space, then try again. Its last output:\n{last_lines}"
        )


def _exit_code(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait up to `seconds` for the process; None when it is still running."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _tail(output: IO[bytes], lines: int) -> str:
    """The last lines of the installer's output, read without moving the position it writes at."""
    end = os.lseek(output.fileno(), 0, os.SEEK_CUR)
    text = os.pread(output.fileno(), _TAIL_BYTES, max(0, end - _TAIL_BYTES)).decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
