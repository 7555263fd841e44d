"""A scheduling problem as arrays, shared by all schedulers, so that ten thousand tasks need no Python loop.

Tasks and slots are numbered from 0 in a fixed order (topologies as passed, tasks in the order of their graph, slots by
number), so equal questions give equal arrays. An assignment is an array: the slot of each task, or -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from millrace.model.cluster import LINK_COST, Cluster
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers import overload
from millrace.schedulers.base import (
    LOOPS,
    MEGABYTES,
    MHZ,
    CannotPlace,
    NewPlan,
    NoChange,
    Overload,
    SchedulingResult,
    next_plan,
)
from millrace.schedulers.inputs.demands import demands
from millrace.schedulers.inputs.machines import node_capacities, node_memories
from millrace.schedulers.inputs.measured import TaskColumns, task_columns
from millrace.schedulers.inputs.traffic import MOST, clean, edges
from millrace.schedulers.parameters import parameter

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

ROUNDING = overload.ROUNDING
NOWHERE = -1
TUPLES, BYTES, COST = MINIMISED = ("tuples", "bytes", "cost")


@dataclass(frozen=True)
class Figures:
    """Measures of a placement: tuples per second between nodes and between workers of a node, the load of nodes and workers,
    and what a scheduler minimises."""

    inter_node: float
    inter_process: float
    nodes_used: int
    largest_load: float  # of any node, as a share of its CPU
    moved: int
    largest_worker_load: float = 0.0  # of any worker, as a share of a core
    largest_worker_time: float = 0.0  # share of the time that the busiest worker's loop is busy
    cost: float = 0.0  # of the traffic, in the unit that is minimised; equal to `inter_node` if that is tuples between nodes


@dataclass(frozen=True)
class Problem:
    """Arrays over tasks, edges (each pair of communicating tasks once, both directions together), slots and nodes.

    Three resources limit a placement: CPU, memory, and the time of the workers' loops. A worker runs its tasks on one loop, so
    a task that waits in user code fills its worker although it uses no CPU. `needs`, `slot_limit`, `node_limit`, `slot_used`
    and `node_used` have CPU and loop time as rows; a limit on the workers and nodes applies to both.

    Placements are compared by `cost`: the weight of the traffic between nodes times the cost of the link, and of that between
    workers of a node times `between_workers`.
    """

    graphs: tuple[TopologyGraph, ...]
    plans: Mapping[str, Plan]
    tasks: tuple[tuple[str, TaskId], ...]
    topology: Ints  # of each task: the position of its graph
    cpu: Floats  # MHz
    time: Floats  # share of a worker's loop that the task keeps busy; 0 if it has a thread of its own
    memory: Floats  # MB
    queue: Ints
    queue_floor: Ints
    settling: Flags
    pinned: Flags  # must stay on its slot while that is alive
    current: Ints  # live slot of each task, or NOWHERE
    left: Ints  # task at one end of an edge
    right: Ints  # and at the other; left < right
    tuples: Floats  # per second along the edge
    rate: Floats  # weight of the edge per second, which schedulers minimise: tuples, or bytes
    slot_numbers: Ints
    slot_node: Ints
    slot_taken: Floats  # MHz used by tasks of other topologies
    slot_time_taken: Floats  # share of the slot's loop used by tasks of other topologies
    slot_tasks_taken: Ints
    node_names: tuple[str, ...]  # nodes that have a slot, by name
    node_mhz: Floats  # of one core, the most that a worker can use
    node_capacity: Floats  # MHz; of nodes with the same cores, a part that depends on what they use now
    node_memory: Floats  # MB
    node_memory_taken: Floats
    minimise: str = TUPLES
    between_workers: float = 0.0  # weight of traffic between workers of a node; between nodes it is 1
    distance: Floats | None = None  # (nodes, nodes): cost of a unit of traffic, 0 within a node; None: 1 between any two

    @classmethod
    def of(cls, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
           plan: Mapping[str, Plan], minimise: str = TUPLES, between_workers: float = 0.0) -> Problem:
        tasks = tuple((graph.name, task) for graph in graphs for task in graph.tasks())
        numbers = _numbered(graphs)
        slots = sorted(cluster.slots, key=lambda slot: slot.number)
        slot_index = {slot.number: position for position, slot in enumerate(slots)}
        nodes = sorted({slot.node for slot in slots})
        by_name = {node.name: node for node in cluster.nodes}
        node_index = {name: position for position, name in enumerate(nodes)}
        slot_node = np.array([node_index[slot.node] for slot in slots], dtype=np.int64)
        names = {graph.name for graph in graphs}
        others = _others(names, load, plan, slot_index, slot_node, len(nodes))
        current = np.full(len(tasks), NOWHERE, dtype=np.int64)
        for name, own in numbers.items():
            for task, slot in plan[name].placement.items() if name in plan else ():
                if task in own and slot in slot_index:
                    current[own[task]] = slot_index[slot]
        measured = [task_columns(load.get(graph.name), graph.tasks()) for graph in graphs]
        seen = TaskColumns(*map(np.concatenate, zip(task_columns(None, ()), *measured)))
        declared = demands(graphs, max((by_name[name].mhz for name in nodes), default=0.0))
        traffic = edges(numbers, load, minimise != TUPLES)
        threaded = {(graph.name, part.name) for graph in graphs for part in graph.components if part.blocking}
        cpu = clean(np.where(seen.known, seen.cpu, declared.cpu))
        placed = current >= 0
        of_slots = others.cpu + np.bincount(current[placed], cpu[placed], len(slots))
        used = np.bincount(slot_node, of_slots, len(nodes)).astype(np.float64)
        memory = clean(np.where(seen.known, seen.memory, declared.memory))
        memory_used = others.memory + np.bincount(slot_node[current[placed]], memory[placed], len(nodes))
        on_loop = np.array([(name, task.component) not in threaded for name, task in tasks], dtype=bool)
        return cls(
            graphs=tuple(graphs), plans=plan, tasks=tasks,
            topology=np.repeat(np.arange(len(graphs)), [len(graph.tasks()) for graph in graphs]).astype(np.int64),
            cpu=cpu, time=_busy(np.where(on_loop, seen.loop, 0.0)),
            memory=memory, queue=clean(seen.queue).astype(np.int64), queue_floor=clean(seen.queue_floor).astype(np.int64),
            settling=seen.settling,
            pinned=(current >= 0) & ~_movable(graphs),
            current=current, left=traffic.left, right=traffic.right, tuples=traffic.tuples, rate=traffic.weight,
            slot_numbers=np.array([slot.number for slot in slots], dtype=np.int64), slot_node=slot_node,
            slot_taken=others.cpu, slot_time_taken=others.time, slot_tasks_taken=others.tasks, node_names=tuple(nodes),
            node_mhz=clean([by_name[name].mhz for name in nodes]),
            node_capacity=clean(node_capacities(cluster, nodes, used)),
            node_memory=clean(node_memories(cluster, nodes, memory_used)), node_memory_taken=others.memory,
            minimise=minimise, between_workers=between_workers,
            distance=distances(cluster, nodes) if minimise == COST else None,
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
        other task and the weight of the traffic between the two."""
        ends = np.concatenate([self.left, self.right])
        others = np.concatenate([self.right, self.left])
        rates = np.concatenate([self.rate, self.rate])
        order = np.lexsort((others, ends))
        start = np.zeros(self.count + 1, dtype=np.int64)
        np.cumsum(np.bincount(ends, minlength=self.count), out=start[1:])
        return start, others[order], rates[order]

    @cached_property
    def neighbour_lists(self) -> tuple[list[int], list[int], list[float]]:
        """The same as lists, for loops in Python."""
        start, others, rates = self.neighbours
        return start.tolist(), others.tolist(), rates.tolist()

    @cached_property
    def task_traffic(self) -> Floats:
        """Weight of the traffic in and out of each task."""
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

    @cached_property
    def needs(self) -> Floats:
        """(2, tasks): MHz and loop time of each task."""
        return np.stack([self.cpu, self.time])

    @cached_property
    def slot_limit(self) -> Floats:
        """(2, slots): MHz and loop time that each worker has: a core, and one loop."""
        return np.stack([self.slot_capacity, np.ones(len(self.slot_numbers))])

    @cached_property
    def node_limit(self) -> Floats:
        """(2, nodes): MHz and loop time that each node has: a loop for each of its slots."""
        return np.stack([self.node_capacity, np.bincount(self.slot_node, minlength=self.nodes).astype(np.float64)])

    @cached_property
    def pinned_only(self) -> Ints:
        """The assignment in which only pinned tasks have a slot: what a scheduler that plans from scratch starts with."""
        return np.where(self.pinned, self.current, NOWHERE)

    # -- measures of an assignment ------------------------------------------------------------------------------------

    def nodes_of(self, assignment: Ints) -> Ints:
        return np.where(assignment >= 0, self.slot_node[assignment], NOWHERE)

    def inter_node(self, assignment: Ints) -> float:
        """Tuples per second between tasks on different nodes. A task without a slot is on no node."""
        nodes = self.nodes_of(assignment)
        apart = (nodes[self.left] != nodes[self.right]) | (nodes[self.left] == NOWHERE)
        return float(self.tuples[apart].sum())

    def inter_process(self, assignment: Ints) -> float:
        """Tuples per second between different workers of the same node."""
        nodes = self.nodes_of(assignment)
        near = (nodes[self.left] == nodes[self.right]) & (assignment[self.left] != assignment[self.right])
        return float(self.tuples[near].sum())

    def inside_nodes(self, assignment: Ints) -> float:
        """Weight of the traffic between different workers of the same node, in the unit that is minimised."""
        nodes = self.nodes_of(assignment)
        near = (nodes[self.left] == nodes[self.right]) & (assignment[self.left] != assignment[self.right])
        return float(self.rate[near].sum())

    def cost(self, assignment: Ints) -> float:
        """The value that schedulers minimise, per second: each edge's weight times the cost of the way between its tasks."""
        return float(self.ways(assignment, self.left, self.right) @ self.rate)

    def ways(self, assignment: Ints, left: Ints, right: Ints) -> Floats:
        """The cost of a unit of traffic between each of the tasks `left` and the one in `right`. Traffic of a task without a
        slot costs as much as between two nodes."""
        nodes = self.nodes_of(assignment)
        one, other = nodes[left], nodes[right]
        unplaced = (one == NOWHERE) | (other == NOWHERE)
        near = self.between_workers * (assignment[left] != assignment[right])
        each: Floats = np.where((one != other) | unplaced, 1.0, near)
        if self.distance is not None:
            each = np.where((one != other) & ~unplaced, self.distance[one, other], each)
        return each

    def in_words(self, cost: float, digits: int = 0) -> str:
        """A cost with its unit."""
        unit = f"{self.minimise}/s"
        if self.minimise == COST:
            unit = "units of cost per second"
        elif not self.between_workers:
            unit += " between nodes"
        else:
            unit += f" between nodes, those between workers of a node counted {self.between_workers:g} times"
        return f"{cost:,.{digits}f} {unit}"

    def slot_load(self, assignment: Ints) -> Floats:
        """MHz on each slot, including other topologies."""
        placed = assignment >= 0
        load = np.bincount(assignment[placed], weights=self.cpu[placed], minlength=len(self.slot_numbers))
        return load.astype(np.float64) + self.slot_taken

    def slot_time(self, assignment: Ints) -> Floats:
        """Loop time used on each slot, including other topologies; a worker has 1."""
        placed = assignment >= 0
        used = np.bincount(assignment[placed], weights=self.time[placed], minlength=len(self.slot_numbers))
        return used.astype(np.float64) + self.slot_time_taken

    def slot_used(self, assignment: Ints) -> Floats:
        """(2, slots): MHz and loop time used on each slot, including other topologies."""
        return np.stack([self.slot_load(assignment), self.slot_time(assignment)])

    def node_used(self, assignment: Ints) -> Floats:
        """(2, nodes): MHz and loop time used on each node, including other topologies."""
        used = self.slot_used(assignment)
        return np.stack([np.bincount(self.slot_node, weights=row, minlength=self.nodes) for row in used]).astype(np.float64)

    def excess(self, assignment: Ints, share: float = 1.0) -> float:
        """The excess of all workers and nodes beyond this share of what they have: 0 if the placement fits."""
        return float(self.excesses(assignment, share).sum())

    def excesses(self, assignment: Ints, share: float = 1.0, avoidable: bool = False) -> Floats:
        """(slots + nodes + nodes): the excess of each worker, in its core and its loop, of each node, in its CPU, and of each
        node, in its memory. The share is one of CPU and time; all memory may be used, since it is no rate. Only places
        of which one of the tasks needs something count, since no move relieves the others; tasks without a slot do not.
        `avoidable`: a place may be filled by one task that fits nowhere, and only what is there beside it counts."""
        nodes = self.nodes_of(assignment)
        memory = self.memory[np.newaxis], self.node_memory[np.newaxis]
        kinds = ((assignment, self.slot_used(assignment), self.needs, self.slot_limit, share),
                 (nodes, self.node_used(assignment)[:1], self.needs[:1], self.node_limit[:1], share),
                 (nodes, self.node_memory_used(assignment)[np.newaxis], *memory, 1.0))
        excesses = []
        for places, used, needs, has, most in kinds:
            alone = overload.needs_alone(needs, places, has, most) if avoidable else 0.0
            placed = places >= 0
            own = [np.bincount(places[placed], weights=need[placed], minlength=has.shape[1]) for need in needs]
            excesses.append(overload.excess_of_places(np.where(np.stack(own) > 0, used, 0.0), has, most, alone))
        return np.concatenate(excesses)

    def place_loads(self, assignment: Ints) -> Floats:
        """(slots + nodes + nodes): the share of each worker's core or loop that is used, whichever is more, of each node's CPU,
        and of each node's memory."""
        slots = self.slot_used(assignment) / np.maximum(self.slot_limit, 1e-9)
        return np.concatenate([slots.max(axis=0), self.node_load(assignment) / np.maximum(self.node_capacity, 1e-9),
                               self.node_memory_used(assignment) / np.maximum(self.node_memory, 1e-9)])

    def node_load(self, assignment: Ints) -> Floats:
        return np.bincount(self.slot_node, weights=self.slot_load(assignment), minlength=self.nodes).astype(np.float64)

    def node_memory_used(self, assignment: Ints) -> Floats:
        """MB used on each node, including other topologies."""
        placed = assignment >= 0
        own = np.bincount(self.slot_node[assignment[placed]], weights=self.memory[placed], minlength=self.nodes)
        return own.astype(np.float64) + self.node_memory_taken

    def figures(self, assignment: Ints) -> Figures:
        placed = assignment >= 0
        load, capacity = self.node_load(assignment), np.maximum(self.node_capacity, 1e-9)
        return Figures(
            inter_node=self.inter_node(assignment), inter_process=self.inter_process(assignment),
            nodes_used=len(np.unique(self.slot_node[assignment[placed]])),
            largest_load=float((load / capacity).max(initial=0.0)),
            moved=int(((assignment != self.current) & (self.current >= 0)).sum()),
            largest_worker_load=float((self.slot_load(assignment) / np.maximum(self.slot_capacity, 1e-9)).max(initial=0.0)),
            largest_worker_time=float(self.slot_time(assignment).max(initial=0.0)), cost=self.cost(assignment),
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
        """Nodes whose CPU or memory, and workers whose CPU or loop time, is less than their tasks need."""
        nodes, slots = self.node_load(assignment), self.slot_used(assignment)
        names, of_nodes = [f"worker {number}" for number in self.slot_numbers], [f"node {name}" for name in self.node_names]
        return (*_overloads(of_nodes, nodes, self.node_capacity * capacity, MHZ),
                *_overloads(of_nodes, self.node_memory_used(assignment), self.node_memory, MEGABYTES),
                *_overloads(names, slots[0], self.slot_limit[0], MHZ), *_overloads(names, slots[1], self.slot_limit[1], LOOPS))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Parameters that say what a scheduler minimises; a base class of schedulers."""

    minimise: str = parameter(TUPLES, "What is least: tuples per second between nodes, as in the papers; their bytes; or their "
                                      "bytes times the cost of the link between the nodes.", choices=MINIMISED)
    between_workers: float = parameter(0.0, "Weight of traffic between workers of one node, where traffic between nodes has 1.",
                                       low=0.0, high=1.0)

    def problem(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                plan: Mapping[str, Plan]) -> Problem:
        """The problem with this objective."""
        return Problem.of(graphs, cluster, load, plan, self.minimise, self.between_workers)


def _movable(graphs: Sequence[TopologyGraph]) -> Flags:
    """For each task: True if it may move. That is the same for all tasks of a component."""
    movable = {(graph.name, part): graph.movable(TaskId(part, 0)) for graph in graphs
               for part in (ACKER, *(component.name for component in graph.components))}
    return np.array([movable[graph.name, task.component] for graph in graphs for task in graph.tasks()], dtype=bool)


def _numbered(graphs: Sequence[TopologyGraph]) -> dict[str, dict[TaskId, int]]:
    """The number of each task, by topology."""
    count, numbers = 0, {}
    for graph in graphs:
        own = graph.tasks()
        numbers[graph.name] = dict(zip(own, range(count, count + len(own))))
        count += len(own)
    return numbers


def distances(cluster: Cluster, nodes: Sequence[str]) -> Floats | None:
    """(nodes, nodes): the cost of a unit of traffic between each two; None if it is 1 between any two, which needs no matrix
    however many there are."""
    position = {name: number for number, name in enumerate(nodes)}
    links = [(position[one], position[other], cost) for (one, other), cost in cluster.links.items()
             if one in position and other in position and cost != LINK_COST]
    if not links:
        return None
    matrix = np.full((len(nodes), len(nodes)), LINK_COST)
    np.fill_diagonal(matrix, 0.0)
    for one, other, cost in links:
        matrix[one, other] = matrix[other, one] = min(cost, MOST)
    return matrix


@dataclass(frozen=True)
class _Taken:
    """Resources that other topologies use: MHz, loop time and tasks on each slot, MB on each node."""

    cpu: Floats
    time: Floats
    tasks: Ints
    memory: Floats


def _others(names: set[str], load: Mapping[str, Load], plan: Mapping[str, Plan], slot_index: Mapping[int, int],
            slot_node: Ints, nodes: int) -> _Taken:
    """Resources used by topologies other than `names`. Their graphs are not known, so tasks with threads of their own count as
    if they ran on the loop."""
    slots: list[int] = []
    used: list[tuple[float, float, float]] = []
    for name, other in plan.items():
        if name in names:
            continue
        measured = load.get(name, Load())
        for task, number in other.placement.items():
            if number in slot_index:
                slots.append(slot_index[number])
                seen = measured.tasks.get(task)
                used.append((seen.cpu_mhz, measured.loop_share(task), seen.memory_mb) if seen else (0.0, 0.0, 0.0))
    at, (cpu, time, memory) = np.array(slots, dtype=np.int64), clean(used).reshape(-1, 3).T
    count = len(slot_index)
    return _Taken(np.minimum(np.bincount(at, cpu, count), MOST), np.minimum(np.bincount(at, _busy(time), count), MOST),
                  np.bincount(at, minlength=count), np.minimum(np.bincount(slot_node[at], memory, nodes), MOST))


def _busy(shares: Sequence[float] | Floats) -> Floats:
    """Shares of a loop; a task cannot use more than one, whatever a meter says."""
    return np.minimum(clean(shares), 1.0)


def _overloads(names: Sequence[str], used: Floats, has: Floats, unit: str) -> Iterator[Overload]:
    for place in np.flatnonzero(used > has * ROUNDING).tolist():
        yield Overload(names[place], float(used[place]), float(has[place]), unit)
