"""The load monitor: at the end of each window, what every task, worker and node did in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from millrace.master.load.observed import TaskObserved, TopologyObserved, percentiles, summed
from millrace.model.cluster import Cluster
from millrace.model.graph import ComponentDef, TaskId
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.runtime.meters import LATENCIES, SECONDS, LatencyHistogram

COUNTED = ("emitted", "transferred", "executed", "acked", "failed")


@dataclass(frozen=True, slots=True)
class WorkerMeters:
    """What a worker's process has used since it started, as it last said."""

    generation: int
    cpu_seconds: float
    memory_mb: float


@dataclass(slots=True)
class _Mark:
    """A task at the end of a window."""

    incarnation: int
    queue_length: int
    totals: dict[str, float]
    sent: dict[int, int]
    sent_to_groups: dict[str, list[int]]


@dataclass(slots=True)
class _Work:
    """A task within a window, before the CPU and the memory of its worker are shared out."""

    slot: int
    counts: dict[str, float]
    queue_length: int
    queue_floor: int
    latencies: dict[str, LatencyHistogram]
    blocking: bool  # it has a thread of its own, and waiting there takes no time of the loop
    settled: bool


@dataclass(slots=True)
class _Totals:
    """All tasks of a worker in a window."""

    cpu: float = 0.0
    busy: float = 0.0
    tuples: float = 0.0
    queue_length: int = 0


@dataclass(slots=True)
class LoadMonitor:
    """Call `end_window` once in a while: each window lasts from one call to the next."""

    since: float
    _marks: dict[tuple[str, TaskId], _Mark] = field(default_factory=dict)
    _workers: dict[int, WorkerMeters] = field(default_factory=dict)

    def end_window(self, now: float, at: float, observed: Mapping[str, TopologyObserved], plans: Mapping[str, Plan],
                   workers: Mapping[int, WorkerMeters], cluster: Cluster) -> WindowSample:
        """`now` by the master's clock, `at` as unix time."""
        seconds, self.since = max(now - self.since, 1e-9), now
        work: dict[str, dict[TaskId, _Work]] = {}
        traffic: dict[str, dict[tuple[TaskId, TaskId], float]] = {}
        groups: dict[str, dict[str, tuple[float, ...]]] = {}
        for name, topology in observed.items():
            placed = plans[name].placement if name in plans else {}
            seen = {task: found for task, found in topology.tasks.items() if task in placed}
            traffic[name] = self._traffic(name, topology, seen)
            groups[name] = summed(self._groups(name, task, found) for task, found in seen.items())
            work[name] = {task: self._work(name, task, found, placed[task], topology.graph.component(task.component))
                          for task, found in seen.items()}
        used = self._used(workers, seconds)
        totals = _totals(work)
        loads = {name: replace(self._load(seconds, tasks, traffic[name], totals, used, cluster), key_groups=groups[name])
                 for name, tasks in work.items()}
        return WindowSample(at, seconds, loads, plans, *self._machines(totals, used, seconds, cluster))

    def _traffic(self, name: str, topology: TopologyObserved,
                 seen: Mapping[TaskId, TaskObserved]) -> dict[tuple[TaskId, TaskId], float]:
        found: dict[tuple[TaskId, TaskId], float] = {}
        for task, observed in seen.items():
            before = self._marks[name, task].sent if (name, task) in self._marks else {}
            for number, count in observed.sent().items():
                if count > before.get(number, 0):
                    found[task, topology.task(number)] = count - before.get(number, 0)
        return found

    def _groups(self, name: str, task: TaskId, observed: TaskObserved) -> dict[str, list[int]]:
        """What the task sent to each key group in the window, by component."""
        before = self._marks[name, task].sent_to_groups if (name, task) in self._marks else {}
        return {component: [max(now - had, 0) for now, had in zip_longest(counts, before.get(component, ()), fillvalue=0)]
                for component, counts in observed.sent_to_groups().items()}

    def _work(self, name: str, task: TaskId, observed: TaskObserved, slot: int, component: ComponentDef) -> _Work:
        queue = observed.queue_length if component.kind == "bolt" else 0  # a spout has no inbox: it counts what is in flight
        before = self._marks.get((name, task))
        totals = {key: observed.total(key) for key in COUNTED + SECONDS}
        self._marks[name, task] = _Mark(observed.incarnation, queue, totals, observed.sent(), observed.sent_to_groups())
        counts = {key: total - (before.totals[key] if before else 0) for key, total in totals.items()}
        floor = min(queue, before.queue_length if before else 0)
        return _Work(observed.slot, counts, queue, floor, observed.end_window(), component.blocking,
                     before is not None and before.incarnation == observed.incarnation and observed.slot == slot)

    def _used(self, workers: Mapping[int, WorkerMeters], seconds: float) -> dict[int, WorkerMeters]:
        """CPU seconds of each worker in the window. A process that has joined in it may have lived before: if it has used
        more than there was time for, how much of that was in the window is not known."""
        used = {}
        for slot, meters in workers.items():
            before = self._workers.get(slot)
            if before is not None and before.generation == meters.generation:
                cpu = meters.cpu_seconds - before.cpu_seconds
            else:
                cpu = meters.cpu_seconds if meters.cpu_seconds <= seconds else 0.0
            used[slot] = WorkerMeters(meters.generation, max(cpu, 0.0), meters.memory_mb)
        self._workers = dict(workers)
        return used

    def _load(self, seconds: float, tasks: Mapping[TaskId, _Work], traffic: Mapping[tuple[TaskId, TaskId], float],
              totals: Mapping[int, _Totals], used: Mapping[int, WorkerMeters], cluster: Cluster) -> Load:
        """A task's part of its worker's CPU is by its part of the tasks' thread time, so that what the worker does for all of
        them (sockets, encoding, the loop) is shared out too; its part of the memory is by its part of the tuples."""
        alive = {slot.number for slot in cluster.slots}
        found: dict[TaskId, TaskLoad] = {}
        for task, own in tasks.items():
            worker = used.get(own.slot) if own.slot in alive else None
            mhz = memory = 0.0
            if worker is not None:
                mhz = _part(own.counts["cpu_seconds"], totals[own.slot].cpu) * worker.cpu_seconds / seconds
                mhz *= cluster.node_of(own.slot).mhz
                memory = _part(own.counts["executed"] + own.counts["emitted"], totals[own.slot].tuples) * worker.memory_mb
            found[task] = _task_load(own, mhz, memory)
        settling = tuple(sorted(task for task, own in tasks.items() if not own.settled))
        return Load(seconds, found, traffic, settling)

    def _machines(self, totals: Mapping[int, _Totals], used: Mapping[int, WorkerMeters], seconds: float,
                  cluster: Cluster) -> tuple[dict[int, WorkerLoad], dict[str, NodeLoad]]:
        workers: dict[int, WorkerLoad] = {}
        by_node: defaultdict[str, list[WorkerLoad]] = defaultdict(list)
        for slot in cluster.slots:
            meters, own = used.get(slot.number, WorkerMeters(0, 0.0, 0.0)), totals.get(slot.number, _Totals())
            mhz = meters.cpu_seconds / seconds * cluster.node_of(slot.number).mhz
            workers[slot.number] = WorkerLoad(slot.node, mhz, meters.memory_mb, own.queue_length, own.busy / seconds)
            by_node[slot.node].append(workers[slot.number])
        return workers, {node.name: NodeLoad(sum(worker.cpu_mhz for worker in by_node[node.name]), node.capacity_mhz,
                                             node.memory_mb, sum(worker.memory_mb for worker in by_node[node.name]))
                         for node in cluster.nodes}

    def forget(self, topology: str) -> None:
        """It has ended."""
        for key in [key for key in self._marks if key[0] == topology]:
            del self._marks[key]


def _totals(work: Mapping[str, Mapping[TaskId, _Work]]) -> dict[int, _Totals]:
    found: defaultdict[int, _Totals] = defaultdict(_Totals)
    for tasks in work.values():
        for own in tasks.values():
            total = found[own.slot]
            total.cpu += own.counts["cpu_seconds"]
            total.busy += 0.0 if own.blocking else own.counts["busy_seconds"]
            total.tuples += own.counts["executed"] + own.counts["emitted"]
            total.queue_length += own.queue_length
    return found


def _part(own: float, total: float) -> float:
    return own / total if total > 0 else 0.0


def _task_load(own: _Work, mhz: float, memory: float) -> TaskLoad:
    latencies = {f"{name}_ms": percentiles(own.latencies[name]) for name in LATENCIES}
    return TaskLoad(**{key: int(own.counts[key]) for key in COUNTED}, **latencies,  # type: ignore[arg-type]
                    queue_length=own.queue_length, queue_floor=own.queue_floor, cpu_seconds=own.counts["cpu_seconds"],
                    busy_seconds=own.counts["busy_seconds"], cpu_mhz=mhz, memory_mb=memory)
