"""Slots for tasks that have none, as the master gives them: at the start, and after the loss of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from millrace.control.scheduling.task_placement import TaskPlacement
from millrace.model.graph import TopologyGraph
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan, Scheduler
from millrace.schedulers.even import Even


class PlacementRule:
    """The rule of a scheduler for tasks without a slot, or the engine's if it has none. Code of users is not called."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._tasks = TaskPlacement(Even(spread_back=False))  # the rule of the resident engine
        self._tasks.choose(name, None if ":" in name else scheduler)

    def complete(self, situation: Situation) -> dict[str, Plan]:
        """The situation's plans with a live slot for every task that the rule has one for. Other tasks stay where they are."""
        live = {slot.number for slot in situation.cluster.slots}
        plans = {name: _on_live_slots(plan, live) for name, plan in situation.plan.items()}
        self._tasks.load = situation.load
        for graph in situation.graphs:
            if is_whole(graph, plans):
                continue
            others = [other for other in situation.graphs if other is not graph]
            result = self._tasks.place(graph, others, situation.cluster, plans).result  # most rules place those of others, too
            if not isinstance(result, NewPlan):
                others = [other for other in others if is_whole(other, plans)]
                result = self._tasks.place(graph, others, situation.cluster, plans).result
            if isinstance(result, NewPlan):
                plans |= result.plans
        return plans


def is_whole(graph: TopologyGraph, plans: Mapping[str, Plan]) -> bool:
    """True if every task of the topology has a slot."""
    return graph.name in plans and plans[graph.name].placement.keys() >= set(graph.tasks())


def _on_live_slots(plan: Plan, live: set[int]) -> Plan:
    placement = {task: slot for task, slot in plan.placement.items() if slot in live}
    return plan if len(placement) == len(plan.placement) else replace(plan, placement=placement)
