"""Run one of the other engines in a process of its own and read what it measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.bench.other_engines.environment import ensure_environment
from millrace.errors import MillraceError

TIME_LIMIT_SECONDS = 400.0
_HERE = Path(__file__).resolve().parent
_TAIL_LINES = 20
# What a shell may hold for another Spark, another Python or another Pathway; the scripts set what they need.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "SPARK_", "PYSPARK_", "PATHWAY_", "BYTEWAX_")


@dataclass(frozen=True, slots=True)
class Rival:
    """One engine: its script, and how many lines it needs to run for some seconds on two cores."""

    script: str
    lines: int
    # False: it runs on the packages Millrace has anyway, so nothing is installed for it.
    own_environment: bool = True
    measures_latency: bool = True
    # What the script gets beside the arguments that all of them take.
    arguments: tuple[str, ...] = ()


RIVALS: Mapping[str, Rival] = {
    "bytewax": Rival("bytewax_words.py", lines=500_000),
    "bytewax_per_item": Rival("bytewax_words.py", lines=300_000, measures_latency=False, arguments=("--per-item",)),
    "pathway": Rival("pathway_words.py", lines=600_000),
    "spark_sql": Rival("spark_sql.py", lines=3_600_000, own_environment=False),
    "spark_python": Rival("spark_python.py", lines=600_000, measures_latency=False),
}


class RivalFailed(MillraceError):
    """Another engine did not give a figure: it failed, took too long, or counted wrong. The message has its last words."""


def run_rival(
    name: str,
    lines: int | None,
    seed: int,
    *,
    root: Path,
    rate: float = 0.0,
    seconds: float = 6.0,
    java_home: Path | None = None,
    time_limit: float = TIME_LIMIT_SECONDS,
    report: Callable[[str], None] = print,
    batch_lines: Sequence[int] = (),
) -> dict[str, Any]:
    """Measure one engine and return the object its script printed. `batch_lines`: sizes of a batch to try, where it has
    batches.

    `lines` is how many go through at full speed; None leaves the number to the engine, as each needs its own to
    run for some seconds. With a `rate`, in lines a second, the latency is measured too, for `seconds`, by the
    engines that can. `root` is where the engines' environment is made on first use, which `report` tells about.
    """
    rival = _rival(name)
    python = ensure_environment(root, report) if rival.own_environment else Path(sys.executable)
    command = [str(python), str(_HERE / rival.script), "--seed", str(seed)]
    command += ["--lines", str(rival.lines if lines is None else lines), *rival.arguments]
    if rate and rival.measures_latency:
        command += ["--rate", str(rate), "--seconds", str(seconds)]
    if batch_lines:
        command += ["--batch-lines", *map(str, batch_lines)]
    code, output, errors = _run(name, command, script_environment(os.environ, java_home), time_limit)
    if code:
        raise RivalFailed(f"{name} ended with exit code {code}. Its last words:\n{tail(errors or output)}")
    return parse_result(name, output, errors)


def run_child(name: str, command: list[str], environment: dict[str, str], time_limit: float = TIME_LIMIT_SECONDS) -> str:
    """Run a command that measures something, to its end; returns the last line that it printed."""
    code, output, errors = _run(name, command, environment, time_limit)
    last = output.strip().rpartition("\n")[2]
    if code or not last:
        raise RivalFailed(f"{name} ended with exit code {code}. Its last words:\n{tail(errors or output)}")
    return last


def script_environment(inherited: Mapping[str, str], java_home: Path | None) -> dict[str, str]:
    """The environment variables of a script: the inherited ones but for what would change the engine."""
    kept = {key: value for key, value in inherited.items() if not key.startswith(_NOT_INHERITED)}
    if java_home is not None:
        kept["JAVA_HOME"] = str(java_home)
    return kept


def parse_result(name: str, output: str, errors: str) -> dict[str, Any]:
    """The JSON object on the last line of a script's output."""
    last = output.strip().rpartition("\n")[2]
    try:
        result = json.loads(last)
    except json.JSONDecodeError:
        result = None
    if not isinstance(result, dict) or not ("words_per_s" in result or "p50_ms" in result):
        raise RivalFailed(f"{name} printed no result; its last line was {last[:200]!r}. Its last words:\n{tail(errors)}")
    return result


def tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])


def _rival(name: str) -> Rival:
    if name not in RIVALS:
        raise RivalFailed(f"there is no engine {name!r} to compare with; there are {', '.join(RIVALS)}")
    return RIVALS[name]


def _run(name: str, command: list[str], environment: dict[str, str], time_limit: float) -> tuple[int, str, str]:
    """Run a script to its end; whatever it started ends with it."""
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
        # What it wrote so far comes with the exception as bytes, even where text was asked for.
        said = (expired.stderr or b"").decode(errors="replace")
        raise RivalFailed(f"{name} was not done after {time_limit:g} s. Its last words:\n{tail(said)}") from expired
    finally:
        _end_group(process)
    return process.returncode, output, errors


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill what is left of the script and its children: Java, and Python workers. Mostly there is nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
