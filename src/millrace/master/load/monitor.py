"""The load monitor: measures the load of every task, worker and node in each window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from millrace.master.load.observed import DelaysObserved, TaskObserved, TopologyObserved, percentiles, summed
from millrace.model.cluster import Cluster
from millrace.model.graph import ACKER, ComponentDef, TaskId
from millrace.model.load import HeavyKey, Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.runtime.meters import LATENCIES, SECONDS, LatencyHistogram
from millrace.runtime.wire.messages import Report

PairTraffic = dict[tuple[TaskId, TaskId], float]  # from a task to another
COUNTED = ("emitted", "transferred", "executed", "acked", "failed")


@dataclass(frozen=True, slots=True)
class WorkerMeters:
    """A worker's last report: CPU and memory use of its process since it started, the time by the worker's clock, the CPU use
    of all processes on its machine, and the time in which its loop had something to do; 0 where that is not measured.
    `delays`: of the window that has not ended yet, by this report and those before it."""

    generation: int
    cpu_seconds: float
    memory_mb: float
    at: float = 0.0
    machine_cpu_seconds: float = 0.0
    loop_seconds: float = 0.0
    delays: DelaysObserved = field(default_factory=DelaysObserved, compare=False)

    @classmethod
    def of(cls, report: Report, before: WorkerMeters | None = None) -> WorkerMeters:
        """`before`: by the last report of the same worker."""
        delays = before.delays if before is not None else DelaysObserved()
        delays.merge(report)
        return cls(report.generation, report.cpu_seconds, report.memory_mb, report.at, report.machine_cpu_seconds,
                   report.loop_seconds, delays)


@dataclass(slots=True)
class _Mark:
    """Counters of a task at the end of a window."""

    incarnation: int
    queue_length: int
    offered: float | None
    lag: int
    totals: dict[str, float]
    sent: dict[int, int]
    sent_bytes: dict[int, int]
    sent_to_groups: dict[str, list[int]]


@dataclass(slots=True)
class _Work:
    """The work of a task within a window, before the CPU and memory of its worker are shared out."""

    slot: int
    counts: dict[str, float]
    queue_length: int
    queue_floor: int
    offered: float  # below 0 if its lag has become smaller than by what it emitted
    lag: int | None
    latencies: dict[str, LatencyHistogram]
    blocking: bool  # it runs on its own thread: its waiting takes no time of the loop
    settled: bool


@dataclass(slots=True)
class _WorkerTotals:
    """Sums over the tasks of a worker in a window."""

    cpu: float = 0.0
    busy: float = 0.0
    tuples: float = 0.0
    queue_length: int = 0


@dataclass(slots=True)
class LoadMonitor:
    """Each window lasts from one call of `end_window` to the next."""

    since: float
    _marks: dict[tuple[str, TaskId], _Mark] = field(default_factory=dict)
    _workers: dict[int, WorkerMeters] = field(default_factory=dict)

    def end_window(self, now: float, at: float, observed: Mapping[str, TopologyObserved], plans: Mapping[str, Plan],
                   workers: Mapping[int, WorkerMeters], cluster: Cluster) -> WindowSample:
        """`now` by the master's clock, `at` as unix time."""
        seconds, self.since = max(now - self.since, 1e-9), now
        work: dict[str, dict[TaskId, _Work]] = {}
        traffic: dict[str, PairTraffic] = {}
        sizes: dict[str, PairTraffic] = {}
        groups: dict[str, dict[str, tuple[float, ...]]] = {}
        heavy: dict[str, dict[str, tuple[HeavyKey, ...]]] = {}
        for name, topology in observed.items():
            placed = plans[name].placement if name in plans else {}
            seen = {task: task_seen for task, task_seen in topology.tasks.items() if task in placed}
            traffic[name] = self._traffic(name, topology, {task: task_seen.sent() for task, task_seen in seen.items()}, "sent")
            sizes[name] = self._traffic(name, topology, {task: task_seen.sent_bytes() for task, task_seen in seen.items()},
                                        "sent_bytes")
            sent = {task: self._groups(name, task, task_seen) for task, task_seen in seen.items()}
            groups[name] = summed(sent.values())
            heavy[name] = _heavy_keys(seen, sent)
            work[name] = {task: self._work(name, task, task_seen, placed[task], _component(topology, task))
                          for task, task_seen in seen.items()}
            for spout in topology.graph.spouts:
                _cut([done for task, done in work[name].items() if task.component == spout.name],
                     self._lag_given_away(name, spout))
        used = self._used(workers, seconds)
        totals = _totals(work)
        loads = {name: replace(self._load(seconds, tasks, traffic[name], totals, used, cluster), traffic_bytes=sizes[name],
                               key_groups=groups[name], heavy_keys=heavy[name]) for name, tasks in work.items()}
        return WindowSample(at, seconds, loads, plans, *self._machines(totals, used, seconds, cluster))

    def _traffic(self, name: str, topology: TopologyObserved, sent: Mapping[TaskId, Mapping[int, int]],
                 marked: str) -> PairTraffic:
        """Growth of what each task has sent since the last window. `marked`: the name of this in a mark."""
        traffic: PairTraffic = {}
        for task, counts in sent.items():
            before = getattr(self._marks[name, task], marked) if (name, task) in self._marks else {}
            for number, count in counts.items():
                if count > before.get(number, 0):
                    traffic[task, topology.task(number)] = count - before.get(number, 0)
        return traffic

    def _groups(self, name: str, task: TaskId, observed: TaskObserved) -> dict[str, list[int]]:
        """Tuples that the task sent to each key group in the window, by component."""
        before = self._marks[name, task].sent_to_groups if (name, task) in self._marks else {}
        return {component: [max(now - old, 0) for now, old in zip_longest(counts, before.get(component, ()), fillvalue=0)]
                for component, counts in observed.sent_to_groups().items()}

    def _work(self, name: str, task: TaskId, observed: TaskObserved, slot: int, component: ComponentDef | None) -> _Work:
        """`component`: None for an acker, which is measured like a bolt."""
        spout = component if component is not None and component.kind == "spout" else None
        queue = observed.queue_length if spout is None else 0  # a spout has no inbox: it reports tuples in flight
        before = self._marks.get((name, task))
        totals = {key: observed.total(key) for key in COUNTED + SECONDS}
        offered = observed.offered()
        begins_empty = spout is not None and spout.splits and before is None and self._measures(name, spout.name)
        self._marks[name, task] = _Mark(observed.incarnation, queue, offered, observed.lag or 0, totals, observed.sent(),
                                        observed.sent_bytes(), observed.sent_to_groups())
        counts = {key: total - (before.totals[key] if before else 0) for key, total in totals.items()}
        floor = min(queue, before.queue_length if before else 0)
        if spout is None:
            fresh = 0.0
        elif offered is not None and before is not None and before.offered is not None:
            fresh = offered - before.offered
        elif offered is not None and begins_empty:  # its lag is that of the splits which other tasks gave it
            fresh = offered + (observed.first_lag or 0)
        else:
            fresh = counts["emitted"]
        return _Work(observed.slot, counts, queue, floor, fresh, observed.lag, observed.end_window(),
                     component is not None and component.blocking,
                     before is not None and before.incarnation == observed.incarnation and observed.slot == slot)

    def _measures(self, name: str, component: str) -> bool:
        """True if the lag of a task of the component was known before."""
        return any(mark.offered is not None for (topology, task), mark in self._marks.items()
                   if topology == name and task.component == component)

    def _lag_given_away(self, name: str, spout: ComponentDef) -> float:
        """The lag of the tasks that have retired since the last window: others have their splits now."""
        given = 0.0
        for (topology, task), mark in self._marks.items():
            if spout.splits and topology == name and task.component == spout.name and task.index >= spout.par:
                given += mark.lag
                mark.offered, mark.lag = mark.offered - mark.lag if mark.offered is not None else None, 0
        return given

    def _used(self, workers: Mapping[int, WorkerMeters], seconds: float) -> dict[int, WorkerMeters]:
        """CPU seconds, loop time and delays of each worker in the window. A process that joined in the window may be older: if
        it has used more than the window's length, the share that falls into the window is unknown and counts as 0."""
        used = {}
        for slot, meters in workers.items():
            before = self._workers.get(slot)
            cpu, loop = meters.cpu_seconds, meters.loop_seconds
            if before is not None and before.generation == meters.generation:
                cpu, loop = cpu - before.cpu_seconds, loop - before.loop_seconds
            elif cpu > seconds:
                cpu = loop = 0.0
            used[slot] = WorkerMeters(meters.generation, max(cpu, 0.0), meters.memory_mb, loop_seconds=max(loop, 0.0),
                                      delays=meters.delays.end_window())
        self._workers = dict(workers)
        return used

    def _load(self, seconds: float, tasks: Mapping[TaskId, _Work], traffic: PairTraffic, totals: Mapping[int, _WorkerTotals],
              used: Mapping[int, WorkerMeters], cluster: Cluster) -> Load:
        """Share out each worker's CPU in proportion to the tasks' thread time, so that its overhead (sockets, encoding, the
        loop) is included, the time of its loop outside user code in proportion to their time in it, and its memory in
        proportion to their tuples."""
        alive = {slot.number for slot in cluster.slots}
        loads: dict[TaskId, TaskLoad] = {}
        for task, work in tasks.items():
            worker = used.get(work.slot) if work.slot in alive else None
            mhz = memory = routing = 0.0
            if worker is not None:
                total = totals[work.slot]
                mhz = _part(work.counts["cpu_seconds"], total.cpu) * worker.cpu_seconds / seconds
                mhz *= cluster.node_of(work.slot).mhz
                memory = _part(work.counts["executed"] + work.counts["emitted"], total.tuples) * worker.memory_mb
                if not work.blocking:
                    routing = _part(work.counts["busy_seconds"], total.busy) * max(worker.loop_seconds - total.busy, 0.0)
            loads[task] = _task_load(work, mhz, memory, routing)
        settling = tuple(sorted(task for task, work in tasks.items() if not work.settled))
        return Load(seconds, loads, traffic, settling)

    def _machines(self, totals: Mapping[int, _WorkerTotals], used: Mapping[int, WorkerMeters], seconds: float,
                  cluster: Cluster) -> tuple[dict[int, WorkerLoad], dict[str, NodeLoad]]:
        workers: dict[int, WorkerLoad] = {}
        by_node: defaultdict[str, list[WorkerLoad]] = defaultdict(list)
        for slot in cluster.slots:
            meters, total = used.get(slot.number, WorkerMeters(0, 0.0, 0.0)), totals.get(slot.number, _WorkerTotals())
            mhz = meters.cpu_seconds / seconds * cluster.node_of(slot.number).mhz
            busy = max(meters.loop_seconds, total.busy)  # executors of the microbatch engine have no such loop
            turns, pauses = meters.delays.turns, meters.delays.pauses
            workers[slot.number] = WorkerLoad(slot.node, mhz, meters.memory_mb, total.queue_length, busy / seconds,
                                              turns.percentiles_ms(), pauses.percentiles_ms(), pauses.count)
            by_node[slot.node].append(workers[slot.number])
        return workers, {node.name: NodeLoad(sum(worker.cpu_mhz for worker in by_node[node.name]), node.capacity_mhz,
                                             node.memory_mb, sum(worker.memory_mb for worker in by_node[node.name]),
                                             node.others_mhz)
                         for node in cluster.nodes}

    def forget(self, topology: str) -> None:
        """Forget a topology that has ended."""
        for key in [key for key in self._marks if key[0] == topology]:
            del self._marks[key]


def _component(topology: TopologyObserved, task: TaskId) -> ComponentDef | None:
    return topology.graph.component(task.component) if task.component != ACKER else None


def _cut(tasks: Sequence[_Work], given_away: float) -> None:
    """Let tasks of a spout have offered 0 at least: not each, but all of them together. A split that goes from one to another
    takes its lag with it, and that is no new load."""
    grown = sum(max(work.offered, 0.0) for work in tasks)
    in_all = max(sum(work.offered for work in tasks) - given_away, 0.0)
    for work in tasks:
        work.offered = max(work.offered, 0.0) * _part(in_all, grown)


def _totals(work: Mapping[str, Mapping[TaskId, _Work]]) -> dict[int, _WorkerTotals]:
    totals: defaultdict[int, _WorkerTotals] = defaultdict(_WorkerTotals)
    for tasks in work.values():
        for of_task in tasks.values():
            total = totals[of_task.slot]
            total.cpu += of_task.counts["cpu_seconds"]
            total.busy += 0.0 if of_task.blocking else of_task.counts["busy_seconds"]
            total.tuples += of_task.counts["executed"] + of_task.counts["emitted"]
            total.queue_length += of_task.queue_length
    return totals


def _heavy_keys(seen: Mapping[TaskId, TaskObserved],
                sent: Mapping[TaskId, Mapping[str, Sequence[float]]]) -> dict[str, tuple[HeavyKey, ...]]:
    """The frequent keys of each component. A sender knows their shares of what it sends."""
    tuples: defaultdict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for task, observed in seen.items():
        for component, keys in observed.heavy_keys.items():
            total = sum(sent[task].get(component, ()))
            for key, group, share in keys:
                tuples[component][key, group] += share * total  # type: ignore[assignment]  # a Counter may count fractions
    return {component: tuple(HeavyKey(key, group, count) for (key, group), count in counts.most_common() if count > 0)
            for component, counts in tuples.items()}


def _part(value: float, total: float) -> float:
    return value / total if total > 0 else 0.0


def _task_load(work: _Work, mhz: float, memory: float, routing: float) -> TaskLoad:
    latencies = {f"{name}_ms": percentiles(work.latencies[name]) for name in LATENCIES}
    counts = {**{key: int(work.counts[key]) for key in COUNTED}, **{key: work.counts[key] for key in SECONDS}}
    return TaskLoad(**counts, **latencies, queue_length=work.queue_length,  # type: ignore[arg-type]
                    queue_floor=work.queue_floor, offered=int(work.offered), lag=work.lag, cpu_mhz=mhz, memory_mb=memory,
                    routing_seconds=routing)
