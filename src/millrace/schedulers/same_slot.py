"""Places topologies that run in batches: partner tasks on the same slot, all others spread evenly."""

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
class SameSlot:
    """Puts a task with a local-or-shuffle input on its partner's slot: together they are one partition, and nothing passes
    through the shuffle. Other tasks go to the slots with the fewest of their component. A task on a live slot stays."""

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        slots = sorted(slot.number for slot in cluster.slots)
        if graphs and not slots:
            missing = {graph.name: graph.tasks() for graph in graphs}
            return CannotPlace(missing, f"{sum(map(len, missing.values()))} tasks have no slot: no Spark executor is alive. "
                                        "They are placed when one starts")
        plans = {graph.name: next_plan(graph, plan.get(graph.name), _placement(graph, slots, plan)) for graph in graphs}
        if all(plan.get(name) == new for name, new in plans.items()):
            return NoChange("all tasks are on slots that are alive")
        return NewPlan(plans, f"placed on {len(slots)} slots")


def _placement(graph: TopologyGraph, slots: Sequence[int], plan: Mapping[str, Plan]) -> dict[TaskId, int]:
    before = plan[graph.name].placement if graph.name in plan else {}
    placement = {task: before[task] for task in graph.tasks() if before.get(task) in slots}
    crowd = Counter(slot for name, other in plan.items() if name != graph.name for slot in other.placement.values())
    crowd.update(placement.values())
    for component in graph.components:
        partner = _partner(graph, component)
        alike = Counter(slot for task, slot in placement.items() if task.component == component.name)
        for task in (TaskId(component.name, index) for index in range(component.par)):
            if task in placement:
                continue
            if partner is not None:
                slot = placement[TaskId(partner, task.index)]
            else:
                slot = min(slots, key=lambda slot: (alike[slot], crowd[slot], slot))
            placement[task] = slot
            alike[slot] += 1
            crowd[slot] += 1
    return placement


def _partner(graph: TopologyGraph, component: ComponentDef) -> str | None:
    """The component whose tasks are fused with this one's if they are on the same slot; None if there is none."""
    sources = {read.source for read in component.inputs}
    if len(sources) != 1 or any(read.grouping.kind != "local-or-shuffle" for read in component.inputs):
        return None
    source = graph.component(sources.pop())
    return source.name if source.par == component.par else None
