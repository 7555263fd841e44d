"""Chooses slots for tasks whose nodes are chosen: the second level, for many nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from millrace.schedulers.partitioning import metis
from millrace.schedulers.partitioning.refinement import Ground, refined
from millrace.schedulers.partitioning.room import MEMORY, task_needs, with_tolerance, worker_room
from millrace.schedulers.problem import NOWHERE, Floats, Ints, Problem

# Weight of traffic between workers of a node where it costs nothing: new tasks still go where it is least, running ones stay.
LITTLE = 1e-3
SLACK = 0.1


@dataclass(frozen=True)
class WorkerLevel:
    """A problem with the node of every task. Tasks that stay on their node stay on their slot, unless a move between two
    workers saves more than `move_cost`."""

    problem: Problem
    nodes: Ints
    capacity: float
    move_cost: float
    seed: int
    fresh: bool = False  # all tasks that can be moved get new slots, and those of a node are matched to the old ones

    def assignment(self) -> Ints:
        """The slot of every task."""
        problem = self.problem
        stays = (problem.nodes_of(problem.current) == self.nodes) & (problem.current >= 0)
        slots = np.where(stays & (problem.pinned | (not self.fresh)), problem.current, NOWHERE)
        for node in np.unique(self.nodes[slots < 0]):
            self.fill(int(node), slots)
        limit = worker_room(problem, self.capacity)
        limit[:MEMORY] = with_tolerance(limit[:MEMORY], problem.slot_limit)
        weight = max(problem.between_workers, LITTLE)
        graph = csr_array((self.inside.data * weight, self.inside.indices, self.inside.indptr), shape=self.inside.shape)
        return refined(Ground(graph, task_needs(problem), limit, ~problem.pinned, np.where(stays, problem.current, NOWHERE),
                              self.move_cost), slots)

    @cached_property
    def inside(self) -> csr_array:
        """(tasks, tasks): the traffic within nodes."""
        problem = self.problem
        near = self.nodes[problem.left] == self.nodes[problem.right]
        return metis.traffic_graph(problem.count, problem.left[near], problem.right[near], problem.rate[near])

    @cached_property
    def by_node(self) -> tuple[Ints, Ints, csr_array]:
        """The tasks ordered by node, the position of each node's first, and the traffic within nodes in that order."""
        order = np.argsort(self.nodes, kind="stable")
        return order, np.searchsorted(self.nodes[order], np.arange(self.problem.nodes + 1)), self.inside[order][:, order]

    @cached_property
    def slots_of(self) -> list[Ints]:
        order = np.argsort(self.problem.slot_node, kind="stable")
        return np.split(order, np.searchsorted(self.problem.slot_node[order], np.arange(1, self.problem.nodes)))

    @cached_property
    def size(self) -> Floats:
        """Each task's need as a share of a worker: of its core or its loop, whichever is more."""
        limit = np.maximum(self.problem.slot_limit.max(axis=1, initial=0.0), 1e-9)
        size: Floats = (self.problem.needs / limit[:, np.newaxis]).max(axis=0)
        return size

    def fill(self, node: int, slots: Ints) -> None:
        """Gives the node's tasks without a slot one: by METIS if they are most of its tasks, else one by one."""
        order, start, inside = self.by_node
        first, last = int(start[node]), int(start[node + 1])
        tasks, own = order[first:last], self.slots_of[node]
        graph = _block(inside, first, last)
        new = slots[tasks] < 0
        if 2 * new.sum() > len(tasks) and len(own) > 1:
            parts = metis.parts(graph, self.size[tasks], np.ones(len(own)), SLACK, self.seed)
            if parts is not None:
                slots[tasks] = self.matched(tasks, own, parts)
                return
        self.one_by_one(tasks, own, graph, slots)

    def matched(self, tasks: Ints, own: Ints, parts: Ints) -> Ints:
        """The slots of a node's tasks, with parts and slots matched so that most stay, above all those that cannot be moved."""
        current, pinned = self.problem.current[tasks], self.problem.pinned[tasks]
        here = parts[:, np.newaxis] == np.arange(len(own))  # (tasks, parts)
        there = (current[:, np.newaxis] == own) * np.where(pinned, len(tasks), 1)[:, np.newaxis]  # (tasks, slots)
        _, slot_of = linear_sum_assignment(here.T.astype(np.float64) @ there, maximize=True)
        return np.where(pinned, current, own[slot_of[parts]])

    def one_by_one(self, tasks: Ints, own: Ints, graph: csr_array, slots: Ints) -> None:
        """Gives tasks without a slot one with room that shares most traffic with them, or the least loaded; largest first."""
        place = np.full(len(self.problem.slot_numbers), NOWHERE)
        place[own] = np.arange(len(own))
        at = np.where(slots[tasks] >= 0, place[slots[tasks]], NOWHERE)
        room = worker_room(self.problem, self.capacity)[:MEMORY, own]
        placed = at >= 0
        used = np.stack([np.bincount(at[placed], weights=need[placed], minlength=len(own))
                         for need in self.problem.needs[:, tasks]]).astype(np.float64)
        full = np.maximum(self.problem.slot_limit[:, own], 1e-9)
        missing = np.flatnonzero(at < 0)
        for task in missing[np.argsort(-self.size[tasks[missing]], kind="stable")]:
            need = self.problem.needs[:, tasks[task], np.newaxis]
            row = slice(graph.indptr[task], graph.indptr[task + 1])
            there = at[graph.indices[row]]
            near = np.bincount(there[there >= 0], weights=graph.data[row][there >= 0], minlength=len(own))
            fits = (used + need <= room).all(axis=0)
            load = ((full - room + used) / full).max(axis=0)
            best = int(np.lexsort((load, np.where(fits, -near, 0.0), ~fits))[0])
            at[task] = best
            used[:, best] += need[:, 0]
        slots[tasks] = own[at]


def _block(graph: csr_array, first: int, last: int) -> csr_array:
    """The part of a graph in blocks that begins and ends at these vertices."""
    entries = slice(graph.indptr[first], graph.indptr[last])
    count = last - first
    return csr_array((graph.data[entries], graph.indices[entries] - first, graph.indptr[first:last + 1] - graph.indptr[first]),
                     shape=(count, count))
