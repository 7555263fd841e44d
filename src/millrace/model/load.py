"""Measured load: one immutable value for each topology and window, and the list of all metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from millrace.model.frozen import FrozenMap
from millrace.model.graph import ACKER, TaskId

SAMPLED = 61  # tuples of which one is counted by key group; a prime, so that few streams repeat themselves in step with it


class Metric(StrEnum):
    """Every metric, by its name in code, API and dashboard, with its unit and a description."""

    unit: str
    about: str

    def __new__(cls, value: str, unit: str = "", about: str = "") -> Metric:  # so that Metric("emitted") is well typed
        metric = str.__new__(cls, value)
        metric._value_ = value
        metric.unit = unit
        metric.about = about
        return metric

    EMITTED = "emitted", "tuples", "Tuples that user code emitted, each counted once."
    TRANSFERRED = "transferred", "tuples", "Tuples sent to tasks: an emitted tuple counts once for each receiving task."
    TRAFFIC_BYTES = "traffic_bytes", "bytes", "Size of the tuples sent from a task to another, without headers."
    EXECUTED = "executed", "tuples", "Tuples that a bolt took from its inbox and processed."
    ACKED = "acked", "tuples", "Tuples acknowledged: by a bolt when done, to a spout when the whole tuple tree is done."
    FAILED = "failed", "tuples", "Tuples failed, by an exception, a timeout or the loss of a worker."
    QUEUE_LENGTH = "queue_length", "tuples", "Tuples that waited in the task's inbox at the end of the window."
    EXECUTE_LATENCY_MS = "execute_latency_ms", "ms", "Time that user code took for a tuple, as the mean of its chunk."
    PROCESS_LATENCY_MS = "process_latency_ms", "ms", "Time from a tuple's arrival at a bolt to its ack."
    COMPLETE_LATENCY_MS = "complete_latency_ms", "ms", "Time from a spout's emit until its whole tuple tree is done."
    QUEUE_FLOOR = "queue_floor", "tuples", "The lower of the queue lengths at the ends of the last two windows."
    CPU_SECONDS = "cpu_seconds", "s", "CPU time that the task used in the window."
    CPU_MHZ = "cpu_mhz", "MHz", "The task's share of its worker's CPU use in the window, times the clock of the core."
    MEMORY_MB = "memory_mb", "MB", "The task's share of its worker's memory, by its share of the tuples processed there."
    OFFERED = "offered", "tuples", "Tuples that a spout's source had for it in the window: emitted, and growth of its lag."
    LAG = "lag", "tuples", "Tuples that a spout's source had at the end of the window and the spout had not emitted."
    BUSY_SECONDS = "busy_seconds", "s", "Time in the window during which the task was in user code."
    ROUTING_SECONDS = ("routing_seconds", "s", "The task's share of the time for which its worker's loop was busy outside user "
                                               "code, as with routing and encoding, by its share of the time in it.")
    BLOCKED_SECONDS = "blocked_seconds", "s", "Time in which the task had work and waited for credit, or for acks at its limit."
    CAPACITY = "capacity", "ratio", "Share of the window spent in user code: near 1 means the task is saturated."
    TRUE_PROCESSING_RATE = "true_processing_rate", "tuples/s", "Rate of a task that never has to wait."
    TARGET_RATE = "target_rate", "tuples/s", "Rate at which a component keeps up with its sources."
    CATCH_UP_RATE = "catch_up_rate", "tuples/s", "Additional rate that clears its backlog in time."
    BACKLOG = "backlog", "tuples", "Tuples waiting for a component: in its inboxes and at the sources."


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles and mean of one latency within the window, in milliseconds. A record of an earlier version has no mean."""

    p50: float
    p99: float
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles and maximum of a duration within the window, in milliseconds. `p999`: one in a thousand is longer."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class HeavyKey(NamedTuple):
    """A frequent key of a component's input, as text, with its key group and about how many tuples of the window had it."""

    key: str
    group: int
    tuples: float


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """The load of one task in the window. A latency of None means that nothing was measured, unlike 0; a lag of None, that
    the source does not know it. `offered` is 0 for bolts, and for spouts as large as `emitted` if the lag is not known.
    `routing_seconds` is 0 for a task with a thread of its own, and in a record of an earlier version."""

    emitted: int = 0
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    queue_length: int = 0
    queue_floor: int = 0
    execute_latency_ms: Latency | None = None
    process_latency_ms: Latency | None = None
    complete_latency_ms: Latency | None = None
    cpu_seconds: float = 0.0
    busy_seconds: float = 0.0
    blocked_seconds: float = 0.0
    offered: int = 0
    lag: int | None = None
    cpu_mhz: float = 0.0
    memory_mb: float = 0.0
    routing_seconds: float = 0.0

    @property
    def loop_seconds(self) -> float:
        """The time that the task keeps the loop of its worker busy, in user code and outside it."""
        return self.busy_seconds + self.routing_seconds


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one topology in one window: of each task, ackers included, and the tuples sent between tasks; messages of
    ackers count as tuples. `traffic_bytes`: their size as they are encoded, or would be; a pair without an entry was not
    measured. Tasks in `settling` were started or moved within the window, so their figures are incomplete. `key_groups`: tuples
    for each key group of a keyed component with several tasks, regardless of its owner; estimates on resident workers, which
    count a sample. `heavy_keys`: its most frequent keys, the most frequent first, by the same sample."""

    window_seconds: float = 0.0
    tasks: Mapping[TaskId, TaskLoad] = field(default_factory=FrozenMap)
    traffic: Mapping[tuple[TaskId, TaskId], float] = field(default_factory=FrozenMap)
    settling: tuple[TaskId, ...] = ()
    key_groups: Mapping[str, tuple[float, ...]] = field(default_factory=FrozenMap)
    heavy_keys: Mapping[str, tuple[HeavyKey, ...]] = field(default_factory=FrozenMap)
    traffic_bytes: Mapping[tuple[TaskId, TaskId], float] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", FrozenMap(self.tasks))
        object.__setattr__(self, "traffic", FrozenMap(self.traffic))
        object.__setattr__(self, "traffic_bytes", FrozenMap(self.traffic_bytes))
        object.__setattr__(self, "settling", tuple(self.settling))
        object.__setattr__(self, "key_groups", FrozenMap({name: tuple(counts) for name, counts in self.key_groups.items()}))
        object.__setattr__(self, "heavy_keys", FrozenMap({name: tuple(keys) for name, keys in self.heavy_keys.items()}))

    def capacity(self, task: TaskId) -> float:
        """Share of the window that the task spent in user code; 0 if it was not measured."""
        measured = self.tasks.get(task)
        return measured.busy_seconds / self.window_seconds if measured and self.window_seconds > 0 else 0.0

    def loop_share(self, task: TaskId) -> float:
        """Share of the window for which the task kept the loop of its worker busy; 0 if it was not measured."""
        measured = self.tasks.get(task)
        return measured.loop_seconds / self.window_seconds if measured and self.window_seconds > 0 else 0.0

    def arrival_rate(self, component: str) -> float:
        """λ: tuples per second that arrive at the component's tasks; for a spout, those that it emits."""
        if self.window_seconds <= 0:
            return 0.0
        arrived = [tuples for (source, target), tuples in self.traffic.items()
                   if target.component == component and source.component != ACKER]  # a spout hears of its roots
        emitted = (measured.emitted for task, measured in self.tasks.items() if task.component == component)
        return sum(arrived or emitted) / self.window_seconds

    def true_processing_rate(self, component: str) -> float | None:
        """μ: tuples per second that one task of the component processes while it is busy; None if none was busy."""
        own = [measured for task, measured in self.tasks.items() if task.component == component]
        busy = sum(measured.busy_seconds for measured in own)
        done = sum(measured.executed or measured.emitted for measured in own)
        return done / busy if busy > 0 and done else None

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON: tasks by name, traffic as [from, to, tuples] and [from, to, bytes]."""
        return {
            "window_seconds": self.window_seconds,
            "tasks": {str(task): msgspec.to_builtins(measured) for task, measured in self.tasks.items()},
            "traffic": [[str(source), str(target), tuples] for (source, target), tuples in self.traffic.items()],
            "traffic_bytes": [[str(source), str(target), size] for (source, target), size in self.traffic_bytes.items()],
            "settling": [str(task) for task in self.settling],
            "key_groups": {name: list(counts) for name, counts in self.key_groups.items()},
            "heavy_keys": {name: [list(key) for key in keys] for name, keys in self.heavy_keys.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Load:
        """Reads the output of `to_json`."""
        return cls(
            window_seconds=float(data["window_seconds"]),
            tasks={TaskId.parse(task): msgspec.convert(measured, TaskLoad) for task, measured in data["tasks"].items()},
            traffic={(TaskId.parse(source), TaskId.parse(target)): tuples for source, target, tuples in data["traffic"]},
            traffic_bytes={(TaskId.parse(source), TaskId.parse(target)): float(size)
                           for source, target, size in data.get("traffic_bytes", ())},
            settling=tuple(TaskId.parse(task) for task in data.get("settling", ())),
            key_groups={name: tuple(map(float, counts)) for name, counts in data.get("key_groups", {}).items()},
            heavy_keys={name: tuple(HeavyKey(str(key), int(group), float(tuples)) for key, group, tuples in keys)
                        for name, keys in data.get("heavy_keys", {}).items()},
        )
