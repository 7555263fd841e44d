"""A task moves again as soon as it has arrived, although other workers do not know of its last move yet: nothing is lost or
repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.cluster_runs import counter
from support.cluster.wave_runs import LIMIT, assert_exact, counts, finish, start, tasks, until_wave

TALLY = TaskId("tally", 0)
APART = 4  # the worker with the sinks and nothing else
ROUTE = (0, 1, 2, 3, 0, 2)


@pytest.fixture(autouse=True)
def _fresh_parts() -> Iterator[None]:
    parts.forget()
    yield
    parts.forget()


def name_of(topology: Any) -> str:
    return str(topology.__name__.lower())


def at_rest(cluster: LocalCluster, name: str) -> bool:
    return cluster.master.topologies[name].handover.at_rest


def with_sinks_apart(topology: Any) -> LocalCluster:
    """A cluster in which one worker has the sinks and nothing else, and the first task of the tally is on worker 3."""
    name = name_of(topology)
    cluster = start(topology, workers=5)
    until_wave(cluster, 1, name)
    for task, slot in cluster.where(name).items():
        target = APART if task.component == "ledger" else 3 if task == TALLY else slot % APART
        if target != slot:
            cluster.move(name, task, target)
    cluster.run_until(lambda: at_rest(cluster, name))
    assert {task.component for task, slot in cluster.where(name).items() if slot == APART} == {"ledger"}
    return cluster


def travel(cluster: LocalCluster, name: str) -> None:
    for slot in ROUTE:
        cluster.move(name, TALLY, slot)
        cluster.run_until(lambda: at_rest(cluster, name))
        assert cluster.where(name)[TALLY] == slot, cluster.said


def assert_undisturbed(cluster: LocalCluster, topology: Any, epoch: int) -> None:
    """Run to the end: every tuple once, and no roll-back, gap or replay."""
    name = name_of(topology)
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    if topology is not parts.Exact:
        cluster.run_until(lambda: not any(task.component.unacked_tuples for task in tasks(cluster, "numbers")))
        cluster.run(0.5)
    meters = {kind: sum(getattr(task.meters, kind) for worker in cluster.workers.values()
                        for run in worker.topologies.values() for task in run.everyone())
              for kind in ("gaps", "repeats", "replayed", "failed")}
    assert not any(meters.values()), meters
    assert counter(cluster, "stale") == 0
    assert cluster.master.topologies[name].epoch == epoch, cluster.said
    if topology is parts.Exact:
        finish(cluster)
        assert_exact()
    else:
        assert counts(cluster) == parts.expected_counts(LIMIT, 1)
        assert Counter((key, number) for key, number, _ in parts.WRITTEN) == parts.expected_rows(LIMIT, 1)


@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast, parts.AtMost])
def test_a_receiver_misses_every_plan_but_the_last(topology: Any) -> None:
    name = name_of(topology)
    cluster = with_sinks_apart(topology)
    epoch = cluster.master.topologies[name].epoch
    cluster.deaf.add(APART)
    travel(cluster, name)
    cluster.hear(APART)
    assert_undisturbed(cluster, topology, epoch)
