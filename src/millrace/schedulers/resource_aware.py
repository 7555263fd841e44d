"""R-Storm (Peng, Hosseinzadeh, Campbell et al., Middleware 2015): puts each task on the node that fits its demand best."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import ClassVar

import numpy as np

from millrace.config import COMPONENT_CPU, COMPONENT_MEMORY
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.placing import SlotBoard
from millrace.schedulers.problem import ROUNDING, Floats, Ints, Problem


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceAware:
    """Takes tasks in breadth-first order of their components, one of each component in turn, so that communicating tasks
    follow each other. Each goes to the node at the least distance from its demand: memory, CPU, and the node's distance from
    the reference node (the one with most tasks of the topology or, at first, with most free capacity). A node without the
    memory is never used; one without the CPU only if no other is left. Placed tasks stay.

    The demand of a task is its measured use, or else its component's settings.
    """

    memory_weight: float = parameter(1.0, "Weight of memory in the distance.", low=0.0)
    cpu_weight: float = parameter(1.0, "Weight of CPU in the distance.", low=0.0)
    network_weight: float = parameter(1.0, "Weight of the distance to the reference node.", low=0.0)

    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        problem = _with_demands(problem)
        homeless = problem.current < 0
        free = _FreeResources(problem, (self.memory_weight, self.cpu_weight, self.network_weight))
        first = 0
        for number, graph in enumerate(graphs):
            free.choose_reference(number)
            for position in _breadth_first(graph):
                if homeless[first + position]:
                    free.place(first + position)
            first += len(graph.tasks())
        if free.missing:
            return problem.cannot_place(np.array(sorted(free.missing)), free.lack(homeless))
        placed = int(homeless.sum())
        return problem.answer(free.slots.assignment, f"{placed} tasks placed by memory, CPU and distance"
                              if placed else f"all {problem.count} tasks have a worker")


def _with_demands(problem: Problem) -> Problem:
    """The problem with the demand of every task: measured if possible, else from the settings of its component."""
    core = float(problem.node_mhz.max(initial=0.0))  # of the fastest node, so that no demand is too low
    cpu: list[float] = []
    memory: list[float] = []
    for graph in problem.graphs:
        declared = [({**graph.config, **component.config}, component.par) for component in graph.components]
        for config, count in [*declared, (graph.config, graph.ackers)]:
            cpu += [COMPONENT_CPU.of(config) / 100 * core] * count
            memory += [COMPONENT_MEMORY.of(config)] * count
    return dataclasses.replace(problem, cpu=np.where(problem.cpu > 0, problem.cpu, cpu),
                               memory=np.where(problem.memory > 0, problem.memory, memory))


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
    """Free memory and CPU of each node while tasks are placed."""

    def __init__(self, problem: Problem, weights: tuple[float, float, float]) -> None:
        self.problem, self.weights = problem, weights
        self.slots = SlotBoard(problem, problem.current.copy())
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

    def _distance(self, nodes: Ints, memory: float, cpu: float) -> Floats:
        """Squared weighted Euclidean distance. Every other node is one step from the reference node."""
        for_memory, for_cpu, for_network = self.weights
        distance: Floats = (for_memory * ((self.memory[nodes] - memory) / self.unit_memory) ** 2
                         + for_cpu * ((self.cpu[nodes] - cpu) / self.unit_cpu) ** 2 + for_network * (nodes != self.reference))
        return distance

    def lack(self, homeless: np.ndarray) -> str:
        needed, missing = self.problem.memory[homeless].sum(), self.problem.memory[self.missing].sum()
        return (f"cannot place {len(self.missing)} of {int(homeless.sum())} tasks: they need {needed:,.0f} MB of memory, the "
                f"nodes had {self.had.sum():,.0f} MB free, at most {self.had.max():,.0f} MB on one; {missing:,.0f} MB are "
                f"missing. Add nodes, give workers more memory, or lower {COMPONENT_MEMORY.key}")
