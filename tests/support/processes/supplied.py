"""Workers as real processes that start again when they end, as on Spark."""

from __future__ import annotations

import threading

from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS


class SuppliedWorkers:
    """Starts a worker's process again when it ends, as Spark does, until its slot is released."""

    def __init__(self, cluster: ForkedCluster) -> None:
        self._cluster, self._released = cluster, set[int]()
        for slot in cluster.processes:
            self._keep(slot)

    def _keep(self, slot: int) -> None:
        threading.Thread(target=self._start_again, args=(slot,), daemon=True).start()

    def _start_again(self, slot: int) -> None:
        while self._cluster.master.state.wants(slot):
            self._cluster.processes[slot].join()
            if slot in self._released or not self._cluster.master.state.wants(slot):
                return
            self._cluster.start(slot)

    def slots(self) -> frozenset[int]:
        return frozenset(self._cluster.processes.keys() - self._released)

    def add(self, count: int) -> tuple[int, ...]:
        slots = tuple(range(len(self._cluster.processes), len(self._cluster.processes) + count))
        for slot in slots:
            self._cluster.start(slot)
            self._keep(slot)
        return slots

    def release(self, slot: int, executor: str) -> bool:
        self._released.add(slot)
        self._cluster.processes[slot].join(SECONDS)
        return False

    def __enter__(self) -> SuppliedWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self._released |= self._cluster.processes.keys()
