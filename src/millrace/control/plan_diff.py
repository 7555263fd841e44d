"""The worker's diff of plans: tasks to start, retire and drop to get from the running tasks to those of an assignment."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.control.assignment import Assignment
from millrace.model.graph import TaskId


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Tasks that a worker must start, retire and drop."""

    start: list[tuple[int, TaskId, int]]  # topology, task, incarnation
    retire: list[tuple[int, TaskId]]  # placed elsewhere: hand over if it is being moved, else end at once
    drop: list[tuple[int, TaskId]]  # its topology is gone: end at once


def plan_diff(running: dict[tuple[int, TaskId], int], assignment: Assignment, slot: int) -> PlanDiff:
    """Compare the tasks that a worker runs with those that the assignment gives its slot."""
    wanted = assignment.tasks_at(slot)
    alive = {topology.number for topology in assignment.topologies}
    start = [(*key, incarnation) for key, incarnation in wanted.items() if running.get(key) != incarnation]
    gone = [key for key, incarnation in running.items() if wanted.get(key) != incarnation]
    return PlanDiff(start=sorted(start), retire=sorted(key for key in gone if key[0] in alive),
                    drop=sorted(key for key in gone if key[0] not in alive))
