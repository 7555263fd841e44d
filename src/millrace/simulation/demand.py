"""The load over time: what the sources offer in each window, and what that asks of every task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from millrace.schedulers.problem import Floats
from millrace.simulation.world import World

WALK_SECONDS = 3600.0  # after which a random walk has forgotten two thirds of where it was


@dataclass(frozen=True)
class Demand:
    """Tuples per second of tasks and edges in a window, if everything keeps up."""

    rate: Floats
    edge_rate: Floats


class Demands(Protocol):
    """The load over time. Windows are asked for one after the other."""

    def between(self, begin: float, end: float) -> Demand:
        """The mean load from `begin` to `end`, in seconds since the simulation began."""


class RatePattern(Protocol):
    """A rate over time, as its integral; those of millrace.connectors.patterns are such."""

    def due_by(self, seconds: float) -> float:
        """The integral of the rate from 0 to that time."""


@dataclass(frozen=True)
class Walk:
    """Random walks around the situation, as standard deviations of a logarithm: 0.1 is about 10 %. `rates`: of what is offered
    to each topology. `keys`: of the frequency of the keys of each task."""

    rates: float = 0.0
    keys: float = 0.0


class Patterned:
    """The situation's load times a pattern whose rate is relative to it, with random walks of rates and keys."""

    def __init__(self, world: World, pattern: RatePattern, walk: Walk, rng: np.random.Generator) -> None:
        self._world, self._pattern, self._walk, self._rng = world, pattern, walk, rng
        self._rates = rng.normal(size=len(world.graphs))
        self._keys = rng.normal(size=world.count)
        self._began = False

    def between(self, begin: float, end: float) -> Demand:
        world, walk = self._world, self._walk
        self._step(end - begin)
        factor = (self._pattern.due_by(end) - self._pattern.due_by(begin)) / (end - begin)
        of_topology = factor * np.exp(walk.rates * self._rates - walk.rates**2 / 2)  # its mean is the factor
        selectivity = world.shares(np.exp(walk.keys * self._keys)) if walk.keys else world.selectivity
        rate = world.rates(world.base_rate * of_topology[world.topology], selectivity)
        return Demand(rate, rate[world.source] * selectivity)

    def _step(self, seconds: float) -> None:
        """Move the walks on: each stays normal with variance 1."""
        kept = math.exp(-seconds / WALK_SECONDS) if self._began else 1.0
        self._began = True
        fresh = math.sqrt(1 - kept**2)
        self._rates = kept * self._rates + fresh * self._rng.normal(size=len(self._rates))
        self._keys = kept * self._keys + fresh * self._rng.normal(size=len(self._keys))


class ReplayedLoad:
    """Windows of a real run, one after the other and again from the first."""

    def __init__(self, windows: Sequence[tuple[float, Demand]]) -> None:
        """`windows`: the length of each in seconds, and its load."""
        self._demands = [demand for _, demand in windows]
        self._ends = np.cumsum([seconds for seconds, _ in windows])

    def between(self, begin: float, end: float) -> Demand:
        """The window in which the middle of that time lies."""
        middle = (begin + end) / 2 % float(self._ends[-1])
        return self._demands[int(np.searchsorted(self._ends, middle, side="right"))]
