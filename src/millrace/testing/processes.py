"""Runs workers as plain processes, without Spark, for process tests and quick experiments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from types import TracebackType
from typing import Any

from millrace.config import HISTORY
from millrace.master.service import Master
from millrace.model.graph import TopologyGraph, graph_of
from millrace.runtime.worker import process as worker_process
from millrace.runtime.worker.process import WorkerSetup, run_worker

START_SECONDS = 30.0


class ProcessCluster:
    """A master in this process and `workers` worker processes. `kill` sends SIGKILL; `start` starts a worker on a slot again.

    `apart`: every worker believes that it is on its own host, so that tuples are sent over tcp; needs `bind`. `nodes`: the
    workers are assigned to this number of nodes in turn.
    """

    def __init__(self, workers: int = 2, name: str | None = None, bind: str = "", apart: bool = False, nodes: int = 1,
                 **options: Any) -> None:
        settings = {HISTORY.key: "none", **(options.pop("settings", None) or {})}  # unless a test sets a history
        self.master = Master(name or f"test-{os.getpid()}-{time.monotonic_ns()}", settings=settings, **options)
        self.master.start()
        self._bind, self._apart, self._nodes = bind, apart, nodes
        self._spawn = multiprocessing.get_context("spawn")
        self.processes: dict[int, Any] = {}
        for slot in range(workers):
            self.start(slot)
        self.master.wait_for_workers(workers, START_SECONDS)

    def setup(self) -> WorkerSetup:
        return self.master.setup(self._bind)

    def start(self, slot: int) -> None:
        node = f"node{slot % self._nodes}" if self._nodes > 1 else ""
        process = self._spawn.Process(target=run_worker_on, args=(self.setup(), slot, node, self._apart), daemon=True)
        process.start()
        self.processes[slot] = process

    def kill(self, slot: int) -> None:
        process = self.processes.pop(slot)
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    def submit(self, topology: Any, **options: Any) -> TopologyGraph:
        graph = topology if isinstance(topology, TopologyGraph) else graph_of(topology, **options)
        self.master.submit(graph)
        return graph

    def __enter__(self) -> ProcessCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.master.stop()
        for process in self.processes.values():
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()


def run_worker_on(setup: WorkerSetup, slot: int, node: str, apart: bool) -> str:
    """Runs a worker that believes it is on this node and, if `apart`, alone on its host."""
    if node:
        os.environ["MILLRACE_NODE"] = node
    if apart:
        worker_process.boot_id = lambda: f"host of worker {slot}"
    return run_worker(setup, slot)
