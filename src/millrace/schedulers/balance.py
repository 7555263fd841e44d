"""Balances load by giving key groups to other tasks of the same component.

Placing tasks cannot help against skewed keys: the task that owns the hot ones is slow wherever it runs. Its key groups can move
to other tasks while the stream runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.inputs.traffic import clean
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.placing import place_homeless
from millrace.schedulers.problem import ROUNDING, Floats, Ints, Problem

TOLERANCE = 0.1  # by which the most loaded task may exceed the mean
NOBODY = -1  # the owner of a group that has none yet


@dataclass(frozen=True, slots=True)
class Balance:
    """Gives key groups of keyed components to other tasks, so that each task gets the same number of tuples. Tasks stay
    where they are. On resident workers key groups are handed over while the stream runs; in batches, with the next one.

    Few groups move: a group that evens out the most and the least loaded task moves, or two groups change places. A group
    cannot be split, so a task keeps a group that is hotter than the mean for itself. All groups are reassigned from scratch
    only if the result would be much better; that is at most 4/3 of the optimum.
    """

    tolerance: float = parameter(TOLERANCE, "Key groups move if the most loaded task exceeds the mean by more than this "
                                            "fraction.", low=0.0, high=10.0)
    least_tuples: int = parameter(1000, "Components with fewer tuples in the window keep their key groups: too few to tell "
                                        "skew from chance.", low=0)

    PERIOD_SECONDS: ClassVar[float] = 5.0
    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        placed = place_homeless(problem)
        if isinstance(placed, CannotPlace):
            return placed
        plans = dict(placed.plans) if isinstance(placed, NewPlan) else {graph.name: plan[graph.name] for graph in graphs}
        regrouped, reasons = self.regrouped(graphs, load, plans)
        changed = isinstance(placed, NewPlan) or bool(regrouped)
        for name, new in regrouped.items():
            plans[name] = replace(new, version=(plan[name].version if name in plan else 0) + 1)
        if isinstance(placed, NewPlan):
            reasons.insert(0, placed.reason)
        reason = "; ".join(reasons) or "there is no topology to balance"
        return NewPlan(plans, reason, placed.overload) if changed else NoChange(reason, placed.overload)

    def regrouped(self, graphs: Sequence[TopologyGraph], load: Mapping[str, Load],
                  plans: Mapping[str, Plan]) -> tuple[dict[str, Plan], list[str]]:
        """The plans whose key groups get other owners, and the reasons for all. Tasks stay where they are."""
        changed, reasons = dict[str, Plan](), list[str]()
        for graph in graphs:
            new, why = self._balanced(graph, load.get(graph.name, Load()), plans[graph.name])
            reasons += why
            if new is not plans[graph.name]:
                changed[graph.name] = replace(new, version=new.version + 1)
        return changed, reasons

    def _balanced(self, graph: TopologyGraph, load: Load, plan: Plan) -> tuple[Plan, list[str]]:
        """The plan with balanced key groups, or the same plan; and the reasons."""
        owned, reasons = dict(plan.key_groups), []
        for component in graph.bolts:
            if not component.keyed or component.par < 2:
                continue
            if fixed := graph.why_groups_fixed(component.name):
                reasons.append(f"{graph.name}: {component.name} keeps its key groups: {fixed}")
                continue
            loads = group_counts(load.key_groups.get(component.name, ()), len(owned[component.name]))
            old = np.array(owned[component.name], dtype=np.int64)
            if loads.sum() < max(self.least_tuples, 1):
                reasons.append(f"{graph.name}: {component.name} got {loads.sum():,.0f} tuples, too few to judge")
                continue
            new = balance_groups(loads, old, component.par, self.tolerance)
            owned[component.name] = tuple(new.tolist())
            reasons.append(f"{graph.name}: " + _describe(component.name, loads, old, new, component.par))
        reasons = reasons or [f"{graph.name} has no key groups to balance"]
        return (plan if owned == dict(plan.key_groups) else replace(plan, key_groups=owned)), reasons


def balance_groups(loads: Floats, owners: Ints, par: int, tolerance: float) -> Ints:
    """The owner of each key group, so that no task has much more than the mean; `owners` itself if that holds already. The
    largest load of a task never grows, and applying it to its own result changes nothing."""
    mean = loads.sum() / par
    if _largest(loads, owners, par) <= mean * (1 + tolerance) * ROUNDING:
        return owners
    enough = mean * (1 + tolerance / 2)  # well below the limit, or it would be exceeded again at once
    improved = evened_out(loads, owners, par, enough)
    if _largest(loads, improved, par) > enough * ROUNDING:
        anew = evened_out(loads, filled(loads, np.full_like(owners, NOBODY), par), par, enough)
        fresh = relabelled(loads + 1e-9, owners, anew, par)
        if _largest(loads, fresh, par) * ROUNDING < _largest(loads, improved, par) * (1 - tolerance / 2):
            return fresh
    return improved


def evened_out(loads: Floats, owners: Ints, par: int, enough: float, every: bool = False) -> Ints:
    """Moves one group, or else exchanges two, between the most and the least loaded task, choosing the step that makes the
    two most equal; repeats while both end below the previous maximum. `every`: if the most loaded task can give nothing, the
    next one gives, as long as it has more than `enough`."""
    owners = owners.copy()
    while True:
        tasks = _task_loads(loads, owners, par)
        sources = np.argsort(-tasks, kind="stable")[:par if every else 1]
        over = [int(source) for source in sources if tasks[source] > enough * ROUNDING]
        if not any(_step(loads, owners, source, int(tasks.argmin()), tasks) for source in over):
            return owners


def _step(loads: Floats, owners: Ints, source: int, target: int, tasks: Floats) -> bool:
    """Moves or exchanges groups of these two tasks, in `owners`; False if that cannot make them more equal."""
    gap, own, others = tasks[source] - tasks[target], np.flatnonzero(owners == source), np.flatnonzero(owners == target)
    single = _nearest(loads[own][:, np.newaxis], gap)
    exchange = _nearest(np.subtract.outer(loads[own], loads[others]), gap) if single is None else None
    if single is not None:
        owners[own[single[0]]] = target
    elif exchange is not None:
        owners[own[exchange[0]]], owners[others[exchange[1]]] = target, source
    return single is not None or exchange is not None


def _nearest(gains: Floats, gap: float) -> tuple[int, int] | None:
    """The position of the gain nearest to half the gap, among those above 0 and below the gap; None if there is none."""
    able = (gains > 0) & (gains * ROUNDING < gap)
    if not able.any():
        return None
    row, column = np.unravel_index(np.where(able, np.abs(gains - gap / 2), np.inf).argmin(), gains.shape)
    return int(row), int(column)


def filled(loads: Floats, owners: Ints, par: int) -> Ints:
    """Assigns the groups without an owner, hottest first, each to the least loaded task: if none has one, at most
    4/3 - 1/(3·par) of the optimum (Graham 1969)."""
    owners = owners.copy()
    owned = owners != NOBODY
    tasks, counts = _task_loads(loads[owned], owners[owned], par), np.bincount(owners[owned], minlength=par)
    for group in np.argsort(-loads, kind="stable"):
        if not owned[group]:
            task = np.lexsort((counts, tasks))[0]
            owners[group] = task
            tasks[task] += loads[group]
            counts[task] += 1
    return owners


def relabelled(weights: Floats, before: Ints, owners: Ints, par: int) -> Ints:
    """The shares, each given to the task that already has most of it. `before`: may name tasks that have ended."""
    from scipy.optimize import linear_sum_assignment  # here, because it would delay the start of every driver

    common, there = np.zeros((par, par)), before < par
    np.add.at(common, (owners[there], before[there]), weights[there])
    shares, tasks = linear_sum_assignment(common, maximize=True)
    new_owner = np.zeros(par, dtype=np.int64)
    new_owner[shares] = tasks
    return new_owner[owners]


def skew(graphs: Sequence[TopologyGraph], load: Mapping[str, Load], plans: Mapping[str, Plan]) -> float:
    """The load of the most loaded task of any component over the mean, by tuples for its key groups; 0 if none were
    counted."""
    worst = 0.0
    for graph in graphs:
        measured = load[graph.name].key_groups if graph.name in load else {}
        owned = plans[graph.name].key_groups if graph.name in plans else {}
        for name, counts in measured.items():
            owners = np.array(owned.get(name, ()), dtype=np.int64)
            loads = group_counts(counts, len(owners))
            if loads.sum() > 0:
                par = int(owners.max()) + 1
                worst = max(worst, _largest(loads, owners, par) * par / float(loads.sum()))
    return worst


def _task_loads(loads: Floats, owners: Ints, par: int) -> Floats:
    return np.bincount(owners, weights=loads, minlength=par).astype(np.float64)


def _largest(loads: Floats, owners: Ints, par: int) -> float:
    return float(_task_loads(loads, owners, par).max())


def _describe(component: str, loads: Floats, old: Ints, new: Ints, par: int) -> str:
    mean = loads.sum() / par
    before, after = _largest(loads, old, par) / mean, _largest(loads, new, par) / mean
    moved = int((old != new).sum())
    if moved:
        return (f"{moved} key groups of {component} move to other tasks: the most loaded task falls from {before:.2f} to "
                f"{after:.2f} times the mean")
    alone = f"; one key group alone has {loads.max() / mean:.2f} times" if loads.max() > mean else ""
    return f"the most loaded task of {component} has {before:.2f} times the mean{alone}"


def group_counts(counts: Sequence[float], groups: int) -> Floats:
    """The counts, finite and not negative; zeros if they are for another number of groups."""
    return clean(counts) if len(counts) == groups else np.zeros(groups)
