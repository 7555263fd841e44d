"""T-Storm (Xu, Chen, Tang, Su; ICDCS 2014): puts communicating tasks on one node, overloads none, and uses few nodes.

The slot choice is `choose_slots`: first a node for each task (`_NodeChoice.choose_node`), then one slot on each node for each
topology (`_one_slot_per_node`).
"""

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
    """Takes tasks in order of their traffic and puts each on the node where it adds the least traffic between nodes. On every
    node (1) a topology has one worker, (2) the load is within the capacity and (3) there are at most gamma times the average
    number of tasks, rounded up. If that is impossible, (3) is dropped first, then (2), and the overload is reported.

    A worker is one Python process, which runs on one core at a time: with `cores` set, the load of a topology on a node is
    also limited to that many cores. This limit is dropped after (3), which then applies again if possible, and before (2).

    A topology without a measured load is spread evenly, one worker on a node, until it has one.
    """

    gamma: float = parameter(1.5, "Consolidation: a node has at most this many times the average number of tasks. "
                                  "1 spreads evenly, more uses fewer nodes.", low=1.0)
    capacity: float = parameter(0.9, "Share of each node's CPU that may be used; the rest is headroom.", low=0.01, high=1.0)

    cores: float = parameter(1.0, "Cores that one worker can use, less the headroom; 0 sets no limit, as in the paper.",
                             low=0.0)

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        known = _with_load(problem)
        assignment = _evenly(problem, [graph for graph, has_load in zip(graphs, known) if not has_load], cluster, load, plan)
        measured = known[problem.topology] if problem.count else np.zeros(0, dtype=bool)
        assignment, reason = choose_slots(problem, measured, assignment, self)
        return problem.answer(assignment, reason, self.capacity)


def choose_slots(problem: Problem, measured: Flags, assignment: Ints, limits: TStorm) -> tuple[Ints, str]:
    """T-Storm's slot choice for the `measured` tasks, and the reason to report; the others stay as in `assignment`."""
    choice = _NodeChoice(problem, np.where(measured, NOWHERE, assignment), limits)
    for task in by_traffic(problem, np.flatnonzero(measured)).tolist():
        choice.place(task)
    nodes = nearest_nodes(problem, choice.nodes, ~measured)
    assignment = _one_slot_per_node(problem, nodes, measured, assignment)
    return assignment, choice.reason(assignment)


def _with_load(problem: Problem) -> Flags:
    """For each topology: True if any of its tasks has a load."""
    active = (problem.cpu > 0) | (problem.task_traffic > 0)
    return np.bincount(problem.topology, weights=active, minlength=len(problem.graphs)) > 0


def _evenly(problem: Problem, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
            plan: Mapping[str, Plan]) -> Ints:
    """The first assignment of these topologies: at most one worker on a node, and at most `topology.workers` of them. Tasks of
    other topologies stay where they are."""
    result = Even(one_worker_per_node=True, spread_back=False).schedule(graphs, cluster, load, plan)
    if not isinstance(result, NewPlan):
        return problem.current
    assignment = problem.current.copy()
    for number, (name, task) in enumerate(problem.tasks):
        if name in result.plans:
            assignment[number] = np.searchsorted(problem.slot_numbers, result.plans[name].placement[task])
    return assignment


class _NodeChoice:
    """Load and task counts of the nodes while tasks are placed on them."""

    def __init__(self, problem: Problem, assignment: Ints, limits: TStorm) -> None:
        self.problem = problem
        self.nodes = problem.nodes_of(assignment)
        self.load = problem.node_load(assignment)
        fixed = np.bincount(self.nodes[self.nodes >= 0], minlength=problem.nodes)
        others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
        self.counts: Ints = fixed + others.astype(np.int64)
        self.allowed = problem.node_capacity * limits.capacity
        self.most_load = self.allowed * ROUNDING
        self.scale = 1 / np.maximum(self.allowed, 1e-9)  # MHz to a share of the usable CPU
        every = problem.count + int(problem.slot_tasks_taken.sum())
        self.most_tasks = math.ceil(limits.gamma * every / max(problem.nodes, 1) / ROUNDING)
        self.used = np.zeros((len(problem.graphs), problem.nodes), dtype=bool)
        self.used[problem.topology[self.nodes >= 0], self.nodes[self.nodes >= 0]] = True
        self.worker_load = np.zeros((len(problem.graphs), problem.nodes))  # MHz of each topology on each node
        self.most_worker_load = problem.node_mhz * (limits.cores * limits.capacity * ROUNDING if limits.cores else np.inf)
        self.crowded = self.squeezed = self.overloaded = 0  # tasks for which (3), the cores, and (2) were dropped

    def place(self, task: int) -> None:
        cpu = self.problem.cpu[task]
        node = self.choose_node(task, cpu)
        self.nodes[task] = node
        self.load[node] += cpu
        self.counts[node] += 1
        self.used[self.problem.topology[task], node] = True
        self.worker_load[self.problem.topology[task], node] += cpu

    def choose_node(self, task: int, cpu: float) -> int:
        """The node that adds the least traffic between nodes: the one with which the task exchanges most tuples."""
        room = self.load + cpu <= self.most_load
        in_worker = room & (self.worker_load[self.problem.topology[task]] + cpu <= self.most_worker_load)
        few = self.counts < self.most_tasks
        free = next((nodes for nodes in (in_worker & few, in_worker, room & few, room) if nodes.any()), None)
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
        after, before = self.problem.figures(assignment), self.problem.figures(self.problem.current)
        parts = [f"{self.problem.count} tasks on {after.nodes_used} of {self.problem.nodes} nodes, at most "
                 f"{self.most_tasks} on each; {before.inter_node:,.0f} tuples/s between nodes become {after.inter_node:,.0f}"]
        if self.crowded:
            parts.append(f"{self.crowded} tasks exceed the number per node that gamma allows")
        if self.squeezed:
            parts.append(f"{self.squeezed} exceed the cores of every worker")
        if self.overloaded:
            parts.append(f"{self.overloaded} exceed the CPU of every node: add nodes, or lower the input")
        return "; ".join(parts)


def _one_slot_per_node(problem: Problem, nodes: Ints, chosen: Flags, assignment: Ints) -> Ints:
    """The slot of each chosen task on its node: the one with most tasks of its topology now, unless that would be
    overloaded; else the least loaded one."""
    tasks = np.flatnonzero(chosen)
    groups, group_of = np.unique(problem.topology[tasks] * problem.nodes + nodes[tasks], return_inverse=True)
    slot_of = np.where(chosen, NOWHERE, assignment)
    load = problem.slot_load(slot_of)
    counts: Ints = problem.slot_tasks_taken + np.bincount(slot_of[slot_of >= 0], minlength=len(load))
    weight: Floats = np.bincount(group_of, weights=problem.cpu[tasks], minlength=len(groups)).astype(np.float64)
    size = np.bincount(group_of, minlength=len(groups))
    present = _present_workers(problem, groups)
    by_node = np.argsort(problem.slot_node, kind="stable")
    first = np.searchsorted(problem.slot_node[by_node], np.arange(problem.nodes + 1))
    slots = np.full(len(groups), NOWHERE, dtype=np.int64)
    for group in np.lexsort((np.arange(len(groups)), present < 0)):  # groups that have a slot already come first
        node, slot = groups[group] % problem.nodes, present[group]
        if slot < 0 or load[slot] + weight[group] > problem.slot_capacity[slot] * ROUNDING:
            local = by_node[first[node]:first[node + 1]]
            slot = local[np.lexsort((local != slot, counts[local], load[local]))[0]]
        slots[group] = slot
        load[slot] += weight[group]
        counts[slot] += size[group]
    slot_of[tasks] = slots[group_of]
    return slot_of


def _present_workers(problem: Problem, groups: Ints) -> Ints:
    """For each group (topology × nodes + node) the slot of the node with most tasks of the topology now, or NOWHERE."""
    placed = np.flatnonzero(problem.current >= 0)
    width = len(problem.slot_numbers)
    pairs, sizes = np.unique(problem.topology[placed] * width + problem.current[placed], return_counts=True)
    slots: dict[int, int] = {}
    for position in np.lexsort((pairs, -sizes)):  # the largest first, then the lowest number
        topology, slot = divmod(int(pairs[position]), width)
        slots.setdefault(topology * problem.nodes + int(problem.slot_node[slot]), slot)
    return np.array([slots.get(group, NOWHERE) for group in groups.tolist()], dtype=np.int64)
