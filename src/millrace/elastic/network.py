"""A topology as an open Jackson network: every component a station of M/M/c, or of G/G/c where the variation was measured. A
component that reads by key is c stations of M/M/1, since its tuples cannot go to another task.

λ comes in at the spouts and goes on along the edges: each has the tuples that arrive at its target for every tuple processed
at its source. Times are in seconds, rates per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from millrace.elastic.queueing import losses, queued_seconds, variability, waiting_time
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TASKS_LIMIT

Edge = tuple[str, str]  # source, target


@dataclass(frozen=True, slots=True)
class Station:
    """A component. `service_rate`: μ, tuples per second of one task that is always busy; infinite for a component whose work
    is not modelled. `least`, `most`: numbers of tasks that it can have. `service_cv2`: squared coefficient of variation of
    its service times. `shared_queue`: a tuple may go to whichever task is free, as in M/M/c; otherwise its key decides, and
    each task has a queue of its own, M/M/1. `overhead`, `factor`: measured correction of its waiting time W, which is
    overhead + factor · W."""

    name: str
    tasks: int
    service_rate: float = math.inf
    least: int = 1
    most: int = TASKS_LIMIT
    service_cv2: float = 1.0
    shared_queue: bool = True
    overhead: float = 0.0
    factor: float = 1.0

    @property
    def service_time(self) -> float:
        return 1 / self.service_rate

    def waits(self, arrival_rate: float) -> Iterator[float]:
        """The waiting time that the model gives, without correction, for 1, 2, 3 … tasks."""
        spread = variability(1.0, self.service_cv2)
        if self.shared_queue:
            erlang_b = losses(arrival_rate / self.service_rate)
            next(erlang_b)
            yield from (queued_seconds(loss, arrival_rate, self.service_rate, tasks) * spread
                        for tasks, loss in enumerate(erlang_b, 1))
        else:
            yield from (waiting_time(arrival_rate / tasks, self.service_rate, 1) * spread for tasks in count(1))

    def wait(self, arrival_rate: float, tasks: int) -> float:
        """The waiting time that the model gives, without correction."""
        return next(wait for number, wait in enumerate(self.waits(arrival_rate), 1) if number == tasks)

    def corrected(self, wait: float) -> float:
        """E[T]: time from a tuple's arrival until it is processed, if the model gives this waiting time."""
        return self.service_time + self.overhead + self.factor * wait


@dataclass(frozen=True, slots=True)
class Network:
    """Stations in the order of the stream, the selectivity of each edge, and the rate that is offered to each spout. `factor`:
    measured latency of the topology behind its spouts over E[T], which counts the times of tuples that are processed side by
    side as if they followed each other."""

    stations: tuple[Station, ...]
    edges: Mapping[Edge, float]
    offered: Mapping[str, float]
    factor: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stations", tuple(self.stations))
        object.__setattr__(self, "edges", FrozenMap(self.edges))
        object.__setattr__(self, "offered", FrozenMap(self.offered))

    @property
    def present(self) -> dict[str, int]:
        """The numbers of tasks in force."""
        return {station.name: station.tasks for station in self.stations}

    @property
    def external_rate(self) -> float:
        """λ_0: what is offered to all spouts together."""
        return sum(self.offered.values())

    def rates(self) -> dict[str, float]:
        """λ of each station, if all stations keep up."""
        rates = {station.name: self.offered.get(station.name, 0.0) for station in self.stations}
        into: dict[str, list[tuple[str, float]]] = {name: [] for name in rates}
        for (source, target), selectivity in self.edges.items():
            into[target].append((source, selectivity))
        for name in rates:
            rates[name] += sum(rates[source] * selectivity for source, selectivity in into[name])
        return rates

    def times(self, tasks: Mapping[str, int]) -> dict[str, float]:
        """E[T_i] of each station with these numbers of tasks; infinite where they cannot keep up."""
        rates = self.rates()
        return {station.name: station.corrected(station.wait(rates[station.name], tasks[station.name]))
                for station in self.stations}

    def latency(self, tasks: Mapping[str, int]) -> float:
        """E[T] = Σ λ_i·E[T_i] / λ_0, the time that all tuples which come of one offered tuple spend in the topology, with the
        measured factor; 0 if nothing is offered."""
        weights, times = self.weights(), self.times(tasks)
        return total_time(((weights[name], times[name]) for name in weights), self.external_rate)

    def weights(self) -> dict[str, float]:
        """The weight of the time of each station: λ, times the factor behind the spouts."""
        return {name: rate if name in self.offered else rate * self.factor for name, rate in self.rates().items()}

    def scaled(self, factor: float) -> Network:
        """The network under `factor` times the load."""
        return self.under({name: rate * factor for name, rate in self.offered.items()})

    def under(self, offered: Mapping[str, float]) -> Network:
        """The network under another load."""
        return replace(self, offered=offered)


def total_time(parts: Iterable[tuple[float, float]], external_rate: float) -> float:
    """Σ λ_i·E[T_i] / λ_0 from the pairs of λ_i and E[T_i]. A station that gets nothing counts nothing."""
    return math.fsum(rate * time for rate, time in parts if rate > 0) / external_rate if external_rate > 0 else 0.0
