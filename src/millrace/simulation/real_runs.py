"""Real runs of schedulers on one situation, to hold simulations against: `millrace bench simulation` records them.

A record is plain data: `window_seconds`, the `situation` as it was placed evenly, with the mean load of that time, and `runs`,
each with its `scheduler`, its length in `windows`, the tuples per second between nodes at its end as `measured`, and the
`placement` that it ended with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from millrace.model.graph import TaskId
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.registry import make_scheduler
from millrace.simulation.acks import AckRouting
from millrace.simulation.demand import Demand, Patterned, Walk
from millrace.simulation.loop import Conditions, simulated_run
from millrace.simulation.world import Machines, World

NOISES = 8  # simulations of a run, which differ in the noise of what is measured: their mean counts
LAST = 3  # windows at the end of a run whose mean counts
ALIKE = 0.1  # of the traffic when placed evenly: runs that differ by less may come the other way round the next time


class _Steady:
    """The load of the situation, without a change."""

    def due_by(self, seconds: float) -> float:
        return seconds


@dataclass(frozen=True)
class RealRun:
    """One run, beside what the model says of it. `predicted`: the traffic of the placement that it ended with, from the load
    measured under another one. `simulated`: the mean of the traffic at the end of its simulations, and `plans` of theirs."""

    scheduler: str
    measured: float
    predicted: float
    simulated: float
    plans: float


def compared_runs(record: Mapping[str, Any]) -> list[RealRun]:
    """Every run of the record with what the model says of it."""
    situation = Situation.from_json(record["situation"])
    runs = []
    for row in record["runs"]:
        seconds = row["windows"] * record["window_seconds"]
        conditions = Conditions(seconds / 3600, window_seconds=record["window_seconds"])
        simulated = [_simulated(situation, row["scheduler"], conditions, noise) for noise in range(NOISES)]
        traffic, plans = np.mean(simulated, axis=0)
        runs.append(RealRun(row["scheduler"], row["measured"], predicted(situation, row["placement"]), float(traffic),
                            float(plans)))
    return runs


def _simulated(situation: Situation, scheduler: str, conditions: Conditions, noise: int) -> tuple[float, int]:
    """The traffic at the end of a simulation, and its plans."""
    demands = Patterned(World.of(situation), _Steady(), Walk(), np.random.default_rng(noise))
    run = simulated_run(scheduler, make_scheduler(scheduler), situation, demands, conditions,
                        np.random.default_rng(NOISES + noise))
    return float(np.mean([window.inter_node for window in run.windows[-LAST:]])), run.plans


def predicted(situation: Situation, placement: Mapping[str, Mapping[str, int]]) -> float:
    """Tuples per second between nodes if the situation's load is placed like that."""
    world, machines = World.of(situation), Machines.of(situation.cluster)
    plans = {name: Plan(1, {TaskId.parse(task): slot for task, slot in slots.items()}) for name, slots in placement.items()}
    slots = world.slots_of(plans, machines.position)
    routed = AckRouting(world).routed(Demand(world.base_rate, world.base_rate[world.source] * world.selectivity), slots)
    nodes = machines.slot_node[slots]
    return float(routed.edge_rate[nodes[world.source] != nodes[world.target]].sum())


def apart(runs: list[RealRun]) -> list[tuple[RealRun, RealRun]]:
    """The pairs of runs whose measured traffic differs clearly, the one with less first."""
    least = ALIKE * max(run.measured for run in runs)
    ordered = sorted(runs, key=lambda run: run.measured)
    return [(one, other) for one, other in combinations(ordered, 2) if other.measured - one.measured > least]


def distinct(runs: list[RealRun]) -> int:
    """The number of results, those that are alike counted once."""
    least, kept = ALIKE * max(run.measured for run in runs), [-np.inf]
    for measured in sorted(run.measured for run in runs):
        if measured - kept[-1] > least:
            kept.append(measured)
    return len(kept) - 1


def wrong_order(runs: list[RealRun]) -> list[tuple[str, str]]:
    """The pairs that the simulation has the other way round."""
    return [(one.scheduler, other.scheduler) for one, other in apart(runs) if one.simulated >= other.simulated]
