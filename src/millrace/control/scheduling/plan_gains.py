"""Gains of a plan, as it would have had them in each of the last windows, and the test that they are more than noise.

One window is noisy: which of two plans looks better changes from one to the next although the stream does not. The gains of
a plan in several windows, as they were measured, tell a gain from noise. Rates of tasks do not depend on where they run, so
windows from before the last move count too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.special import stdtrit

from millrace.model.graph import ACKER, TaskId
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.problem import NOWHERE, Ints, Problem, clean

WINDOWS_KEPT = 10
GROUP_WINDOWS_KEPT = 40  # of key groups, which are counted by a sample: a slow stream needs many
CHANCE = 0.001  # that a plan which gains nothing passes for one that does

WindowLoads = Mapping[str, Load]  # the loads of a window, by topology


def exceeds_noise(gains: Sequence[float]) -> bool:
    """True if the mean of the gains is above 0 by more than chance, by Student's t. One window tells nothing about noise."""
    if len(gains) < 2:
        return True
    error = stdev(gains) / math.sqrt(len(gains))
    return fmean(gains) > error * float(stdtrit(len(gains) - 1, 1 - CHANCE))


def traffic_gains(situation: Situation, plans: Mapping[str, Plan], windows: Sequence[WindowLoads],
                  objective: Mapping[str, Any]) -> list[float]:
    """By how much the plans would have lowered the cost of traffic in each window, per second. Windows in which a task that
    moves, or one that it exchanges tuples with, was just started or moved are left out. `objective`: as for `Problem.of`."""
    moved = {name: moving for name, plan in plans.items() if (moving := _moving(situation.plan.get(name), plan))}
    graphs = [graph for graph in situation.graphs if graph.name in moved]
    gains = []
    for window in windows:
        part = {graph.name: _part(window.get(graph.name), moved[graph.name]) for graph in graphs}
        loads = {name: load for name, load in part.items() if load is not None}
        if len(loads) == len(graphs):
            running = {name: situation.plan[name] for name in moved}
            problem = Problem.of(graphs, situation.cluster, loads, running, **objective)
            gains.append(problem.cost(problem.current) - problem.cost(planned_slots(problem, plans)))
    return gains if moved else []


def _moving(old: Plan | None, new: Plan) -> set[TaskId]:
    return {task for task, slot in new.placement.items() if old is not None and old.placement.get(task) not in (None, slot)}


def _part(load: Load | None, moved: Collection[TaskId]) -> Load | None:
    """The traffic to and from these tasks; None if it is not measured for the whole window."""
    if load is None or any(task not in load.tasks for task in moved if task.component != ACKER):
        return None
    settling = set(load.settling)
    if not settling.isdisjoint(moved):
        return None
    traffic = {pair: tuples for pair, tuples in load.traffic.items() if pair[0] in moved or pair[1] in moved}
    if settling and any(not settling.isdisjoint(pair) for pair in traffic):
        return None
    sizes = {pair: load.traffic_bytes[pair] for pair in traffic if pair in load.traffic_bytes}
    return Load(load.window_seconds, {}, traffic, traffic_bytes=sizes)


def balance_gains(situation: Situation, plans: Mapping[str, Plan], windows: Sequence[WindowLoads]) -> list[float]:
    """By how many tuples per second the plans would have relieved the most loaded tasks of the components whose key groups
    they move, in each window."""
    changed = list(_regrouped(situation, plans))
    counted = [window for window in windows
               if all(name in window and window[name].window_seconds > 0
                      and len(window[name].key_groups.get(component, ())) == len(old) for name, component, old, _ in changed)]
    if not changed or not counted:
        return []
    gains = np.zeros(len(counted))
    for name, component, old, new in changed:
        rates = np.array([np.array(window[name].key_groups[component]) / window[name].window_seconds for window in counted])
        fullest = [int(np.bincount(owners, weights=rates.sum(axis=0)).argmax()) for owners in (old, new)]  # in all windows
        gains += rates[:, old == fullest[0]].sum(axis=1) - rates[:, new == fullest[1]].sum(axis=1)
    return [float(gain) for gain in gains]


def _regrouped(situation: Situation, plans: Mapping[str, Plan]) -> Iterator[tuple[str, str, Ints, Ints]]:
    """Components whose key groups get other owners: topology, component, owners before and after."""
    for name, plan in plans.items():
        before = situation.plan[name].key_groups if name in situation.plan else {}
        for component, owners in plan.key_groups.items():
            if component in before and before[component] != owners and len(before[component]) == len(owners):
                yield name, component, np.array(before[component], dtype=np.int64), np.array(owners, dtype=np.int64)


def with_recent_loads(problem: Problem, windows: Sequence[WindowLoads]) -> Problem:
    """The problem with the CPU and loop time of each task averaged over the windows that have it whole."""
    sums, counts = np.zeros((2, problem.count)), np.zeros(problem.count)
    for window in windows:
        settling = {(name, task) for name, load in window.items() for task in load.settling}
        for number, (name, task) in enumerate(problem.tasks):
            load = window.get(name)
            seen = load.tasks.get(task) if load is not None and load.window_seconds > 0 else None
            if load is not None and seen is not None and (name, task) not in settling:
                sums[:, number] += seen.cpu_mhz, seen.busy_seconds / load.window_seconds
                counts[number] += 1
    cpu, time = np.where(counts > 0, sums / np.maximum(counts, 1), np.stack([problem.cpu, problem.time]))
    return replace(problem, cpu=clean(cpu), time=np.where(problem.time > 0, clean(time), 0.0))


def planned_slots(problem: Problem, plans: Mapping[str, Plan]) -> Ints:
    """The slots of all tasks under these plans."""
    position = {int(number): index for index, number in enumerate(problem.slot_numbers)}
    slots = [position.get(plans[name].placement.get(task, NOWHERE), NOWHERE) for name, task in problem.tasks]
    return np.array(slots, dtype=np.int64)
