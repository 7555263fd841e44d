"""Cuts tasks into subgraphs: the cost of a cut (overload, then Sl-Stream's p), a greedy cut, and its improvement step by
step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from millrace.schedulers.overload import beyond
from millrace.schedulers.partitioning.qpso import Costs
from millrace.schedulers.partitioning.room import BEYOND_ALL, CPU, MEMORY, TIME, node_room, task_needs, with_tolerance
from millrace.schedulers.placing import affinity, by_traffic
from millrace.schedulers.problem import NOWHERE, Flags, Floats, Ints, Problem

BLOCK = 2_000_000  # entries of (partitions × edges) in one array operation: a few tens of MB
NEGLIGIBLE = 1e-9  # a gain below this share of everything is a rounding error
NOISE = 1e-12  # a change of the overload below this is one too: sums of the same numbers in another order
MOST_LOOKS = 200  # at each task while polishing; a few are enough, but rounding errors could prolong it forever
ANY_BALANCE = 1e9  # a subgraph may have the whole load


class Cost(NamedTuple):
    """The cost of one partition. Compared in this order: a partition that fits its nodes beats any that does not."""

    overload: float
    p: float


@dataclass(frozen=True)
class Cutting:
    """A problem with k places for its subgraphs, and limits for each.

    A subgraph is rated against its own place, one of the nodes with most free CPU (largest first) or with tasks that cannot be
    moved, so that a cut without overload always has a matching; the matching then decides its actual node. The rows of `needs`
    and `limit` are CPU, loop time and memory against all that a place has, CPU and loop time against the share that may be
    used, and Sl-Stream's resource weight R against a balanced share.
    """

    problem: Problem
    places: Ints  # nodes
    needs: Floats  # (6, tasks)
    limit: Floats  # (6, k)
    scale: Floats  # (6): an excess of this size counts 1
    weight: Floats  # R of each task
    fixed: Ints  # the subgraph of each task that cannot be moved; NOWHERE for others
    rho: float

    @classmethod
    def of(cls, problem: Problem, k: int, rho: float = 0.0, alpha: float = 1.0, capacity: float = 1.0,
           balance: float = ANY_BALANCE) -> Cutting:
        """`capacity`: the share of CPU and loop time that may be used. `balance`: the largest R of a subgraph, in multiples of
        its share of the whole, which is the share of its place's CPU."""
        whole, usable, needs = node_room(problem), node_room(problem, capacity), task_needs(problem)
        places = _places(problem, usable[CPU], k)
        totals = np.maximum([problem.node_capacity.sum(), float(len(problem.slot_numbers)), problem.node_memory.sum()], 1e-9)
        weight = alpha * needs[CPU] / totals[CPU] + (1 - alpha) * needs[MEMORY] / totals[MEMORY]
        fair = balance * weight.sum() * _share(usable[CPU, places])
        full = np.stack([problem.node_capacity, np.bincount(problem.slot_node, minlength=problem.nodes).astype(np.float64),
                         problem.node_memory])
        limit = np.concatenate([with_tolerance(whole, full)[:, places], with_tolerance(usable, full)[:MEMORY, places],
                                fair[np.newaxis]])
        label_of = np.full(problem.nodes, NOWHERE, dtype=np.int64)
        label_of[places] = np.arange(len(places))
        fixed = np.where(problem.pinned, label_of[problem.nodes_of(problem.current)], NOWHERE)
        return cls(problem, places, np.concatenate([needs, needs[[CPU, TIME]], weight[np.newaxis]]), limit,
                   np.concatenate([totals / BEYOND_ALL, totals[:MEMORY], [max(float(weight.sum()), 1e-9)]]), weight, fixed, rho)

    @property
    def k(self) -> int:
        return len(self.places)

    @property
    def free(self) -> Flags:
        """The tasks that can be moved."""
        free: Flags = self.fixed == NOWHERE
        return free

    @cached_property
    def noise(self) -> float:
        """Overloads that differ by less are equal. Scaled, because a broken meter may report loads far beyond any capacity."""
        return NOISE * max(1.0, float((self.needs.sum(axis=1) / self.scale).max()))

    @cached_property
    def tilt(self) -> Floats:
        """Each task's contribution to q1 - q2 of its subgraph: its share of the task count less its share of the weight."""
        return 1 / max(self.problem.count, 1) - _share(self.weight)

    @cached_property
    def distance(self) -> Floats | None:
        """(k, k): cost of a unit of traffic between two places; None if it is 1 between any two."""
        every = self.problem.distance
        return None if every is None else every[np.ix_(self.places, self.places)]

    def with_fixed(self, labels: Ints) -> Ints:
        """The partitions with every task that cannot be moved in its own subgraph."""
        return np.where(self.free, labels, self.fixed)

    def labels_of(self, nodes: Ints) -> Ints | None:
        """The subgraph of every task, given its node; None if a node is the place of no subgraph."""
        label_of = np.full(self.problem.nodes, NOWHERE, dtype=np.int64)
        label_of[self.places] = np.arange(self.k)
        labels = label_of[nodes]
        return None if (labels < 0).any() else labels

    def excess(self, loads: Floats, limit: Floats) -> Floats:
        """Overload of subgraphs with these loads (6, ...), each against its limit (6, ...)."""
        return beyond(loads, limit, self.scale)

    def costs(self, labels: Ints) -> Costs:
        """Costs of many partitions, one per row."""
        rows, k = len(labels), self.k
        cells = (labels + np.arange(rows)[:, np.newaxis] * k).ravel()

        def sums(values: Floats) -> Floats:
            return np.bincount(cells, weights=np.tile(values, rows), minlength=rows * k).reshape(rows, k).astype(np.float64)

        loads = np.stack([sums(need) for need in self.needs])
        overload = self.excess(loads, self.limit[:, np.newaxis, :]).sum(axis=1)
        p = self.cut(labels) + self.rho * np.abs(sums(self.tilt)).sum(axis=1)
        return Costs(np.round(overload / self.noise) * self.noise, p)

    def cut(self, labels: Ints) -> Floats:
        """Cost of the traffic between different subgraphs, per second."""
        problem, total, distance = self.problem, np.zeros(len(labels)), self.distance
        step = max(1, BLOCK // max(len(labels), 1))
        small = labels.astype(np.int32)
        for first in range(0, len(problem.rate), step):
            block = slice(first, first + step)
            one, other = small[:, problem.left[block]], small[:, problem.right[block]]
            total += (one != other if distance is None else distance[one, other]) @ problem.rate[block]
        return total

    def cost(self, labels: Ints) -> Cost:
        costs = self.costs(labels[np.newaxis])
        return Cost(float(costs.overload[0]), float(costs.value[0]))

    def fits(self, labels: Ints) -> bool:
        """True if every subgraph fits all that its place has, with or without headroom and balance."""
        return bool((self.loads(labels) <= self.limit)[:MEMORY + 1].all())

    def greedy(self) -> Ints:
        """A partition in one pass: tasks in order of their traffic, each to the subgraph with room that shares most with it."""
        problem, labels = self.problem, self.fixed.copy()
        loads = self.loads(labels)
        for task in by_traffic(problem, np.flatnonzero(self.free)):
            wanted = loads + self.needs[:, task, np.newaxis]
            excess = self.excess(wanted, self.limit)
            near = affinity(problem, int(task), labels, self.k)
            use = (loads / np.maximum(self.limit, 1e-9)).max(axis=0)
            label = int(np.lexsort((use, -near, excess))[0])
            labels[task] = label
            loads[:, label] = wanted[:, label]
        return labels

    def loads(self, labels: Ints) -> Floats:
        """(6, k): needs of each subgraph; tasks without one do not count."""
        placed = labels >= 0
        return np.stack([np.bincount(labels[placed], weights=need[placed], minlength=self.k)
                         for need in self.needs]).astype(np.float64)


def _places(problem: Problem, cpu: Floats, k: int) -> Ints:
    """The nodes with tasks that cannot be moved, and as many others with most free CPU that there are k; largest first."""
    needed = np.isin(np.arange(problem.nodes), problem.nodes_of(problem.current)[problem.pinned])
    chosen = np.lexsort((-cpu, ~needed))[:max(k, int(needed.sum()))]
    places: Ints = chosen[np.lexsort((chosen, -cpu[chosen]))].astype(np.int64)
    return places


def _share(values: Floats) -> Floats:
    """Each one's share of the total; equal shares if the total is 0."""
    total = float(values.sum())
    return values / total if total > 0 else np.full(len(values), 1 / max(len(values), 1))


def polished(cutting: Cutting, labels: Ints, stay: Floats | None = None) -> Ints:
    """The partition after moving single tasks and swapping pairs until neither improves it. `stay` (tasks, k): what it is worth
    to have a task in a subgraph, beside the traffic that it saves there."""
    refinement = _Refinement(cutting, labels, stay)
    free = np.flatnonzero(cutting.free)
    last = 0  # tasks looked at since the last improvement
    for look in range(MOST_LOOKS * len(free)):
        task = int(free[look % len(free)])
        last = 0 if refinement.move(task) or refinement.swap(task) else last + 1
        if last == len(free):
            break
    return refinement.labels


class _Refinement:
    """A partition while it is improved, with sums that make the gain of each step cheap to compute."""

    def __init__(self, cutting: Cutting, labels: Ints, stay: Floats | None) -> None:
        problem = cutting.problem
        self.cutting, self.labels = cutting, labels.copy()
        self.start, self.others, self.rates = problem.neighbours
        near = np.zeros((problem.count, cutting.k))  # traffic of each task with each subgraph
        np.add.at(near, (problem.left, labels[problem.right]), problem.rate)
        np.add.at(near, (problem.right, labels[problem.left]), problem.rate)
        # The cost of each task's traffic if the task were in each subgraph.
        self.far = problem.task_traffic[:, np.newaxis] - near if cutting.distance is None else near @ cutting.distance
        if stay is not None:
            self.far -= stay
        self.own = self.far[np.arange(problem.count), labels]
        self.loads = cutting.loads(labels)
        self.tilts = np.bincount(labels, weights=cutting.tilt, minlength=cutting.k)
        self.excess = cutting.excess(self.loads, cutting.limit)
        self.least_p = NEGLIGIBLE * max(float(problem.rate.sum()), cutting.rho, 1e-9)

    def move(self, task: int) -> bool:
        """Moves the task to its best subgraph; False if it is there already."""
        best = self.best(self.moves(task))
        if best is not None:
            self.put(task, best)
        return best is not None

    def swap(self, task: int) -> bool:
        """Swaps the task with the one that gains most; False if no swap helps."""
        others, costs = self.swaps(task)
        best = self.best(costs)
        if best is not None:
            other, old = int(others[best]), int(self.labels[task])
            self.put(task, int(self.labels[other]))
            self.put(other, old)
        return best is not None

    def best(self, change: Costs) -> int | None:
        """The position of the largest improvement, overload first; None if nothing improves."""
        overload = np.where(np.abs(change.overload) <= self.cutting.noise, 0.0, change.overload)
        better = np.flatnonzero((overload < 0) | ((overload == 0) & (change.value < -self.least_p)))
        return int(better[np.lexsort((change.value[better], overload[better]))[0]]) if len(better) else None

    def moves(self, task: int) -> Costs:
        """The change of cost for moving the task to each subgraph."""
        cutting, old = self.cutting, self.labels[task]
        need, tilt, own = cutting.needs[:, task, np.newaxis], cutting.tilt[task], slice(old, old + 1)
        left = cutting.excess(self.loads[:, own] - need, cutting.limit[:, own]) - self.excess[own]
        overload = cutting.excess(self.loads + need, cutting.limit) - self.excess + left
        balance = np.abs(self.tilts + tilt) - np.abs(self.tilts) + abs(self.tilts[old] - tilt) - abs(self.tilts[old])
        p = self.far[task] - self.own[task] + cutting.rho * balance
        overload[old] = p[old] = 0.0
        return Costs(overload, p)

    def swaps(self, task: int) -> tuple[Ints, Costs]:
        """Tasks of other subgraphs, and the change of cost for swapping with each."""
        cutting, old, labels = self.cutting, self.labels[task], self.labels
        p = self.far[task, labels] - self.own[task] + self.far[:, old] - self.own
        own = slice(self.start[task], self.start[task + 1])
        others = self.others[own]
        apart = 1.0 if cutting.distance is None else cutting.distance[old, labels[others]]
        p[others] += 2 * self.rates[own] * apart  # their own traffic still crosses the cut
        tilt, tilts = cutting.tilt - cutting.tilt[task], self.tilts
        p += cutting.rho * (np.abs(tilts[old] + tilt) - abs(tilts[old]) + np.abs(tilts[labels] - tilt) - np.abs(tilts[labels]))
        worth = (labels != old) & cutting.free
        if not self.excess.any():  # without overload only a lower p can help
            worth &= p < -self.least_p
        candidates = np.flatnonzero(worth)
        return candidates, Costs(self.swap_overload(task, candidates), p[candidates])

    def swap_overload(self, task: int, others: Ints) -> Floats:
        """The change of overload for swapping the task with each of the others."""
        cutting, old, theirs = self.cutting, self.labels[task], self.labels[others]
        more = cutting.needs[:, others] - cutting.needs[:, task, np.newaxis]  # incoming less outgoing
        here = cutting.excess(self.loads[:, old, np.newaxis] + more, cutting.limit[:, old, np.newaxis]) - self.excess[old]
        there = cutting.excess(self.loads[:, theirs] - more, cutting.limit[:, theirs]) - self.excess[theirs]
        change: Floats = here + there
        return change

    def put(self, task: int, label: int) -> None:
        cutting, old = self.cutting, int(self.labels[task])
        own = slice(self.start[task], self.start[task + 1])
        others, rates = self.others[own], self.rates[own]
        if cutting.distance is None:
            self.far[others, old] += rates
            self.far[others, label] -= rates
        else:
            self.far[others] += rates[:, np.newaxis] * (cutting.distance[label] - cutting.distance[old])
        self.labels[task] = label
        self.own[task] = self.far[task, label]
        self.own[others] = self.far[others, self.labels[others]]
        self.loads[:, old] -= cutting.needs[:, task]
        self.loads[:, label] += cutting.needs[:, task]
        self.tilts[old] -= cutting.tilt[task]
        self.tilts[label] += cutting.tilt[task]
        self.excess = cutting.excess(self.loads, cutting.limit)
