"""Key groups given to other tasks so that each task of a component has as much to do as the others.

Placing tasks cannot help against skewed keys: the task that owns the hot ones is slow wherever it runs. Its key groups can go
to other tasks, though, where a topology runs in batches: between two of them nothing is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.placing import housed
from millrace.schedulers.problem import ROUNDING, Floats, Ints, Problem, clean


@dataclass(frozen=True, slots=True)
class Balance:
    """Gives key groups of keyed components to other tasks, so that the tuples for each task are even; for topologies that run
    in batches. Tasks stay where they are.

    Few groups move: those that make the most loaded task and the least loaded one alike, or two of them change places. A group
    cannot be cut, so a task with one that is hotter than the mean is left alone with it. Only where that ends far from what
    sharing out everything anew would give, which is at most 4/3 of the best there is, is everything shared out anew.
    """

    tolerance: float = parameter(0.1, "Key groups move if the most loaded task has more than the mean by this share.",
                                 low=0.0, high=10.0)
    least_tuples: int = parameter(1000, "Components that got fewer tuples in the window are left alone: it may be chance.",
                                  low=0)

    PERIOD_SECONDS: ClassVar[float] = 5.0
    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        placed = housed(problem)
        if isinstance(placed, CannotPlace):
            return placed
        plans = dict(placed.plans) if isinstance(placed, NewPlan) else {graph.name: plan[graph.name] for graph in graphs}
        said = [placed.reason] if isinstance(placed, NewPlan) else []
        changed = isinstance(placed, NewPlan)
        for graph in graphs:
            new, why = self._evened(graph, load.get(graph.name, Load()), plans[graph.name])
            said += why
            if new is not plans[graph.name]:
                changed = True
                version = plan[graph.name].version if graph.name in plan else 0
                plans[graph.name] = replace(new, version=version + 1)
        reason = "; ".join(said) or "there is no topology to balance"
        return NewPlan(plans, reason, placed.overload) if changed else NoChange(reason, placed.overload)

    def _evened(self, graph: TopologyGraph, load: Load, plan: Plan) -> tuple[Plan, list[str]]:
        """The plan with key groups shared out evenly, or as it is; and what is to be said of it."""
        if not graph.batched:
            return plan, [f"{graph.name}: key groups of a resident topology stay where they are"]
        owned, said = dict(plan.key_groups), []
        for component in graph.bolts:
            if not component.keyed or component.par < 2:
                continue
            loads = _counted(load.key_groups.get(component.name, ()), len(owned[component.name]))
            old = np.array(owned[component.name], dtype=np.int64)
            if loads.sum() < max(self.least_tuples, 1):
                said.append(f"{graph.name}: {loads.sum():,.0f} tuples came for {component.name}, too few to tell")
                continue
            new = evened(loads, old, component.par, self.tolerance)
            owned[component.name] = tuple(new.tolist())
            said.append(f"{graph.name}: " + _told(component.name, loads, old, new, component.par))
        said = said or [f"{graph.name} has no key groups to share out"]
        return (plan if owned == dict(plan.key_groups) else replace(plan, key_groups=owned)), said


def evened(loads: Floats, owners: Ints, par: int, tolerance: float) -> Ints:
    """The owner of each key group, so that no task has much more than the mean: `owners` itself if that is so already. The
    largest load of a task never grows, and the same again changes nothing."""
    mean = loads.sum() / par
    if _largest(loads, owners, par) <= mean * (1 + tolerance) * ROUNDING:
        return owners
    enough = mean * (1 + tolerance / 2)  # not just below the limit: it would be crossed again at once
    found = _improved(loads, owners, par, enough)
    if _largest(loads, found, par) > enough * ROUNDING:
        anew = _like(loads, owners, _improved(loads, _shared_out(loads, par), par, enough), par)
        if _largest(loads, anew, par) * ROUNDING < _largest(loads, found, par) * (1 - tolerance / 2):
            return anew
    return found


def _improved(loads: Floats, owners: Ints, par: int, enough: float) -> Ints:
    """One step at a time between the most loaded task and the least loaded one, as long as that leaves both below what the
    first one had: the group, or else the exchange of two groups, that makes them most alike."""
    owners = owners.copy()
    while True:
        tasks = _task_loads(loads, owners, par)
        source, target = int(tasks.argmax()), int(tasks.argmin())
        if tasks[source] <= enough * ROUNDING:
            return owners
        gap, own, others = tasks[source] - tasks[target], np.flatnonzero(owners == source), np.flatnonzero(owners == target)
        single = _nearest(loads[own][:, np.newaxis], gap)
        exchange = _nearest(np.subtract.outer(loads[own], loads[others]), gap) if single is None else None
        if single is not None:
            owners[own[single[0]]] = target
        elif exchange is not None:
            owners[own[exchange[0]]], owners[others[exchange[1]]] = target, source
        else:
            return owners


def _nearest(gains: Floats, gap: float) -> tuple[int, int] | None:
    """Where in the array is what comes nearest to half the gap? Nothing that is not above 0 and below the gap would do."""
    able = (gains > 0) & (gains * ROUNDING < gap)
    if not able.any():
        return None
    row, column = np.unravel_index(np.where(able, np.abs(gains - gap / 2), np.inf).argmin(), gains.shape)
    return int(row), int(column)


def _shared_out(loads: Floats, par: int) -> Ints:
    """Everything anew, the hottest group first, each to the task with the least: at most 4/3 - 1/(3·par) of the optimum
    (Graham 1969)."""
    owners = np.zeros(len(loads), dtype=np.int64)
    tasks, counts = np.zeros(par), np.zeros(par, dtype=np.int64)
    for group in np.argsort(-loads, kind="stable"):
        task = np.lexsort((counts, tasks))[0]
        owners[group] = task
        tasks[task] += loads[group]
        counts[task] += 1
    return owners


def _like(loads: Floats, before: Ints, owners: Ints, par: int) -> Ints:
    """The same shares, each given to the task that has most of it already."""
    common = np.zeros((par, par))
    np.add.at(common, (owners, before), loads + 1e-9)
    shares, tasks = linear_sum_assignment(common, maximize=True)
    given = np.zeros(par, dtype=np.int64)
    given[shares] = tasks
    return given[owners]


def skew(graphs: Sequence[TopologyGraph], load: Mapping[str, Load], plans: Mapping[str, Plan]) -> float:
    """How many times the mean the most loaded task of any component has, by what came for its key groups; 0 if nothing was
    counted."""
    worst = 0.0
    for graph in graphs:
        measured = load[graph.name].key_groups if graph.name in load else {}
        owned = plans[graph.name].key_groups if graph.name in plans else {}
        for name, counts in measured.items():
            owners = np.array(owned.get(name, ()), dtype=np.int64)
            loads = _counted(counts, len(owners))
            if loads.sum() > 0:
                par = int(owners.max()) + 1
                worst = max(worst, _largest(loads, owners, par) * par / float(loads.sum()))
    return worst


def _task_loads(loads: Floats, owners: Ints, par: int) -> Floats:
    return np.bincount(owners, weights=loads, minlength=par).astype(np.float64)


def _largest(loads: Floats, owners: Ints, par: int) -> float:
    return float(_task_loads(loads, owners, par).max())


def _told(component: str, loads: Floats, old: Ints, new: Ints, par: int) -> str:
    mean = loads.sum() / par
    before, after = _largest(loads, old, par) / mean, _largest(loads, new, par) / mean
    moved = int((old != new).sum())
    if moved:
        return (f"{moved} key groups of {component} go to other tasks: the most loaded has {before:.2f} times the mean, and "
                f"{after:.2f} then")
    alone = f"; one key group alone has {loads.max() / mean:.2f} times" if loads.max() > mean else ""
    return f"the most loaded task of {component} has {before:.2f} times the mean{alone}"


def _counted(counts: Sequence[float], groups: int) -> Floats:
    """Finite and not negative, whatever was measured; nothing if it was measured of another number of groups."""
    return clean(counts) if len(counts) == groups else np.zeros(groups)
