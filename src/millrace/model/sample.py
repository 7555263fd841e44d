"""The measurements of a cluster in one window, as one value for the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.model.frozen import FrozenMap
from millrace.model.load import Load, Percentiles
from millrace.model.plan import Plan
from millrace.model.prediction import Prediction


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker: the load of its process, the queue length of its tasks at the end of the window, and the share of the window
    in which its loop was busy with user code, routing, encoding and sending: near 1 it is saturated, even if a crowded machine
    gives it little CPU time. Turns of its loop, and pauses for Python's garbage collector, delay all its tasks; the percentiles
    are None if there were none, and in the history, which does not keep them."""

    node: str
    cpu_mhz: float = 0.0
    memory_mb: float = 0.0
    queue_length: int = 0
    busy: float = 0.0
    turn_ms: Percentiles | None = None
    collector_ms: Percentiles | None = None
    collections: int = 0


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One node: the resources that its workers used, and its capacity, without what other processes used."""

    cpu_mhz: float = 0.0
    capacity_mhz: float = 0.0
    memory_mb: float = 0.0
    memory_used_mb: float = 0.0
    others_mhz: float = 0.0


@dataclass(frozen=True, slots=True)
class WindowSample:
    """One window: its end (unix time) and length, loads, plans, predicted latencies and smoothed loads by topology, workers by
    slot number, nodes by name."""

    at: float
    seconds: float
    loads: Mapping[str, Load] = field(default_factory=FrozenMap)
    plans: Mapping[str, Plan] = field(default_factory=FrozenMap)
    workers: Mapping[int, WorkerLoad] = field(default_factory=FrozenMap)
    nodes: Mapping[str, NodeLoad] = field(default_factory=FrozenMap)
    predictions: Mapping[str, Prediction] = field(default_factory=FrozenMap)
    estimates: Mapping[str, Load] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        for name in ("loads", "plans", "workers", "nodes", "predictions", "estimates"):
            object.__setattr__(self, name, FrozenMap(getattr(self, name)))
