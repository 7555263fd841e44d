"""Workers forked from one process that has imported everything, as Spark's daemon forks its own: they are there at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from millrace.testing.processes import ProcessCluster, run_worker_on

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["millrace.testing.processes", "millrace.workloads.audit"])


class ForkedCluster(ProcessCluster):
    """A ProcessCluster of such workers."""

    def start(self, slot: int) -> None:
        node = f"node{slot % self._nodes}" if self._nodes > 1 else ""
        self.processes[slot] = forked(run_worker_on, self.setup(), slot, node, self._apart)

    def kill(self, slot: int) -> None:
        """As the other's, but one that is dead already has been collected by the process that forked it."""
        process = self.processes.pop(slot)
        process.kill()
        process.join()


def forked(target: Callable[..., object], *arguments: Any) -> Any:
    """A process that runs `target`, started."""
    process = _FORKING.Process(target=_run_in, args=(dict(os.environ), target, arguments), daemon=True)
    process.start()
    return process


def _run_in(environment: dict[str, str], target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """The process that forks has the environment of the time when it was started itself; a test may have set another one."""
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
