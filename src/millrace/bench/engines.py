"""`millrace bench engines`: the same Word Count on both engines and on Structured Streaming; another parallelism, and skewed
keys shared out anew, while it runs.

Every engine runs in a process of its own, one after the other, on two cores with all its files in memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.bench.other_engines import spark_rescale
from millrace.bench.other_engines.run import run_child, run_rival, script_environment
from millrace.bench.results import keep
from millrace.bench.topologies import SEED
from millrace.cli.testing import project_root
from millrace.errors import MillraceError
from millrace.spark.session.java import ensure_java

PARTS = ("words", "rescale", "skew")
ENGINES = ("resident", "microbatch", "microbatch_arrow", "spark_sql", "spark_python_state")
LIMIT_SECONDS = 600.0  # for one engine
GAPS = ("microbatch_gap_ms", "spark_restart_gap_ms", "microbatch_first_gap_ms", "spark_restart_first_gap_ms")
SCALED = 4  # tasks that count after the first change; two before


@dataclass(frozen=True, slots=True)
class Files:
    """Lines that are measured with each size of a batch, in lines as well."""

    lines: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. A trial: tuples that a spout task gives to a batch, and rows in its Arrow batches."""

    seconds: float
    rows: tuple[dict[str, int], ...]
    arrow: tuple[dict[str, int], ...]
    files: Files  # for SQL, and for us on the same files
    python: Files
    turns: int  # of those two, one after the other
    rescale: dict[str, int]
    rounds: int
    batches: int
    skew: dict[str, int]
    exponents: tuple[float, ...]  # of Zipf's law; the first is the figure


FULL = Sizes(seconds=10.0, rows=({"tuples": 20_000}, {"tuples": 50_000}, {"tuples": 100_000}),
             arrow=({"tuples": 150_000, "batch": 25_000}, {"tuples": 400_000, "batch": 20_000},
                    {"tuples": 400_000, "batch": 50_000}, {"tuples": 800_000, "batch": 50_000}),
             files=Files(3_600_000, (150_000, 300_000, 600_000, 1_200_000)), python=Files(600_000, (200_000, 100_000, 400_000)),
             turns=2, rescale={"tuples": 60_000, "batch": 20_000}, rounds=5, batches=10, skew={"tuples": 10_000},
             exponents=(1.5, 1.0))
QUICK = Sizes(seconds=0.5, rows=({"tuples": 1_000},), arrow=({"tuples": 5_000, "batch": 5_000},),
              files=Files(10_000, (5_000,)), python=Files(5_000, (5_000,)), turns=1, rescale={"tuples": 5_000, "batch": 5_000},
              rounds=2, batches=2, skew={"tuples": 2_000}, exponents=(1.5,))


def run_engines(live: bool, quick: bool = False, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Returns the object of `bench engines --json`; with some of the `parts` only theirs."""
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise MillraceError(f"there is no part {', '.join(unknown)} of this benchmark: there are {', '.join(PARTS)}")
    console, sizes = Console(stderr=not live), QUICK if quick else FULL
    console.print("Word Count on two cores, one engine after the other; nothing else should run on this machine.")
    result: dict[str, Any] = {}
    details: dict[str, Any] = {"quick": quick}
    if "words" in parts:
        details["words"] = _words(sizes, console)
        result["words_per_s"] = {name: details["words"][name]["words_per_s"] for name in ENGINES}
        result["ratios"] = ratios({name: found["words_per_s"] for name, found in details["words"].items()})
    if "rescale" in parts:
        details["rescale"] = _rescale(sizes, console)
        details["rescale"]["found"] = gaps = rescale_gaps(**details["rescale"])
        result["rescale"] = {key: gaps[key] for key in GAPS}
    if "skew" in parts:
        console.print("skewed keys ...")
        details["skew"] = _on_millrace("skew", batches=sizes.batches, trial=sizes.skew, exponents=sizes.exponents)
        result["skew_batch_ratio"] = details["skew"]["skew_batch_ratio"]
    result["details"] = details
    _print(console, result)
    console.print(f"kept in {keep('engines', result)}")
    return result


def _words(sizes: Sizes, console: Console) -> dict[str, Any]:
    found = {}
    for name in ("resident", "microbatch", "microbatch_arrow"):
        found[name] = measure(name, sizes, console)
    # In turn: what else goes on on the machine meets both.
    turns = [{name: measure(name, sizes, console) for name in ("microbatch_arrow_files", "spark_sql")}
             for _ in range(sizes.turns)]
    for name in turns[0]:
        best = max((turn[name] for turn in turns), key=_speed)
        found[name] = best | {"turns": [_speed(turn[name]) for turn in turns]}
    return found | {"spark_python_state": measure("spark_python_state", sizes, console)}


def measure(name: str, sizes: Sizes, console: Console) -> dict[str, Any]:
    """One engine's words a second, in a process of its own, which also checks its counts."""
    console.print(f"{name} ...")
    match name:
        case "resident":
            return _on_millrace("resident", seconds=sizes.seconds)
        case "microbatch" | "microbatch_arrow":
            trials = sizes.rows if name == "microbatch" else sizes.arrow
            return _on_millrace("words", which=name, seconds=sizes.seconds, trials=trials)
        case "microbatch_arrow_files":
            return _on_millrace("files", lines=sizes.files.lines, sizes=sizes.files.sizes)
        case "spark_sql":
            return _on_files("spark_sql", sizes.files, console)
        case _:
            return _on_files("spark_python", sizes.python, console)


def _speed(found: dict[str, Any]) -> float:
    return float(found["words_per_s"])


def _on_files(rival: str, files: Files, console: Console) -> dict[str, Any]:
    return run_rival(rival, files.lines, SEED, root=project_root(), java_home=ensure_java(), report=console.print,
                     time_limit=LIMIT_SECONDS, batch_lines=files.sizes)


def _rescale(sizes: Sizes, console: Console) -> dict[str, Any]:
    console.print("another parallelism while it runs ...")
    ours = _on_millrace("rescale", rounds=sizes.rounds, batches=sizes.batches, trial=sizes.rescale)
    console.print("the same by stopping and restarting Structured Streaming ...")
    command = [sys.executable, str(Path(spark_rescale.__file__)), "--seed", str(SEED), "--batch-lines",
               str(2 * sizes.rescale["tuples"]), "--batches", str(sizes.batches), "--rounds", str(sizes.rounds), "--partitions",
               str(SCALED)]
    return {"microbatch": ours, "spark": _in_child("spark_rescale", command, script_environment(os.environ, ensure_java()))}


def _on_millrace(part: str, **settings: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "millrace.bench.engine_runs", part, json.dumps(settings)]
    return _in_child(part, command, dict(os.environ))


def _in_child(name: str, command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run_child(name, command, environment, LIMIT_SECONDS))
    return result


def ratios(words: dict[str, float]) -> dict[str, float]:
    return {f"{ours}_to_{theirs}": round(words[ours] / words[theirs], 3)
            for ours, theirs in (("microbatch_arrow", "spark_sql"), ("microbatch_arrow", "spark_python_state"),
                                 ("microbatch_arrow_files", "spark_sql"),
                                 ("microbatch", "spark_python_state"), ("microbatch", "resident"))}


def rescale_gaps(microbatch: dict[str, Any], spark: dict[str, Any]) -> dict[str, Any]:
    """The longest time without output, less the usual time between two batches, which there would have been anyway: the median
    of all changes, and the first one, when processes have to start and code to be compiled."""
    ours = [gap - usual for gap, usual in zip(microbatch["gaps_ms"], microbatch["usual_ms"], strict=True)]
    theirs = [gap - spark["usual_ms"] for gap in spark["gaps_ms"]]
    return {"microbatch_gap_ms": _left(statistics.median(ours)), "spark_restart_gap_ms": _left(statistics.median(theirs)),
            "microbatch_first_gap_ms": _left(ours[0]), "spark_restart_first_gap_ms": _left(theirs[0]),
            "microbatch_usual_ms": round(statistics.median(microbatch["usual_ms"])), "spark_usual_ms": spark["usual_ms"],
            "microbatch_slow_batches": sum(microbatch["slow_batches"])}


def _left(milliseconds: float) -> int:
    return max(0, round(milliseconds))


def _print(console: Console, result: dict[str, Any]) -> None:
    if "words_per_s" in result:
        table = Table(title="words a second", title_justify="left")
        table.add_column("engine")
        table.add_column("words/s", justify="right")
        for name, found in result["details"]["words"].items():
            table.add_row(name, f"{found['words_per_s']:,.0f}")
        console.print(table)
        for name, ratio in result["ratios"].items():
            console.print(f"{name.replace('_to_', ' to ')}: {ratio}")
    if "rescale" in result:
        found = result["details"]["rescale"]["found"]
        console.print(f"another parallelism: {found['microbatch_gap_ms']} ms without output, "
                      f"{found['microbatch_first_gap_ms']} ms at the first change; Structured Streaming, restarted: "
                      f"{found['spark_restart_gap_ms']} ms, {found['spark_restart_first_gap_ms']} ms at the first")
    for skew in result["details"].get("skew", {}).get("cases", []):
        console.print(f"Zipf {skew['zipf']}: a batch takes {skew['after_ms']} ms instead of {skew['before_ms']} ms "
                      f"({skew['skew_batch_ratio']}); the hottest of two tasks has {skew['shared_out']:.1%} of the "
                      f"words instead of {skew['hashed']:.1%}, by Spark's hash it would have {skew['hashed_by_spark']:.1%}")
