"""Elastic models by name: each turns measured rates and limits into numbers of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from millrace.elastic.allocation import Allocation, Infeasible, Limits, allocate, carried, counted, missed_goal
from millrace.elastic.ds2 import parallelism
from millrace.elastic.forecast import check_installed, forecast
from millrace.elastic.network import Network
from millrace.errors import BadParameter, UnknownName
from millrace.model.frozen import FrozenMap
from millrace.schedulers.parameters import check_parameters, parameter, with_parameters

PART_OF_A_STEP = 1e-9  # by which a horizon may reach into a further step only because of its rounding


@dataclass(frozen=True, slots=True)
class PastRates:
    """The rates offered to each spout, step by step, oldest first. `seconds`: length of a step. `since`: seconds since the last
    one ended."""

    seconds: float = 1.0
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=FrozenMap)
    since: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", FrozenMap(self.rates))


class ElasticModel(Protocol):
    """Decides how many tasks each component should have. Its parameters are the fields of a frozen dataclass. `GOALS`: the
    limits that it knows. `NEEDS_GOAL`: it must have one of them."""

    GOALS: ClassVar[tuple[str, ...]]
    NEEDS_GOAL: ClassVar[bool]

    def load(self, network: Network, past: PastRates) -> Network:
        """The network under the load that it is sized for."""

    def allocate(self, network: Network, limits: Limits) -> Allocation | Infeasible:
        """The numbers of tasks for this load. A pure function: the same arguments give the same answer."""

    def missed(self, network: Network, par: Mapping[str, int], limits: Limits) -> str:
        """In words, how these numbers of tasks miss the goal under this load; empty if they do not."""


@dataclass(frozen=True)
class ErStreamModel:
    """Er-Stream: the topology is a network of queues. Either the least latency with at most c_max instances, or the fewest
    instances with a latency of at most t_max_ms."""

    GOALS: ClassVar[tuple[str, ...]] = ("c_max", "t_max_ms")
    NEEDS_GOAL: ClassVar[bool] = True

    def load(self, network: Network, past: PastRates) -> Network:
        return network

    def allocate(self, network: Network, limits: Limits) -> Allocation | Infeasible:
        return allocate(network, limits)

    def missed(self, network: Network, par: Mapping[str, int], limits: Limits) -> str:
        return missed_goal(network, par, limits)


@dataclass(frozen=True)
class Ds2Model:
    """DS2: the fewest instances that keep up with the sources, from true processing and output rates; latency is no goal. With
    c_max, it refuses to use more."""

    utilization: float = parameter(0.8, "Share of the time for which a task should be busy; DS2 itself has 1, which leaves no "
                                        "room for any variation.", low=0.05, high=1.0)

    GOALS: ClassVar[tuple[str, ...]] = ("c_max",)
    NEEDS_GOAL: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_parameters(self)

    def load(self, network: Network, past: PastRates) -> Network:
        return network

    def allocate(self, network: Network, limits: Limits) -> Allocation | Infeasible:
        rates, par = network.rates(), parallelism(network, self.utilization)
        for station in network.stations:
            rate = rates[station.name]
            if par[station.name] > station.most and rate >= station.most * station.service_rate:
                return Infeasible(f"{station.name!r} needs {par[station.name]} tasks for {rate:,.1f} tuples/s and can have at "
                                  f"most {station.most}, so that {carried(network, station, rate)}")
            par[station.name] = min(max(par[station.name], station.least), station.most)
        instances = sum(par.values())
        if limits.c_max is not None and instances > limits.c_max:
            return Infeasible(f"{instances} instances keep up with {network.external_rate:,.1f} tuples/s ({counted(par)}), and "
                              f"c_max is {limits.c_max}", {"c_max": instances})
        latency = network.latency(par)
        return Allocation(par, latency * 1000 if latency < float("inf") else None,
                          f"{instances} instances keep up with {network.external_rate:,.1f} tuples/s")

    def missed(self, network: Network, par: Mapping[str, int], limits: Limits) -> str:
        needed = parallelism(network, self.utilization)
        short = [station.name for station in network.stations if par[station.name] < min(needed[station.name], station.most)]
        busy = f"{', '.join(short)} would be busy for more than {self.utilization:.0%} of the time" if short else ""
        return missed_goal(network, par, limits) or busy


@dataclass(frozen=True)
class PredictiveModel:
    """Er-Stream's model for the load to come: the highest rate that Holt and Winters forecast within the horizon, or the
    present one if that is higher, so that capacity is there before the peak."""

    horizon: float = parameter(60.0, "Seconds to look ahead; at least as long as a change of parallelism takes.", low=1.0)
    season: float = parameter(0.0, "Seconds after which the load repeats its pattern; 0: it has none.", low=0.0)

    GOALS: ClassVar[tuple[str, ...]] = ("c_max", "t_max_ms")
    NEEDS_GOAL: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)
        check_installed()

    def load(self, network: Network, past: PastRates) -> Network:
        return under_peaks(network, self.peaks(past))

    def peaks(self, past: PastRates) -> dict[str, float]:
        """The highest rate of each spout within the horizon, by the forecast. With a season, that may take a second."""
        steps = max(1, math.ceil((past.since + self.horizon) / past.seconds - PART_OF_A_STEP))
        season = round(self.season / past.seconds)
        return {name: max(forecast(rates, steps, season)) for name, rates in past.rates.items()}

    def allocate(self, network: Network, limits: Limits) -> Allocation | Infeasible:
        return allocate(network, limits)

    def missed(self, network: Network, par: Mapping[str, int], limits: Limits) -> str:
        return missed_goal(network, par, limits)


def under_peaks(network: Network, peaks: Mapping[str, float]) -> Network:
    """The network under the forecast rates, or the present ones where these are higher or nothing is forecast."""
    return network.under({name: max(rate, peaks.get(name, rate)) for name, rate in network.offered.items()})


MODELS: dict[str, type[Any]] = {"erstream": ErStreamModel, "ds2": Ds2Model, "predictive": PredictiveModel}


def model_class(name: str) -> type[Any]:
    if name not in MODELS:
        raise UnknownName(f"there is no elastic model named {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]


def make_model(name: str, parameters: Mapping[str, Any], limits: Limits) -> ElasticModel:
    """The model with these parameters, checked; `BadParameter` if it does not know a limit or needs one."""
    cls = model_class(name)
    model: ElasticModel = with_parameters(cls, parameters, f"elastic model {name!r}")
    given = {"c_max": limits.c_max, "t_max_ms": limits.t_max_ms}
    unknown = [goal for goal, value in given.items() if value is not None and goal not in cls.GOALS]
    if unknown:
        raise BadParameter(f"elastic model {name!r} has no limit {unknown[0]}; it has {', '.join(cls.GOALS)}")
    if cls.NEEDS_GOAL and all(value is None for value in given.values()):
        raise BadParameter(f"elastic model {name!r} needs a goal: c_max=N for the least latency with N instances, or "
                           "t_max_ms=T for the fewest instances with that latency")
    return model


def checked_limits(values: Mapping[str, Any]) -> Limits:
    """The limits among a user's values; `BadParameter` if one is no sensible number."""
    c_max, t_max_ms = values.get("c_max"), values.get("t_max_ms")
    if c_max is not None and (isinstance(c_max, bool) or not isinstance(c_max, int | float) or not c_max >= 1
                              or c_max % 1 != 0):
        raise BadParameter(f"c_max = {c_max!r}: it must be a whole number from 1")
    if t_max_ms is not None and (isinstance(t_max_ms, bool) or not isinstance(t_max_ms, int | float)
                                 or not 0 < t_max_ms < float("inf")):
        raise BadParameter(f"t_max_ms = {t_max_ms!r}: it must be a number of milliseconds above 0")
    return Limits(None if c_max is None else int(c_max), None if t_max_ms is None else float(t_max_ms))
