"""The figures of a simulated run, in all and over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.schedulers.problem import Floats


@dataclass(frozen=True)
class Window:
    """One window. `latency_ms`, `offered`: of each topology."""

    seconds: float
    inter_node: float
    nodes_used: float
    overloaded_seconds: float
    moves: int
    latency_ms: Floats
    offered: Floats  # tuples per second


@dataclass
class Run:
    """One scheduler over the whole time. `plans`: those enacted. `error`: the first failure of the scheduler, or empty."""

    scheduler: str
    nodes: int
    tasks: int
    windows: list[Window] = field(default_factory=list)
    plans: int = 0
    lost: int = 0  # tasks that lost their worker
    error: str = ""

    @property
    def seconds(self) -> float:
        return sum(window.seconds for window in self.windows)

    def mean(self, name: str) -> float:
        """The mean of a figure over time."""
        return sum(getattr(window, name) * window.seconds for window in self.windows) / self.seconds

    def latency_ms(self, percentile: float) -> float:
        """A percentile of the mean latencies of all topologies in all windows, weighted by the tuples that were offered. Single
        tuples of a window may take much longer than its mean."""
        latency = np.concatenate([window.latency_ms for window in self.windows])
        weight = np.concatenate([window.offered * window.seconds for window in self.windows])
        order = np.argsort(latency)
        reached = np.cumsum(weight[order])
        return float(latency[order][np.searchsorted(reached, percentile / 100 * reached[-1])]) if reached[-1] else 0.0

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Plain data. `seconds`: that the simulation took."""
        return {"scheduler": self.scheduler, "nodes": self.nodes, "tasks": self.tasks, "hours": self.seconds / 3600,
                "inter_node_mean": self.mean("inter_node"), "moves": sum(window.moves for window in self.windows),
                "plans": self.plans, "overload_s": sum(window.overloaded_seconds for window in self.windows),
                "p50_ms": self.latency_ms(50), "p99_ms": self.latency_ms(99), "nodes_used_mean": self.mean("nodes_used"),
                "seconds": seconds}
