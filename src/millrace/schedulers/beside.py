"""The first placement of topologies that run in batches: partners side by side, everything else spread evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.model.cluster import Cluster
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult, next_plan


@dataclass(frozen=True, slots=True)
class Beside:
    """A task that may take over tuples in place goes where its partner is: together they are one partition, and nothing
    passes through the shuffle. The others of a component go to the slots that have the fewest of it. What is on a slot that
    is alive stays there."""

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        slots = sorted(slot.number for slot in cluster.slots)
        if graphs and not slots:
            missing = {graph.name: graph.tasks() for graph in graphs}
            return CannotPlace(missing, f"{sum(map(len, missing.values()))} tasks have no place: no Spark executor is alive. "
                                        "They are placed when one comes")
        plans = {graph.name: next_plan(graph, plan.get(graph.name), _placement(graph, slots, plan)) for graph in graphs}
        if all(plan.get(name) == new for name, new in plans.items()):
            return NoChange("all tasks are on slots that are alive")
        return NewPlan(plans, f"placed on {len(slots)} slots")


def _placement(graph: TopologyGraph, slots: Sequence[int], plan: Mapping[str, Plan]) -> dict[TaskId, int]:
    before = plan[graph.name].placement if graph.name in plan else {}
    found = {task: before[task] for task in graph.tasks() if before.get(task) in slots}
    crowd = Counter(slot for name, other in plan.items() if name != graph.name for slot in other.placement.values())
    crowd.update(found.values())
    for component in graph.components:
        partner = _partner(graph, component)
        alike = Counter(slot for task, slot in found.items() if task.component == component.name)
        for task in (TaskId(component.name, index) for index in range(component.par)):
            if task in found:
                continue
            if partner is not None:
                slot = found[TaskId(partner, task.index)]
            else:
                slot = min(slots, key=lambda slot: (alike[slot], crowd[slot], slot))
            found[task] = slot
            alike[slot] += 1
            crowd[slot] += 1
    return found


def _partner(graph: TopologyGraph, component: ComponentDef) -> str | None:
    """The component each of whose tasks this one's would be fused with if they were on the same slot."""
    sources = {given.source for given in component.inputs}
    if len(sources) != 1 or any(given.grouping.kind != "local-or-shuffle" for given in component.inputs):
        return None
    source = graph.component(sources.pop())
    return source.name if source.par == component.par else None
