"""`millrace bench scheduler`: seconds and memory that each scheduler takes to plan, for growing numbers of tasks and slots, the
traffic once its plans are enacted or refused, and its traffic on small random situations against the optimum; and the time that
a simulation takes."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from millrace.bench.results import keep
from millrace.cli.comparing import Situations, compare
from millrace.cli.simulate import PATTERN
from millrace.cli.simulating import SimulateOptions, chosen_world
from millrace.control.scheduling.schedule_generator import ASKED, ENACTED, Choice, Policy, ScheduleGenerator
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan, Scheduler, SchedulingResult
from millrace.schedulers.instances import large_situation
from millrace.schedulers.problem import Problem
from millrace.schedulers.registry import SCHEDULERS, make_scheduler
from millrace.simulation.compare import assignment_of
from millrace.simulation.loop import simulated_run

SEED = 1
SIZES = ((100, 10), (1000, 100), (10_000, 1000), (100_000, 10_000))  # tasks, slots
LARGEST = {"optimal": 0, "even": 100_000, "multilevel": 100_000}  # tasks: a scheduler is not run beyond these
OTHERS_LARGEST = 10_000
MOST_PLANS = 5  # that are followed: some schedulers move one task at a time

SIMULATED = ("even", "tstorm")  # as `millrace simulate` without --scheduler
SIMULATED_NODES, SIMULATED_TASKS = 1000, 10_000


def run_scheduler_bench(random: int, hours: float, live: bool) -> dict[str, Any]:
    """Returns the object of `bench scheduler --json`. `random`: situations of the comparison; 0 leaves it out. `hours` to
    simulate; 0 leaves that out."""
    console = Console(stderr=not live)
    sizes: list[dict[str, Any]] = []
    for tasks, slots in SIZES:
        for name in SCHEDULERS:
            if tasks <= LARGEST.get(name, OTHERS_LARGEST):
                console.print(f"{name}, {tasks:,} tasks ...")
                sizes.append({"tasks": tasks, "slots": slots, "scheduler": name, **_in_own_process(name, tasks, slots)})
    for title, figure, form in (("seconds to plan", "seconds", ".3f"), ("tuples/s between nodes", "inter_node", ",.0f"),
                                ("peak memory of the process, MB", "peak_mb", ",.0f")):
        console.print(_table(title, sizes, figure, form))
    simulated = [_simulated_in_own_process(name, hours, console) for name in SIMULATED] if hours else []
    result = {"sizes": sizes, "simulated": simulated,
              "compare": compare(Situations(random=random, seed=SEED), (), console) if random else None}
    console.print(f"kept in {keep('scheduler', result)}")
    return result


def _in_own_process(name: str, tasks: int, slots: int) -> dict[str, float]:
    """The figures of one scheduler. It has a process of its own, because the peak of a process's memory never falls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measured, name, tasks, slots).result()


def measured(name: str, tasks: int, slots: int) -> dict[str, float]:
    """Seconds to plan, including the time to read the load into arrays; the peak memory of this process before and after; and
    the traffic that is left, and the tasks moved, once the schedule generator has enacted or refused the plans."""
    situation = large_situation(tasks, slots, np.random.default_rng(SEED))
    scheduler = make_scheduler(name)
    before = _peak_mb()
    started = time.perf_counter()
    result = _asked(scheduler, situation)
    seconds = time.perf_counter() - started
    after = _peak_mb()
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    ended, plans = _followed(name, scheduler, situation, result)
    figures = problem.figures(assignment_of(situation, ended.plan))
    return {"seconds": round(seconds, 4), "inter_node": round(figures.inter_node, 1), "moved": figures.moved, "plans": plans,
            "input_mb": before, "peak_mb": after}


def _asked(scheduler: Scheduler, situation: Situation) -> SchedulingResult:
    return scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)


def _followed(name: str, scheduler: Scheduler, situation: Situation, result: SchedulingResult) -> tuple[Situation, int]:
    """The situation after the plans that are enacted, beginning with this one, and their number. A plan that is refused
    changes nothing, however little traffic it has."""
    generator, plans = ScheduleGenerator(Choice.of(name, scheduler), Policy()), 0
    while (isinstance(result, NewPlan) and generator.decide(situation, result, ASKED, 0.0).outcome == ENACTED
           and generator.accepted is not None):
        situation, plans = replace(situation, plan={**situation.plan, **generator.accepted.plans}), plans + 1
        if plans == MOST_PLANS:
            break
        result = _asked(scheduler, situation)
    return situation, plans


def _simulated_in_own_process(name: str, hours: float, console: Console) -> dict[str, Any]:
    console.print(f"{name}, simulated: {hours:g} h of {SIMULATED_TASKS:,} tasks on {SIMULATED_NODES:,} nodes ...")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        row = process.submit(simulated, name, hours, SIMULATED_NODES, SIMULATED_TASKS).result()
    console.print(f"{name}, simulated: {row['seconds']:,.0f} s, {row['plans']:,} plans, {row['moves']:,} moves, "
                  f"{row['peak_mb']:,.0f} MB")
    return row


def simulated(name: str, hours: float, nodes: int, tasks: int) -> dict[str, Any]:
    """The figures of `simulate` with these sizes and its other options as they are by default, and the peak memory of this
    process. Prints every simulated hour to stderr."""
    chosen = chosen_world(SimulateOptions(nodes=nodes, tasks=tasks, hours=hours, pattern=PATTERN, walk=0.1, keys=0.3,
                                          seed=SEED))
    console, started, hour = Console(stderr=True), time.perf_counter(), 0

    def progress(seconds: float) -> None:
        nonlocal hour
        if seconds >= 3600 * (hour + 1):
            hour = int(seconds // 3600)
            console.print(f"{name}: {hour} of {hours:g} h simulated in {time.perf_counter() - started:,.0f} s")

    run = simulated_run(name, make_scheduler(name), chosen.situation, chosen.demands(), chosen.conditions,
                        np.random.default_rng(SEED), progress)
    return {**run.to_json(round(time.perf_counter() - started, 1)), "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _table(title: str, sizes: list[dict[str, Any]], figure: str, form: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("scheduler")
    figures = {(row["scheduler"], row["tasks"]): row[figure] for row in sizes}
    for tasks, slots in SIZES:
        table.add_column(f"{tasks:,} tasks, {slots:,} slots", justify="right")
    for name in SCHEDULERS:
        if any((name, tasks) in figures for tasks, _ in SIZES):
            table.add_row(name, *(format(figures[name, tasks], form) if (name, tasks) in figures else "-"
                                  for tasks, _ in SIZES))
    return table
