"""Finds slots for the tasks of running topologies that have none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from millrace.control.assignment import Place
from millrace.control.events import Command, LoadEstimated, Say, SchedulerChosen
from millrace.control.scheduling.task_placement import Placed, TaskPlacement
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING, STOPPING, WAITING
from millrace.control.wording import tasks_named, workers_named
from millrace.control.workers import WorkerView
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, Scheduler, SchedulingResult, key_groups_for


class PlacedTopologies(Protocol):
    """The part of the master's state that placement uses."""

    topologies: dict[str, TopologyState]
    workers: dict[int, WorkerView]
    revision: int

    def cluster(self, without: Collection[int] = ()) -> Cluster:
        """The workers that tasks may be placed on."""

    def roll_back(self, topology: TopologyState) -> list[Command]:
        """Go back to the last committed wave."""


class PlacementControl:
    """Decides with the rule of the scheduler in use, see task_placement.py. `first`: the engine's rule."""

    def __init__(self, master: PlacedTopologies, first: Scheduler) -> None:
        self._master, self._tasks = master, TaskPlacement(first)

    def chosen(self, event: SchedulerChosen) -> list[Command]:
        self._tasks.choose(event.name, event.scheduler)
        return self.place_waiting(f"scheduler {event.name or 'off'} was chosen")

    def estimated(self, event: LoadEstimated) -> list[Command]:
        self._tasks.load = event.load
        return []

    def load(self, name: str) -> Load:
        """The load of a topology as of the last window; an empty one if nothing was measured."""
        return self._tasks.load.get(name, Load())

    def forget(self, name: str) -> None:
        """Forget the load of a topology that has ended."""
        self._tasks.load = {other: load for other, load in self._tasks.load.items() if other != name}

    def unplaced(self, topology: TopologyState) -> Sequence[TaskId]:
        kept = topology.migration.removed if topology.migration is not None else {}
        return [task for task in topology.graph.tasks() if task not in topology.places and task not in kept]

    def place_waiting(self, cause: str) -> list[Command]:
        """Try again to place the topologies that wait although there are workers: there may be room now."""
        if not self._master.workers:
            return []
        return self.place([topology for topology in self._master.topologies.values()
                           if topology.status == WAITING and self.unplaced(topology)], cause)

    def place(self, topologies: Sequence[TopologyState], cause: str) -> list[Command]:
        """Find a slot for every task of these topologies that has none; other tasks stay where they are."""
        if not topologies:
            return []
        placed = self._placed({topology.graph.name: (topology.graph, topology.plan) for topology in topologies})
        return [command for topology in topologies
                for command in self._take(topology, placed[topology.graph.name], cause)]

    def _take(self, topology: TopologyState, placed: Placed, cause: str) -> list[Command]:
        """Use the slots that were found for the topology's tasks."""
        name, topology.restarts_because = topology.graph.name, cause
        unplaced = self.unplaced(topology)
        notes: list[Command] = [Say(placed.warning, name, "warning", cause)] if placed.warning else []
        if isinstance(placed.result, CannotPlace):
            if topology.status != STOPPING:
                topology.become(WAITING)
            return [*notes, Say(f"waits: {placed.result.reason}", name, "warning", cause)]
        if not isinstance(placed.result, NewPlan):
            return notes
        placement = placed.result.plans[name].placement
        topology.version += 1
        for task in unplaced:
            topology.places[task] = Place(placement[task], topology.version)
            topology.homes.setdefault(task, placement[task])
        topology.key_groups = dict(topology.key_groups or key_groups_for(topology.graph, None))
        if topology.status == WAITING:
            topology.ready_at = self._master.revision + 1
            if not topology.batched:
                topology.become(STARTING)
            else:  # nothing starts before its next batch
                topology.become(PAUSED if topology.paused else RUNNING)
        by = f" by {placed.by}" if placed.by else ""
        notes.append(Say(f"{tasks_named(unplaced)} placed on {workers_named(placement[task] for task in unplaced)}{by}", name,
                         cause=cause, tasks=tuple(unplaced)))
        return [*notes, *self._master.roll_back(topology)] if topology.waves is not None else notes

    def placed(self, graph: TopologyGraph, plan: Plan, without: Collection[int] = ()) -> SchedulingResult:
        """Slots for the tasks of the graph that the plan has none for, leaving all other tasks where they are. `without`: slots
        that count as gone."""
        return self._placed({graph.name: (graph, plan)}, without)[graph.name].result

    def _placed(self, asked: Mapping[str, tuple[TopologyGraph, Plan]], without: Collection[int] = ()) -> dict[str, Placed]:
        others = [topology for name, topology in self._master.topologies.items() if name not in asked]
        cluster = self._master.cluster(without)
        live = {slot.number for slot in cluster.slots}
        whole = [topology.graph for topology in others if len(topology.places) == len(topology.graph.tasks())
                 and all(place.slot in live for place in topology.places.values())]
        plans = {topology.graph.name: topology.plan for topology in others} | {name: plan for name, (_, plan) in asked.items()}
        return self._tasks.place_all([graph for graph, _ in asked.values()], whole, cluster, plans)
