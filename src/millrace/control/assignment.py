"""What a worker is told: the whole truth as of one revision, so that carrying it out twice changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.model.graph import TaskId, TopologyGraph


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker's data port is. `boot` names the running kernel: equal means ipc reaches it."""

    slot: int
    generation: int
    host: str
    boot: str
    ipc: str
    tcp: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task runs. The incarnation is the plan version that put it there: a task that is placed anew is another
    incarnation, with channels that start at zero."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """One topology's part: its graph, where each task is, who owns which key groups, whether its spouts may emit."""

    number: int
    graph: TopologyGraph
    version: int
    active: bool
    places: list[tuple[TaskId, Place]]
    key_groups: dict[str, tuple[int, ...]]
    positions: list[tuple[TaskId, int]]  # where the replayable spouts go on
    losses: int  # grows with each worker lost: what was in flight before may be gone
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    revision: int
    workers: list[WorkerAddress] = field(default_factory=list)
    topologies: list[TopologyAssignment] = field(default_factory=list)

    def tasks_at(self, slot: int) -> dict[tuple[int, TaskId], int]:
        """(topology, task) -> incarnation, for one worker."""
        return {(topology.number, task): place.incarnation
                for topology in self.topologies for task, place in topology.places if place.slot == slot}


@dataclass(frozen=True, slots=True)
class Change:
    """What a worker has to do to get from what it runs to what it should run."""

    start: list[tuple[int, TaskId, int]]  # topology, task, incarnation
    retire: list[tuple[int, TaskId]]  # moved elsewhere: drain, then end
    drop: list[tuple[int, TaskId]]  # its topology is gone: end at once


def change(running: dict[tuple[int, TaskId], int], assignment: Assignment, slot: int) -> Change:
    """Compare what a worker runs with what it is told to run."""
    wanted = assignment.tasks_at(slot)
    alive = {topology.number for topology in assignment.topologies}
    start = [(*key, incarnation) for key, incarnation in wanted.items() if running.get(key) != incarnation]
    gone = [key for key, incarnation in running.items() if wanted.get(key) != incarnation]
    return Change(start=sorted(start), retire=sorted(key for key in gone if key[0] in alive),
                  drop=sorted(key for key in gone if key[0] not in alive))
