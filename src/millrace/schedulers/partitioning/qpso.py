"""Quantum-behaved particle swarm over partitions (Sl-Stream): one real coordinate for each task, whose whole part is its
subgraph.

A cost is a pair of numbers, compared in this order: the overload, then the value to minimise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.schedulers.problem import Floats, Ints

NOISE = 0.15  # share of the coordinates that are redrawn in the copies of a start


class Costs(NamedTuple):
    """Costs of several partitions."""

    overload: Floats
    value: Floats

    def better_than(self, other: Costs) -> NDArray[np.bool_]:
        equal = self.overload == other.overload
        better: NDArray[np.bool_] = (self.overload < other.overload) | (equal & (self.value < other.value))
        return better

    def order(self) -> Ints:
        """Positions, best first; equals keep their order."""
        return np.lexsort((self.value, self.overload))


class Swarm(NamedTuple):
    """The best partition that each particle has seen, the best of all first."""

    labels: Ints
    costs: Costs


def decode(position: Floats, k: int) -> Ints:
    """The subgraph of each task."""
    return np.clip(np.floor(position), 0, k - 1).astype(np.int64)


def contraction(sigma: float, iterations: int, t: int) -> float:
    """β: large at first, for a wide search, then falling towards 0.5, where a swarm contracts."""
    return sigma * (iterations - t) / iterations + 0.5


def moved(position: Floats, best: Floats, leader: Floats, beta: float, phi: Floats, u: Floats, sign: Floats) -> Floats:
    """The next positions: near a point between each particle's best and the leader's, at a distance that grows with its
    distance from the mean of all bests. `phi` in [0, 1], `u` in (0, 1], `sign` -1 or 1, one for each coordinate."""
    attractor = phi * best + (1 - phi) * leader
    position = attractor + sign * beta * np.abs(best.mean(axis=0) - position) * np.log(1 / u)
    return position


def first_positions(starts: Ints, particles: int, k: int, rng: np.random.Generator) -> Floats:
    """Every start once unchanged, a third of the swarm as copies of them with some coordinates redrawn, the rest random."""
    tasks = starts.shape[1]
    position = rng.random((particles, tasks)) * k
    exact = min(len(starts), particles)
    copies = min(particles // 3, particles - exact)
    position[:exact] = starts[:exact] + 0.5
    if exact and copies:
        near = starts[np.arange(copies) % exact] + 0.5
        redrawn = rng.random((copies, tasks)) < NOISE
        position[exact:exact + copies] = np.where(redrawn, position[exact:exact + copies], near)
    return position


def swarm(cost: Callable[[Ints], Costs], starts: Ints, k: int, *, particles: int, iterations: int, sigma: float,
          rng: np.random.Generator, fixed: Ints) -> Swarm:
    """Runs the swarm. `cost` rates many partitions at once, one per row. `fixed`: the subgraph of each task that cannot be
    moved, and a negative number for the others. The result is never worse than the `starts`, which must have fixed tasks
    there."""
    particles = max(particles, len(starts))
    position = np.where(fixed < 0, first_positions(starts, particles, k, rng), fixed + 0.5)
    best, labels = position.copy(), decode(position, k)
    costs = cost(labels)
    for t in range(iterations):
        leader = best[costs.order()[0]]
        phi, u = rng.random(position.shape), 1 - rng.random(position.shape)
        sign = np.where(rng.random(position.shape) < 0.5, -1.0, 1.0)
        position = np.clip(moved(position, best, leader, contraction(sigma, iterations, t), phi, u, sign), 0.0, k)
        position = np.where(fixed < 0, position, fixed + 0.5)
        decoded = decode(position, k)
        rated = cost(decoded)
        better = rated.better_than(costs)
        best[better], labels[better] = position[better], decoded[better]
        costs = Costs(np.where(better, rated.overload, costs.overload), np.where(better, rated.value, costs.value))
    order = costs.order()
    return Swarm(labels[order], Costs(costs.overload[order], costs.value[order]))
