"""`millrace scheduler compare`: every scheduler on the same situations, from a file or made at random."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from millrace.cli.options import pairs
from millrace.errors import MillraceError
from millrace.model.situation import Situation
from millrace.schedulers.base import Scheduler
from millrace.schedulers.compare import NOTHING, Outcome, details, in_common, outcome, summary
from millrace.schedulers.instances import random_situation
from millrace.schedulers.optimal import Least, Optimal, least_traffic
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS, make_scheduler

# Without its reluctance to move, which hides how good its plans are; and that without our polished random starts.
VARIANTS = ("slstream xi=1", "slstream xi=1 restarts=0")
PLACE_NOTHING = {"balance"}  # its key groups do not show in what is compared; as a row it would hide that


def compare(load_file: str | None, random: int | None, seed: int, only: Sequence[str], console: Console) -> dict[str, Any]:
    """Returns the object of `scheduler compare --json`; the table goes to `console`, progress to stderr."""
    if (load_file is None) == (random is None):
        raise MillraceError("compare what? Give either --load FILE (written by `millrace load --save FILE`) or --random N")
    schedulers = chosen(only)
    if load_file is not None:
        return _of_file(load_file, schedulers, console)
    if random is None or random < 1:
        raise MillraceError(f"--random {random}: the number of situations must be at least 1")
    return _of_random(random, seed, schedulers, console)


def chosen(only: Sequence[str]) -> dict[str, Scheduler]:
    """The schedulers to compare: those named, with parameters after the name ("tstorm gamma=2"), or all of ours that place
    tasks with their defaults, and the variants."""
    return {name: _made(name) for name in only or [*(name for name in SCHEDULERS if name not in PLACE_NOTHING), *VARIANTS]}


def _made(text: str) -> Scheduler:
    name, *given = text.split()
    return make_scheduler(name, pairs("parameter", given))


def _optimum(situation: Situation) -> Least | None:
    """None if the problem is too large to be solved exactly."""
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    limits = Optimal()
    if not problem.nodes or problem.count > limits.max_tasks:
        return None
    return least_traffic(problem, limits.time_limit)


def _ask(situation: Situation, schedulers: dict[str, Scheduler], least: Least | None) -> dict[str, Outcome]:
    return {name: outcome(scheduler, situation, time.perf_counter, least) for name, scheduler in schedulers.items()}


def _of_file(path: str, schedulers: dict[str, Scheduler], console: Console) -> dict[str, Any]:
    situation = Situation.read(path)
    with Console(stderr=True).status("comparing ..."):
        least = _optimum(situation)
        found = _ask(situation, schedulers, least)
    optimum = least.value if least is not None and least.proven else None
    rows = {name: details(each) for name, each in found.items()}
    running = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    before = running.figures(running.current)
    table = Table(title=f"{path}: {running.count} tasks on {running.nodes} nodes; {before.inter_node:,.0f} tuples/s between "
                        f"nodes now, {'least unknown' if optimum is None else f'{optimum:,.0f} at least'}",
                  title_justify="left")
    _columns(table, "scheduler", "between nodes/s", "between workers/s", "nodes", "largest load", "moved", "ms", "ratio", "")
    for name, row in rows.items():
        table.add_row(name, _show(row["inter_node"], ",.0f"), _show(row["inter_process"], ",.0f"),
                      _show(row["nodes_used"], "d"), _show(row["largest_load"], ".0%"), _show(row["moved"], "d"),
                      f"{row['plan_ms']:,.1f}", _show(row["ratio"], ".3f"),
                      row["error"] or ("overloaded" if row["overloaded"] else ""))
    console.print(table)
    return {"file": path, "tasks": running.count, "nodes": running.nodes, "inter_node": before.inter_node,
            "inter_process": before.inter_process, "optimum": optimum, "schedulers": rows}


def _of_random(count: int, seed: int, schedulers: dict[str, Scheduler], console: Console) -> dict[str, Any]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in schedulers}
    zero = unknown = 0
    for situation in _situations(count, seed):
        least = _optimum(situation)
        unknown += least is None or not least.proven
        zero += least is not None and least.proven and least.value <= NOTHING
        for name, found in _ask(situation, schedulers, least).items():
            outcomes[name].append(found)
    common = in_common(outcomes)
    rows = {name: summary(found, common) for name, found in outcomes.items()}
    result = {"instances": count, "seed": seed, "zero_optimum": zero, "unknown_optimum": unknown, "common": len(common),
              "schedulers": rows}
    console.print(_random_table(result))
    return result


def _situations(count: int, seed: int) -> Iterator[Situation]:
    """One after the other, with a bar on stderr while they are worked through."""
    rng = np.random.default_rng(seed)
    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for _ in progress.track(range(count)):
            yield random_situation(rng)


def _random_table(result: dict[str, Any]) -> Table:
    table = Table(title=f"{result['instances']:,} random situations (seed {result['seed']}); traffic between nodes over the "
                        f"least there can be, where that is not 0 (it is in {result['zero_optimum']:,}; in "
                        f"{result['unknown_optimum']:,} it is not known); every scheduler has a ratio in {result['common']:,}",
                  title_justify="left")
    _columns(table, "scheduler", "mean ratio", "worst", "over", "common", "0 solved", "overloads", "moved", "ms")
    for name, row in result["schedulers"].items():
        table.add_row(name + (f" ({row['failed']} failed)" if row["failed"] else ""), _show(row["mean_ratio"], ".3f"),
                      _show(row["worst_ratio"], ".2f"), f"{row['compared']:,}", _show(row["common_ratio"], ".3f"),
                      f"{row['zero_solved']:,}", f"{row['overloaded']:,}", _show(row["moved"], ".1f"),
                      _show(row["plan_ms"], ",.1f"))
    return table


def _columns(table: Table, first: str, *others: str) -> None:
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
