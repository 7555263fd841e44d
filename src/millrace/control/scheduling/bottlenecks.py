"""Bottlenecks: components that hold up their topology, found from the time of its tasks.

Inboxes are bounded, so a component that cannot keep up slows its senders down, up to the sources: their lag grows, or they wait
for credit, or for acks if the tuples in flight are limited. The bottleneck is where that ends: a component whose tasks, or
workers, are busy nearly all the time and that does not wait for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from millrace.config import MAX_SPOUT_PENDING
from millrace.control.scheduling.hot_groups import pressure
from millrace.model.cluster import Cluster
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import WindowSample

LASTING = 3  # windows for which a component holds its topology up before that counts
OVER = 2  # windows without it after which it counts no more
SATURATED = 0.8  # of a task's time in user code, or of a core: the rest goes to routing, encoding and sending
FULL = 0.9  # of a worker's time or core
WAITING = 0.2  # share of the time without credit, or acks, from which on a component waits for others
HELD_UP = 0.5  # the same for a source whose lag is not known
BEHIND = 0.02  # growth of a source's lag, as a share of what it emits


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A component that holds up its topology. `busy`: shares of its tasks that are full, by themselves or with their worker;
    `alone`: those full by themselves, so that no other placement helps. `needed`: tasks that it would need. `evidence`: how the
    sources show it."""

    topology: str
    component: str
    busy: Mapping[TaskId, float]
    alone: tuple[TaskId, ...]
    needed: float
    evidence: str


def behind(graph: TopologyGraph, load: Load) -> str:
    """The sign at the sources that the topology does not keep up, in words; empty if there is none."""
    for spout in graph.spouts:
        tasks = _tasks(load, spout)
        emitted, offered = (sum(getattr(seen, name) for seen in tasks.values()) for name in ("emitted", "offered"))
        if any(seen.lag is not None for seen in tasks.values()):
            growth = offered - emitted
            if growth > BEHIND * max(emitted, 1) and any(seen.lag for seen in tasks.values()):
                return f"the lag of {spout.name} grows by {growth / load.window_seconds:,.0f} tuples/s"
        elif tasks and (held := _mean(_share(load, seen.blocked_seconds) for seen in tasks.values())) >= HELD_UP:
            awaited = "acks or credit" if MAX_SPOUT_PENDING.of(graph.config) else "credit"
            return f"{spout.name} waits for {awaited} {held:.0%} of the time"
    return ""


class _WorkersOfWindow:
    """The workers of a window, by slot. Figures are worked out when they are first needed, once for all topologies."""

    def __init__(self, sample: WindowSample, cluster: Cluster) -> None:
        self._sample, self._cluster = sample, cluster

    @cached_property
    def cores(self) -> dict[int, float]:
        """MHz."""
        return {slot.number: self._cluster.node_of(slot.number).mhz for slot in self._cluster.slots}

    @cached_property
    def around(self) -> dict[int, float]:
        return around_user_code(self._sample)

    @cached_property
    def full(self) -> set[int]:
        """Workers that are full by their time or their core."""
        return {slot for slot, worker in self._sample.workers.items()
                if max(worker.busy, worker.cpu_mhz / self.cores[slot] if self.cores.get(slot) else 0.0) >= FULL}


def bottleneck_of(graph: TopologyGraph, sample: WindowSample, cluster: Cluster,
                  workers: _WorkersOfWindow | None = None) -> Bottleneck | None:
    """The component that holds up the topology in the window; None if it keeps up, or nothing in it is busy. `workers`: of this
    window."""
    load, plan = sample.loads[graph.name], sample.plans.get(graph.name)
    if load.window_seconds <= 0 or plan is None or not (evidence := behind(graph, load)):
        return None
    workers = workers or _WorkersOfWindow(sample, cluster)
    cores, around = workers.cores, workers.around
    crowded = {task for task, slot in plan.placement.items() if slot in workers.full}
    found: list[tuple[tuple[bool, float, float], Bottleneck]] = []
    for component in graph.components:
        tasks = _tasks(load, component)
        used = {task: task_time(load, task, cores.get(slot, 0.0), 1.0 if component.blocking else around.get(slot, 1.0))
                for task in tasks for slot in [plan.placement.get(task, -1)]}
        alone = tuple(task for task, time in used.items() if time.full)
        full = {task: time.most for task, time in used.items() if time.full or (time.own > 0 and task in crowded)}
        waits = _mean(_share(load, tasks[task].blocked_seconds) for task in full)
        if full and waits < WAITING:
            needed = sum(time.tasks for time in used.values()) * pressure(graph, load, component.name)
            senders = [_share(load, seen.blocked_seconds) for read in component.inputs
                       for seen in _tasks(load, graph.component(read.source)).values()]
            rank = bool(alone), max(senders, default=0.0), max(full.values())
            found.append((rank, Bottleneck(graph.name, component.name, full, alone, needed, evidence)))
    return max(found, key=lambda each: each[0])[1] if found else None


def _tasks(load: Load, component: ComponentDef) -> dict[TaskId, TaskLoad]:
    return {task: seen for task, seen in load.tasks.items() if task.component == component.name}


def _share(load: Load, seconds: float) -> float:
    return min(seconds / load.window_seconds, 1.0)


def _mean(shares: Iterable[float]) -> float:
    values = list(shares)
    return sum(values) / len(values) if values else 0.0


class TaskTime(NamedTuple):
    """Time of a task as shares of the window. `own`: in user code, or of a core, whichever is more. `whole`: of its worker's
    loop, with routing, encoding and sending."""

    own: float
    whole: float

    @property
    def full(self) -> bool:
        """True if it is full by itself, wherever it is."""
        return self.own >= SATURATED or self.whole >= FULL

    @property
    def most(self) -> float:
        return max(self.own, self.whole)

    @property
    def tasks(self) -> float:
        """The tasks that would just carry its load."""
        return max(self.own / SATURATED, self.whole / FULL)


def task_time(load: Load, task: TaskId, core: float, around: float) -> TaskTime:
    """`core`: its clock in MHz, 0 if it is not known. `around`: as `around_user_code` of its worker."""
    seen = load.tasks[task]
    busy = _share(load, seen.busy_seconds)
    return TaskTime(max(busy, seen.cpu_mhz / core if core > 0 else 0.0), min(busy * around, 1.0))


def around_user_code(sample: WindowSample) -> dict[int, float]:
    """By slot: how many times as long the worker's loop was busy as its tasks were in user code."""
    own: Counter[int] = Counter()
    for name, load in sample.loads.items():
        placement = sample.plans[name].placement if name in sample.plans else {}
        for task in load.tasks:
            own[placement.get(task, -1)] += load.capacity(task)  # type: ignore[assignment]  # a Counter may count fractions
    return {slot: max(worker.busy / own[slot], 1.0) for slot, worker in sample.workers.items() if own[slot] > 0}


@dataclass(slots=True)
class _Seen:
    """A bottleneck with the windows in which it was seen, and those since then in which it was not."""

    newest: Bottleneck
    windows: int = 0
    since: int = 0


@dataclass(slots=True)
class Bottlenecks:
    """The bottlenecks of all topologies in the last windows."""

    _seen: dict[tuple[str, str], _Seen] = field(default_factory=dict)  # by topology and component
    _slowed: dict[str, int] = field(default_factory=dict)  # windows in a row in which any component held up the topology

    def add(self, graphs: Mapping[str, TopologyGraph], sample: WindowSample, cluster: Cluster) -> None:
        """Take a window. One in which tasks were started or moved says nothing about their topology."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in graphs}
        self._slowed = {name: windows for name, windows in self._slowed.items() if name in graphs}
        workers = _WorkersOfWindow(sample, cluster)
        for name, graph in graphs.items():
            if name not in sample.loads or sample.loads[name].settling:
                continue
            bottleneck = bottleneck_of(graph, sample, cluster, workers)
            key = (name, bottleneck.component) if bottleneck is not None else None
            self._slowed[name] = self._slowed.get(name, 0) + 1 if bottleneck is not None else 0
            if key is not None and bottleneck is not None:
                seen = self._seen.setdefault(key, _Seen(bottleneck))
                seen.newest, seen.windows, seen.since = bottleneck, seen.windows + 1, 0
            for other, seen in list(self._seen.items()):
                if other[0] == name and other != key:
                    seen.since += 1
                    if seen.windows < LASTING or seen.since >= OVER:
                        del self._seen[other]

    def forget(self, topology: str) -> None:
        """Begin anew with a topology: it has ended, or its tasks have moved."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != topology}
        self._slowed.pop(topology, None)

    def pressed(self) -> bool:
        """True if a topology has been held up for some windows, by one component or another: a full worker may have tasks of
        several, and which of them seems the busiest changes by chance."""
        return any(windows >= LASTING for windows in self._slowed.values()) or bool(self.lasting())

    def lasting(self, windows: int = LASTING) -> list[Bottleneck]:
        """The bottlenecks of so many windows."""
        return [seen.newest for _, seen in sorted(self._seen.items()) if seen.windows >= windows]


def changed_topologies(running: Mapping[str, Plan], plans: Mapping[str, Plan]) -> list[str]:
    """The topologies whose tasks or key groups these plans move. A scheduler's answer has the others, too: what was seen of
    them still holds."""
    return [name for name, plan in plans.items()
            if name not in running or plan.placement != running[name].placement or plan.key_groups != running[name].key_groups]
