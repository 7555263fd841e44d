"""Workers' reports, summed up by task: counters that only rise, and latencies since the start and in the last window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec

from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Latency, Load, TaskLoad
from millrace.runtime.meters import COUNTERS, HOP_LATENCIES, LATENCIES, SECONDS, LatencyHistogram
from millrace.runtime.wire.messages import Report

TOTALS = COUNTERS + SECONDS
OUTBOX = "outbox_latency"
ERRORS_KEPT = 50


def _histograms(names: Iterable[str] = LATENCIES) -> dict[str, LatencyHistogram]:
    return {name: LatencyHistogram() for name in names}


class _Hops:
    """The parts of the latency of one task in a window: what its output waited for, and what came from each component."""

    __slots__ = ("outbox", "received")

    def __init__(self) -> None:
        self.outbox = LatencyHistogram()
        self.received: dict[str, dict[str, LatencyHistogram]] = {}  # by component

    def merge(self, report: Mapping[str, Any]) -> None:
        self.outbox.merge(report.get(OUTBOX, ""))
        for component, latencies in report.get("hops", {}).items():
            received = self.received.setdefault(component, _histograms(HOP_LATENCIES))
            for name, histogram in received.items():
                histogram.merge(latencies[name])


class DelaysObserved:
    """Delays of all tasks of a worker in a window: turns of its loop, and pauses for its garbage collector."""

    __slots__ = ("pauses", "turns")

    def __init__(self) -> None:
        self.turns, self.pauses = LatencyHistogram(), LatencyHistogram()

    def merge(self, report: Report) -> None:
        self.turns.merge(report.turns)
        self.pauses.merge(report.collector_pauses)

    def end_window(self) -> DelaysObserved:
        """The delays of the window that ends now."""
        ended = DelaysObserved()
        ended.turns, ended.pauses, self.turns, self.pauses = self.turns, self.pauses, ended.turns, ended.pauses
        return ended


@dataclass(slots=True)
class TaskObserved:
    """One task over all its incarnations: the counters of an earlier one are added to those of the next."""

    incarnation: int = -1
    slot: int = -1
    at: float = 0.0  # time of the last report, by the worker's clock
    queue_length: int = 0
    lag: int | None = None
    lag_at: float = 0.0  # tuples emitted when the lag was read, over all incarnations
    first_lag: int | None = None
    current: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    traffic: dict[int, int] = field(default_factory=dict)
    traffic_before: dict[int, int] = field(default_factory=dict)
    traffic_bytes: dict[int, int] = field(default_factory=dict)
    bytes_before: dict[int, int] = field(default_factory=dict)
    groups: dict[str, list[int]] = field(default_factory=dict)  # tuples sent to each key group, by component
    heavy_keys: dict[str, list[tuple[str, int, float]]] = field(default_factory=dict)  # (key, key group, share), by component
    groups_before: dict[str, list[int]] = field(default_factory=dict)
    latencies: dict[str, LatencyHistogram] = field(default_factory=_histograms)
    recent: dict[str, LatencyHistogram] = field(default_factory=_histograms)  # of the window that has not ended yet
    hops: _Hops = field(default_factory=_Hops)  # of the window that has not ended yet,
    last_hops: _Hops | None = None  # and of the last one that has
    custom: dict[str, Any] = field(default_factory=dict)

    def take(self, slot: int, at: float, report: dict[str, Any]) -> None:
        if report["incarnation"] < self.incarnation:
            return  # from the task's previous worker, which did not have the new plan yet
        if report["incarnation"] != self.incarnation:
            self.before = {name: self.total(name) for name in TOTALS}
            self.traffic_before, self.bytes_before, self.groups_before = self.sent(), self.sent_bytes(), self.sent_to_groups()
            self.current, self.traffic, self.traffic_bytes, self.groups = {}, {}, {}, {}
            self.incarnation = report["incarnation"]
        self.slot, self.at, self.queue_length = slot, at, report["queue_length"]
        self.current = {name: report[name] for name in TOTALS}
        if (lag := report.get("lag")) is not None:
            self.lag, self.lag_at = lag[0], self.before.get("emitted", 0) + lag[1]
            self.first_lag = lag[0] if self.first_lag is None else self.first_lag
        else:
            self.lag = None
        self.traffic = {int(number): count for number, count in report["traffic"].items()}
        self.traffic_bytes = {int(number): size for number, size in report.get("traffic_bytes", {}).items()}
        self.groups = report.get("key_groups", {})
        self.heavy_keys = report.get("heavy_keys", {})
        for name in LATENCIES:
            self.recent[name].merge(report[name])
        self.hops.merge(report)
        self.custom.update(report.get("custom", {}))

    def total(self, name: str) -> float:
        return self.before.get(name, 0) + self.current.get(name, 0)

    def offered(self) -> float | None:
        """Tuples that were emitted, and growth of the lag since it was first known; None if it is not known now."""
        return None if self.lag is None or self.first_lag is None else self.lag_at + self.lag - self.first_lag

    def end_window(self) -> dict[str, LatencyHistogram]:
        """The latencies of the window that ends now; they count in `latencies` from here on."""
        ended, self.recent = self.recent, _histograms()
        self.last_hops, self.hops = self.hops, _Hops()
        for name in LATENCIES:
            self.latencies[name].add(ended[name])
        return ended

    def latency(self, name: str) -> LatencyHistogram:
        merged = LatencyHistogram()
        merged.add(self.latencies[name])
        merged.add(self.recent[name])
        return merged

    def sent(self) -> dict[int, int]:
        """Tuples that this task has sent to each task, by number."""
        return _added(self.traffic, self.traffic_before)

    def sent_bytes(self) -> dict[int, int]:
        return _added(self.traffic_bytes, self.bytes_before)

    def sent_to_groups(self) -> dict[str, list[int]]:
        """Component -> tuples that this task has sent to each of its key groups."""
        return {name: list(map(sum, zip_longest(self.groups.get(name, ()), self.groups_before.get(name, ()), fillvalue=0)))
                for name in self.groups.keys() | self.groups_before.keys()}


class TopologyObserved:
    """All tasks of one topology."""

    def __init__(self, graph: TopologyGraph, now: float) -> None:
        self.graph, self.since = graph, now
        self.tasks: dict[TaskId, TaskObserved] = {}
        self.errors: list[dict[str, Any]] = []
        self.last_error_of: dict[str, dict[str, Any]] = {}  # by component: one that always fails must not hide the others
        self._former: dict[int, TaskId] = {}  # tasks of earlier graphs: traffic to them still counts

    def note_error(self, error: dict[str, Any]) -> None:
        """Record an error that a worker reported."""
        self.errors = [*self.errors, error][-ERRORS_KEPT:]
        self.last_error_of[error["task"].partition("[")[0]] = error

    def note_driver_error(self, component: str, text: str, stack: str = "") -> None:
        """Record an error of the component in code that ran in the driver."""
        self.note_error({"topology": self.graph.name, "task": component, "error": text, "traceback": stack})

    def follow(self, graph: TopologyGraph) -> None:
        """Use a graph with other numbers of tasks from now on."""
        self._former |= {self.graph.number(task): task for task in self.graph.tasks()}
        self.graph = graph

    def task(self, number: int) -> TaskId:
        """The task that has, or had, this number."""
        return self._former[number] if number in self._former else self.graph.task(number)

    def take(self, slot: int, at: float, report: dict[str, Any]) -> None:
        task = self.task(report["task"])
        self.tasks.setdefault(task, TaskObserved()).take(slot, at, report)

    def marks(self, component: str, name: str) -> dict[TaskId, tuple[float, float]]:
        """(time, total) for each task of the component; `rate_between` computes a rate from two of these."""
        return {task: (observed.at, observed.total(name)) for task, observed in self.tasks.items()
                if task.component == component}

    def total(self, component: str, name: str) -> float:
        return sum(observed.total(name) for task, observed in self.tasks.items() if task.component == component)

    def latency(self, component: str, name: str) -> LatencyHistogram:
        """The component's latencies, all tasks together."""
        merged = LatencyHistogram()
        for task, observed in self.tasks.items():
            if task.component == component:
                merged.add(observed.latency(name))
        return merged

    def hops(self) -> list[dict[str, Any]]:
        """The parts of the latency between each two components in the last window, or since the start if none has ended:
        `Percentiles` as plain data, or None for what was not measured."""
        parts: dict[tuple[str, str], dict[str, LatencyHistogram]] = {}
        outboxes: dict[str, LatencyHistogram] = {}
        for task, observed in sorted(self.tasks.items()):
            hops = observed.last_hops or observed.hops
            outboxes.setdefault(task.component, LatencyHistogram()).add(hops.outbox)
            for source, latencies in hops.received.items():
                merged = parts.setdefault((source, task.component), _histograms(HOP_LATENCIES))
                for name, histogram in latencies.items():
                    merged[name].add(histogram)
        return [{"from": source, "to": target, **_figures({OUTBOX: outboxes.get(source, LatencyHistogram()), **latencies})}
                for (source, target), latencies in parts.items()]

    def load(self, now: float) -> Load:
        """The load since the topology was submitted."""
        spouts = {component.name for component in self.graph.components if component.kind == "spout"}
        tasks = {task: _task_load(observed, task.component in spouts) for task, observed in self.tasks.items()}
        traffic = {(task, self.task(number)): count
                   for task, observed in self.tasks.items() for number, count in observed.sent().items() if count}
        sizes = {(task, self.task(number)): size
                 for task, observed in self.tasks.items() for number, size in observed.sent_bytes().items() if size}
        groups = summed(observed.sent_to_groups() for observed in self.tasks.values())
        return Load(window_seconds=max(now - self.since, 1e-9), tasks=tasks, traffic=traffic, traffic_bytes=sizes,
                    key_groups=groups)


def _added(counts: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    return {number: counts.get(number, 0) + before.get(number, 0) for number in counts.keys() | before.keys()}


def summed(counts: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, tuple[float, ...]]:
    """Tuples sent to each key group, by component, summed over all counts."""
    totals: dict[str, tuple[float, ...]] = {}
    for sent in counts:
        for name, groups in sent.items():
            totals[name] = tuple(map(sum, zip_longest(totals.get(name, ()), groups, fillvalue=0)))
    return totals


def _task_load(observed: TaskObserved, spout: bool) -> TaskLoad:
    counts = {name: int(observed.total(name)) for name in ("emitted", "transferred", "executed", "acked", "failed")}
    latencies = {f"{name}_ms": percentiles(observed.latency(name)) for name in LATENCIES}
    offered = observed.offered() if spout else 0.0
    seconds = {name: observed.total(name) for name in SECONDS}
    return TaskLoad(**counts, **latencies, **seconds, queue_length=observed.queue_length,  # type: ignore[arg-type]
                    lag=observed.lag, offered=counts["emitted"] if offered is None else max(int(offered), 0))


def percentiles(histogram: LatencyHistogram) -> Latency | None:
    """Percentiles and mean; None if nothing was recorded."""
    p50, p99 = histogram.percentile_ms(50), histogram.percentile_ms(99)
    return Latency(p50, p99, histogram.mean_ms()) if p50 is not None and p99 is not None else None


def _figures(histograms: Mapping[str, LatencyHistogram]) -> dict[str, Any]:
    return {f"{name}_ms": msgspec.to_builtins(histogram.percentiles_ms()) for name, histogram in histograms.items()}


def rate_between(before: dict[TaskId, tuple[float, float]], after: dict[TaskId, tuple[float, float]]) -> float:
    """Rate per second between two `marks`, summed over the tasks that are in both."""
    rate = 0.0
    for task, (then, old) in before.items():
        now, new = after.get(task, (then, old))
        if now > then:
            rate += (new - old) / (now - then)
    return rate
