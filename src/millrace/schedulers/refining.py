"""Improves a placement of tasks on nodes by moving single tasks and exchanging two, within the limits of the nodes.

Less overload comes first, then less cost of traffic. Pinned tasks stay. Where no such step helps any more, detours may: a task
is forced to another node, and others follow it or make room.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from millrace.schedulers.overload import beyond
from millrace.schedulers.problem import NOWHERE, ROUNDING, Flags, Floats, Ints, Problem

LARGEST = 30_000_000  # tasks × nodes: beyond it the table of costs would need more than 240 MB, and nothing is improved
PASSES = 30  # over the tasks that could move; a few are enough
EXCHANGES = 4_000_000  # limit on tasks² × looks for tasks to exchange
DETOURS = 20_000  # limit on tasks × nodes × detours
NEGLIGIBLE = 1e-9  # gains below this share of all traffic, and overloads below this share, are rounding errors


@dataclass(frozen=True)
class NodeLimits:
    """Resources of tasks and nodes, one row each: what a task needs, what other topologies use of a node, and what all tasks
    may use there. `weight`: how much a row counts when overloads are added up."""

    needs: Floats  # (rows, tasks)
    taken: Floats  # (rows, nodes)
    most: Floats  # (rows, nodes)
    weight: Floats  # (rows)

    @classmethod
    def of(cls, problem: Problem, capacity: float = 1.0) -> NodeLimits:
        """CPU and loop time, `capacity` of each. A node's workers cannot use more than a core each."""
        cores = np.bincount(problem.slot_node, weights=problem.slot_capacity, minlength=problem.nodes)
        most = np.stack([np.minimum(problem.node_limit[0], cores), problem.node_limit[1]]) * capacity
        taken = problem.node_used(np.full(problem.count, NOWHERE, dtype=np.int64))
        return cls(problem.needs, taken, most, np.ones(2))

    def with_counts(self, taken: Floats, most: float, weight: float) -> NodeLimits:
        """A further row: at most so many tasks on each node."""
        return self.with_row(np.ones(self.needs.shape[1]), taken, np.full(self.most.shape[1], most), weight)

    def with_memory(self, problem: Problem) -> NodeLimits:
        """A further row: the memory of each node."""
        return self.with_row(problem.memory, problem.node_memory_taken, problem.node_memory, 1.0)

    def with_row(self, need: Floats, taken: Floats, most: Floats, weight: float) -> NodeLimits:
        """A further resource: what each task needs, and what others use and all may use on each node."""
        return NodeLimits(np.vstack([self.needs, need]), np.vstack([self.taken, taken]), np.vstack([self.most, most]),
                          np.append(self.weight, weight))


class _Change(NamedTuple):
    """Changes of overload and of cost, for each of several steps."""

    overload: Floats
    cost: Floats


def refined_nodes(problem: Problem, nodes: Ints, limits: NodeLimits, movable: Flags | None = None,
                  detours: bool = False) -> Ints:
    """The node of each task after no move of one task and, if there are not too many tasks, no exchange of two helps.
    `detours`: where there are few tasks, try moves, too, that help only after other tasks have followed."""
    if problem.count * problem.nodes > LARGEST or problem.nodes < 2:
        return nodes
    search = _Search(problem, nodes, limits, ~problem.pinned if movable is None else movable & ~problem.pinned)
    search.descend()
    if detours:
        search.try_detours()
    return search.nodes


def used_of(nodes: Ints, limits: NodeLimits) -> Floats:
    """(rows, nodes): resources in use, including those of other topologies."""
    placed, count = nodes >= 0, limits.most.shape[1]
    own = [np.bincount(nodes[placed], weights=row[placed], minlength=count) for row in limits.needs]
    return np.stack(own) + limits.taken


class _Search:
    """The placement while it is improved. `costs` has the cost of each task's traffic on each node."""

    def __init__(self, problem: Problem, nodes: Ints, limits: NodeLimits, movable: Flags) -> None:
        self.problem, self.limits, self.movable = problem, limits, movable
        self.nodes = nodes.copy()
        self.start, self.others, self.rates = problem.neighbours
        self.most = limits.most * ROUNDING
        self.scale = np.maximum(limits.most, 1e-9).max(axis=1) / limits.weight
        self.used = used_of(nodes, limits)
        self.excess = self.overload(self.used, self.most)
        self.least_gain = NEGLIGIBLE * max(float(problem.rate.sum()), 1e-9)
        near = np.zeros((problem.count, problem.nodes))
        np.add.at(near, (problem.left, nodes[problem.right]), problem.rate)
        np.add.at(near, (problem.right, nodes[problem.left]), problem.rate)
        self.costs: Floats = problem.task_traffic[:, np.newaxis] - near if problem.distance is None else near @ problem.distance

    def overload(self, used: Floats, most: Floats) -> Floats:
        """The overload of nodes with these loads (rows, ...)."""
        return beyond(used, most, self.scale)

    def descend(self) -> None:
        """Moves and exchanges tasks until nothing helps."""
        looks = max(EXCHANGES // max(self.problem.count, 1) ** 2, 1)
        self.move_all()
        while looks and self.exchange():
            self.move_all()
            looks -= 1

    # -- detours -----------------------------------------------------------------------------------------------------

    def try_detours(self) -> None:
        """Forces a task to another node, lets the others follow it or make room, and keeps that if it is better in the end:
        the cheapest moves first, again and again until none helps."""
        trials = DETOURS // max(self.problem.count * self.problem.nodes, 1)
        tried = 0
        better = True
        while better and tried < trials:
            better = False
            for task, node in self.forced_moves()[:trials - tried]:
                tried += 1
                if self.detour(task, node):
                    better = True
                    break

    def forced_moves(self) -> list[tuple[int, int]]:
        """All moves of a task to another node, those that cost least first."""
        tasks = np.flatnonzero(self.movable)
        rise = self.costs[tasks] - self.costs[tasks, self.nodes[tasks]][:, np.newaxis]
        rise[np.arange(len(tasks)), self.nodes[tasks]] = np.inf
        order = np.argsort(rise, axis=None, kind="stable")[:rise.size - len(tasks)]
        places, nodes = np.divmod(order, self.problem.nodes)
        return list(zip(tasks[places].tolist(), nodes.tolist()))

    def detour(self, task: int, node: int) -> bool:
        """True if the placement is better after the task is forced to that node; else it is what it was."""
        before, state = self.worth(), (self.nodes.copy(), self.costs.copy(), self.used.copy(), self.excess.copy())
        self.put(task, node)
        self.movable[task] = False
        self.descend()
        self.movable[task] = True
        self.descend()
        after = self.worth()
        noise = NEGLIGIBLE * max(1.0, before[0])
        if after[0] < before[0] - noise or (after[0] <= before[0] + noise and after[1] < before[1] - self.least_gain):
            return True
        self.nodes, self.costs, self.used, self.excess = state
        return False

    def worth(self) -> tuple[float, float]:
        """Overload and cost; every edge is counted at both of its ends."""
        return float(self.excess.sum()), float(self.costs[np.arange(len(self.nodes)), self.nodes].sum()) / 2

    # -- single moves ------------------------------------------------------------------------------------------------

    def move_all(self) -> None:
        """Moves tasks, those that gain most first, until none gains anything."""
        for _ in range(PASSES):
            if not any([self.move(task) for task in self.candidates()]):
                return

    def candidates(self) -> list[int]:
        """Tasks on overloaded nodes, and tasks that gain by a move to a node with room: the largest gain first."""
        own = self.costs[np.arange(len(self.nodes)), self.nodes]
        gains = own[:, np.newaxis] - self.costs
        for row, need, most in zip(self.used, self.limits.needs, self.most):
            gains[(row + need[:, np.newaxis]) > most] = -np.inf
        gains[np.arange(len(self.nodes)), self.nodes] = -np.inf
        best = gains.max(axis=1)
        wanted = np.flatnonzero(self.movable & ((best > self.least_gain) | (self.excess[self.nodes] > 0)))
        return [int(task) for task in wanted[np.argsort(-best[wanted], kind="stable")]]

    def move(self, task: int) -> bool:
        """Moves the task to its best node; False if it is there already."""
        old, need = int(self.nodes[task]), self.limits.needs[:, task, np.newaxis]
        overload = self.overload(self.used + need, self.most) - self.excess
        overload += self.overload(self.used[:, old] - need[:, 0], self.most[:, old]) - self.excess[old]
        cost = self.costs[task] - self.costs[task, old]
        overload[old] = cost[old] = 0.0
        better = self.improvements(_Change(overload, cost))
        if not len(better):
            return False
        self.put(task, int(better[0]))
        return True

    def improvements(self, change: _Change) -> Ints:
        """Positions of the steps that improve the placement: the largest relief first, then the largest gain."""
        noise = NEGLIGIBLE * max(1.0, float(self.excess.max(initial=0.0)))
        overload = np.where(np.abs(change.overload) <= noise, 0.0, change.overload)
        better = np.flatnonzero((overload < 0) | ((overload == 0) & (change.cost < -self.least_gain)))
        return better[np.lexsort((change.cost[better], overload[better]))]

    def put(self, task: int, node: int) -> None:
        """Puts the task on the node."""
        old, need = int(self.nodes[task]), self.limits.needs[:, task]
        own = slice(self.start[task], self.start[task + 1])
        others, rates = self.others[own], self.rates[own]
        if self.problem.distance is None:
            self.costs[others, old] += rates
            self.costs[others, node] -= rates
        else:
            self.costs[others] += rates[:, np.newaxis] * (self.problem.distance[node] - self.problem.distance[old])
        self.nodes[task] = node
        self.used[:, old] -= need
        self.used[:, node] += need
        self.excess[[old, node]] = self.overload(self.used[:, [old, node]], self.most[:, [old, node]])

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def exchange(self) -> bool:
        """Exchanges pairs of tasks, those that gain most first; False if no exchange helps."""
        if len(self.nodes) ** 2 > EXCHANGES:
            return False
        one, other = np.nonzero(np.triu((self.nodes[:, np.newaxis] != self.nodes) & self.movable[:, np.newaxis] & self.movable))
        change = self.exchanged(one, other)
        better = self.improvements(change)[:len(self.nodes) // 4 + 1]
        return any([self.exchange_two(one[place:place + 1], other[place:place + 1]) for place in better])

    def exchange_two(self, one: Ints, other: Ints) -> bool:
        """Exchanges two tasks if that still helps after earlier exchanges."""
        first, second = int(self.nodes[one[0]]), int(self.nodes[other[0]])
        if first == second or not len(self.improvements(self.exchanged(one, other))):
            return False
        self.put(int(other[0]), first)
        self.put(int(one[0]), second)
        return True

    def exchanged(self, one: Ints, other: Ints) -> _Change:
        """The changes if each of the tasks `one` and its partner in `other`, which are on different nodes, change places."""
        here, there = self.nodes[one], self.nodes[other]
        cost = self.costs[one, there] - self.costs[one, here] + self.costs[other, here] - self.costs[other, there]
        apart = 1.0 if self.problem.distance is None else self.problem.distance[here, there]
        cost += 2 * self.between[one, other] * apart  # traffic between the two costs what it did
        more = self.limits.needs[:, other] - self.limits.needs[:, one]
        overload = self.overload(self.used[:, here] + more, self.most[:, here]) - self.excess[here]
        overload += self.overload(self.used[:, there] - more, self.most[:, there]) - self.excess[there]
        return _Change(overload, cost)

    @cached_property
    def between(self) -> Floats:
        """(tasks, tasks): weight of the traffic between each two."""
        problem = self.problem
        table = np.zeros((problem.count, problem.count))
        table[problem.left, problem.right] = table[problem.right, problem.left] = problem.rate
        return table
