"""Cuts tasks into subgraphs: the cost of a cut (overload, then Sl-Stream's p), a greedy cut, and its improvement step by
step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from millrace.schedulers.placing import affinity, by_traffic
from millrace.schedulers.problem import NOWHERE, ROUNDING, Floats, Ints, Problem
from millrace.schedulers.qpso import Costs

BLOCK = 2_000_000  # entries of (partitions × edges) in one array operation: a few tens of MB
NEGLIGIBLE = 1e-9  # a gain below this share of everything is a rounding error
NOISE = 1e-12  # a change of the overload below this is one too: sums of the same numbers in another order
MOST_LOOKS = 200  # at each task while polishing; a few are enough, but rounding errors could prolong it forever


class Cost(NamedTuple):
    """The cost of one partition. Compared in this order: a partition that fits its nodes beats any that does not."""

    overload: float
    p: float


@dataclass(frozen=True)
class Cutting:
    """A problem with k places for its subgraphs, and the capacity of each.

    A subgraph is rated against its own place (the k nodes with most free CPU, largest first), so that a cut without overload
    always has a matching; the matching then decides its actual node.
    """

    problem: Problem
    places: Ints  # nodes
    room: Floats  # (2, k): free CPU and free memory of each place
    weight: Floats  # R of each task
    rho: float

    @classmethod
    def of(cls, problem: Problem, k: int, rho: float, alpha: float) -> Cutting:
        room = free_room(problem)
        places = np.argsort(-room[0], kind="stable")[:k].astype(np.int64)
        cpu = problem.cpu / max(float(problem.node_capacity.sum()), 1e-9)
        memory = problem.memory / max(float(problem.node_memory.sum()), 1e-9)
        return cls(problem, places, room[:, places], alpha * cpu + (1 - alpha) * memory, rho)

    @property
    def k(self) -> int:
        return len(self.places)

    @cached_property
    def needs(self) -> Floats:
        """(2, tasks): CPU and memory of each task."""
        return np.stack([self.problem.cpu, self.problem.memory])

    @cached_property
    def scale(self) -> Floats:
        """CPU and memory of the whole cluster: overloads are added as shares of these."""
        total = np.array([self.problem.node_capacity.sum(), self.problem.node_memory.sum()])
        scale: Floats = np.maximum(total, 1e-9)
        return scale

    @cached_property
    def noise(self) -> float:
        """Overloads that differ by less are equal. Scaled, because a broken meter may report loads far beyond any capacity."""
        return NOISE * max(1.0, float((self.needs.sum(axis=1) / self.scale).max()))

    @cached_property
    def limit(self) -> Floats:
        """(2, k): the room plus a tolerance for rounding errors, half of the one that a matching uses."""
        whole = np.stack([self.problem.node_capacity, self.problem.node_memory])[:, self.places]
        return self.room + whole * (ROUNDING - 1) / 2

    def share(self, values: Floats) -> Floats:
        """Each task's share of the total; equal shares if the total is 0."""
        total = float(values.sum())
        return values / total if total > 0 else np.full(len(values), 1 / max(len(values), 1))

    @cached_property
    def tilt(self) -> Floats:
        """Each task's contribution to q1 - q2 of its subgraph: its share of the task count less its share of the weight."""
        return 1 / max(self.problem.count, 1) - self.share(self.weight)

    def excess(self, loads: Floats, limit: Floats) -> Floats:
        """Overload of subgraphs with these loads (2, ...), each against its limit (2, ...)."""
        overload: Floats = (np.maximum(loads - limit, 0.0) / self.scale.reshape(2, *[1] * (loads.ndim - 1))).sum(axis=0)
        return overload

    def costs(self, labels: Ints) -> Costs:
        """Costs of many partitions, one per row."""
        rows, k = len(labels), self.k
        cells = (labels + np.arange(rows)[:, np.newaxis] * k).ravel()

        def sums(values: Floats) -> Floats:
            return np.bincount(cells, weights=np.tile(values, rows), minlength=rows * k).reshape(rows, k).astype(np.float64)

        loads = np.stack([sums(self.needs[0]), sums(self.needs[1])])
        overload = self.excess(loads, self.limit[:, np.newaxis, :]).sum(axis=1)
        p = self.cut(labels) + self.rho * np.abs(sums(self.tilt)).sum(axis=1)
        return Costs(np.round(overload / self.noise) * self.noise, p)

    def cut(self, labels: Ints) -> Floats:
        """Tuples per second between different subgraphs."""
        problem, total = self.problem, np.zeros(len(labels))
        step = max(1, BLOCK // max(len(labels), 1))
        small = labels.astype(np.int32)
        for first in range(0, len(problem.rate), step):
            block = slice(first, first + step)
            apart = small[:, problem.left[block]] != small[:, problem.right[block]]
            total += apart @ problem.rate[block]
        return total

    def cost(self, labels: Ints) -> Cost:
        costs = self.costs(labels[np.newaxis, :])
        return Cost(float(costs.overload[0]), float(costs.value[0]))

    def greedy(self) -> Ints:
        """Takes tasks with most traffic first; each goes to the subgraph with room that shares most traffic with it, else the
        emptiest."""
        problem = self.problem
        labels = np.full(problem.count, NOWHERE, dtype=np.int64)
        loads = np.zeros_like(self.room)
        for task in by_traffic(problem, np.arange(problem.count)):
            wanted = loads + self.needs[:, task, np.newaxis]
            excess = self.excess(wanted, self.limit)
            near = affinity(problem, int(task), labels, self.k)
            use = (loads / np.maximum(self.room, 1e-9)).max(axis=0)
            label = int(np.lexsort((use, -near, excess))[0])
            labels[task] = label
            loads[:, label] = wanted[:, label]
        return labels


def polished(cutting: Cutting, labels: Ints) -> Ints:
    """The partition after moving single tasks and swapping pairs until neither improves it."""
    refinement = _Refinement(cutting, labels)
    last = 0  # tasks looked at since the last improvement
    for look in range(MOST_LOOKS * len(labels)):
        task = look % len(labels)
        last = 0 if refinement.move(task) or refinement.swap(task) else last + 1
        if last == len(labels):
            break
    return refinement.labels


class _Refinement:
    """A partition while it is improved, with sums that make the gain of each step cheap to compute."""

    def __init__(self, cutting: Cutting, labels: Ints) -> None:
        problem = cutting.problem
        self.cutting, self.labels = cutting, labels.copy()
        self.start, self.others, self.rates = problem.neighbours
        self.near = np.zeros((problem.count, cutting.k))  # traffic of each task with each subgraph
        np.add.at(self.near, (problem.left, labels[problem.right]), problem.rate)
        np.add.at(self.near, (problem.right, labels[problem.left]), problem.rate)
        self.own = self.near[np.arange(problem.count), labels]
        self.loads: Floats = np.stack([np.bincount(labels, weights=need, minlength=cutting.k)
                                       for need in cutting.needs]).astype(np.float64)
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
        p = self.own[task] - self.near[task] + cutting.rho * balance
        overload[old] = p[old] = 0.0
        return Costs(overload, p)

    def swaps(self, task: int) -> tuple[Ints, Costs]:
        """Tasks of other subgraphs, and the change of cost for swapping with each."""
        old = self.labels[task]
        p = self.own[task] - self.near[task, self.labels] + self.own - self.near[:, old]
        own = slice(self.start[task], self.start[task + 1])
        p[self.others[own]] += 2 * self.rates[own]  # their own traffic still crosses the cut
        tilt, tilts = self.cutting.tilt - self.cutting.tilt[task], self.tilts
        p += self.cutting.rho * (np.abs(tilts[old] + tilt) - abs(tilts[old])
                                 + np.abs(tilts[self.labels] - tilt) - np.abs(tilts[self.labels]))
        worth = self.labels != old
        if not self.excess.any():  # without overload only a lower p can help
            worth &= p < -self.least_p
        others = np.flatnonzero(worth)
        return others, Costs(self.swap_overload(task, others), p[others])

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
        self.near[others, old] -= rates
        self.near[others, label] += rates
        self.labels[task] = label
        self.own[task] = self.near[task, label]
        self.own[others] = self.near[others, self.labels[others]]
        self.loads[:, old] -= cutting.needs[:, task]
        self.loads[:, label] += cutting.needs[:, task]
        self.tilts[old] -= cutting.tilt[task]
        self.tilts[label] += cutting.tilt[task]
        self.excess = cutting.excess(self.loads, cutting.limit)


def free_room(problem: Problem) -> Floats:
    """(2, nodes): MHz and MB of each node that other topologies leave free."""
    return np.maximum(np.stack([problem.node_capacity - problem.node_taken, problem.node_memory - problem.node_memory_taken]),
                      0.0)
