"""Workers forked from a process that has already imported everything, as Spark's daemon does: they start at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from millrace.runtime import node
from millrace.testing.processes import ProcessCluster, run_worker_on
from support.patience import wait_for_late_heartbeats

CORES = 2  # of the node of a forked worker

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["millrace.testing.processes", "millrace.workloads.audit"])


class ForkedCluster(ProcessCluster):
    """A ProcessCluster of forked workers."""

    def start(self, slot: int) -> None:
        node = f"node{slot % self._nodes}" if self._nodes > 1 else ""
        self.processes[slot] = forked(run_worker_on, self.setup(), slot, node, self._apart)

    def kill(self, slot: int) -> None:
        """Kill -9. A dead worker has already been collected by the process that forked it."""
        process = self.processes.pop(slot)
        process.kill()
        process.join()

    def make_whole(self, slots: int, seconds: float) -> None:
        """Start the workers that are missing or have ended, and end the topologies that a failed test has left."""
        for slot in range(slots):
            if slot not in self.processes or not self.processes[slot].is_alive():
                self.start(slot)
        self.master.wait_for_workers(slots, seconds)
        for name in list(self.master.state.topologies):
            self.master.kill(name, wait=0)
        assert self.master.wait_until(lambda: not self.master.state.topologies, seconds)


def forked(target: Callable[..., object], *arguments: Any) -> Any:
    """Starts a process that runs `target`."""
    process = _FORKING.Process(target=_run_in, args=(dict(os.environ), target, arguments), daemon=True)
    process.start()
    return process


def _run_in(environment: dict[str, str], target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Uses the test's environment and patience: the forking process still has what it was started with."""
    os.environ.clear()
    os.environ.update(environment)
    wait_for_late_heartbeats()
    node._cores = lambda: CORES  # plans must not depend on the machine, nor on what else runs there
    node._busy = lambda times: 0.0
    target(*arguments)
