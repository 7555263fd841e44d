"""A cluster in one process whose topologies are scaled by themselves, by loads that the test makes up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import Queue
from typing import Any

from millrace.control.events import Say
from millrace.control.submission import Resume
from millrace.elastic.elastic_decision import ElasticDecision
from millrace.master.scheduling.elastic import Elasticity
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Latency, Load, TaskLoad
from millrace.model.sample import WindowSample
from millrace.testing.local_cluster import LocalCluster

WINDOW_SECONDS = 5.0
WAIT_SECONDS = 60.0  # a safety limit


class ElasticCluster(LocalCluster):
    """Stands for the master in front of `Elasticity`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owner, self._handed_over = threading.current_thread(), Queue[tuple[Callable[[], Any], Future[Any]]]()
        self.decisions: dict[int, ElasticDecision] = {}
        self.elastic = Elasticity(self, lambda decision: self.decisions.update({decision.number: decision}))

    def submit(self, topology: Any, resume: Resume = None, **options: Any) -> TopologyGraph:
        graph = super().submit(topology, resume, **options)
        self.elastic.resume(graph.name)
        return graph

    @property
    def state(self) -> Any:
        return self.master

    def say(self, message: Say) -> None:
        self.said.append(f"{message.topology}: {message.text}")
        self.events.append(message)

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work; from another thread, when the test calls `answer_call`."""
        if threading.current_thread() is self._owner:
            return work()
        future: Future[Any] = Future()
        self._handed_over.put((work, future))
        return future.result(timeout=WAIT_SECONDS)

    def answer_call(self) -> None:
        """Wait for the next call from another thread, and answer it."""
        work, future = self._handed_over.get(timeout=WAIT_SECONDS)
        future.set_result(work())

    def window(self, loads: Mapping[str, Load]) -> None:
        """Let a window with these loads pass, by topology."""
        self.run(WINDOW_SECONDS)
        sample = self.elastic.predict(WindowSample(self.clock.wall(), WINDOW_SECONDS, loads))
        self.elastic.end_window(self.clock.now(), sample)


def load_of_line(graph: TopologyGraph, rate: float, service_seconds: float) -> Load:
    """The load of a spout that offers `rate` tuples a second and a bolt that takes `service_seconds` for each, up to what its
    tasks can do."""
    spout, bolt = graph.spouts[0], graph.bolts[0]
    done = min(rate, 0.98 * bolt.par / service_seconds) * WINDOW_SECONDS
    took = Latency(*(1000 * service_seconds,) * 3)
    each = TaskLoad(executed=int(done / bolt.par), busy_seconds=done / bolt.par * service_seconds, process_latency_ms=took)
    source = TaskLoad(emitted=int(done / spout.par), offered=int(rate * WINDOW_SECONDS / spout.par), lag=0, busy_seconds=0.1)
    sources = [TaskId(spout.name, index) for index in range(spout.par)]
    workers = [TaskId(bolt.name, index) for index in range(bolt.par)]
    return Load(WINDOW_SECONDS, {**dict.fromkeys(sources, source), **dict.fromkeys(workers, each)},
                {(one, other): done / spout.par / bolt.par for one in sources for other in workers})
