"""Tasks cut into subgraphs: what a cut costs (Sl-Stream's p, overload before it), a greedy one, and improving one step
by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from millrace.schedulers.placing import affinity, by_traffic
from millrace.schedulers.problem import NOWHERE, ROUNDING, Floats, Ints, Problem
from millrace.schedulers.qpso import Costs

BLOCK = 2_000_000  # entries of (partitions x edges) looked at together: a few tens of MB, whatever the size
NEGLIGIBLE = 1e-9  # a gain below this share of everything is a rounding error
NOISE = 1e-12  # and so is a change of the overload below this: sums of the same numbers in another order
MOST_LOOKS = 200  # at each task while polishing; a few are enough, unless rounding errors would keep it going for ever


class Cost(NamedTuple):
    """Of one partition. Compared in this order: one that fits its nodes is better than any that does not."""

    overload: float
    p: float


@dataclass(frozen=True)
class Cutting:
    """A problem with k places for its subgraphs, and what each of those can carry.

    A subgraph is rated against a place of its own (the k nodes with most free CPU, largest first), so that a cut
    without overload certainly has a matching; which node it really goes to is decided by the matching.
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
        """CPU and memory of the whole cluster: overloads of CPU and of memory are added as shares of these."""
        total = np.array([self.problem.node_capacity.sum(), self.problem.node_memory.sum()])
        found: Floats = np.maximum(total, 1e-9)
        return found

    @cached_property
    def noise(self) -> float:
        """Overloads that differ by less are equal. A broken meter may give loads that are far beyond any capacity."""
        return NOISE * max(1.0, float((self.needs.sum(axis=1) / self.scale).max()))

    @cached_property
    def limit(self) -> Floats:
        """(2, k): the room, with what a rounding error may add; half of what a matching lets pass."""
        whole = np.stack([self.problem.node_capacity, self.problem.node_memory])[:, self.places]
        return self.room + whole * (ROUNDING - 1) / 2

    def share(self, values: Floats) -> Floats:
        """Each task's part of the whole; if nothing is known of any, all are alike."""
        total = float(values.sum())
        return values / total if total > 0 else np.full(len(values), 1 / max(len(values), 1))

    @cached_property
    def tilt(self) -> Floats:
        """What each task adds to q1 - q2 of its subgraph: its share of the number of tasks less its share of the weight."""
        return 1 / max(self.problem.count, 1) - self.share(self.weight)

    def excess(self, loads: Floats, limit: Floats) -> Floats:
        """Overload of subgraphs with these loads (2, ...), each against its limit (2, ...)."""
        found: Floats = (np.maximum(loads - limit, 0.0) / self.scale.reshape(2, *[1] * (loads.ndim - 1))).sum(axis=0)
        return found

    def costs(self, labels: Ints) -> Costs:
        """Of many partitions, a row each."""
        rows, k = len(labels), self.k
        cells = (labels + np.arange(rows)[:, np.newaxis] * k).ravel()

        def sums(values: Floats) -> Floats:
            return np.bincount(cells, weights=np.tile(values, rows), minlength=rows * k).reshape(rows, k).astype(np.float64)

        loads = np.stack([sums(self.needs[0]), sums(self.needs[1])])
        overload = self.excess(loads, self.limit[:, np.newaxis, :]).sum(axis=1)
        p = self.cut(labels) + self.rho * np.abs(sums(self.tilt)).sum(axis=1)
        return Costs(np.round(overload / self.noise) * self.noise, p)

    def cut(self, labels: Ints) -> Floats:
        """Tuples a second between different subgraphs."""
        problem, total = self.problem, np.zeros(len(labels))
        step = max(1, BLOCK // max(len(labels), 1))
        small = labels.astype(np.int32)
        for first in range(0, len(problem.rate), step):
            block = slice(first, first + step)
            apart = small[:, problem.left[block]] != small[:, problem.right[block]]
            total += apart @ problem.rate[block]
        return total

    def cost(self, labels: Ints) -> Cost:
        found = self.costs(labels[np.newaxis, :])
        return Cost(float(found.overload[0]), float(found.value[0]))

    def greedy(self) -> Ints:
        """Tasks that talk most first, each to the subgraph with room that it talks to most, else the emptiest."""
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
    """The partition after moving single tasks and swapping pairs until neither helps."""
    board = _Board(cutting, labels)
    last = 0  # tasks looked at since something was last improved
    for look in range(MOST_LOOKS * len(labels)):
        task = look % len(labels)
        last = 0 if board.move(task) or board.swap(task) else last + 1
        if last == len(labels):
            break
    return board.labels


class _Board:
    """A partition while it is improved, with what makes the gain of every step of one task cheap to see."""

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
        """Put the task where that makes the partition best; False if it is best where it is."""
        best = self.best(self.moves(task))
        if best is not None:
            self.put(task, best)
        return best is not None

    def swap(self, task: int) -> bool:
        """Let the task change places with the one where that gains most; False if no swap helps."""
        others, costs = self.swaps(task)
        best = self.best(costs)
        if best is not None:
            other, old = int(others[best]), int(self.labels[task])
            self.put(task, int(self.labels[other]))
            self.put(other, old)
        return best is not None

    def best(self, change: Costs) -> int | None:
        """The position of the change for the better that is largest: of overload first."""
        overload = np.where(np.abs(change.overload) <= self.cutting.noise, 0.0, change.overload)
        better = np.flatnonzero((overload < 0) | ((overload == 0) & (change.value < -self.least_p)))
        return int(better[np.lexsort((change.value[better], overload[better]))[0]]) if len(better) else None

    def moves(self, task: int) -> Costs:
        """What going to each subgraph would change."""
        cutting, old = self.cutting, self.labels[task]
        need, tilt, own = cutting.needs[:, task, np.newaxis], cutting.tilt[task], slice(old, old + 1)
        left = cutting.excess(self.loads[:, own] - need, cutting.limit[:, own]) - self.excess[own]
        overload = cutting.excess(self.loads + need, cutting.limit) - self.excess + left
        balance = np.abs(self.tilts + tilt) - np.abs(self.tilts) + abs(self.tilts[old] - tilt) - abs(self.tilts[old])
        p = self.own[task] - self.near[task] + cutting.rho * balance
        overload[old] = p[old] = 0.0
        return Costs(overload, p)

    def swaps(self, task: int) -> tuple[Ints, Costs]:
        """Tasks of other subgraphs, and what changing places with each would change."""
        old = self.labels[task]
        p = self.own[task] - self.near[task, self.labels] + self.own - self.near[:, old]
        own = slice(self.start[task], self.start[task + 1])
        p[self.others[own]] += 2 * self.rates[own]  # the two still talk across the cut
        tilt, tilts = self.cutting.tilt - self.cutting.tilt[task], self.tilts
        p += self.cutting.rho * (np.abs(tilts[old] + tilt) - abs(tilts[old])
                                 + np.abs(tilts[self.labels] - tilt) - np.abs(tilts[self.labels]))
        worth = self.labels != old
        if not self.excess.any():  # without overload to take away only a lower p can help
            worth &= p < -self.least_p
        others = np.flatnonzero(worth)
        return others, Costs(self.swap_overload(task, others), p[others])

    def swap_overload(self, task: int, others: Ints) -> Floats:
        """What changing places with each of them does to the overload."""
        cutting, old, theirs = self.cutting, self.labels[task], self.labels[others]
        more = cutting.needs[:, others] - cutting.needs[:, task, np.newaxis]  # what comes less what goes
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
    """(2, nodes): MHz and MB of each node that topologies which are not asked about leave free."""
    return np.maximum(np.stack([problem.node_capacity - problem.node_taken, problem.node_memory - problem.node_memory_taken]),
                      0.0)
