"""Tasks are handed over while the stream runs: nothing is lost, repeated or reordered, and nothing else stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.control.moves import RESTING
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.cluster_runs import counter
from support.cluster.wave_runs import assert_exact, finish, start, until_wave

COMPONENTS = ("numbers", "one", "two", "tally", "ledger")


@pytest.fixture(autouse=True)
def _fresh_parts() -> Iterator[None]:
    parts.forget()
    yield
    parts.forget()


def move(cluster: LocalCluster, task: TaskId, name: str = "exact") -> None:
    """Move a task to the next worker and wait until it has arrived."""
    target = (cluster.where(name)[task] + 1) % len(cluster.workers)
    cluster.move(name, task, target)
    cluster.run_until(lambda: cluster.where(name)[task] == target and resting(cluster, name))


def resting(cluster: LocalCluster, name: str = "exact") -> bool:
    handover = cluster.master.topologies[name].handover
    return handover.phase == RESTING and not handover.waiting


def meters(cluster: LocalCluster) -> dict[str, int]:
    return {name: sum(getattr(task.meters, name) for worker in cluster.workers.values() for run in worker.topologies.values()
                      for task in run.everyone()) for name in ("gaps", "repeats", "replayed")}


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("snapshots", [False, True])
def test_a_task_moves_within_its_epoch(component: str, snapshots: bool) -> None:
    parts.SPOUTS_SNAPSHOT = snapshots
    cluster = start()
    until_wave(cluster, 2)
    epoch = cluster.master.topologies["exact"].epoch
    for index in (0, 1, 0):
        move(cluster, TaskId(component, index))
    assert meters(cluster) == {"gaps": 0, "repeats": 0, "replayed": 0} and counter(cluster, "stale") == 0
    until_wave(cluster, 1)
    assert cluster.master.topologies["exact"].epoch == epoch, cluster.said
    finish(cluster)
    assert_exact()
