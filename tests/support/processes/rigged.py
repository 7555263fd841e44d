"""Workers whose code is changed before they start, to fail at a chosen step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.runtime.worker.process import WorkerSetup
from millrace.testing.processes import run_worker_on
from support.processes.forked import ForkedCluster, forked


class RiggedCluster(ForkedCluster):
    """A cluster whose workers call `rig` with the arguments before they start."""

    def __init__(self, workers: int, nodes: int, rig: Callable[..., None], *arguments: object, **options: Any) -> None:
        self._rig, self._arguments = rig, arguments
        super().__init__(workers, nodes=nodes, **options)

    def start(self, slot: int) -> None:
        node = f"node{slot % self._nodes}"
        self.processes[slot] = forked(_run_rigged, self._rig, self._arguments, self.setup(), slot, node)


def _run_rigged(rig: Callable[..., None], arguments: tuple[object, ...], setup: WorkerSetup, slot: int, node: str) -> str:
    rig(*arguments)
    return run_worker_on(setup, slot, node, False)
