"""`millrace scheduler compare`: runs every scheduler on the same situations: saved, recorded or random ones."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from millrace.schedulers.instances import SHAPES, random_situation
from millrace.schedulers.optimal import Least, Optimal, least_traffic
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS, make_scheduler
from millrace.simulation.compare import (
    NO_TRAFFIC,
    OTHER_UNITS,
    Outcome,
    best_of,
    details,
    in_common,
    outcome,
    summary,
    units_of,
)

# With improve=true T-Storm's greedy choice is only the start. With xi=1 slstream counts no cost for moves, with capacity=1 a
# scheduler needs no headroom, and with a large balance subgraphs may differ: all of these would hide how good its plans are,
# compared with the optimum. published=true is the paper's swarm.
VARIANTS = ("tstorm improve=true capacity=1", "slstream xi=1 capacity=1 balance=1000", "slstream xi=1 published=true",
            "multilevel capacity=1")
MOST_WINDOWS = 50  # of a history
SMALL, LARGE = ((4, 12), (2, 4)), ((17, 40), (4, 8))  # tasks and nodes of random situations; the optimum of small ones is known
LARGE_SHARE = 0.2
MIXED = "mixed"
CORES = (1, 2, 4)  # of a node
PLACE_NOTHING = {"balance"}  # it only assigns key groups, which the comparison does not measure


@dataclass(frozen=True)
class Situations:
    """Situations to compare on: files, a history, or `random` situations of that shape and size; None: of several."""

    files: tuple[str, ...] = ()
    history: str | None = None
    cluster: str | None = None
    random: int | None = None
    seed: int = 1
    shape: str | None = None
    tasks: tuple[int, int] | None = None
    nodes: tuple[int, int] | None = None
    cores: int | None = None
    pinned: float = 0.0


def compare(situations: Situations, only: Sequence[str], console: Console) -> dict[str, Any]:
    """Return the object of `scheduler compare --json`; print the table to `console` and progress to stderr."""
    given = [bool(situations.files), situations.history is not None, situations.random is not None]
    if sum(given) != 1:
        raise MillraceError("nothing to compare: give either --load FILE, which `millrace load --save` writes, --history FILE, "
                            "or --random N")
    schedulers = chosen(only)
    if len(situations.files) == 1:
        return _of_file(situations.files[0], schedulers, console)
    if situations.files:
        read = [Situation.read(path) for path in situations.files]
        title = number_of(len(read), "saved situation")
        return {**_of_many(read, title, schedulers, console), "files": list(situations.files)}
    if situations.history is not None:
        return {**_of_many(_recorded(situations.history, situations.cluster), f"windows of {situations.history}", schedulers,
                           console), "history": situations.history}
    return _of_random(situations, schedulers, console)


def _recorded(history: str, cluster: str | None) -> list[Situation]:
    """Windows of the history as situations; of a long one, evenly distributed ones."""
    from millrace.master.load.history import recorded_windows
    from millrace.simulation.recorded import recorded_situations

    recorded = recorded_situations(list(recorded_windows(history, cluster)))
    return recorded[::max(1, len(recorded) // MOST_WINDOWS)][-MOST_WINDOWS:]


def chosen(only: Sequence[str]) -> dict[str, Scheduler]:
    """The schedulers to compare: those in `only`, with parameters after the name ("tstorm gamma=2"), or by default all
    built-in ones that place tasks, and the variants."""
    return {name: made(name) for name in only or [*(name for name in SCHEDULERS if name not in PLACE_NOTHING), *VARIANTS]}


def made(text: str) -> Scheduler:
    """The scheduler with the parameters after its name."""
    name, *parameters = text.split() or [""]
    return make_scheduler(name, pairs("parameter", parameters))


def _optimum(situation: Situation) -> Least | None:
    """The least traffic possible; None if the problem is too large to be solved exactly."""
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    limits = Optimal()
    if not problem.nodes or problem.count > limits.max_tasks:
        return None
    return least_traffic(problem, limits.time_limit)


def _ask(situation: Situation, schedulers: dict[str, Scheduler], least: Least | None) -> dict[str, Outcome]:
    units = units_of(schedulers.values())
    return {name: outcome(scheduler, situation, time.perf_counter, least, units) for name, scheduler in schedulers.items()}


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
            console.print(Hanging(row["error"] or "exceeds the capacity of a node or worker", f"{name}: ", "yellow"))
    return {"file": path, "tasks": running.count, "nodes": running.nodes, "inter_node": before.inter_node,
            "inter_process": before.inter_process, "optimum": optimum, "schedulers": rows}


def _of_random(situations: Situations, schedulers: dict[str, Scheduler], console: Console) -> dict[str, Any]:
    wanted, rng = situations.random or 0, np.random.default_rng(situations.seed)
    if wanted < 1:
        raise MillraceError(f"--random {wanted}: the number of situations must be at least 1")
    made = (_random_situation(situations, rng) for _ in range(wanted))
    title = f"{wanted:,} random situations (seed {situations.seed})"
    return {**_of_many(made, title, schedulers, console, wanted), "seed": situations.seed, "shape": situations.shape or MIXED}


def _random_situation(asked: Situations, rng: np.random.Generator) -> Situation:
    """A situation with whatever is not asked for drawn at random. One number is drawn for each, so that naming one of them
    leaves the others as they are."""
    shape, size, cores = str(rng.choice(SHAPES)), rng.random(), int(rng.choice(CORES))
    tasks, nodes = LARGE if size < LARGE_SHARE else SMALL
    return random_situation(rng, asked.tasks or tasks, asked.nodes or nodes, shape=asked.shape or shape,
                            cores=asked.cores or cores, pinned=asked.pinned)


def _of_many(situations: Iterable[Situation], title: str, schedulers: dict[str, Scheduler], console: Console,
             wanted: int | None = None) -> dict[str, Any]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in schedulers}
    zero = unknown = seen = 0
    for situation in _with_progress(situations, wanted):
        least = _optimum(situation)
        seen += 1
        unknown += least is None or not least.proven
        zero += least is not None and least.proven and least.value <= NO_TRAFFIC
        for name, scored in _ask(situation, schedulers, least).items():
            outcomes[name].append(scored)
    common, best = in_common(outcomes), best_of(outcomes)
    rows = {name: summary(results, common, best) for name, results in outcomes.items()}
    result = {"instances": seen, "zero_optimum": zero, "unknown_optimum": unknown, "common": len(common), "schedulers": rows}
    console.print(_many_listing(title, rows, known=unknown < seen, unknown=unknown > 0))
    console.print(_many_legend(result))
    for name, row in rows.items():
        if row["failed"]:
            console.print(Hanging(f"failed {row['failed']:,} times, first with: {row['error']}", f"{name}: ", "yellow"))
    return result


def _with_progress(situations: Iterable[Situation], wanted: int | None) -> Iterator[Situation]:
    """The situations one by one, with a progress bar on stderr."""
    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(situations, total=wanted)


def _file_listing(title: str, schedulers: dict[str, Any]) -> Listing:
    rows = schedulers.values()
    return Listing(
        title,
        Column("scheduler", list(schedulers), figures=False),
        Column("between\nnodes/s", [count(row["inter_node"]) for row in rows]),
        Column("between\nworkers/s", [count(row["inter_process"]) for row in rows]),
        *_unit_columns(rows),
        Column("nodes\nused", [_show(row["nodes_used"], "d") for row in rows]),
        Column("largest\nload", [share(row["largest_load"]) for row in rows]),
        Column("moved", [_show(row["moved"], "d") for row in rows]),
        Column("ms", [milliseconds(row["plan_ms"]) for row in rows]),
        Column("ratio", [_show(row["ratio"], ".3f") for row in rows]),
        Column("en-\nacted", ["yes" if row["enacted"] else "no" for row in rows], spare=True),
        Column("then between\nnodes/s", [count(row["enacted_inter_node"]) for row in rows], spare=True),
        Column("steps", [_show(row["steps"], "d") for row in rows], spare=True))


def _many_listing(title: str, schedulers: dict[str, Any], known: bool, unknown: bool) -> Listing:
    """`known`, `unknown`: the optimum is, of some of the situations."""
    rows = schedulers.values()
    best = [Column("to the\nbest", [_show(row["best_ratio"], ".3f") for row in rows])]
    enacted_best = [Column("enacted\nto best", [_show(row["enacted_best_ratio"], ".3f") for row in rows], spare=True)]
    enacted = [Column("enacted\nratio", [_show(row["enacted_ratio"], ".3f") for row in rows], spare=True)]
    ratios = [Column("mean\nratio", [_show(row["mean_ratio"], ".3f") for row in rows]),
              Column("worst", [_show(row["worst_ratio"], ".2f") for row in rows]),
              Column("cases", [count(row["compared"]) for row in rows]),
              Column("common", [_show(row["common_ratio"], ".3f") for row in rows]),
              Column("zeros", [count(row["zero_solved"]) for row in rows])]
    return Listing(
        title,
        Column("scheduler", list(schedulers), figures=False),
        *(ratios if known else []), *(best if unknown else []),
        *_unit_columns(rows),
        Column("over-\nload", [count(row["overloaded"]) for row in rows]),
        Column("moved", [_show(row["moved"], ".1f") for row in rows]),
        Column("ms", [milliseconds(row["plan_ms"]) for row in rows]),
        Column("en-\nacted", [count(row["enacted"]) for row in rows], spare=True),
        *(enacted if known else []), *(enacted_best if unknown else []),
        Column("steps", [_show(row["steps"], ".1f") for row in rows], spare=True))


def _unit_columns(rows: Collection[dict[str, Any]]) -> list[Column]:
    """Traffic between nodes in the units that a scheduler minimises instead of tuples."""
    return [Column(f"{unit}\nbetween\nnodes/s", [count(row[unit]) for row in rows]) for unit in OTHER_UNITS
            if any(row[unit] is not None for row in rows)]


def _many_legend(result: dict[str, Any]) -> Hanging:
    enacted = ("enacted: cases in which the live engine would carry out a plan, and the mean ratio of what is in force then; "
               "steps: plans made until there were no more")
    best = ("to the best: traffic between nodes divided by the least that one of these schedulers reached without an overload, "
            "over the cases in which that is not 0 and nothing is overloaded")
    if result["unknown_optimum"] == result["instances"]:
        return Hanging(f"{best}; {enacted}")
    unknown = f"; the optimum is not known in {result['unknown_optimum']:,}; {best}" if result["unknown_optimum"] else ""
    return Hanging("ratio: traffic between nodes divided by the optimum, over the cases in which the optimum is not 0 and "
                   f"nothing is overloaded; common: mean ratio over the {result['common']:,} cases in which every scheduler "
                   f"has one; zeros: cases solved with no traffic, of {result['zero_optimum']:,} where that is "
                   f"possible{unknown}; {enacted}")


def _show(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
