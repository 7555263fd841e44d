"""Tasks are handed over while the stream runs: nothing is lost, repeated or reordered, and nothing else stops."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_once_in_order, at_rest, flaws, until_processed
from support.cluster.wave_runs import assert_exact, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
COMPONENTS = ("numbers", "one", "two", "tally", "ledger")


def move(cluster: LocalCluster, task: TaskId, name: str = "exact") -> None:
    """Move a task to the next worker and wait until it has arrived."""
    target = (cluster.where(name)[task] + 1) % len(cluster.workers)
    cluster.move(name, task, target)
    cluster.run_until(lambda: cluster.where(name)[task] == target and at_rest(cluster, name))


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("snapshots", [False, True])
def test_a_task_moves_within_its_epoch(component: str, snapshots: bool) -> None:
    parts.SPOUTS_SNAPSHOT = snapshots
    cluster = start()
    until_wave(cluster, 2)
    epoch = cluster.master.topologies["exact"].epoch
    for index in (0, 1, 0):
        move(cluster, TaskId(component, index))
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    until_wave(cluster, 1)
    assert cluster.master.topologies["exact"].epoch == epoch, cluster.said
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("topology", [parts.AtLeast, parts.AtMost])
@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
def test_nothing_is_lost_replayed_or_reordered_without_a_fault(topology: Any, component: str) -> None:
    name = topology.__name__.lower()
    cluster = start(topology)
    until_wave(cluster, 2, name)
    for index in (0, 1, 0):
        move(cluster, TaskId(component, index), name)
    until_processed(cluster)
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert_once_in_order(cluster)


def test_what_an_incarnation_has_counted_is_not_forgotten_with_it() -> None:
    cluster, task = start(), TaskId("tally", 0)
    until_wave(cluster, 1)
    old = next(each for each in tasks(cluster, "tally") if each.name == task)
    old.meters.gaps, old.meters.repeats = 2, 3
    move(cluster, task)
    cluster.run_until(lambda: old.ended)
    found = flaws(cluster)
    assert (found["lost"], found["repeated"]) == (2, 3)
