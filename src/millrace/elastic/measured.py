"""A measured topology as a network of queues: rates, selectivities and times of its components.

λ at the spouts is what their sources offer, which back-pressure does not hide. μ is the true processing rate, over busy time
only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.elastic.correction import MOST_BUSY
from millrace.elastic.elastic_window import LAG_SECONDS, drains
from millrace.elastic.network import Edge, Network, Station, total_time
from millrace.errors import TopologyError
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TASKS_LIMIT, ComponentDef, TopologyGraph
from millrace.model.load import Latency, Load, TaskLoad
from millrace.model.rescaling import check_tasks

MOST_CV2 = 10.0
MOST_BLOCKED = 0.1  # share of the time: if tasks wait longer for their receivers, flow control decides how long tuples wait
BUSY_SPOUT = 0.7  # share of the time: above, a spout may wait for its source in its own code


@dataclass(frozen=True, slots=True)
class MeasuredTopology:
    """One window. `times`: seconds from a tuple's arrival at a component until it is processed, on average. `complete`: the
    same for the topology behind its spouts. `waiting`: seconds at the sources. `backlog`: tuples that wait there, by spout.
    `carried`: tuples per second that each spout emitted. `keeps_up`: no task is at its limit, and no backlog is being worked
    off. `missing`: why the network cannot be used; empty if it can."""

    network: Network
    times: Mapping[str, float]
    complete: float | None
    waiting: float = 0.0
    backlog: Mapping[str, int] = field(default_factory=FrozenMap)
    carried: Mapping[str, float] = field(default_factory=FrozenMap)
    keeps_up: bool = True
    missing: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", FrozenMap(self.times))
        object.__setattr__(self, "backlog", FrozenMap(self.backlog))
        object.__setattr__(self, "carried", FrozenMap(self.carried))

    @property
    def whole(self) -> float | None:
        """Seconds from the source to the end of the topology."""
        return None if self.complete is None else self.waiting + self.complete


def measured(graph: TopologyGraph, sample: Load, selectivities: Mapping[Edge, float],
             service_rates: Mapping[str, float]) -> MeasuredTopology:
    """From the load of the last window, which has what is offered and how long it takes, and from what was learnt in all
    windows so far. `service_rates`: of the components that have ever processed a tuple."""
    now = _by_component(graph, sample)
    offered = {spout.name: _offered(graph, spout, now[spout.name], sample.window_seconds) for spout in graph.spouts}
    stations = tuple(_station(graph, component, now[component.name], service_rates.get(component.name, math.inf),
                              sample.window_seconds) for component in graph.components)
    network = Network(stations, selectivities, offered)
    times = {name: time for name, part in now.items() if (time := _time(part, sample.window_seconds)) is not None}
    backlog = {spout.name: lag for spout in graph.spouts if (lag := now[spout.name].lag)}
    carried = {spout.name: now[spout.name].processed / sample.window_seconds if sample.window_seconds > 0 else 0.0
               for spout in graph.spouts}
    flow = network.under(carried)
    return MeasuredTopology(network, times, _complete(graph, flow, now, times), _waiting(carried, times), backlog, carried,
                            _keeps_up(graph, now, times, sample.window_seconds),
                            _missing((network, flow), sample, now, service_rates))


@dataclass(frozen=True, slots=True)
class _Part:
    """The tasks of one component, added up."""

    kind: str
    tasks: int
    processed: int  # tuples that a bolt executed, or a spout emitted
    busy: float
    blocked: float  # seconds without a credit
    offered: int
    lag: int | None
    loads: tuple[TaskLoad, ...]

    def mean(self, name: str) -> float | None:
        """A latency in seconds, over all tuples of all tasks."""
        return _mean((getattr(load, name), load.executed or load.acked or load.emitted) for load in self.loads)


def _by_component(graph: TopologyGraph, load: Load) -> dict[str, _Part]:
    loads: defaultdict[str, list[TaskLoad]] = defaultdict(list)
    for task, measured_task in load.tasks.items():
        loads[task.component].append(measured_task)
    return {component.name: _part(component, loads[component.name]) for component in graph.components}


def _part(component: ComponentDef, loads: list[TaskLoad]) -> _Part:
    lags = [load.lag for load in loads if load.lag is not None]
    spout = component.kind == "spout"
    return _Part(component.kind, component.par, sum(load.emitted if spout else load.executed for load in loads),
                 sum(load.busy_seconds for load in loads), sum(load.blocked_seconds for load in loads),
                 sum(load.offered for load in loads), sum(lags) if lags else None,
                 tuple(loads))


def _mean(latencies: Iterable[tuple[Latency | None, int]]) -> float | None:
    known = [(latency.mean, weight) for latency, weight in latencies if latency is not None and latency.mean is not None]
    weights = sum(weight for _, weight in known)
    return sum(mean * weight for mean, weight in known) / weights / 1000 if weights else None


# -- stations ----------------------------------------------------------------------------------------------------------

def _station(graph: TopologyGraph, component: ComponentDef, now: _Part, service_rate: float, seconds: float) -> Station:
    least, most = bounds(graph, component.name)
    name, tasks = component.name, component.par
    if component.kind == "spout" and (least == most or not _tells_its_rate(now, seconds)):
        return Station(name, tasks, least=tasks, most=tasks)
    return Station(name, tasks, service_rate, least, most, _service_cv2(now),
                   shared_queue=not component.keyed and not _gets_all(component))


def _tells_its_rate(spout: _Part, seconds: float) -> bool:
    """True if the busy time of a spout shows how much it could emit: it does not keep up with its source, or is idle for some
    time. Otherwise it may wait for its source in its own code."""
    if spout.lag is None or spout.busy <= 0:
        return False
    return spout.lag > LAG_SECONDS * spout.offered / seconds or spout.busy < BUSY_SPOUT * spout.tasks * seconds


def _service_cv2(part: _Part) -> float:
    """Squared coefficient of variation of the service times, by their mean and median, if they are distributed log-normally; it
    is about 1 for exponential ones."""
    mean = part.mean("execute_latency_ms")
    medians = [(Latency(load.execute_latency_ms.p50, 0.0, load.execute_latency_ms.p50), load.executed)
               for load in part.loads if load.execute_latency_ms is not None]
    median = _mean(medians)
    if part.kind == "spout" or not mean or not median:
        return 1.0
    return min(max((mean / median) ** 2 - 1, 0.0), MOST_CV2)


def bounds(graph: TopologyGraph, name: str) -> tuple[int, int]:
    """The fewest and the most tasks that the component can have; equal if it cannot be scaled, or if that is no use."""
    component = graph.component(name)
    if _gets_all(component):
        return component.par, component.par
    if not _can_have(graph, name, component.par + 1) and not _can_have(graph, name, component.par - 1):
        return component.par, component.par
    low, high = component.par, TASKS_LIMIT  # `low` is possible
    if _can_have(graph, name, high):
        return 1, high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _can_have(graph, name, middle) else (low, middle - 1)
    return 1, low


def _gets_all(component: ComponentDef) -> bool:
    """True if every task gets every tuple of an input: more of them do not share the work, and each has a queue of its own."""
    return any(read.grouping.kind == "all" for read in component.inputs)


def _can_have(graph: TopologyGraph, name: str, tasks: int) -> bool:
    try:
        check_tasks(graph, graph.component(name), tasks)
    except TopologyError:
        return False
    return True


# -- rates and times ---------------------------------------------------------------------------------------------------

def _offered(graph: TopologyGraph, spout: ComponentDef, now: _Part, seconds: float) -> float:
    """λ of a spout. One that cannot be scaled gives no more than its tasks can emit."""
    rate = now.offered / seconds
    least, most = bounds(graph, spout.name)
    if least == most and now.lag is not None and now.busy >= BUSY_SPOUT * now.tasks * seconds:
        return min(rate, now.processed / now.busy * now.tasks)
    return rate


def _time(part: _Part, seconds: float) -> float | None:
    """The measured time of a component. That of a spout is the wait at its source, by Little's law."""
    if part.kind == "spout":
        return part.lag / (part.processed / seconds) if part.lag is not None and part.processed else None
    return part.mean("process_latency_ms")


def _waiting(carried: Mapping[str, float], times: Mapping[str, float]) -> float:
    """Seconds at the sources, over all tuples that were emitted."""
    return total_time(((rate, times.get(name, 0.0)) for name, rate in carried.items()), sum(carried.values()))


def _complete(graph: TopologyGraph, flow: Network, parts: Mapping[str, _Part], times: Mapping[str, float]) -> float | None:
    """From the spouts to the end of the tuple tree; where trees are not tracked, the times of the bolts added up as in the
    model. `flow`: the network under the load that was carried."""
    complete = _mean((load.complete_latency_ms, load.acked) for spout in graph.spouts for load in parts[spout.name].loads)
    if complete is not None:
        return complete
    rates = flow.rates()
    bolts = [bolt.name for bolt in graph.bolts if rates[bolt.name] > 0]
    if not bolts or any(name not in times for name in bolts):
        return None
    return total_time(((rates[name], times[name]) for name in bolts), flow.external_rate)


def _keeps_up(graph: TopologyGraph, parts: Mapping[str, _Part], times: Mapping[str, float], seconds: float) -> bool:
    bolts = [parts[bolt.name] for bolt in graph.bolts]
    spouts = [parts[spout.name] for spout in graph.spouts]
    return (all(load.busy_seconds <= MOST_BUSY * seconds for bolt in bolts for load in bolt.loads)  # keys may be skewed
            and all(part.blocked <= MOST_BLOCKED * part.tasks * seconds for part in (*bolts, *spouts))
            and all(times.get(spout.name, 0.0) <= LAG_SECONDS for spout in graph.spouts)
            and not drains(sum(spout.processed for spout in spouts), sum(spout.offered for spout in spouts)))


def _missing(networks: Iterable[Network], sample: Load, parts: Mapping[str, _Part],
             service_rates: Mapping[str, float]) -> str:
    """The reason why nothing can be decided; empty if it can. `networks`: under what is offered and what is carried. A tuple
    that was lost on its way to a component is not waited for."""
    loaded = {name for network in networks for name, rate in network.rates().items() if rate > 0}
    reached = {target.component for (_, target), tuples in sample.traffic.items() if tuples > 0}
    unknown = [name for name, part in parts.items() if name in loaded and part.kind == "bolt" and name not in service_rates
               and (name in reached or any(load.queue_length for load in part.loads))]
    return f"{', '.join(unknown)} got tuples and has processed none yet" if unknown else ""
