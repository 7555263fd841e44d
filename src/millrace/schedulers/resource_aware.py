"""R-Storm (Peng, Hosseinzadeh, Campbell et al., Middleware 2015): puts each task on the node that fits its demand best."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import ClassVar

import numpy as np

from millrace.config import COMPONENT_MEMORY
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.inputs.demands import demands
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partitioning.relief import fitted
from millrace.schedulers.placing import SlotBoard
from millrace.schedulers.problem import NOWHERE, ROUNDING, Floats, Ints, Problem

CPU_PERCENT, MEMORY_MB = 10.0, 128.0  # of a task of which nothing is known, as Storm assumes


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceAware:
    """Takes tasks in breadth-first order of their components, one of each component in turn, so that communicating tasks
    follow each other. Each goes to the node at the least distance from its demand: memory, CPU, and the node's distance from
    the reference node (the one with most tasks of the topology or, at first, with most free capacity). A node without the
    memory is never used; one without the CPU only if no other is left. Placed tasks stay, unless their node lacks memory or CPU
    for them, or their worker is overloaded: then as few as possible move to where there is room.

    The demand of a task is its measured use, or else its component's settings.
    """

    memory_weight: float = parameter(1.0, "Weight of memory in the distance.", low=0.0)
    cpu_weight: float = parameter(1.0, "Weight of CPU in the distance.", low=0.0)
    network_weight: float = parameter(1.0, "Weight of the distance to the reference node.", low=0.0)
    capacity: float = parameter(0.9, "Share of a node's memory and CPU up to which tasks of a node that lacks some move there.",
                                low=0.01, high=1.0)

    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        return self._fitted(_with_demands(Problem.of(graphs, cluster, load, plan)), relieve=True)

    def place(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
              plan: Mapping[str, Plan]) -> SchedulingResult:
        """Slots for the tasks that have none; see base.PlacesTasks."""
        return self._fitted(_with_demands(Problem.of(graphs, cluster, load, plan)), relieve=False)

    def _fitted(self, problem: Problem, relieve: bool) -> SchedulingResult:
        if problem.count and not problem.nodes:
            return problem.no_slots()
        homeless = problem.current < 0
        free = _FreeResources(problem, self)
        first = 0
        for number, graph in enumerate(problem.graphs):
            free.choose_reference(number)
            for position in _breadth_first(graph):
                if homeless[first + position]:
                    free.place(first + position)
            first += len(graph.tasks())
        if free.missing:
            return problem.cannot_place(np.array(sorted(free.missing)), free.lack(homeless))
        assignment = fitted(problem, free.relieved(), FillLimits.of(self.capacity)) if relieve else free.assignment
        moved = int(((assignment != problem.current) & ~homeless).sum())
        placed = int(homeless.sum())
        parts = [f"{placed} tasks placed by memory, CPU and distance"] if placed else []
        parts += [f"{moved} tasks moved from nodes and workers that lacked memory or CPU"] if moved else []
        return problem.answer(assignment, "; ".join([*(parts or [f"all {problem.count} tasks have a worker"]),
                                                          *free.lacking()]))


def _with_demands(problem: Problem) -> Problem:
    """The problem with the demand of every task: measured if possible, else as its component declares, else a default."""
    core = float(problem.node_mhz.max(initial=0.0))  # of the fastest node, so that no demand is too low
    needed = demands(problem.graphs, core, CPU_PERCENT, MEMORY_MB)
    return dataclasses.replace(problem, cpu=np.where(problem.cpu > 0, problem.cpu, needed.cpu),
                               memory=np.where(problem.memory > 0, problem.memory, needed.memory))


def _breadth_first(graph: TopologyGraph) -> list[int]:
    """Positions of the graph's tasks: components breadth first from the spouts, then one task of each in turn."""
    waiting = deque(component.name for component in graph.spouts)
    order: dict[str, None] = dict.fromkeys(waiting)  # a set that keeps its order
    while waiting:
        for reader, _ in graph.downstream(waiting.popleft()):
            if reader.name not in order:
                order[reader.name] = None
                waiting.append(reader.name)
    position = {task: number for number, task in enumerate(graph.tasks())}
    ackers = [number for task, number in position.items() if task.component not in order]  # and unreachable ones
    lines = [[position[TaskId(name, index)] for index in range(graph.component(name).par)] for name in order]
    turns = chain.from_iterable(zip_longest(*lines))
    return [number for number in turns if number is not None] + ackers


class _FreeResources:
    """Free memory and CPU of each node while tasks are placed and moved. Less than nothing: the node lacks some."""

    def __init__(self, problem: Problem, limits: ResourceAware) -> None:
        self.problem, self.limits = problem, limits
        self.assignment = problem.current.copy()
        self.slots = SlotBoard(problem, self.assignment, limits.capacity)
        placed = problem.current >= 0
        used = np.bincount(problem.slot_node[problem.current[placed]], weights=problem.memory[placed],
                           minlength=problem.nodes)
        self.memory: Floats = problem.node_memory - problem.node_memory_taken - used
        self.cpu: Floats = problem.node_capacity - problem.node_load(problem.current)
        self.had = self.memory.clip(0.0)
        self.missing: list[int] = []
        self.reference = 0
        # Distances use shares of the largest node, so that MB and MHz are comparable.
        self.unit_memory = max(float(problem.node_memory.max(initial=0.0)), 1e-9)
        self.unit_cpu = max(float(problem.node_capacity.max(initial=0.0)), 1e-9)

    def choose_reference(self, topology: int) -> None:
        """Chooses the reference node of the topology."""
        problem = self.problem
        own = problem.current[(problem.topology == topology) & (problem.current >= 0)]
        tasks = np.bincount(problem.slot_node[own], minlength=problem.nodes)
        spare = self.memory / self.unit_memory + self.cpu / self.unit_cpu
        self.reference = int(np.lexsort((-spare, -tasks))[0]) if problem.nodes else 0

    def place(self, task: int) -> None:
        memory, cpu = self.problem.memory[task], self.problem.cpu[task]
        fits = memory <= self.memory * ROUNDING
        if not fits.any():
            self.missing.append(task)
            return
        room = fits & (cpu <= self.cpu * ROUNDING)
        nodes = np.flatnonzero(room if room.any() else fits)
        node = int(nodes[np.argmin(self._distance(nodes, memory, cpu))])
        self.memory[node] -= memory
        self.cpu[node] -= cpu
        self.slots.put(task, node)

    def relieved(self) -> Ints:
        """The assignment after tasks of nodes that lack memory or CPU have moved to nodes that have room for them."""
        targets: dict[int, int] = {}
        known = -1
        while known != len(targets):  # a node that has given up tasks may have room for others
            known = len(targets)
            for free, needs in ((self.memory, self.problem.memory), (self.cpu, self.problem.cpu)):
                for node in np.argsort(free, kind="stable").tolist():
                    self._relieve_node(node, free, needs, targets)
        self.assignment[list(targets)] = NOWHERE
        board = SlotBoard(self.problem, self.assignment, self.limits.capacity)
        for task, node in targets.items():
            board.put(task, node)
        return self.assignment

    def _relieve_node(self, node: int, free: Floats, needs: Floats, targets: dict[int, int]) -> None:
        """Finds other nodes for tasks until the node lacks nothing: for the smallest that is enough alone, or else for the
        largest."""
        problem = self.problem
        own = np.flatnonzero((problem.nodes_of(self.assignment) == node) & ~problem.pinned & (needs > 0))
        while self._lacks(node, free):
            own = own[~np.isin(own, list(targets))]
            enough = needs[own] >= -free[node]
            order = own[np.lexsort((np.where(enough, needs[own], -needs[own]), ~enough))]
            rooms = ((task, self._room_for(task, node)) for task in order.tolist())
            found = next(((task, target) for task, target in rooms if target is not None), None)
            if found is None:
                return
            task, target = found
            targets[task] = target
            for resource, need in ((self.memory, problem.memory[task]), (self.cpu, problem.cpu[task])):
                resource[node] += need
                resource[target] -= need

    def _lacks(self, node: int, free: Floats) -> bool:
        has = (self.problem.node_memory if free is self.memory else self.problem.node_capacity)[node]
        return bool(free[node] < -(ROUNDING - 1) * max(float(has), 1.0))

    def _room_for(self, task: int, source: int) -> int | None:
        """The best other node that keeps its headroom with the task; None if there is none."""
        problem, spare = self.problem, 1 - self.limits.capacity
        memory, cpu = problem.memory[task], problem.cpu[task]
        room = (memory <= self.memory - spare * problem.node_memory) & (cpu <= self.cpu - spare * problem.node_capacity)
        room[source] = False
        nodes = np.flatnonzero(room)
        if not len(nodes):
            return None
        self.choose_reference(int(problem.topology[task]))
        return int(nodes[np.argmin(self._distance(nodes, memory, cpu))])

    def lacking(self) -> list[str]:
        """Sentences about nodes that lack memory, which no move can give them."""
        return [f"node {self.problem.node_names[node]} lacks {-self.memory[node]:,.0f} MB of memory, and no other has room for "
                "one of its tasks: add nodes" for node in range(self.problem.nodes) if self._lacks(node, self.memory)]

    def _distance(self, nodes: Ints, memory: float, cpu: float) -> Floats:
        """Squared weighted Euclidean distance. Every other node is one step from the reference node."""
        limits = self.limits
        for_memory, for_cpu, for_network = limits.memory_weight, limits.cpu_weight, limits.network_weight
        distance: Floats = (for_memory * ((self.memory[nodes] - memory) / self.unit_memory) ** 2
                         + for_cpu * ((self.cpu[nodes] - cpu) / self.unit_cpu) ** 2 + for_network * (nodes != self.reference))
        return distance

    def lack(self, homeless: np.ndarray) -> str:
        needed, missing = self.problem.memory[homeless].sum(), self.problem.memory[self.missing].sum()
        return (f"cannot place {len(self.missing)} of {int(homeless.sum())} tasks: they need {needed:,.0f} MB of memory, the "
                f"nodes had {self.had.sum():,.0f} MB free, at most {self.had.max():,.0f} MB on one; {missing:,.0f} MB are "
                f"missing. Add nodes, give workers more memory, or lower {COMPONENT_MEMORY.key}")
