"""Er-Stream's elastic parallelism (Sun et al., J. Supercomputing 2025, Algorithm 1): numbers of tasks by greedy marginal gain.

Every station begins with the fewest tasks that keep up. Then the one that lowers E[T] most gets a further task, until c_max
tasks are used (resource-limited) or E[T] is at most T_max (latency-constraint). The waiting time of M/M/c is convex in c, so
the greedy choice is optimal in both. Nothing depends on the present numbers: stations may shrink.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.elastic.network import Network, Station, total_time
from millrace.elastic.queueing import least_servers
from millrace.model.frozen import FrozenMap

NO_GAIN = 1e-9  # of E[T]: a further task that gains less is no use


@dataclass(frozen=True, slots=True)
class Limits:
    """The goal: at most `c_max` instances, or a latency of at most `t_max_ms` with the fewest; with both, the latter within the
    former."""

    c_max: int | None = None
    t_max_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """Numbers of tasks, in the order of the stream. `predicted_ms`: latency of the topology with them; None if the model
    cannot tell."""

    par: Mapping[str, int]
    predicted_ms: float | None
    reason: str

    @property
    def instances(self) -> int:
        return sum(self.par.values())


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No numbers of tasks reach the goal. `nearest`: limits that could be reached, as name -> value; empty if none could."""

    reason: str
    nearest: Mapping[str, float] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nearest", FrozenMap(self.nearest))


def allocate(network: Network, limits: Limits) -> Allocation | Infeasible:
    """The numbers of tasks for the goal; it needs at least one of the limits."""
    rates = network.rates()
    for station in network.stations:
        if (needed := fewest_tasks(station, rates[station.name])) > station.most:
            return Infeasible(_too_many(network, station, rates[station.name], needed))
    growth = _Growth(network, rates)
    c_max, t_max = limits.c_max, limits.t_max_ms
    if c_max is not None and growth.instances > c_max:
        return Infeasible(f"{growth.instances} instances are the fewest that keep up with {network.external_rate:,.1f} "
                          f"tuples/s ({counted(growth.par)}), and c_max is {c_max}", {"c_max": growth.instances})
    if t_max is None:
        while growth.instances < (c_max or 0) and growth.step():
            pass
        return Allocation(growth.par, growth.latency * 1000, f"least latency with {growth.instances} of {c_max} instances")
    return _within(growth, t_max, c_max)


def _within(growth: _Growth, t_max_ms: float, c_max: int | None) -> Allocation | Infeasible:
    """The fewest instances with a latency of at most `t_max_ms`."""
    best = growth.latency
    while growth.latency * 1000 > t_max_ms:
        if not growth.step():
            bound = rounded_up(growth.latency * 1000)
            return Infeasible(f"t_max_ms = {t_max_ms:g} is below the least possible latency of {bound:g} ms, however many "
                              "instances there are", {"t_max_ms": bound})
        if c_max is None or growth.instances <= c_max:
            best = growth.latency
    if c_max is not None and growth.instances > c_max:
        return Infeasible(f"t_max_ms = {t_max_ms:g} needs {growth.instances} instances ({counted(growth.par)}), and c_max is "
                          f"{c_max}, with which the latency would be {best * 1000:.1f} ms",
                          {"c_max": growth.instances, "t_max_ms": rounded_up(best * 1000)})
    return Allocation(growth.par, growth.latency * 1000, f"{growth.instances} instances are the fewest for {t_max_ms:g} ms")


def missed_goal(network: Network, par: Mapping[str, int], limits: Limits) -> str:
    """In words, how these numbers of tasks miss the goal; empty if they do not."""
    latency, rates, instances = network.latency(par) * 1000, network.rates(), sum(par.values())
    late = [station.name for station in network.stations if rates[station.name] >= par[station.name] * station.service_rate]
    if late:
        return f"{', '.join(late)} cannot keep up with {network.external_rate:,.1f} tuples/s"
    if limits.t_max_ms is not None and latency > limits.t_max_ms:
        return f"the latency with {counted(par)} is predicted to be {latency:.1f} ms, above {limits.t_max_ms:g}"
    if limits.c_max is not None and instances > limits.c_max:
        return f"there are {instances} instances, above {limits.c_max}"
    return ""


def fewest_tasks(station: Station, rate: float) -> int:
    """The fewest tasks that keep up with the rate, and are allowed."""
    return max(station.least, least_servers(rate, station.service_rate))


def counted(par: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={tasks}" for name, tasks in par.items())


def limits_shown(limits: Mapping[str, float]) -> str:
    """Limits as a user writes them, as exact as they are: `c_max=6, t_max_ms=9.432`."""
    return ", ".join(f"{name}={value:.3f}".rstrip("0").rstrip(".") for name, value in limits.items())


def rounded_up(milliseconds: float) -> float:
    """To whole microseconds, and never below, so that the value shown can be reached."""
    return math.ceil(milliseconds * 1000 + 1e-6) / 1000


def carried(network: Network, station: Station, rate: float) -> str:
    """In words, the load that a station at its limit can carry. `rate`: of the tuples that arrive there."""
    most = station.most * station.service_rate
    return f"it carries less than {most:,.1f}, and the topology less than {network.external_rate * most / rate:,.1f}"


def _too_many(network: Network, station: Station, rate: float, needed: int) -> str:
    """The reason why a station cannot keep up."""
    room = "cannot be scaled and has" if station.least == station.most else "can have at most"
    return (f"{station.name!r} {room} {station.most} {'task' if station.most == 1 else 'tasks'}, and {needed} are the fewest "
            f"that keep up with its {rate:,.1f} tuples/s: one task processes {station.service_rate:,.1f}, so that "
            f"{carried(network, station, rate)}")


class _Growth:
    """Numbers of tasks that grow one by one, where it helps most."""

    def __init__(self, network: Network, rates: Mapping[str, float]) -> None:
        self._external, weights = network.external_rate, network.weights()
        self._columns = [_Column(station, rates[station.name], weights[station.name]) for station in network.stations]
        self._heap = [(-column.gain, place) for place, column in enumerate(self._columns)]
        heapq.heapify(self._heap)
        self._measure()

    def step(self) -> bool:
        """Give one task to the station that gains most; False if none gains anything."""
        gain, place = self._heap[0]
        if -gain <= NO_GAIN * self.latency * self._external:
            return False
        self._columns[place].grow()
        heapq.heapreplace(self._heap, (-self._columns[place].gain, place))
        self._measure()
        return True

    def _measure(self) -> None:
        self.latency = total_time(((column.weight, column.time) for column in self._columns), self._external)
        self.instances = sum(column.tasks for column in self._columns)

    @property
    def par(self) -> dict[str, int]:
        return {column.station.name: column.tasks for column in self._columns}


class _Column:
    """One station: its number of tasks, E[T] with these, and with one more."""

    def __init__(self, station: Station, rate: float, weight: float) -> None:
        self.station, self.weight = station, weight
        self.tasks = fewest_tasks(station, rate)
        self._waits = station.waits(rate)
        for _ in range(self.tasks):
            self.time = station.corrected(next(self._waits))
        self._next = station.corrected(next(self._waits))

    @property
    def gain(self) -> float:
        """L_i: how much a further task would lower Σ λ_i·E[T_i]."""
        return self.weight * (self.time - self._next) if self.tasks < self.station.most else 0.0

    def grow(self) -> None:
        self.tasks, self.time = self.tasks + 1, self._next
        self._next = self.station.corrected(next(self._waits))
