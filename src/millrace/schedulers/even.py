"""Spreads tasks evenly over the slots, as Storm's EvenScheduler does: the reference, and the fallback of the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from typing import NamedTuple

import numpy as np

from millrace.config import WORKERS
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult, next_plan
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.problem import Problem

MORE_THAN_ALIKE = 1 << 32  # a task more on a slot weighs more than all that are alike
FORBIDDEN = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Even:
    """Places tasks round-robin over the slots, nodes in turn. A plan that is not even becomes so again with few moves. A
    topology that sets `topology.workers` uses at most that many slots.

    The load does not affect the plan; if it is known, overloads are reported.
    """

    one_worker_per_node: bool = parameter(False, "A topology uses at most one slot of each node (T-Storm's rule for a first "
                                                 "assignment).")
    spread_back: bool = parameter(True, "Move tasks until the slots have equally many, and equally many of each component, "
                                        "give or take one. False: a task is moved only when its slot is gone.")

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        if graphs and not cluster.slots:
            return _no_slots(graphs, cluster)
        pinned = {_Group(graph.name, part.name) for graph in graphs for part in graph.components
                  if not graph.movable(TaskId(part.name, 0))}
        most = {graph.name: WORKERS.of(graph.config) for graph in graphs}
        slots = _SlotCounts(cluster, self.one_worker_per_node, most, pinned)
        self._keep(slots, graphs, plan)
        for graph in graphs:
            slots.place(graph.name, graph.tasks())
        if self.spread_back:
            slots.level()
        plans = {graph.name: next_plan(graph, plan.get(graph.name), slots.placements[graph.name]) for graph in graphs}
        problem = Problem.of(graphs, cluster, load, {**plan, **plans})
        overload = problem.overload(problem.current) if problem.nodes else ()
        if all(plan.get(name) == new for name, new in plans.items()):
            return NoChange(f"all tasks of {len(plans)} topologies are on live slots", overload)
        placed, moved = _changes(plans, plan, {slot.number for slot in cluster.slots})
        return NewPlan(plans, f"{placed} tasks placed and {moved} moved, on {len(cluster.slots)} slots", overload)

    def place(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
              plan: Mapping[str, Plan]) -> SchedulingResult:
        """Slots for the tasks that have none; see base.PlacesTasks."""
        return replace(self, spread_back=False).schedule(graphs, cluster, load, plan)

    def _keep(self, slots: _SlotCounts, graphs: Sequence[TopologyGraph], plan: Mapping[str, Plan]) -> None:
        """Leaves every task where it is if it may stay; counts tasks of other topologies."""
        names = {graph.name for graph in graphs}
        for name, current in plan.items():
            if name not in names:
                slots.count_others(current.placement.values())
        for graph in graphs:
            if graph.name in plan:
                tasks = set(graph.tasks())
                slots.keep(graph.name, {task: slot for task, slot in plan[graph.name].placement.items()
                                        if task in tasks})


def _changes(plans: Mapping[str, Plan], running: Mapping[str, Plan], alive: Collection[int]) -> tuple[int, int]:
    """The number of tasks that had no live slot, and of those that had another one."""
    placed = moved = 0
    for name, new in plans.items():
        old = running[name].placement if name in running else {}
        for task, slot in new.placement.items():
            placed += old.get(task) not in alive
            moved += old.get(task) in alive and old[task] != slot
    return placed, moved


def _no_slots(graphs: Sequence[TopologyGraph], cluster: Cluster) -> CannotPlace:
    missing = {graph.name: graph.tasks() for graph in graphs}
    total = sum(map(len, missing.values()))
    each = ", ".join(f"{len(tasks)} of {name!r}" for name, tasks in missing.items())
    return CannotPlace(missing, f"cannot place {total} tasks ({each}): at least 1 slot is needed, and none of the "
                                f"cluster's {len(cluster.nodes)} nodes has a live one. Start workers, or wait for them")


class _Group(NamedTuple):
    """The tasks of one component: they are interchangeable, so any one of them may move."""

    topology: str
    component: str


class _SlotCounts:
    """The tasks on each slot while a schedule is worked out."""

    def __init__(self, cluster: Cluster, one_worker_per_node: bool, most: Mapping[str, int | None],
                 pinned: set[_Group]) -> None:
        self.one_worker_per_node, self.pinned = one_worker_per_node, pinned
        self.most = {name: limit for name, limit in most.items() if limit is not None}  # slots a topology may use
        self.used: defaultdict[str, Counter[int]] = defaultdict(Counter)  # topology -> tasks on each of its slots
        self.rank = {slot: rank for rank, slot in enumerate(_alternating(cluster))}
        self.node = {slot.number: slot.node for slot in cluster.slots}
        self.counts = dict.fromkeys(self.rank, 0)  # in the order of ranks
        self.on: dict[int, dict[_Group, list[int]]] = {slot: {} for slot in self.rank}  # task indexes by group
        self.alike: defaultdict[_Group, Counter[int]] = defaultdict(Counter)  # tasks of a group on each slot that has some
        self.worker: dict[tuple[str, str], int] = {}  # (topology, node) -> its slot there, if it may have only one
        self.placements: defaultdict[str, dict[TaskId, int]] = defaultdict(dict)

    def count_others(self, slots: Iterable[int]) -> None:
        """Counts tasks of topologies that this schedule must not change."""
        for slot in slots:
            if slot in self.counts:
                self.counts[slot] += 1

    def keep(self, topology: str, placement: Mapping[TaskId, int]) -> None:
        """Puts the tasks back on their slots if the slot is alive and the topology may use it; pinned tasks on any live
        slot."""
        used = Counter(slot for slot in placement.values() if slot in self.counts)
        fullest = sorted(used, key=lambda slot: (-used[slot], slot))
        if self.one_worker_per_node:  # of several slots on a node, keep the one with most tasks
            for slot in fullest:
                self.worker.setdefault((topology, self.node[slot]), slot)
        kept = {slot for slot in fullest if self.allowed(topology, slot)}
        kept = set([slot for slot in fullest if slot in kept][:self.most.get(topology)])
        for task, slot in placement.items():
            if slot in kept or (slot in self.counts and _Group(topology, task.component) in self.pinned):
                self.put(topology, task, slot)

    def place(self, topology: str, tasks: Sequence[TaskId]) -> None:
        """Puts each task that has no slot yet on the least loaded one."""
        homeless = [task for task in tasks if task not in self.placements[topology]]
        if not homeless:
            return
        slots, counts = list(self.counts), np.array(list(self.counts.values()), dtype=np.int64)
        for component, group in groupby(homeless, key=lambda task: task.component):
            # Among equals, prefer a slot with few tasks of the same component: they are busy at the same time. Then the first.
            weight = counts * MORE_THAN_ALIKE
            for slot, alike in self.alike[_Group(topology, component)].items():
                weight[self.rank[slot]] += alike
            for task in group:
                while not self.allowed(topology, slots[at := int(weight.argmin())]):
                    weight[at] = FORBIDDEN  # it stays forbidden
                self.put(topology, task, slots[at])
                weight[at] += MORE_THAN_ALIKE + 1
                counts[at] += 1

    def level(self) -> None:
        """Moves tasks until all slots have equally many, then until they have equally many of each component, give or take
        one."""
        groups = sorted(self.alike.keys() - self.pinned)
        moved, before = 0, -1
        while moved != before:  # a component that is spread may open the way for a move that its topology was not allowed
            before = moved
            while (move := self.best_move()) is not None:
                self.move(*move)
                moved += 1
            moved += sum(self.spread(group) for group in groups)

    def spread(self, group: _Group) -> int:
        """Moves tasks of the component from slots with many of them to slots with few, and others in return so that the slots
        stay level; returns the number of moves."""
        moved = 0
        while (moves := self.next_spread(group)):
            for move in moves:
                self.move(*move)
            moved += len(moves)
        return moved

    def next_spread(self, group: _Group) -> list[tuple[_Group, int, int]]:
        """One move of a task of the component, with another in return unless the slots are level without; none if its counts
        differ by at most one, or nothing else may move in return."""
        alike = self.alike[group]
        fewest = min(alike.values()) if len(alike) == len(self.counts) else 0
        if max(alike.values()) - fewest < 2:
            return []
        target = min((slot for slot in self.counts if self.allowed(group.topology, slot)), default=None,
                     key=lambda slot: (alike[slot], self.counts[slot], self.rank[slot]))
        if target is None:
            return []
        for source in sorted(self.counts, key=lambda slot: (-alike[slot], -self.counts[slot], self.rank[slot])):
            if alike[source] - alike[target] < 2:
                return []
            if self.counts[source] > self.counts[target]:
                return [(group, source, target)]
            if (back := self.exchanged_for(group, source, target)) is not None:
                return [(group, source, target), (back, target, source)]
        return []

    def exchanged_for(self, group: _Group, source: int, target: int) -> _Group | None:
        """The component that gives a task to `source` for one that `target` gets: the one that `target` has most more of."""
        more = {other: len(tasks) - len(self.on[source].get(other, ())) for other, tasks in self.on[target].items()
                if other not in self.pinned and other != group and self.allowed(other.topology, source)}
        best = min(more, key=lambda other: (-more[other], other), default=None)
        return best if best is not None and more[best] > 0 else None

    def move(self, group: _Group, source: int, target: int) -> None:
        index = max(self.on[source][group])
        self.take(group, index, source)
        self.put(group.topology, TaskId(group.component, index), target)

    def best_move(self) -> tuple[_Group, int, int] | None:
        """The move from the fullest slot that can give a task to the emptiest that may take it; None if it gains nothing."""
        targets = sorted(self.counts, key=lambda slot: (self.counts[slot], self.rank[slot]))
        for source in reversed(targets):
            most = self.counts[source] - 2
            if self.counts[source] - self.counts[targets[0]] < 2:
                return None
            best = None
            for group in sorted(self.on[source].keys() - self.pinned):
                target = next((slot for slot in targets if self.allowed(group.topology, slot)), source)
                if self.counts[target] > most:
                    continue
                gain = len(self.on[source][group]) - len(self.on[target].get(group, ()))
                if best is None or (self.counts[target], -gain) < best[0]:
                    best = (self.counts[target], -gain), (group, source, target)
            if best is not None:
                return best[1]
        return None

    def allowed(self, topology: str, slot: int) -> bool:
        used = self.used[topology]
        if topology in self.most and slot not in used and len(used) >= self.most[topology]:
            return False
        return self.worker.get((topology, self.node[slot]), slot) == slot

    def put(self, topology: str, task: TaskId, slot: int) -> None:
        self.counts[slot] += 1
        self.used[topology][slot] += 1
        group = _Group(topology, task.component)
        self.on[slot].setdefault(group, []).append(task.index)
        self.alike[group][slot] += 1
        self.placements[topology][task] = slot
        if self.one_worker_per_node:
            self.worker[topology, self.node[slot]] = slot

    def take(self, group: _Group, index: int, slot: int) -> None:
        self.counts[slot] -= 1
        self.used[group.topology] -= Counter([slot])  # drops entries that fall to zero
        self.alike[group] -= Counter([slot])
        self.on[slot][group].remove(index)
        if not self.on[slot][group]:
            del self.on[slot][group]
        if self.one_worker_per_node and not any(other.topology == group.topology for other in self.on[slot]):
            del self.worker[group.topology, self.node[slot]]


def _alternating(cluster: Cluster) -> list[int]:
    """Slot numbers, one of each node in turn, so that the first few tasks use as many nodes as possible."""
    by_node = [cluster.slots_of(name) for name in sorted({slot.node for slot in cluster.slots})]
    return [slot.number for slot in chain.from_iterable(zip_longest(*by_node)) if slot is not None]
