"""A cluster in one process with the master's scheduling loop, which keeps its history in a SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millrace.api.topology import Topology
from millrace.control.events import Say
from millrace.control.submission import Resume
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.model.graph import TopologyGraph, graph_of
from support.cluster.plain_parts import Numbers, Pass
from support.load.measured_cluster import MeasuredCluster

WINDOW_SECONDS = 0.1


class Flow(Topology):
    numbers = Numbers.spec()
    passed = Pass.spec(inputs=[numbers], par=2)


class ScheduledCluster(MeasuredCluster):
    """Stands for the master in front of `SchedulingLoop`. A second one with the same file is the next master of the cluster."""

    def __init__(self, history: Path, workers: int = 2, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(workers, **options)
        self.loop = SchedulingLoop("c", {"history.url": f"sqlite:///{history}", **(settings or {})}, self)

    @property
    def state(self) -> Any:
        return self.master

    def processes(self) -> Mapping[int, Any]:
        """None: the workers' own CPU and memory are not measured."""
        return {}

    def say(self, message: Say) -> None:
        self.said.append(f"{message.topology}: {message.text}" if message.topology else message.text)
        self.events.append(message)

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def submit(self, topology: Any, resume: Resume = None, **options: Any) -> TopologyGraph:
        graph = graph_of(topology, **options)
        self.loop.resume(graph)
        return super().submit(graph, resume)

    def windows(self, count: int = 1) -> None:
        """Let so many load windows pass."""
        for _ in range(count):
            self.run(WINDOW_SECONDS)
            self._report()
            self.loop.end_window(self.loop._monitor.since + WINDOW_SECONDS)

    def end(self) -> None:
        """End the master; what it has recorded is in the file."""
        self.loop.close()
