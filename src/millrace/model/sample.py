"""All that was measured of a cluster in one window of time, as one value: what the history keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.model.frozen import FrozenMap
from millrace.model.load import Load
from millrace.model.plan import Plan


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker: its process as a whole, what waited in the inboxes of its tasks at the end of the window, and the share
    of the window that its loop spent in user code: near 1 it has no time left, even on a machine so crowded that the CPU
    time is small."""

    node: str
    cpu_mhz: float = 0.0
    memory_mb: float = 0.0
    queue_length: int = 0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One node: what its workers used, and what it has."""

    cpu_mhz: float = 0.0
    capacity_mhz: float = 0.0
    memory_mb: float = 0.0
    memory_used_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class WindowSample:
    """One window: when it ended (unix time), how long it was, and by topology the load and the plan in force; workers by
    slot number, nodes by name."""

    at: float
    seconds: float
    loads: Mapping[str, Load] = field(default_factory=FrozenMap)
    plans: Mapping[str, Plan] = field(default_factory=FrozenMap)
    workers: Mapping[int, WorkerLoad] = field(default_factory=FrozenMap)
    nodes: Mapping[str, NodeLoad] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        for name in ("loads", "plans", "workers", "nodes"):
            object.__setattr__(self, name, FrozenMap(getattr(self, name)))
