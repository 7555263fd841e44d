"""A topology's driver and workers as processes without Spark, which can be killed and resumed under the same name."""

from __future__ import annotations

import multiprocessing
import shutil
from multiprocessing.connection import Connection
from pathlib import Path

from millrace.config import CHECKPOINTS
from millrace.master.requests.server import request_directory
from millrace.master.service import Master
from millrace.model.graph import TopologyGraph
from millrace.runtime.worker.process import WorkerSetup, run_worker
from support.processes.forked import forked

WORKERS = 2
START_SECONDS = 120.0


def serve(pipe: Connection, name: str, store: str, graph: TopologyGraph, resume: bool) -> None:
    """The driver: a master with the topology, until it is killed."""
    master = Master(name, settings={CHECKPOINTS.key: store})
    master.start()
    pipe.send(master.setup())
    master.wait_for_workers(WORKERS, START_SECONDS)
    master.submit(graph, resume=resume)
    pipe.send("submitted")
    pipe.recv()
    master.stop()


class DriverProcess:
    """The driver's process and its workers."""

    def __init__(self, name: str, store: Path, graph: TopologyGraph, resume: bool) -> None:
        self.name = name
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = forked(serve, theirs, name, str(store), graph, resume)
        assert self._pipe.poll(START_SECONDS)
        self._setup: WorkerSetup = self._pipe.recv()
        self._workers = [forked(run_worker, self._setup, slot) for slot in range(WORKERS)]

    def submitted(self, seconds: float) -> None:
        """Wait until the topology is submitted."""
        assert self._pipe.poll(seconds) and self._pipe.recv() == "submitted"

    def kill(self) -> None:
        """Kill -9, of the workers too: those of a killed driver end by themselves, but later."""
        for process in [self._process, *self._workers]:
            process.kill()
            process.join()

    def close(self) -> None:
        """Kill everything, and remove what a killed driver leaves behind."""
        self.kill()
        shutil.rmtree(self._setup.directory(), ignore_errors=True)
        for path in request_directory().glob(f"{self.name}.*"):
            path.unlink()
