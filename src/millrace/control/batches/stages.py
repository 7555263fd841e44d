"""Lays out a batch of a topology as Spark stages: assigns each task a stage and a partition.

Tuples cross from stage to stage through Spark's shuffle, and each stage costs a batch some milliseconds. So a bolt whose
input stays on its node runs in the partition of the task that it reads from: the two are *fused*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.model.graph import ComponentDef, TaskId, TopologyGraph


@dataclass(frozen=True, slots=True)
class Stages:
    """The layout of a batch. `partitions[stage][partition]`: a task and those that are fused with it, in stream order."""

    partitions: tuple[tuple[tuple[TaskId, ...], ...], ...]
    places: Mapping[TaskId, tuple[int, int]]  # stage and partition of each task

    @property
    def count(self) -> int:
        return len(self.partitions)

    def next_hop(self, task: TaskId, stage: int) -> int:
        """The partition of the next stage to which records for the task go: its own, or one that passes them on if the task
        is in a later stage."""
        at, partition = self.places[task]
        return partition if at == stage + 1 else partition % len(self.partitions[stage + 1])


def stages_of(graph: TopologyGraph, placement: Mapping[TaskId, int]) -> Stages:
    """Lay out the graph: a component's stage is its longest distance from a spout, not counting fused components."""
    heads: dict[str, str] = {}  # component -> the first component in the partitions of its tasks
    levels: dict[str, int] = {}
    for component in graph.components:
        source = _fused_with(graph, component, placement, heads)
        heads[component.name] = component.name if source is None else heads[source]
        levels[component.name] = (max((levels[subscription.source] + 1 for subscription in component.inputs), default=0)
                                  if source is None else levels[source])
    stages: list[list[tuple[TaskId, ...]]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for component in graph.components:
        if heads[component.name] == component.name:
            fused = [each.name for each in graph.components if heads[each.name] == component.name]
            stages[levels[component.name]] += [tuple(TaskId(name, index) for name in fused) for index in range(component.par)]
    places = {task: (number, partition) for number, stage in enumerate(stages) for partition, tasks in enumerate(stage)
              for task in tasks}
    return Stages(tuple(map(tuple, stages)), places)


def _fused_with(graph: TopologyGraph, component: ComponentDef, placement: Mapping[TaskId, int],
                heads: Mapping[str, str]) -> str | None:
    """The component with which this one is fused: its only source, if its tuples may stay local and the plan has each task
    beside its partner."""
    sources = {subscription.source for subscription in component.inputs}
    if len(sources) != 1:
        return None
    source = graph.component(sources.pop())
    local = source.par == 1 or all(subscription.grouping.kind == "local-or-shuffle" for subscription in component.inputs)
    if not local or source.par != component.par:
        return None
    if graph.component(heads[source.name]).dataframe:  # Spark chooses where it is read, and in how many partitions
        return source.name if not (component.stateful or component.commits) else None
    together = all(placement[TaskId(component.name, index)] == placement[TaskId(source.name, index)]
                   for index in range(component.par))
    return source.name if together else None
