"""Runs a workload on a LocalCluster in virtual time, so that a test can break it and compare its sink with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.api.topology import Topology
from millrace.control.waves import IDLE
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import errors

NAME = "workload"


class WorkloadRun:
    """A topology with one spout component, of which each task is to send the number of positions in `sent`."""

    def __init__(self, topology: type[Topology], path: Path, guarantee: str, sent: dict[int, int],
                 cluster: LocalCluster | None = None, **config: Any) -> None:
        self.cluster = cluster or LocalCluster(workers=3, nodes=3, settings={"recovery.grace.secs": 0.1})
        graph = self.cluster.submit(topology, name=NAME, config={
            "limit": sum(sent.values()), "path": str(path), "topology.guarantee": guarantee,
            "topology.checkpoint.interval.secs": 0.2, "topology.message.timeout.secs": 5.0, **config})
        self._sent = {TaskId(graph.spouts[0].name, task): positions for task, positions in sent.items()}
        self.cluster.run_until(lambda: self.state.status == "running")

    @property
    def state(self) -> Any:
        return self.cluster.master.topologies[NAME]

    def until_sent(self, share: float = 1.0) -> None:
        """Wait until every task of the spout has sent this share."""
        self.cluster.run_until(lambda: all(self.state.positions.get(task, 0) >= share * positions
                                           for task, positions in self._sent.items()))

    def until_processed(self) -> None:
        """Wait until everything is sent, and for a wave that has begun after that."""
        self.until_sent()
        waves = self.state.waves
        target = waves.committed + 2
        self.cluster.run_until(lambda: waves.committed >= target and waves.phase == IDLE)

    def move(self, task: TaskId) -> None:
        """Move a task to another worker and wait until it is there."""
        before = self.cluster.where(NAME)[task]
        target = next(slot for slot in self.cluster.workers if slot != before)
        self.cluster.move(NAME, task, target)
        self.cluster.run_until(lambda: self.cluster.where(NAME)[task] == target)

    def kill_worker_of(self, task: TaskId) -> None:
        self.cluster.kill(self.cluster.where(NAME)[task])

    def end(self) -> None:
        self.cluster.stop(NAME, wait=100)
        self.cluster.run_until(lambda: NAME not in self.cluster.master.topologies)
        assert not errors(self.cluster)
