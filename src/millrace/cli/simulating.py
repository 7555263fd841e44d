"""The work of `millrace simulate`: makes the world that was asked for, runs the schedulers in it, and shows their figures."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from millrace.cli.comparing import made
from millrace.cli.figures import count, duration, milliseconds, number_of
from millrace.cli.listing import Column, Hanging, Listing
from millrace.cli.options import json_or_text, pairs
from millrace.cli.simulation_plot import draw_runs
from millrace.cli.timeline import check_picture
from millrace.connectors import patterns
from millrace.control.scheduling.load_smoothing import EstimatorParameters, make_estimator
from millrace.control.scheduling.schedule_generator import Policy
from millrace.errors import BadParameter
from millrace.model.link_table import LinkTable
from millrace.model.situation import Situation
from millrace.schedulers.instances import simulated_situation
from millrace.simulation.absences import Absence, failures
from millrace.simulation.demand import Demands, Patterned, RatePattern, Walk
from millrace.simulation.figures import Run
from millrace.simulation.flow import LinkModel
from millrace.simulation.loop import Conditions, simulated_run
from millrace.simulation.moving import STATE_SHARE, MoveModel
from millrace.simulation.recorded import HistoryWindow, recorded_demands, recorded_situation
from millrace.simulation.world import World

SCHEDULERS = ("even", "tstorm")
PATTERNS: dict[str, Callable[..., patterns.Pattern]] = {
    "constant": patterns.constant, "step": patterns.step, "ramp": patterns.ramp, "sine": patterns.sine, "burst": patterns.burst,
    "trace": patterns.trace}
MANY_TASKS = 1000  # above it, a window is 60 s by default and not 20


@dataclass(frozen=True)
class SimulateOptions:
    """The options of the command. `policy`: those of the schedule generator that differ from its defaults."""

    nodes: int = 10
    tasks: int | None = None
    hours: float | None = None
    schedulers: tuple[str, ...] = ()
    pattern: str = "constant"
    walk: float = 0.0
    keys: float = 0.0
    history: str | None = None
    cluster: str | None = None
    situation: str | None = None
    links: str | None = None
    link_capacity: float | None = None
    state: float = STATE_SHARE
    failures: float = 0.0
    away: tuple[str, ...] = ()
    window: float | None = None
    estimator: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    plot: str | None = None


@dataclass(frozen=True)
class Chosen:
    """The world and what happens in it, the same for every scheduler."""

    situation: Situation
    windows: list[HistoryWindow] | None
    pattern: RatePattern
    walk: Walk
    conditions: Conditions
    seed: int

    def demands(self) -> Demands:
        world = World.of(self.situation)
        if self.windows is not None:
            return recorded_demands(world, self.windows)
        return Patterned(world, self.pattern, self.walk, np.random.default_rng([self.seed, 1]))


def run(asked: SimulateOptions, console: Console) -> dict[str, Any]:
    """Return the object of `simulate --json`; print the table to `console` and progress to stderr."""
    if asked.plot is not None:
        check_picture(asked.plot)
    chosen = chosen_world(asked)
    runs = run_all(chosen, asked.schedulers or SCHEDULERS)
    _show(runs, chosen, console)
    if asked.plot is not None:
        draw_runs([run for run, _ in runs], asked.plot)
    return {"runs": [run.to_json(seconds) for run, seconds in runs], "seed": asked.seed,
            "window_seconds": chosen.conditions.window_seconds}


def chosen_world(asked: SimulateOptions) -> Chosen:
    """The world that was asked for: a recorded run, a saved situation, or a random cluster."""
    windows = _windows(asked.history, asked.cluster) if asked.history is not None else None
    saved = Situation.read(asked.situation) if asked.situation is not None else None
    situation = _with_links(_situation(windows, saved, asked), asked.links)
    hours = asked.hours or (24.0 if windows is None else sum(past.seconds for past in windows) / 3600)
    tasks = sum(len(graph.tasks()) for graph in situation.graphs)
    names = [node.name for node in situation.cluster.nodes]
    absences = (*(_absence(text, names, hours) for text in asked.away),
                *failures(names, asked.failures, hours, np.random.default_rng([asked.seed, 2])))
    conditions = Conditions(hours, asked.window or (60.0 if tasks > MANY_TASKS else 20.0), absences=absences,
                            links=LinkModel(bytes_per_second=asked.link_capacity or math.inf),
                            moves=_moves(asked),
                            policy=Policy().changed(asked.policy), estimator=_estimator(asked.estimator))
    return Chosen(situation, windows, relative_pattern(asked.pattern, hours), Walk(asked.walk, asked.keys), conditions,
                  asked.seed)


def _moves(asked: SimulateOptions) -> MoveModel:
    """State travels over the same links as tuples."""
    model = MoveModel(state_share=asked.state)
    return replace(model, bytes_per_second=min(model.bytes_per_second, asked.link_capacity or math.inf))


def run_all(chosen: Chosen, names: Sequence[str]) -> list[tuple[Run, float]]:
    """Run every scheduler in the same world; each with the seconds that it took."""
    schedulers = {name: made(name) for name in names}
    runs = []
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for name, scheduler in schedulers.items():
            bar = progress.add_task(name, total=chosen.conditions.hours * 3600)
            started = time.perf_counter()
            run = simulated_run(name, scheduler, chosen.situation, chosen.demands(), chosen.conditions,
                                np.random.default_rng([chosen.seed, 3]), partial(_advance, progress, bar))
            runs.append((run, time.perf_counter() - started))
    return runs


def _advance(progress: Progress, bar: TaskID, seconds: float) -> None:
    progress.update(bar, completed=seconds)


# -- the world ------------------------------------------------------------------------------------------------------------


def _situation(windows: list[HistoryWindow] | None, saved: Situation | None, asked: SimulateOptions) -> Situation:
    if windows is not None:
        return recorded_situation(windows, saved)
    if saved is not None:
        return saved
    return simulated_situation(asked.tasks or 10 * asked.nodes, asked.nodes, np.random.default_rng([asked.seed, 0]))


def _with_links(situation: Situation, path: str | None) -> Situation:
    """The situation with the costs of links from that file, where it has some."""
    if path is None:
        return situation
    cluster = situation.cluster
    given = LinkTable.read(path).costs(node.name for node in cluster.nodes)
    return replace(situation, cluster=replace(cluster, links={**cluster.links, **given}))


def _estimator(text: str | None) -> EstimatorParameters | None:
    """The estimator with the parameters after its name; None: each scheduler's own."""
    if text is None:
        return None
    name, *parameters = text.split() or [""]
    return make_estimator(name, pairs("parameter", parameters))


def _windows(history: str, cluster: str | None) -> list[HistoryWindow]:
    from millrace.master.load.history import recorded_windows

    return list(recorded_windows(history, cluster))


def relative_pattern(text: str, hours: float) -> RatePattern:
    """The pattern that the text names, with 1 as its rate unless it names another. A trace is divided by its mean."""
    try:
        name, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise BadParameter(f"--pattern {text!r}: {str(error).lower()}") from None
    if name not in PATTERNS:
        raise BadParameter(f"--pattern {text!r}: there is no pattern {name!r}; there are {', '.join(PATTERNS)}")
    positional = [word for word in words if "=" not in word]
    values = {key: json_or_text(value) for key, _, value in (word.partition("=") for word in words if "=" in word)}
    if name != "trace":
        values.setdefault("rate", 1.0)
        for key, value in values.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise BadParameter(f"--pattern {text!r}: {key} is {value!r}, which is not a number")
    try:
        pattern = PATTERNS[name](*positional, **values)
    except TypeError as error:
        raise BadParameter(f"--pattern {text!r}: {str(error).partition('() ')[2] or error}. Write its parameters as "
                           "NAME=VALUE, as in \"step peak=2 at=3600\"; the path of a trace comes first") from None
    return _Relative(pattern, pattern.due_by(hours * 3600) / (hours * 3600)) if name == "trace" else pattern


@dataclass(frozen=True)
class _Relative:
    """A pattern divided by a rate."""

    pattern: patterns.Pattern
    rate: float

    def due_by(self, seconds: float) -> float:
        return self.pattern.due_by(seconds) / self.rate if self.rate else 0.0


def _absence(text: str, nodes: list[str], simulated: float) -> Absence:
    node, equals, hours = text.partition("=")
    begin, dash, end = hours.partition("-")
    try:
        absence = Absence(node, float(begin) * 3600, float(end) * 3600)
    except ValueError:
        absence = Absence(node, 0.0, 0.0)
    if not (equals and dash and 0 <= absence.begin < absence.end):
        raise BadParameter(f"--away {text!r} is not of the form NODE=FROM-UNTIL, in hours, as in {nodes[0]}=1-2.5")
    if node not in nodes:
        raise BadParameter(f"--away {text!r}: there is no node {node!r}; there are {', '.join(nodes[:5])}"
                           f"{' ...' if len(nodes) > 5 else ''}")
    if absence.begin >= simulated * 3600:
        raise BadParameter(f"--away {text!r} begins after the end: {simulated:g} hours are simulated. Give more with --hours")
    return absence


# -- output ---------------------------------------------------------------------------------------------------------------


def _show(runs: list[tuple[Run, float]], chosen: Chosen, console: Console) -> None:
    rows = [run.to_json(seconds) for run, seconds in runs]
    first = rows[0]
    console.print(Listing(
        f"{duration(chosen.conditions.hours * 3600)} on {number_of(first['nodes'], 'node')} with "
        f"{number_of(first['tasks'], 'task')} (seed {chosen.seed})",
        Column("scheduler", [row["scheduler"] for row in rows], figures=False),
        Column("between\nnodes/s", [count(row["inter_node_mean"]) for row in rows]),
        Column("plans", [count(row["plans"]) for row in rows]),
        Column("moves", [count(row["moves"]) for row in rows]),
        Column("over-\nload s", [count(row["overload_s"]) for row in rows]),
        Column("p50\nms", [milliseconds(row["p50_ms"]) for row in rows]),
        Column("p99\nms", [milliseconds(row["p99_ms"]) for row in rows]),
        Column("nodes\nused", [f"{row['nodes_used_mean']:.1f}" for row in rows]),
        Column("took\ns", [milliseconds(row["seconds"]) for row in rows], spare=True)))
    console.print(Hanging("means over time; overload: seconds in which a node or worker was asked for more than it has; "
                          "latency: by the queueing model, percentiles of the means of each window and topology, weighted by "
                          "the tuples offered"))
    for run, _ in runs:
        if run.error:
            console.print(Hanging(f"failed, first with: {run.error}", f"{run.scheduler}: ", "yellow"))
