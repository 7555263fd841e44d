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

from millrace.bench.results import keep
from millrace.bench.rivals import spark_rescale
from millrace.bench.rivals.run import run_child, run_rival, script_environment
from millrace.bench.topologies import SEED
from millrace.cli.testing import project_root
from millrace.errors import MillraceError
from millrace.spark.java import ensure_java

PARTS = ("words", "rescale", "skew")
ENGINES = ("resident", "microbatch", "microbatch_arrow", "spark_sql", "spark_python_state")
LIMIT_SECONDS = 600.0  # for one engine
SCALED = 4  # tasks that count after the first change; two before


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. A trial: tuples that a spout task gives to a batch, and rows in its Arrow batches."""

    seconds: float
    rows: tuple[dict[str, int], ...]
    arrow: tuple[dict[str, int], ...]
    sql_lines: int | None  # None: as many as the script takes by itself
    python_lines: int | None
    files: dict[str, int]
    rescale: dict[str, int]
    rounds: int
    batches: int
    skew: dict[str, int]


FULL = Sizes(seconds=10.0, rows=({"tuples": 20_000}, {"tuples": 50_000}, {"tuples": 100_000}),
             arrow=({"tuples": 150_000, "batch": 25_000}, {"tuples": 400_000, "batch": 20_000},
                    {"tuples": 400_000, "batch": 50_000}, {"tuples": 800_000, "batch": 50_000}),
             sql_lines=None, python_lines=None, files={"batch_lines": 300_000, "most_batches": 60},
             rescale={"tuples": 60_000, "batch": 20_000}, rounds=5, batches=10, skew={"tuples": 10_000})
QUICK = Sizes(seconds=0.5, rows=({"tuples": 1_000},), arrow=({"tuples": 5_000, "batch": 5_000},), sql_lines=20_000,
              python_lines=5_000, files={"batch_lines": 5_000, "most_batches": 10}, rescale={"tuples": 5_000, "batch": 5_000},
              rounds=1, batches=2, skew={"tuples": 2_000})


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
        details["rescale"]["medians"] = gaps = rescale_gaps(**details["rescale"])
        result["rescale"] = {key: gaps[key] for key in ("microbatch_gap_ms", "spark_restart_gap_ms")}
    if "skew" in parts:
        console.print("skewed keys ...")
        details["skew"] = _on_millrace("skew", batches=sizes.batches, trial=sizes.skew)
        result["skew_batch_ratio"] = details["skew"]["skew_batch_ratio"]
    result["details"] = details
    _print(console, result)
    console.print(f"kept in {keep('engines', result)}")
    return result


def _words(sizes: Sizes, console: Console) -> dict[str, Any]:
    found = {}
    for name, part, settings in (("resident", "resident", {}),
                                 ("microbatch", "words", {"which": "microbatch", "trials": sizes.rows}),
                                 ("microbatch_arrow", "words", {"which": "microbatch_arrow", "trials": sizes.arrow}),
                                 ("microbatch_arrow_files", "files", sizes.files)):
        console.print(f"{name} ...")
        found[name] = _on_millrace(part, seconds=sizes.seconds, **settings)
    for name, rival, lines in (("spark_sql", "spark_sql", sizes.sql_lines),
                               ("spark_python_state", "spark_python", sizes.python_lines)):
        console.print(f"{name} ...")
        found[name] = run_rival(rival, lines, SEED, root=project_root(), java_home=ensure_java(), report=console.print,
                                time_limit=LIMIT_SECONDS)
    return found


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
    """Each the median of all changes: the longest time without output, less the usual time between two batches, which there
    would have been anyway."""
    ours, usual = statistics.median(microbatch["gaps_ms"]), statistics.median(microbatch["usual_ms"])
    theirs = statistics.median(spark["gaps_ms"])
    return {"microbatch_gap_ms": max(0, round(ours - usual)), "spark_restart_gap_ms": max(0, round(theirs - spark["usual_ms"])),
            "microbatch_longest_ms": round(ours), "microbatch_usual_ms": round(usual),
            "microbatch_slow_batches": max(microbatch["slow_batches"]), "spark_longest_ms": round(theirs),
            "spark_usual_ms": spark["usual_ms"]}


def _print(console: Console, result: dict[str, Any]) -> None:
    if "words_per_s" in result:
        table = Table(title="words a second", title_justify="left")
        table.add_column("engine")
        table.add_column("words/s", justify="right")
        for name, found in result["details"]["words"].items():
            table.add_row(name, f"{found['words_per_s']:,.0f}")
        console.print(table)
        console.print(f"ratios: {result['ratios']}")
        for name in ("microbatch", "microbatch_arrow"):
            console.print(f"{name}: {result['details']['words'][name]['best']}")
    if "rescale" in result:
        console.print(f"rescale: {result['details']['rescale']['medians']}")
    if "skew_batch_ratio" in result:
        skew = result["details"]["skew"]
        console.print(f"skewed keys: a batch takes {skew['after_ms']} ms instead of {skew['before_ms']} ms "
                      f"({result['skew_batch_ratio']}); {'; '.join(skew['decisions'])}")
