"""`millrace bench scheduler`: seconds that each scheduler takes to plan, for growing numbers of tasks and slots, and
its traffic on small random situations against the optimum."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from millrace.bench.results import keep
from millrace.cli.comparing import compare
from millrace.model.situation import Situation
from millrace.schedulers.instances import large_situation
from millrace.schedulers.registry import SCHEDULERS, make_scheduler

SEED = 1
SIZES = ((100, 10), (1000, 100), (10_000, 1000))  # tasks, slots
LARGEST = {"optimal": 0}  # tasks: a scheduler is not run beyond these; the exact one would never end


def run_scheduler_bench(random: int, live: bool) -> dict[str, Any]:
    """Returns the object of `bench scheduler --json`. `random`: situations of the comparison; 0 leaves it out."""
    console = Console(stderr=not live)
    sizes: list[dict[str, Any]] = []
    for tasks, slots in SIZES:
        situation = large_situation(tasks, slots, np.random.default_rng(SEED))
        for name in SCHEDULERS:
            if tasks <= LARGEST.get(name, tasks):
                console.print(f"{name}, {tasks:,} tasks ...")
                sizes.append({"tasks": tasks, "slots": slots, "scheduler": name, "seconds": _seconds(name, situation)})
    console.print(_table(sizes))
    result = {"sizes": sizes, "compare": compare(None, random, SEED, (), console) if random else None}
    console.print(f"kept in {keep('scheduler', result)}")
    return result


def _seconds(name: str, situation: Situation) -> float:
    """Seconds to plan, including the time to read the load into arrays."""
    scheduler = make_scheduler(name)
    started = time.perf_counter()
    scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)
    return round(time.perf_counter() - started, 4)


def _table(sizes: list[dict[str, Any]]) -> Table:
    table = Table(title="seconds to plan", title_justify="left")
    table.add_column("scheduler")
    seconds = {(row["scheduler"], row["tasks"]): row["seconds"] for row in sizes}
    for tasks, slots in SIZES:
        table.add_column(f"{tasks:,} tasks, {slots:,} slots", justify="right")
    for name in SCHEDULERS:
        if any((name, tasks) in seconds for tasks, _ in SIZES):
            table.add_row(name, *(f"{seconds[name, tasks]:.3f}" if (name, tasks) in seconds else "-" for tasks, _ in SIZES))
    return table
