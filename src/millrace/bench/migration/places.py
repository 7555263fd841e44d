"""The workers of `bench migration`: which tasks are where before a migration, and after it.

Source, sinks and ackers have a worker of their own, to which nothing else ever goes. The other eight workers stand for the
papers' machines: in the N-Storm experiments one for each of its workers; in the others two before a migration, and after it
half as many or twice as many, none of which was in use before. So every task moves to another worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from millrace.bench.migration.cases import REDEPLOYED, SCALE_IN, MigrationCase, Workload
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.workloads.dataflows.deployments import EDGE_MACHINE, Deployment, default_deployment, scaled_in, scaled_out
from millrace.workloads.dataflows.shapes import Dataflow

SLOTS = 9
EDGE = 0
OTHERS = range(1, SLOTS)
BEFORE, AFTER_IN, AFTER_OUT = (1, 2), (3,), (3, 4, 5, 6)
Places = Mapping[TaskId, int]


def edge_tasks(graph: TopologyGraph, workload: Workload) -> list[TaskId]:
    """The tasks that never move."""
    return [task for task in graph.tasks() if task.component in (workload.source, *workload.sinks, ACKER)]


def moving_tasks(graph: TopologyGraph, workload: Workload) -> list[TaskId]:
    edge = set(edge_tasks(graph, workload))
    return [task for task in graph.tasks() if task not in edge]


def places_before(graph: TopologyGraph, workload: Workload) -> dict[TaskId, int]:
    """The place of every task when the measurement begins."""
    edge = dict.fromkeys(edge_tasks(graph, workload), EDGE)
    if workload.dataflow is not None:
        return {**on_workers(default_deployment(workload.dataflow), workload.dataflow, BEFORE), **edge}
    slots = OTHERS if workload.kind == REDEPLOYED else BEFORE
    return {**_in_turn(moving_tasks(graph, workload), slots), **edge}


def places_after(graph: TopologyGraph, case: MigrationCase, before: Places, number: int) -> dict[TaskId, int]:
    """The place of every task after the re-deployment of this number, which is 0 for the first."""
    workload = case.workload
    if workload.dataflow is not None:
        inward = workload.scaling == SCALE_IN
        deployment = (scaled_in if inward else scaled_out)(workload.dataflow)
        return {**before, **on_workers(deployment, workload.dataflow, AFTER_IN if inward else AFTER_OUT)}
    if workload.kind == REDEPLOYED:
        return {**before, **redeployment(moving_tasks(graph, workload), before, case.moved_tasks, number)}
    return {**before, **_in_turn(moving_tasks(graph, workload), AFTER_OUT)}


def on_workers(deployment: Deployment, dataflow: Dataflow, slots: Sequence[int]) -> dict[TaskId, int]:
    """The worker of each task, if the machines of a deployment are these workers in turn."""
    placement = deployment.placement(dataflow)
    machines = list(dict.fromkeys(place.machine for place in placement.values() if place.machine != EDGE_MACHINE))
    worker = {EDGE_MACHINE: EDGE, **{machine: slots[number % len(slots)] for number, machine in enumerate(machines)}}
    return {task: worker[place.machine] for task, place in placement.items()}


def redeployment(tasks: Sequence[TaskId], before: Places, moved: int, number: int) -> dict[TaskId, int]:
    """Some tasks, chosen at random but always the same, each with another worker. If that is possible with so many, one worker
    has no tasks afterwards, so that a strategy which shuts such workers down has something to do."""
    random = Random(f"re-deployment {number} of {moved}")
    vacated = OTHERS[number % len(OTHERS)]
    leaving = [task for task in tasks if before[task] == vacated]
    if len(leaving) > moved:
        vacated, leaving = EDGE, []
    others = [task for task in tasks if task not in leaving]
    return {task: random.choice([slot for slot in OTHERS if slot not in (before[task], vacated)])
            for task in [*leaving, *random.sample(others, moved - len(leaving))]}


def _in_turn(tasks: Sequence[TaskId], slots: Sequence[int]) -> dict[TaskId, int]:
    return {task: slots[number % len(slots)] for number, task in enumerate(tasks)}
