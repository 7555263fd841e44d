"""`millrace scheduler compare`: runs every scheduler on the same situations, from a file or random ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.cli.figures import UNKNOWN, count, milliseconds, number_of, share
from millrace.cli.listing import Column, Hanging, Listing
from millrace.cli.options import pairs
from millrace.errors import MillraceError
from millrace.model.situation import Situation
from millrace.schedulers.base import Scheduler
from millrace.schedulers.compare import NOTHING, Outcome, details, in_common, outcome, summary
from millrace.schedulers.instances import random_situation
from millrace.schedulers.optimal import Least, Optimal, least_traffic
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS, make_scheduler

# With xi=1 the scheduler counts no cost for moves, which would hide how good its plans are; restarts=0 also leaves out the
# polished random starts that Millrace adds.
VARIANTS = ("slstream xi=1", "slstream xi=1 restarts=0")
PLACE_NOTHING = {"balance"}  # it only assigns key groups, which the comparison does not measure


def compare(load_file: str | None, random: int | None, seed: int, only: Sequence[str], console: Console) -> dict[str, Any]:
    """Return the object of `scheduler compare --json`; print the table to `console` and progress to stderr."""
    if (load_file is None) == (random is None):
        raise MillraceError("nothing to compare: give either --load FILE, which `millrace load --save` writes, or --random N")
    schedulers = chosen(only)
    if load_file is not None:
        return _of_file(load_file, schedulers, console)
    if random is None or random < 1:
        raise MillraceError(f"--random {random}: the number of situations must be at least 1")
    return _of_random(random, seed, schedulers, console)


def chosen(only: Sequence[str]) -> dict[str, Scheduler]:
    """The schedulers to compare: those in `only`, with parameters after the name ("tstorm gamma=2"), or by default all
    built-in ones that place tasks, and the variants."""
    return {name: _made(name) for name in only or [*(name for name in SCHEDULERS if name not in PLACE_NOTHING), *VARIANTS]}


def _made(text: str) -> Scheduler:
    name, *parameters = text.split()
    return make_scheduler(name, pairs("parameter", parameters))


def _optimum(situation: Situation) -> Least | None:
    """The least traffic possible; None if the problem is too large to be solved exactly."""
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
        outcomes = _ask(situation, schedulers, least)
    optimum = least.value if least is not None and least.proven else None
    rows = {name: details(each) for name, each in outcomes.items()}
    running = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    before = running.figures(running.current)
    console.print(_file_listing(f"{path}: {number_of(running.count, 'task')} on {number_of(running.nodes, 'node')}", rows))
    console.print(Hanging(f"{count(before.inter_node)} tuples/s between nodes now; the optimum is "
                          + ("not known" if optimum is None else f"{count(optimum)}; ratios are relative to it")))
    for name, row in rows.items():
        if row["error"] or row["overloaded"]:
            console.print(Hanging(row["error"] or "exceeds the CPU of a node", f"{name}: ", "yellow"))
    return {"file": path, "tasks": running.count, "nodes": running.nodes, "inter_node": before.inter_node,
            "inter_process": before.inter_process, "optimum": optimum, "schedulers": rows}


def _of_random(count: int, seed: int, schedulers: dict[str, Scheduler], console: Console) -> dict[str, Any]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in schedulers}
    zero = unknown = 0
    for situation in _situations(count, seed):
        least = _optimum(situation)
        unknown += least is None or not least.proven
        zero += least is not None and least.proven and least.value <= NOTHING
        for name, scored in _ask(situation, schedulers, least).items():
            outcomes[name].append(scored)
    common = in_common(outcomes)
    rows = {name: summary(results, common) for name, results in outcomes.items()}
    result = {"instances": count, "seed": seed, "zero_optimum": zero, "unknown_optimum": unknown, "common": len(common),
              "schedulers": rows}
    console.print(_random_listing(result))
    console.print(_random_legend(result))
    for name, row in rows.items():
        if row["failed"]:
            console.print(Hanging(f"failed {row['failed']:,} times, first with: {row['error']}", f"{name}: ", "yellow"))
    return result


def _situations(count: int, seed: int) -> Iterator[Situation]:
    """Random situations one by one, with a progress bar on stderr."""
    rng = np.random.default_rng(seed)
    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for _ in progress.track(range(count)):
            yield random_situation(rng)


def _file_listing(title: str, schedulers: dict[str, Any]) -> Listing:
    rows = schedulers.values()
    return Listing(
        title,
        Column("scheduler", list(schedulers), figures=False),
        Column("between\nnodes/s", [count(row["inter_node"]) for row in rows]),
        Column("between\nworkers/s", [count(row["inter_process"]) for row in rows]),
        Column("nodes\nused", [_show(row["nodes_used"], "d") for row in rows]),
        Column("largest\nload", [share(row["largest_load"]) for row in rows]),
        Column("moved", [_show(row["moved"], "d") for row in rows]),
        Column("ms", [milliseconds(row["plan_ms"]) for row in rows]),
        Column("ratio", [_show(row["ratio"], ".3f") for row in rows]))


def _random_listing(result: dict[str, Any]) -> Listing:
    schedulers = result["schedulers"]
    rows = schedulers.values()
    return Listing(
        f"{result['instances']:,} random situations (seed {result['seed']})",
        Column("scheduler", list(schedulers), figures=False),
        Column("mean\nratio", [_show(row["mean_ratio"], ".3f") for row in rows]),
        Column("worst", [_show(row["worst_ratio"], ".2f") for row in rows]),
        Column("cases", [count(row["compared"]) for row in rows]),
        Column("common", [_show(row["common_ratio"], ".3f") for row in rows]),
        Column("zeros", [count(row["zero_solved"]) for row in rows]),
        Column("over-\nload", [count(row["overloaded"]) for row in rows]),
        Column("moved", [_show(row["moved"], ".1f") for row in rows]),
        Column("ms", [milliseconds(row["plan_ms"]) for row in rows]))


def _random_legend(result: dict[str, Any]) -> Hanging:
    unknown = f"; the optimum is not known in {result['unknown_optimum']:,}" if result["unknown_optimum"] else ""
    return Hanging("ratio: traffic between nodes divided by the optimum, over the cases in which the optimum is not 0 and no "
                   f"node is overloaded; common: mean ratio over the {result['common']:,} cases in which every scheduler has "
                   f"one; zeros: cases solved with no traffic, of {result['zero_optimum']:,} where that is possible{unknown}")


def _show(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
