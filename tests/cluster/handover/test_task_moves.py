"""Tasks are handed over while the stream runs: nothing is lost, repeated or reordered, and nothing else stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.control.moves import RESTING
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.cluster_runs import counter
from support.cluster.wave_runs import LIMIT, assert_exact, counts, finish, start, tasks, until_wave

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


@pytest.mark.parametrize("topology", [parts.AtLeast, parts.AtMost])
@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
def test_nothing_is_lost_or_replayed_without_a_fault(topology: Any, component: str) -> None:
    name = topology.__name__.lower()
    cluster = start(topology)
    until_wave(cluster, 2, name)
    for index in (0, 1, 0):
        move(cluster, TaskId(component, index), name)
    cluster.run_until(lambda: all(task.component.exhausted and not task.component.unacked_tuples
                                  for task in tasks(cluster, "numbers")))
    cluster.run(0.5)
    assert meters(cluster) == {"gaps": 0, "repeats": 0, "replayed": 0} and counter(cluster, "stale") == 0
    assert counts(cluster) == parts.expected_counts(LIMIT, 1)
    assert Counter((key, number) for key, number, _ in parts.WRITTEN) == parts.expected_rows(LIMIT, 1)
