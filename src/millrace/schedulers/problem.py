"""A scheduling problem as arrays, shared by all schedulers, so that ten thousand tasks need no Python loop.

Tasks and slots are numbered from 0 in a fixed order (topologies as passed, tasks in the order of their graph, slots by
number), so equal questions give equal arrays. An assignment is an array: the slot of each task, or -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Overload, SchedulingResult, next_plan

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NOWHERE = -1
MOST = 1e15  # upper bound of every rate and load: sums stay finite even if a meter is broken
ROUNDING = 1 + 1e-9  # a load exceeds a capacity only by more than a rounding error


@dataclass(frozen=True)
class Figures:
    """Measures of a placement: tuples per second between nodes and between workers of a node, and the load of nodes and
    workers."""

    inter_node: float
    inter_process: float
    nodes_used: int
    largest_load: float  # of any node, as a share of its CPU
    moved: int
    largest_worker_load: float = 0.0  # of any worker, as a share of a core


@dataclass(frozen=True)
class Problem:
    """Arrays over tasks, edges (each pair of communicating tasks once, both directions together), slots and nodes."""

    graphs: tuple[TopologyGraph, ...]
    plans: Mapping[str, Plan]
    tasks: tuple[tuple[str, TaskId], ...]
    topology: Ints  # of each task: the position of its graph
    cpu: Floats  # MHz
    memory: Floats  # MB
    queue: Ints
    queue_floor: Ints
    settling: Flags
    pinned: Flags  # must stay on its slot while that is alive
    current: Ints  # live slot of each task, or NOWHERE
    left: Ints  # task at one end of an edge
    right: Ints  # and at the other; left < right
    rate: Floats  # tuples per second along the edge
    slot_numbers: Ints
    slot_node: Ints
    slot_taken: Floats  # MHz used by tasks of other topologies
    slot_tasks_taken: Ints
    node_names: tuple[str, ...]  # nodes that have a slot, by name
    node_mhz: Floats  # of one core, the most that a worker can use
    node_capacity: Floats  # MHz
    node_memory: Floats  # MB
    node_memory_taken: Floats

    @classmethod
    def of(cls, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
           plan: Mapping[str, Plan]) -> Problem:
        tasks = tuple((graph.name, task) for graph in graphs for task in graph.tasks())
        index = {key: number for number, key in enumerate(tasks)}
        slots = sorted(cluster.slots, key=lambda slot: slot.number)
        slot_index = {slot.number: position for position, slot in enumerate(slots)}
        nodes = sorted({slot.node for slot in slots})
        by_name = {node.name: node for node in cluster.nodes}
        node_index = {name: position for position, name in enumerate(nodes)}
        slot_node = np.array([node_index[slot.node] for slot in slots], dtype=np.int64)
        names = {graph.name for graph in graphs}
        taken, tasks_taken, memory_taken = _others(names, load, plan, slot_index, slot_node, len(nodes))
        current = np.full(len(tasks), NOWHERE, dtype=np.int64)
        for name, old in plan.items():
            for task, slot in old.placement.items():
                if (name, task) in index and slot in slot_index:
                    current[index[name, task]] = slot_index[slot]
        measured = [load[name].tasks.get(task) if name in load else None for name, task in tasks]
        settling = {(name, task) for name, topology_load in load.items() for task in topology_load.settling}
        left, right, rate = _edges(index, load)
        return cls(
            graphs=tuple(graphs), plans=plan, tasks=tasks,
            topology=np.repeat(np.arange(len(graphs)), [len(graph.tasks()) for graph in graphs]).astype(np.int64),
            cpu=clean([seen.cpu_mhz if seen else 0.0 for seen in measured]),
            memory=clean([seen.memory_mb if seen else 0.0 for seen in measured]),
            queue=clean([seen.queue_length if seen else 0 for seen in measured]).astype(np.int64),
            queue_floor=clean([seen.queue_floor if seen else 0 for seen in measured]).astype(np.int64),
            settling=np.array([key in settling for key in tasks], dtype=bool),
            pinned=(current >= 0) & ~np.array([graph.movable(task) for graph in graphs for task in graph.tasks()], dtype=bool),
            current=current, left=left, right=right, rate=rate,
            slot_numbers=np.array([slot.number for slot in slots], dtype=np.int64), slot_node=slot_node,
            slot_taken=taken, slot_tasks_taken=tasks_taken, node_names=tuple(nodes),
            node_mhz=clean([by_name[name].mhz for name in nodes]),
            node_capacity=clean([by_name[name].capacity_mhz for name in nodes]),
            node_memory=clean([by_name[name].memory_mb for name in nodes]), node_memory_taken=memory_taken,
        )

    @property
    def count(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def nodes(self) -> int:
        return len(self.node_names)

    @cached_property
    def neighbours(self) -> tuple[Ints, Ints, Floats]:
        """Communicating tasks, by task: those of task i are at [start[i]:start[i + 1]] in the two other arrays, which hold the
        other task and the tuples per second between the two."""
        ends = np.concatenate([self.left, self.right])
        others = np.concatenate([self.right, self.left])
        rates = np.concatenate([self.rate, self.rate])
        order = np.lexsort((others, ends))
        start = np.zeros(self.count + 1, dtype=np.int64)
        np.cumsum(np.bincount(ends, minlength=self.count), out=start[1:])
        return start, others[order], rates[order]

    @cached_property
    def task_traffic(self) -> Floats:
        """Tuples per second in and out of each task."""
        ends = np.concatenate([self.left, self.right])
        return np.bincount(ends, weights=np.concatenate([self.rate, self.rate]), minlength=self.count).astype(np.float64)

    @cached_property
    def node_taken(self) -> Floats:
        """MHz on each node used by other topologies."""
        return np.bincount(self.slot_node, weights=self.slot_taken, minlength=self.nodes).astype(np.float64)

    @cached_property
    def slot_capacity(self) -> Floats:
        """MHz that the worker of each slot can use: one core."""
        return self.node_mhz[self.slot_node]

    # -- measures of an assignment ------------------------------------------------------------------------------------

    def nodes_of(self, assignment: Ints) -> Ints:
        return np.where(assignment >= 0, self.slot_node[assignment], NOWHERE)

    def inter_node(self, assignment: Ints) -> float:
        """Tuples per second between tasks on different nodes. A task without a slot is on no node."""
        nodes = self.nodes_of(assignment)
        apart = (nodes[self.left] != nodes[self.right]) | (nodes[self.left] == NOWHERE)
        return float(self.rate[apart].sum())

    def inter_process(self, assignment: Ints) -> float:
        """Tuples per second between different workers of the same node."""
        nodes = self.nodes_of(assignment)
        near = (nodes[self.left] == nodes[self.right]) & (assignment[self.left] != assignment[self.right])
        return float(self.rate[near].sum())

    def slot_load(self, assignment: Ints) -> Floats:
        """MHz on each slot, including other topologies."""
        placed = assignment >= 0
        load = np.bincount(assignment[placed], weights=self.cpu[placed], minlength=len(self.slot_numbers))
        return load.astype(np.float64) + self.slot_taken

    def node_load(self, assignment: Ints) -> Floats:
        return np.bincount(self.slot_node, weights=self.slot_load(assignment), minlength=self.nodes).astype(np.float64)

    def figures(self, assignment: Ints) -> Figures:
        placed = assignment >= 0
        load, capacity = self.node_load(assignment), np.maximum(self.node_capacity, 1e-9)
        return Figures(
            inter_node=self.inter_node(assignment), inter_process=self.inter_process(assignment),
            nodes_used=len(np.unique(self.slot_node[assignment[placed]])),
            largest_load=float((load / capacity).max(initial=0.0)),
            moved=int(((assignment != self.current) & (self.current >= 0)).sum()),
            largest_worker_load=float((self.slot_load(assignment) / np.maximum(self.slot_capacity, 1e-9)).max(initial=0.0)),
        )

    # -- the answer --------------------------------------------------------------------------------------------------

    def answer(self, assignment: Ints, reason: str, capacity: float = 1.0) -> SchedulingResult:
        """The result with this placement, except that pinned tasks stay: NoChange if it is the one in force. `capacity`: the
        share of each node's CPU that may be used; loads above it are reported."""
        assignment = np.where(self.pinned, self.current, assignment)
        if (assignment < 0).any():
            return self.cannot_place(np.flatnonzero(assignment < 0), reason)
        numbers = self.slot_numbers[assignment]
        plans: dict[str, Plan] = {}
        position = 0
        for graph in self.graphs:
            own = graph.tasks()
            placement = dict(zip(own, numbers[position:position + len(own)].tolist()))
            position += len(own)
            plans[graph.name] = next_plan(graph, self.plans.get(graph.name), placement)
        if all(self.plans.get(name) is new for name, new in plans.items()):
            return NoChange(reason, self.overload(assignment, capacity))
        return NewPlan(plans, reason, self.overload(assignment, capacity))

    def overload(self, assignment: Ints, capacity: float = 1.0) -> tuple[Overload, ...]:
        """Nodes and workers whose load exceeds their capacity."""
        nodes, slots = self.node_load(assignment), self.slot_load(assignment)
        allowed = self.node_capacity * capacity
        over = [Overload(f"node {self.node_names[k]}", float(nodes[k]), float(allowed[k]))
                for k in np.flatnonzero(nodes > allowed * ROUNDING)]
        return (*over, *(Overload(f"worker {self.slot_numbers[s]}", float(slots[s]), float(self.slot_capacity[s]))
                         for s in np.flatnonzero(slots > self.slot_capacity * ROUNDING)))

    def cannot_place(self, missing: Ints, reason: str) -> CannotPlace:
        by_topology: dict[str, list[TaskId]] = {}
        for number in missing:
            name, task = self.tasks[number]
            by_topology.setdefault(name, []).append(task)
        return CannotPlace({name: tuple(tasks) for name, tasks in by_topology.items()}, reason)

    def no_slots(self) -> CannotPlace:
        """The answer when no slot is alive."""
        each = ", ".join(f"{len(graph.tasks())} of {graph.name!r}" for graph in self.graphs)
        return self.cannot_place(np.arange(self.count), f"cannot place {self.count} tasks ({each}): at least 1 slot "
                                 "is needed, and none of the cluster's nodes has a live one. Start workers, or wait for them")


def clean(values: Sequence[float]) -> Floats:
    """The values, made finite and not negative."""
    return np.clip(np.nan_to_num(np.array(values, dtype=np.float64), nan=0.0, posinf=MOST, neginf=0.0), 0.0, MOST)


def _edges(index: Mapping[tuple[str, TaskId], int], load: Mapping[str, Load]) -> tuple[Ints, Ints, Floats]:
    """Traffic in both directions between two tasks as one edge; a task that sends to itself has no edge."""
    left: list[int] = []
    right: list[int] = []
    rate: list[float] = []
    numbers: dict[str, dict[TaskId, int]] = {}
    for (name, task), number in index.items():
        numbers.setdefault(name, {})[task] = number
    for name, own in numbers.items():
        measured = load.get(name, Load())
        seconds = measured.window_seconds
        if not (seconds > 0 and math.isfinite(seconds)):
            continue
        for (source, target), tuples in measured.traffic.items():
            one, other = own.get(source), own.get(target)
            if one is not None and other is not None and one != other:
                left.append(min(one, other))
                right.append(max(one, other))
                rate.append(tuples / seconds)
    if not left:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    pairs = np.array(left, dtype=np.int64) * len(index) + np.array(right, dtype=np.int64)
    unique, inverse = np.unique(pairs, return_inverse=True)
    total = np.minimum(np.bincount(inverse, weights=clean(rate)), MOST)
    kept = total > 0
    return unique[kept] // len(index), unique[kept] % len(index), total[kept]


def _others(names: set[str], load: Mapping[str, Load], plan: Mapping[str, Plan], slot_index: Mapping[int, int],
            slot_node: Ints, nodes: int) -> tuple[Floats, Ints, Floats]:
    """Resources used by topologies other than `names`: MHz and tasks on each slot, MB on each node."""
    taken = np.zeros(len(slot_index))
    tasks = np.zeros(len(slot_index), dtype=np.int64)
    memory = np.zeros(nodes)
    for name, other in plan.items():
        if name in names:
            continue
        measured = load[name].tasks if name in load else {}
        for task, slot in other.placement.items():
            if slot in slot_index:
                task_load = measured.get(task)
                tasks[slot_index[slot]] += 1
                if task_load is not None:
                    taken[slot_index[slot]] += clean([task_load.cpu_mhz])[0]
                    memory[slot_node[slot_index[slot]]] += clean([task_load.memory_mb])[0]
    return np.minimum(taken, MOST), tasks, np.minimum(memory, MOST)
