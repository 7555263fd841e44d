"""How a batch of a topology becomes Spark stages: which tasks share a stage, and which partition of it each one is.

Tuples cross from stage to stage through Spark's shuffle, and each stage costs a batch some milliseconds. So a bolt whose
tuples stay where they are is run in the partition of the task that it reads from: they are *fused*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.model.graph import ComponentDef, TaskId, TopologyGraph


@dataclass(frozen=True, slots=True)
class Stages:
    """`partitions[stage][partition]` has the tasks that run there: one, and those that are fused with it, in the order in
    which tuples pass them."""

    partitions: tuple[tuple[tuple[TaskId, ...], ...], ...]
    places: Mapping[TaskId, tuple[int, int]]  # stage and partition of each task

    @property
    def count(self) -> int:
        return len(self.partitions)

    def next_hop(self, task: TaskId, stage: int) -> int:
        """The partition of the stage after this one that what is for the task goes to: its own or, if it is further on, one
        that passes it on."""
        at, partition = self.places[task]
        return partition if at == stage + 1 else partition % len(self.partitions[stage + 1])


def stages_of(graph: TopologyGraph, placement: Mapping[TaskId, int]) -> Stages:
    """By the longest way from a spout, counted without the fused ones."""
    heads: dict[str, str] = {}  # component -> the one that its tasks run behind
    levels: dict[str, int] = {}
    for component in graph.components:
        source = _fused_with(graph, component, placement, heads)
        heads[component.name] = component.name if source is None else heads[source]
        levels[component.name] = (max((levels[given.source] + 1 for given in component.inputs), default=0)
                                  if source is None else levels[source])
    stages: list[list[tuple[TaskId, ...]]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for component in graph.components:
        if heads[component.name] == component.name:
            behind = [one.name for one in graph.components if heads[one.name] == component.name]
            stages[levels[component.name]] += [tuple(TaskId(name, index) for name in behind) for index in range(component.par)]
    places = {task: (number, partition) for number, stage in enumerate(stages) for partition, tasks in enumerate(stage)
              for task in tasks}
    return Stages(tuple(map(tuple, stages)), places)


def _fused_with(graph: TopologyGraph, component: ComponentDef, placement: Mapping[TaskId, int],
                heads: Mapping[str, str]) -> str | None:
    """The component whose tasks this one's may run behind: all that it reads comes from there and may stay where it is, and
    the plan has each task beside its partner."""
    sources = {given.source for given in component.inputs}
    if len(sources) != 1:
        return None
    source = graph.component(sources.pop())
    local = all(given.grouping.kind == "local-or-shuffle" for given in component.inputs) or source.par == 1
    if not local or source.par != component.par:
        return None
    if graph.component(heads[source.name]).dataframe:  # read where Spark likes, in as many parts as it likes
        return source.name if not (component.stateful or component.commits) else None
    together = all(placement[TaskId(component.name, index)] == placement[TaskId(source.name, index)]
                   for index in range(component.par))
    return source.name if together else None
