"""Runs one of the other engines in its own process and reads its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.bench.other_engines.environment import ensure_environment
from millrace.bench.other_engines.reporting import RunRequest
from millrace.errors import MillraceError

TIME_LIMIT_SECONDS = 400.0
CPUS = 2  # for everything that is measured beside another engine
_HERE = Path(__file__).resolve().parent
_TAIL_LINES = 20
# Variables that a shell may hold for another Spark, Python or Pathway; the scripts set those that they need.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "SPARK_", "PYSPARK_", "PATHWAY_", "BYTEWAX_")


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """The script of one engine. `arguments` come before those that every script takes."""

    script: str
    arguments: tuple[str, ...] = ()
    # False: it runs on the packages that Millrace has anyway, so nothing is installed for it.
    own_environment: bool = True


OTHER_ENGINES: Mapping[str, OtherEngine] = {
    "bytewax": OtherEngine("bytewax_words.py"),
    "bytewax_per_item": OtherEngine("bytewax_words.py", ("--per-item",)),
    "pathway": OtherEngine("pathway_words.py"),
    "spark_sql": OtherEngine("spark_sql.py", own_environment=False),
    "spark_python": OtherEngine("spark_python.py"),
    "spark_python_transform": OtherEngine("spark_python.py", ("--transform",)),
}


class EngineFailed(MillraceError):
    """An engine gave no figure: it failed, took too long, or counted wrong. The message ends with its last output."""


def run_other_engine(name: str, request: RunRequest, *, root: Path, java_home: Path | None = None,
                     time_limit: float = TIME_LIMIT_SECONDS, report: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure one engine and return the object that its script printed. `root`: the directory of the engines' environment,
    which is made on first use; `report` gets a line periodically while it is made."""
    if name not in OTHER_ENGINES:
        raise EngineFailed(f"there is no engine {name!r} to compare with; there are {', '.join(OTHER_ENGINES)}")
    engine = OTHER_ENGINES[name]
    python = ensure_environment(root, report) if engine.own_environment else Path(sys.executable)
    command = [str(python), str(_HERE / engine.script), *engine.arguments, *arguments_of(request)]
    return run_child(name, command, script_environment(os.environ, java_home), time_limit)


def arguments_of(request: RunRequest) -> list[str]:
    """The command line that `reporting.parse_request` reads."""
    options = {"corpus": request.corpus, "warm-up": request.rule.warm_up, "seconds": request.rule.seconds,
               "rounds": request.rule.rounds, "batch-lines": request.batch_lines, "rate": request.rate,
               "checkpoint-seconds": request.checkpoint_seconds}
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


@contextmanager
def on_two_cpus() -> Iterator[int]:
    """Let the calling thread, and its children, use two CPUs only. Yields the number of CPUs: the machine may have fewer.

    The limit is inherited, so it also holds for processes that a child starts. Code between fork and exec is not safe in a
    program with threads, so the thread that forks takes the limit on itself.
    """
    allowed = os.sched_getaffinity(0)
    chosen = sorted(allowed)[:CPUS]
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, allowed)


def run_child(name: str, command: list[str], environment: dict[str, str],
              time_limit: float = TIME_LIMIT_SECONDS) -> dict[str, Any]:
    """Run a command that measures something, to its end; returns the JSON object on the last line that it printed."""
    code, output, errors = _run(name, command, environment, time_limit)
    if code:
        raise EngineFailed(f"{name} ended with exit code {code}. Its last output:\n{tail(errors or output)}")
    last = output.strip().rpartition("\n")[2]
    try:
        result = json.loads(last)
    except json.JSONDecodeError:
        result = None
    if not isinstance(result, dict):
        raise EngineFailed(f"{name} printed no result; its last line was {last[:200]!r}. Its last output:\n{tail(errors)}")
    return result


def script_environment(inherited: Mapping[str, str], java_home: Path | None) -> dict[str, str]:
    """The environment variables of a script: the inherited ones except those that would change the engine."""
    kept = {key: value for key, value in inherited.items() if not key.startswith(_NOT_INHERITED)}
    if java_home is not None:
        kept["JAVA_HOME"] = str(java_home)
    return kept


def tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])


def _run(name: str, command: list[str], environment: dict[str, str], time_limit: float) -> tuple[int, str, str]:
    """Run a command to its end on two CPUs; whatever it started ends with it."""
    with on_two_cpus():
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    try:
        output, errors = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired as expired:
        # The exception has the output so far as bytes, even where text was asked for.
        written = (expired.stderr or b"").decode(errors="replace")
        raise EngineFailed(f"{name} was not done after {time_limit:g} s. Its last output:\n{tail(written)}") from expired
    finally:
        _end_group(process)
    return process.returncode, output, errors


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill the remaining processes of the command, such as Java and Python workers. Usually there are none."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
