"""The rules that every plan must keep. A plan that breaks one is never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

from millrace.errors import MillraceError, SchedulerFailed
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.model.rescaling import rescaled
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Overload, SchedulingResult


def check_result(situation: Situation, result: Any) -> SchedulingResult:
    """Returns the result if it is valid; raises `SchedulerFailed` with the reason otherwise."""
    if not isinstance(result, NewPlan | NoChange | CannotPlace):
        raise SchedulerFailed(f"it returned {type(result).__name__}; expected NewPlan, NoChange or CannotPlace")
    if not isinstance(result.reason, str):
        raise SchedulerFailed(f"its reason is {result.reason!r}; expected a sentence")
    if not isinstance(result, NewPlan):
        return result
    if not isinstance(result.overload, tuple) or not all(isinstance(over, Overload) for over in result.overload):
        raise SchedulerFailed(f"its overload is {result.overload!r}; expected a tuple of Overload")
    graphs = {graph.name: graph for graph in situation.graphs}
    if set(result.plans) != set(graphs):
        raise SchedulerFailed(f"it was asked about {', '.join(sorted(graphs)) or 'no topology'} and returned plans for "
                              f"{', '.join(map(str, result.plans)) or 'none'}")
    for name, plan in result.plans.items():
        for wrong in broken_rules(graphs[name], situation.cluster, situation.plan.get(name), plan):
            raise SchedulerFailed(f"its plan for {name!r} cannot be run: {wrong}")
    return result


def broken_rules(graph: TopologyGraph, cluster: Cluster, old: Plan | None, new: Plan) -> Iterator[str]:
    """Yields every rule that the plan breaks, in words; if it is not a plan at all, only that. The plan of a topology that
    runs in batches may change the number of tasks and the owners of key groups."""
    not_a_plan = _not_a_plan(new)
    if not_a_plan:
        yield not_a_plan
        return
    if graph.batched:
        try:
            graph = rescaled(graph, _planned_par(graph, new))
        except MillraceError as error:
            yield str(error)
            return
    tasks, placed = set(graph.tasks()), set(new.placement)
    if tasks - placed:
        yield f"{len(tasks - placed)} tasks have no slot, for example {min(tasks - placed)}"
    if placed - tasks:
        yield f"it places {min(placed - tasks)}, which the topology does not have"
    live = cluster.live
    dead = sorted(set(new.placement.values()) - live)
    if dead:
        yield f"it uses slot {dead[0]}, and the live slots are {sorted(live)}"
    stuck = sorted(task for task, slot in (old.placement if old else {}).items() if new.placement.get(task) != slot
                   and task in tasks and slot not in dead and slot in live and not graph.movable(task))
    if stuck:
        yield f"it moves {stuck[0]}, a spout whose source cannot be read again: it must stay on its slot"
    if old is not None and new.version not in (old.version, old.version + 1):
        yield f"it has version {new.version} where the plan in force has {old.version}"
    for component in graph.components:
        owners = new.key_groups.get(component.name, ())
        before = old.key_groups.get(component.name) if old else None
        owned = graph.groups_of(component)
        groups = owned if before is None else len(before)
        if owned and len(owners) != groups:
            yield f"{component.name!r} has {len(owners)} key groups instead of {groups}; their number is fixed"
        if owned and (not owners or not all(0 <= owner < component.par for owner in owners)):
            yield f"a key group of {component.name!r} belongs to none of its {component.par} tasks"


def _planned_par(graph: TopologyGraph, new: Plan) -> dict[str, int]:
    """The number of tasks of each component in the plan; components that it leaves out keep theirs."""
    placed = new.parallelism
    return {component.name: placed[component.name] for component in graph.components if component.name in placed}


def _not_a_plan(new: Any) -> str:
    if not isinstance(new, Plan):
        return f"it is a {type(new).__name__} and not a Plan"
    wrong = [task for task in new.placement if not isinstance(task, TaskId)]
    if wrong:
        return f"it places {wrong[0]!r}, which is not a TaskId"
    owners = [owner for each in new.key_groups.values() for owner in each]
    numbers = [new.version, *new.placement.values(), *owners]
    kinds = {kind: issubclass(kind, Integral) for kind in set(map(type, numbers))}  # slow, so not for each number
    odd = [number for number in numbers if not kinds[type(number)]]
    return f"a version, slot or owner in it is {odd[0]!r}, which is not a whole number" if odd else ""


def result_to_json(result: SchedulingResult) -> dict[str, Any]:
    """Plain data, for another process."""
    if isinstance(result, NewPlan):
        return {"kind": "new-plan", "reason": result.reason, "overload": _plain(result.overload),
                "plans": {name: plan.to_json() for name, plan in result.plans.items()}}
    if isinstance(result, CannotPlace):
        return {"kind": "cannot-place", "reason": result.reason,
                "missing": {name: [[task.component, task.index] for task in tasks] for name, tasks in result.missing.items()}}
    return {"kind": "no-change", "reason": result.reason, "overload": _plain(result.overload)}


def _plain(overload: tuple[Overload, ...]) -> list[tuple[str, float, float, str]]:
    return [(over.where, over.asked, over.has, over.unit) for over in overload]


def result_from_json(data: Mapping[str, Any]) -> SchedulingResult:
    """Reads the output of `result_to_json`."""
    overload = tuple(Overload(*over) for over in data.get("overload", ()))
    if data["kind"] == "new-plan":
        return NewPlan({name: Plan.from_json(plan) for name, plan in data["plans"].items()}, data["reason"], overload)
    if data["kind"] == "cannot-place":
        return CannotPlace({name: tuple(TaskId(*task) for task in tasks) for name, tasks in data["missing"].items()},
                           data["reason"])
    return NoChange(data["reason"], overload)
