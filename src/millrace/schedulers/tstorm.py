"""T-Storm (Xu, Chen, Tang, Su; ICDCS 2014): puts communicating tasks on one node, overloads none, and uses few nodes.

The slot choice is `choose_slots`: first a node for each task (`_NodeChoice.choose_node`), then one slot on each node for each
topology (`_one_slot_per_node`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import le

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import NewPlan, SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partitioning.relief import relief_first, relief_in_words, without_new_overload
from millrace.schedulers.placing import SlotBoard, by_traffic, nearest_nodes, saving
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Objective, Problem
from millrace.schedulers.rearranging import with_less_overload
from millrace.schedulers.refining import NodeLimits, refined_nodes

TASKS_WEIGHT = 1e-3  # of tasks beyond those that gamma allows, beside CPU and loop time beyond the limits


@dataclass(frozen=True, slots=True)
class TStorm(Objective):
    """Takes tasks in order of their traffic and puts each on the node where it adds the least traffic between nodes. On every
    node (1) a topology has one worker, (2) the load is within the capacity and (3) there are at most gamma times the average
    number of tasks, rounded up. If that is impossible, (3) is dropped first, then (2), and the overload is reported.

    A worker is one Python process with one loop, which runs on one core at a time: with `cores` set, the load of a topology's
    worker is limited to that many cores and to its loop. If a task fits in no worker of its topology, (1) is dropped for it
    before (2): the topology gets a further worker on the node.

    If the greedy choice overloads a node or worker, tasks are moved until that is relieved, as far as possible. With `improve`
    they are also moved while that makes the traffic cheaper.

    A topology without a measured load is spread evenly, one worker on a node, until it has one.
    """

    gamma: float = parameter(1.5, "Consolidation: a node has at most this many times the average number of tasks. "
                                  "1 spreads evenly, more uses fewer nodes.", low=1.0)
    capacity: float = parameter(0.9, "Share of each node's CPU and of each worker that may be used; the rest is headroom.",
                                low=0.01, high=1.0)
    cores: float = parameter(1.0, "Cores that one worker can use, less the headroom; 0 sets no limit to a worker, as in the "
                                  "paper.", low=0.0)
    improve: bool = parameter(False, "Move and exchange tasks after the greedy choice, while that makes the traffic cheaper "
                                    "within the limits. False: as in the paper.")

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        known = _with_load(problem, load)
        assignment = _first_assignment(problem, ~known, cluster, load, plan)
        measured = known[problem.topology] if problem.count else np.zeros(0, dtype=bool)
        assignment, reason = choose_slots(problem, measured & ~problem.pinned, assignment, self)
        if self.cores:
            limits = FillLimits.of(self.capacity)
            assignment = without_new_overload(problem, assignment, limits)
            relief = relief_first(problem, assignment, limits)
            reason = relief_in_words(problem, relief) if relief is not assignment else reason
            assignment = relief
        return problem.answer(assignment, reason, self.capacity)

    def place(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
              plan: Mapping[str, Plan]) -> SchedulingResult:
        """T-Storm's first assignment for topologies without a measured load, its choice of a slot for single tasks of the
        others."""
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        assignment = _first_assignment(problem, ~_with_load(problem, load), cluster, load, plan)
        assignment = np.where(problem.current >= 0, problem.current, assignment)
        homeless = assignment < 0
        assignment, _ = choose_slots(problem, homeless, assignment, self)
        return problem.answer(assignment, f"{int((problem.current < 0).sum())} tasks placed", self.capacity)


def choose_slots(problem: Problem, chosen: Flags, assignment: Ints, limits: TStorm) -> tuple[Ints, str]:
    """T-Storm's slot choice for the `chosen` tasks, and the reason to report; the others stay as in `assignment`."""
    choice = _NodeChoice(problem, np.where(chosen, NOWHERE, assignment), limits)
    for task in by_traffic(problem, np.flatnonzero(chosen)).tolist():
        choice.place(task)
    nodes = choice.improved(chosen) if limits.improve and chosen.any() else choice.nodes
    nodes = nearest_nodes(problem, nodes, ~chosen)
    assignment = _one_slot_per_node(problem, nodes, chosen, assignment, limits)
    if limits.cores and (chosen | problem.pinned).all():
        assignment = with_less_overload(problem, assignment)
    return assignment, choice.reason(assignment)


def _with_load(problem: Problem, load: Mapping[str, Load]) -> Flags:
    """For each topology: True if a load of any of its tasks was measured. What components declare says nothing of traffic."""
    active = (problem.needs > 0).any(axis=0) | (problem.task_traffic > 0)
    seen = np.array([graph.name in load for graph in problem.graphs], dtype=bool)
    return seen & (np.bincount(problem.topology, weights=active, minlength=len(problem.graphs)) > 0)


def _first_assignment(problem: Problem, new: Flags, cluster: Cluster, load: Mapping[str, Load],
                      plan: Mapping[str, Plan]) -> Ints:
    """T-Storm's first assignment for the `new` topologies: at most one worker on a node, and at most `topology.workers` of
    them. Tasks of other topologies stay where they are."""
    graphs = [graph for graph, is_new in zip(problem.graphs, new) if is_new]
    assignment = problem.current.copy()
    result = Even(one_worker_per_node=True, spread_back=False).schedule(graphs, cluster, load, plan) if graphs else None
    if isinstance(result, NewPlan):
        for number, (name, task) in enumerate(problem.tasks):
            if name in result.plans:
                assignment[number] = np.searchsorted(problem.slot_numbers, result.plans[name].placement[task])
    return assignment


class _NodeChoice:
    """The node of each task while T-Storm places them one by one."""

    def __init__(self, problem: Problem, fixed: Ints, limits: TStorm) -> None:
        self.problem = problem
        self.nodes = problem.nodes_of(fixed)
        self.limits = NodeLimits.of(problem, limits.capacity)
        if not limits.cores:  # as in the paper: only the CPU of the node counts
            most = np.stack([problem.node_capacity * limits.capacity, np.full(problem.nodes, np.inf)])
            self.limits = NodeLimits(self.limits.needs, self.limits.taken, most, self.limits.weight)
        self.most_load = self.limits.most * ROUNDING
        self.load = problem.node_used(fixed)
        self.scale = 1 / np.maximum(problem.node_limit, 1e-9)
        placed = np.flatnonzero(fixed >= 0)
        others = np.bincount(problem.slot_node, weights=problem.slot_tasks_taken, minlength=problem.nodes)
        self.others = others.astype(np.float64)
        self.counts = self.others + np.bincount(self.nodes[placed], minlength=problem.nodes)
        total = problem.count + int(problem.slot_tasks_taken.sum())
        self.most_tasks = math.ceil(limits.gamma * total / max(problem.nodes, 1) - 1e-9)
        self.used = np.zeros((len(problem.graphs), problem.nodes), dtype=bool)  # nodes of each topology
        self.used[problem.topology[placed], self.nodes[placed]] = True
        # Of each topology on each node; tasks that stay where they are may have several workers there.
        self.worker_load = np.zeros((2, len(problem.graphs), problem.nodes))
        for row, need in zip(self.worker_load, problem.needs):
            np.add.at(row, (problem.topology[placed], self.nodes[placed]), need[placed])
        worker = np.stack([problem.node_mhz * limits.cores, np.ones(problem.nodes)]) * limits.capacity * ROUNDING
        self.most_worker_load = worker if limits.cores else np.full((2, problem.nodes), np.inf)
        self.crowded = self.squeezed = self.overloaded = 0  # tasks for which (3), (1), and (2) were dropped
        self.too_large: list[list[float]] = [[] for _ in problem.graphs]  # needs for which no worker of the topology had room
        self.lists = _Lists(self)

    def place(self, task: int) -> None:
        topology, need = int(self.problem.topology[task]), self.lists.needs[task]
        node = self.choose_node(task)
        self.nodes[task] = node
        self.counts[node] += 1
        self.used[topology, node] = True
        for row, more in enumerate(need):
            self.load[row, node] += more
            self.worker_load[row, topology, node] += more
        self.lists.place(task, topology, node)

    def choose_node(self, task: int) -> int:
        """The node that adds the least cost: without distances, the one with which the task has most traffic."""
        if self.problem.distance is not None:
            return self.of_all(task, saving(self.problem, task, self.nodes))
        near = self.lists.near_nodes(task)
        topology, need = int(self.problem.topology[task]), self.lists.needs[task]
        one_worker = not self.workers_full(topology, need)
        most = 0.0
        fitting: list[int] = []
        for rate, node in sorted([(-rate, node) for node, rate in near.items()]):
            if fitting and rate != most:
                break
            if self.lists.fits(topology, need, node, one_worker):
                most, fitting = rate, [*fitting, node]
        if fitting:
            self.squeezed += not one_worker
            return fitting[0] if len(fitting) == 1 else self.preferred(task, np.array(fitting))
        if one_worker and (chosen := self.lists.elsewhere(topology, need)) is not None:
            return chosen
        saved = np.zeros(self.problem.nodes)
        saved[list(near)] = list(near.values())
        return self.of_all(task, saved)

    def workers_full(self, topology: int, need: Sequence[float]) -> bool:
        """True if no worker of the topology has room, because none had for a task that needs no more than this one."""
        least = self.too_large[topology]
        return bool(least) and all(map(le, least, need))

    def of_all(self, task: int, saved: Floats) -> int:
        """The best of all nodes, each of which is looked at, with constraints dropped in order until one is left. `saved`: cost
        that each node saves."""
        topology, (cpu, time) = int(self.problem.topology[task]), self.lists.needs[task]
        cpu_there, time_there = self.load[0] + cpu, self.load[1] + time
        room = (cpu_there <= self.most_load[0]) & (time_there <= self.most_load[1])
        worker, most = self.worker_load[:, topology], self.most_worker_load
        in_worker = room & (worker[0] + cpu <= most[0]) & (worker[1] + time <= most[1])
        few = self.counts < self.most_tasks
        free = next((nodes for nodes in (in_worker & few, in_worker, room & few, room) if nodes.any()), None)
        if free is None:
            self.overloaded += 1
            node = int(np.argmin(np.maximum(cpu_there * self.scale[0], time_there * self.scale[1])))
            self.crowded += not few[node]
            return node
        if not in_worker.any():
            self.squeezed += 1
            self.too_large[topology] = [cpu, time]
        self.crowded += not (free & few).any()
        saved[~free] = -np.inf
        return self.preferred(task, np.flatnonzero(saved == saved.max()))

    def preferred(self, task: int, nodes: Ints) -> int:
        """Of nodes that add the same cost: one that the topology uses, then the least loaded, then the first."""
        if len(nodes) == 1:
            return int(nodes[0])
        used = nodes[self.used[self.problem.topology[task], nodes]]
        nodes = used if len(used) else nodes
        cpu, time = self.load[:, nodes] * self.scale[:, nodes]
        return int(nodes[np.maximum(cpu, time).argmin()])

    def improved(self, chosen: Flags) -> Ints:
        """The node of each task after moves and exchanges of the chosen ones within the limits."""
        limits = self.limits.with_counts(self.others, self.most_tasks, TASKS_WEIGHT)
        return refined_nodes(self.problem, self.nodes, limits, chosen, detours=True)

    def reason(self, assignment: Ints) -> str:
        problem = self.problem
        before, after = problem.figures(problem.current), problem.figures(assignment)
        parts = [f"{problem.count} tasks on {after.nodes_used} of {problem.nodes} nodes, at most {self.most_tasks} on each; "
                 f"{problem.in_words(before.cost)} become {after.cost:,.0f}"]
        if self.crowded:
            parts.append(f"{self.crowded} tasks exceed the number per node that gamma allows")
        if self.squeezed:
            parts.append(f"{self.squeezed} need a further worker on a node")
        if self.overloaded:
            parts.append(f"{self.overloaded} exceed the CPU of every node: add nodes, or lower the input")
        return "; ".join(parts)


class _Lists:
    """The same as the arrays of `_NodeChoice`, for loops in Python: reading one element of an array takes far longer."""

    def __init__(self, choice: _NodeChoice) -> None:
        self.start, self.others, self.rates = choice.problem.neighbour_lists
        self.node_of: list[int] = choice.nodes.tolist()
        self.needs: list[list[float]] = choice.problem.needs.T.tolist()
        self.load, self.most_load = choice.load.tolist(), choice.most_load.tolist()
        self.counts, self.most_tasks = choice.counts.tolist(), choice.most_tasks
        self.worker_load, self.most_worker_load = choice.worker_load.tolist(), choice.most_worker_load.tolist()
        self.used = [set(np.flatnonzero(row).tolist()) for row in choice.used]
        self.scale = choice.scale.tolist()
        self.fullness = (choice.load * choice.scale).max(axis=0)  # of each node; an array, to find the least

    def place(self, task: int, topology: int, node: int) -> None:
        self.node_of[task] = node
        self.counts[node] += 1
        for row, need in enumerate(self.needs[task]):
            self.load[row][node] += need
            self.worker_load[row][topology][node] += need
        self.used[topology].add(node)
        self.fullness[node] = max(self.load[row][node] * self.scale[row][node] for row in (0, 1))

    def near_nodes(self, task: int) -> dict[int, float]:
        """Weight of the task's traffic with each node that has some of it."""
        own, node_of = slice(self.start[task], self.start[task + 1]), self.node_of
        near: dict[int, float] = {}
        for other, rate in zip(self.others[own], self.rates[own]):
            node = node_of[other]
            if node >= 0:
                near[node] = near.get(node, 0.0) + rate
        return near

    def elsewhere(self, topology: int, need: Sequence[float]) -> int | None:
        """The node for a task that no node with some of its traffic can take: the least loaded of those that its topology uses,
        or else of all. None if that cannot be told without looking at each."""
        used = [node for node in self.used[topology] if self.fits(topology, need, node, True)]
        if used:
            return min(used, key=lambda node: (self.fullness[node], node))
        least = int(self.fullness.argmin())
        return least if self.fits(topology, need, least, True) else None

    def fits(self, topology: int, need: Sequence[float], node: int, one_worker: bool) -> bool:
        """True if the node can take a task with this need under (2) and (3) and, with `one_worker`, (1)."""
        (cpu, time), load, most = need, self.load, self.most_load
        if load[0][node] + cpu > most[0][node] or load[1][node] + time > most[1][node] or self.counts[node] >= self.most_tasks:
            return False
        worker, limit = self.worker_load, self.most_worker_load
        return not one_worker or (worker[0][topology][node] + cpu <= limit[0][node]
                                  and worker[1][topology][node] + time <= limit[1][node])


def _one_slot_per_node(problem: Problem, nodes: Ints, chosen: Flags, assignment: Ints, limits: TStorm) -> Ints:
    """The slot of each chosen task on its node. Tasks of a topology share one: the one with most of them now, unless that
    would be overloaded; else the least loaded one. If no slot has room for all of them, they are spread over several."""
    tasks = np.flatnonzero(chosen)
    groups, group_of = np.unique(problem.topology[tasks] * problem.nodes + nodes[tasks], return_inverse=True)
    # As full as a node may be: a plan that fills workers further is refused as an overload, again and again.
    board = SlotBoard(problem, np.where(chosen, NOWHERE, assignment), limits.capacity if limits.cores else 1.0)
    most = board.most if limits.cores else np.full_like(board.most, np.inf)
    weight = np.stack([np.bincount(group_of, weights=need, minlength=len(groups)) for need in problem.needs[:, tasks]])
    size = np.bincount(group_of, minlength=len(groups))
    present = _present_workers(problem, groups)
    split: list[int] = []  # groups that fit in no slot
    for group in np.lexsort((np.arange(len(groups)), present < 0)).tolist():  # groups that have a slot already come first
        local, slot = board.of_node[groups[group] % problem.nodes], present[group]
        need = weight[:, group, np.newaxis]
        if slot < 0 or np.any(board.used[:, slot] + need[:, 0] > most[:, slot]):
            load = (board.used[:, local] / np.maximum(problem.slot_limit[:, local], 1e-9)).max(axis=0)
            full = np.any(board.used[:, local] + need > most[:, local], axis=0)
            slot = local[np.lexsort((local != slot, board.counts[local], load, full))[0]]
            if full.all() and len(local) > 1:
                split.append(group)
                continue
        board.assignment[tasks[group_of == group]] = slot
        board.used[:, slot] += weight[:, group]
        board.counts[slot] += size[group]
    for group in split:
        own, node = tasks[group_of == group], int(groups[group] % problem.nodes)
        board.put_all(by_traffic(problem, own), node)
        if board.overloaded()[board.of_node[node]].any():
            board.repack(own, node)
    return board.assignment


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
