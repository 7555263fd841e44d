"""T-Storm (Xu, Chen, Tang, Su; ICDCS 2014): tasks that talk much on one node, no node overloaded, no more nodes than needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import NewPlan, SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.placing import affinity, by_traffic, nearest_nodes
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class TStorm:
    """Tasks in order of their traffic, each to the node where it adds the least traffic between nodes, so that on every
    node (1) a topology has one worker, (2) the load is within the capacity and (3) the tasks are at most gamma times the
    average, rounded up. Where that cannot be, (3) gives way, then (2), and the overload is reported.

    A worker is one Python process, and that runs on one core at a time: with `cores` set, the load of a topology on a node
    is held to so many cores too, where that can be. It gives way after (3), which then holds again if it can, and before (2).

    A topology of which no load is known is spread evenly, one worker on a node, until there is one.
    """

    gamma: float = parameter(1.5, "Consolidation: a node has at most this many times the average number of tasks. "
                                  "1 spreads evenly, more uses fewer nodes.", low=1.0)
    capacity: float = parameter(0.9, "Share of each node's CPU that may be used; the rest is headroom.", low=0.01, high=1.0)

    cores: float = parameter(1.0, "Cores that one worker can make use of, less the headroom; 0 sets no limit, as in the paper.",
                             low=0.0)

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        known = _known(problem)
        assignment = _evenly(problem, [graph for graph, seen in zip(graphs, known) if not seen], cluster, load, plan)
        measured = known[problem.topology] if problem.count else np.zeros(0, dtype=bool)
        board = _Nodes(problem, np.where(measured, NOWHERE, assignment), self)
        for task in by_traffic(problem, np.flatnonzero(measured)).tolist():
            board.put(task)
        nodes = nearest_nodes(problem, board.nodes, ~measured)
        assignment = _one_worker_per_node(problem, nodes, measured, assignment)
        return problem.answer(assignment, board.reason(assignment), self.capacity)


def _known(problem: Problem) -> Flags:
    """For each topology: whether it was seen to do anything."""
    active = (problem.cpu > 0) | (problem.task_traffic > 0)
    return np.bincount(problem.topology, weights=active, minlength=len(problem.graphs)) > 0


def _evenly(problem: Problem, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
            plan: Mapping[str, Plan]) -> Ints:
    """The first assignment of these topologies: at most one worker on a node, and at most as many as were asked for. The
    tasks of the others are where they are now."""
    result = Even(one_worker_per_node=True, spread_back=False).schedule(graphs, cluster, load, plan)
    if not isinstance(result, NewPlan):
        return problem.current
    found = problem.current.copy()
    for number, (name, task) in enumerate(problem.tasks):
        if name in result.plans:
            found[number] = np.searchsorted(problem.slot_numbers, result.plans[name].placement[task])
    return found


class _Nodes:
    """The nodes while tasks are put on them."""

    def __init__(self, problem: Problem, assignment: Ints, limits: TStorm) -> None:
        self.problem = problem
        self.nodes = problem.nodes_of(assignment)
        self.load = problem.node_load(assignment)
        fixed = np.bincount(self.nodes[self.nodes >= 0], minlength=problem.nodes)
        others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
        self.counts: Ints = fixed + others.astype(np.int64)
        self.allowed = problem.node_capacity * limits.capacity
        self.most_load = self.allowed * ROUNDING
        self.scale = 1 / np.maximum(self.allowed, 1e-9)  # MHz to a share of what may be used
        every = problem.count + int(problem.slot_tasks_taken.sum())
        self.most_tasks = math.ceil(limits.gamma * every / max(problem.nodes, 1) / ROUNDING)
        self.used = np.zeros((len(problem.graphs), problem.nodes), dtype=bool)
        self.used[problem.topology[self.nodes >= 0], self.nodes[self.nodes >= 0]] = True
        self.worker_load = np.zeros((len(problem.graphs), problem.nodes))  # MHz of each topology on each node
        self.most_worker_load = problem.node_mhz * (limits.cores * limits.capacity * ROUNDING if limits.cores else np.inf)
        self.crowded = self.squeezed = self.overloaded = 0  # tasks for which (3), the cores, and (2) had to give way

    def put(self, task: int) -> None:
        cpu = self.problem.cpu[task]
        node = self._best(task, cpu)
        self.nodes[task] = node
        self.load[node] += cpu
        self.counts[node] += 1
        self.used[self.problem.topology[task], node] = True
        self.worker_load[self.problem.topology[task], node] += cpu

    def _best(self, task: int, cpu: float) -> int:
        """The node that adds the least traffic between nodes, which is the one that the task talks to most."""
        room = self.load + cpu <= self.most_load
        in_worker = room & (self.worker_load[self.problem.topology[task]] + cpu <= self.most_worker_load)
        few = self.counts < self.most_tasks
        free = next((found for found in (in_worker & few, in_worker, room & few, room) if found.any()), None)
        if free is None:
            self.overloaded += 1
            node = int(np.argmin((self.load + cpu) * self.scale))
            self.crowded += not few[node]
            return node
        self.squeezed += not in_worker.any()
        self.crowded += not (free & few).any()
        near = affinity(self.problem, task, self.nodes, self.problem.nodes)
        near[~free] = -1.0
        best = np.flatnonzero(near == near.max())
        used = best[self.used[self.problem.topology[task], best]]
        best = used if len(used) else best
        return int(best[np.argmin(self.load[best] * self.scale[best])])

    def reason(self, assignment: Ints) -> str:
        found, before = self.problem.figures(assignment), self.problem.figures(self.problem.current)
        parts = [f"{self.problem.count} tasks on {found.nodes_used} of {self.problem.nodes} nodes, at most "
                 f"{self.most_tasks} on each; {before.inter_node:,.0f} tuples/s between nodes become {found.inter_node:,.0f}"]
        if self.crowded:
            parts.append(f"{self.crowded} tasks found only nodes that have as many as gamma allows")
        if self.squeezed:
            parts.append(f"{self.squeezed} found no worker that a core is enough for")
        if self.overloaded:
            parts.append(f"{self.overloaded} found no node with CPU to spare: add nodes, or lower the input")
        return "; ".join(parts)


def _one_worker_per_node(problem: Problem, nodes: Ints, chosen: Flags, assignment: Ints) -> Ints:
    """The slot of each chosen task on its node: where its topology has most of its tasks there now, unless it would have
    too much to do there; else the one that is least loaded when its turn comes."""
    tasks = np.flatnonzero(chosen)
    groups, group_of = np.unique(problem.topology[tasks] * problem.nodes + nodes[tasks], return_inverse=True)
    found = np.where(chosen, NOWHERE, assignment)
    load = problem.slot_load(found)
    counts: Ints = problem.slot_tasks_taken + np.bincount(found[found >= 0], minlength=len(load))
    weight: Floats = np.bincount(group_of, weights=problem.cpu[tasks], minlength=len(groups)).astype(np.float64)
    size = np.bincount(group_of, minlength=len(groups))
    present = _present_workers(problem, groups)
    by_node = np.argsort(problem.slot_node, kind="stable")
    first = np.searchsorted(problem.slot_node[by_node], np.arange(problem.nodes + 1))
    slots = np.full(len(groups), NOWHERE, dtype=np.int64)
    for group in np.lexsort((np.arange(len(groups)), present < 0)):  # those that are there already first
        node, slot = groups[group] % problem.nodes, present[group]
        if slot < 0 or load[slot] + weight[group] > problem.slot_capacity[slot] * ROUNDING:
            own = by_node[first[node]:first[node + 1]]
            slot = own[np.lexsort((own != slot, counts[own], load[own]))[0]]
        slots[group] = slot
        load[slot] += weight[group]
        counts[slot] += size[group]
    found[tasks] = slots[group_of]
    return found


def _present_workers(problem: Problem, groups: Ints) -> Ints:
    """For each group (topology × nodes + node) the slot of the node where the topology has most of its tasks now, or
    NOWHERE."""
    placed = np.flatnonzero(problem.current >= 0)
    width = len(problem.slot_numbers)
    pairs, sizes = np.unique(problem.topology[placed] * width + problem.current[placed], return_counts=True)
    found: dict[int, int] = {}
    for position in np.lexsort((pairs, -sizes)):  # the largest first, then the lowest number
        topology, slot = divmod(int(pairs[position]), width)
        found.setdefault(topology * problem.nodes + int(problem.slot_node[slot]), slot)
    return np.array([found.get(group, NOWHERE) for group in groups.tolist()], dtype=np.int64)
