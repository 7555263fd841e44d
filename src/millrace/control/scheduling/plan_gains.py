"""Gains of a plan, as it would have had them in each of the last windows, and the test that they are more than noise.

One window is noisy: which of two plans looks better changes from one to the next although the stream does not. The gains of
a plan in several windows, as they were measured, tell a gain from noise. Rates of tasks do not depend on where they run, so
windows from before the last move count too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from millrace.model.graph import ACKER, TaskId
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.inputs.measured import numbers_of, per_second, task_columns
from millrace.schedulers.inputs.traffic import clean, in_bytes
from millrace.schedulers.problem import NOWHERE, TUPLES, Floats, Ints, Problem

WINDOWS_KEPT = 10
GROUP_WINDOWS_KEPT = 40  # of key groups, which are counted by a sample: a slow stream needs many
CHANCE = 0.001  # that a plan which gains nothing passes for one that does

WindowLoads = Mapping[str, Load]  # the loads of a window, by topology


def exceeds_noise(gains: Sequence[float]) -> bool:
    """True if the mean of the gains is above 0 by more than chance, by Student's t. One window tells nothing about noise."""
    if len(gains) < 2:
        return True
    from scipy.special import stdtrit  # here, because it would delay the start of every driver

    error = stdev(gains) / math.sqrt(len(gains))
    return fmean(gains) > error * float(stdtrit(len(gains) - 1, 1 - CHANCE))


def traffic_gains(situation: Situation, plans: Mapping[str, Plan], windows: Sequence[WindowLoads],
                  objective: Mapping[str, Any]) -> list[float]:
    """By how much the plans would have lowered the cost of traffic in each window, per second. Windows in which a task that
    moves, or one that it exchanges tuples with, was just started or moved are left out. `objective`: as for `Problem.of`."""
    moved = {name: moving for name, plan in plans.items() if (moving := _moving(situation.plan.get(name), plan))}
    graphs = [graph for graph in situation.graphs if graph.name in moved]
    whole = [window for window in windows if all(_is_whole(window.get(graph.name), moved[graph.name]) for graph in graphs)]
    if not moved or not whole:
        return []
    problem = Problem.of(graphs, situation.cluster, {}, {name: situation.plan[name] for name in moved}, **objective)
    savings = _Savings(problem, plans, moved)
    return [savings.in_window(window) for window in whole]


def _moving(old: Plan | None, new: Plan) -> set[TaskId]:
    return {task for task, slot in new.placement.items() if old is not None and old.placement.get(task) not in (None, slot)}


def _is_whole(load: Load | None, moved: Collection[TaskId]) -> bool:
    """True if the traffic to and from these tasks is measured for the whole window."""
    if load is None or any(task not in load.tasks for task in moved if task.component != ACKER):
        return False
    settling = set(load.settling)
    if not settling:
        return True
    partners = (pair for pair in load.traffic if not settling.isdisjoint(pair))
    return settling.isdisjoint(moved) and all(one not in moved and other not in moved for one, other in partners)


class _Pairs(NamedTuple):
    """The pairs of tasks of a topology that have traffic in a window, and of those of which a task moves: their positions, and
    by how much cheaper a unit of their traffic becomes."""

    all: list[tuple[TaskId, TaskId]]
    moved: Ints
    saving: Floats


class _Savings:
    """The savings of plans in a window. Looking up the tasks of the traffic takes most of the time, so that is done once for
    all windows in which the same tasks communicate."""

    def __init__(self, problem: Problem, plans: Mapping[str, Plan], moved: Mapping[str, Collection[TaskId]]) -> None:
        self._problem, self._planned = problem, planned_slots(problem, plans)
        self._moves = np.array([task in moved[name] for name, task in problem.tasks], dtype=bool)
        self._numbers: dict[str, dict[TaskId, int]] = {graph.name: {} for graph in problem.graphs}
        for number, (name, task) in enumerate(problem.tasks):
            self._numbers[name][task] = number
        self._known: dict[str, _Pairs] = {}

    def in_window(self, window: WindowLoads) -> float:
        """By how much the plans would have lowered the cost of the window's traffic, per second."""
        tuples, size, saving = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
        for name in self._numbers:
            load = window[name]
            if not (load.window_seconds > 0 and math.isfinite(load.window_seconds)):
                continue
            pairs = self._pairs(name, load)
            tuples.append(per_second(load.traffic.values(), load)[pairs.moved])
            saving.append(pairs.saving)
            if self._problem.minimise != TUPLES:
                size.append(per_second(map(load.traffic_bytes.get, pairs.all, repeat(math.nan)), load)[pairs.moved])
        rates = clean(np.concatenate(tuples))
        weights = rates if self._problem.minimise == TUPLES else in_bytes(rates, np.concatenate(size))
        return float(weights @ np.concatenate(saving))

    def _pairs(self, name: str, load: Load) -> _Pairs:
        pairs, known = list(load.traffic), self._known.get(name)
        if known is None or known.all != pairs:
            ends = numbers_of(self._numbers[name], pairs)
            moved = np.flatnonzero((ends >= 0).all(axis=0) & (ends[0] != ends[1]) & self._moves[ends].any(axis=0))
            before, after = (self._problem.ways(slots, *ends[:, moved]) for slots in (self._problem.current, self._planned))
            known = self._known[name] = _Pairs(pairs, moved, before - after)
        return known


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
        first = 0
        for graph in problem.graphs:
            load, tasks = window.get(graph.name), graph.tasks()
            if load is not None and load.window_seconds > 0:
                seen, own = task_columns(load, tasks), slice(first, first + len(tasks))
                whole = seen.known & ~seen.settling
                sums[:, own] += np.where(whole, (seen.cpu, seen.loop), 0.0)
                counts[own] += whole
            first += len(tasks)
    cpu, time = np.where(counts > 0, sums / np.maximum(counts, 1), np.stack([problem.cpu, problem.time]))
    return replace(problem, cpu=clean(cpu), time=np.where(problem.time > 0, clean(time), 0.0))


def planned_slots(problem: Problem, plans: Mapping[str, Plan]) -> Ints:
    """The slots of all tasks under these plans."""
    position = {int(number): index for index, number in enumerate(problem.slot_numbers)}
    slots = [position.get(plans[name].placement.get(task, NOWHERE), NOWHERE) for name, task in problem.tasks]
    return np.array(slots, dtype=np.int64)
