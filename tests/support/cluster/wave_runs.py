"""Helpers to run the topologies of `wave_parts`, wave by wave and to their end, and to compare their rows with the truth."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from millrace.control.submission import Resume
from millrace.control.waves import IDLE
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import Exact, expected_counts, expected_rows

LIMIT = 3000


def start(topology: Any = Exact, workers: int = 3, limit: int = LIMIT, store: MemoryStore | None = None,
          resume: Resume = None, par: dict[str, int] | None = None, copies: Path | None = None,
          **config: Any) -> LocalCluster:
    cluster = LocalCluster(workers, nodes=workers, store=store, copies=copies)
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(cluster.clock.now)  # `rate` is in virtual time too
    cluster.submit(topology, resume=resume, config={"limit": limit, "rate": 3000.0, **config}, par=par)
    return cluster


def waves(cluster: LocalCluster, name: str = "exact") -> Any:
    return cluster.master.topologies[name].waves


def until_wave(cluster: LocalCluster, count: int = 1, name: str = "exact") -> None:
    target = waves(cluster, name).committed + count
    cluster.run_until(lambda: waves(cluster, name).committed >= target and waves(cluster, name).phase == IDLE)


def tasks(cluster: LocalCluster, component: str) -> list[Any]:
    """The started tasks of a component, without those of workers that are presumed dead and still run."""
    alive = {slot: view.address.generation for slot, view in cluster.master.workers.items()}
    return [task for task in cluster.tasks(component)
            if task.started and alive.get(task.worker.slot) == task.worker.generation]


def finish(cluster: LocalCluster, name: str = "exact") -> None:
    """Run until everything is sent, drained and committed."""
    def all_sent() -> bool:
        spouts = [task.component for task in tasks(cluster, "numbers")]
        return len(spouts) == 2 and all(spout.exhausted for spout in spouts)

    cluster.run_until(lambda: cluster.master.topologies[name].status == "running" and all_sent())
    until_wave(cluster, 1, name)  # by then the master has noticed every lost worker
    cluster.run_until(lambda: cluster.master.topologies[name].status == "running" and all_sent())
    cluster.stop(name, wait=100)
    cluster.run_until(lambda: name not in cluster.master.topologies)


def visible() -> Counter[Any]:
    return Counter((key, number) for key, number, *_ in parts.VISIBLE)


def assert_exact(limit: int = LIMIT, ways: int = 2) -> None:
    """Every row once, every count of every key once, and the counts of a key in order at each task of the sink."""
    assert visible() == expected_rows(limit, ways)
    for rows in parts.VISIBLE_BY_TASK.values():
        latest: dict[str, int] = {}
        for key, _, count in rows:
            assert latest.get(key, 0) < count, f"count {count} of {key} came after {latest[key]}"
            latest[key] = count
    last: dict[str, int] = {}
    for key, _, count in parts.VISIBLE:
        last[key] = max(last.get(key, 0), count)
    assert last == expected_counts(limit, ways)
    assert len({(key, count) for key, _, count in parts.VISIBLE}) == limit * ways  # each count of each key once


def counts(cluster: LocalCluster) -> Counter[str]:
    total: Counter[str] = Counter()
    for task in tasks(cluster, "tally"):
        total.update(dict(task.component.counts.items()))
    return total


def finish_at_least(cluster: LocalCluster, limit: int = LIMIT, name: str = "atleast", ways: int = 1) -> None:
    """Run until everything is acked: every row has come, and is counted on each of its ways at least once."""
    def all_acked() -> bool:
        spouts = [task.component for task in tasks(cluster, "numbers")]
        return len(spouts) == 2 and all(spout.exhausted and not spout.unacked_tuples for spout in spouts)

    def all_have_their_state() -> bool:
        """False while a move goes on: the new incarnation of a task has no state yet."""
        return len(tasks(cluster, "tally")) == sum(task.component == "tally" for task in cluster.where(name))

    cluster.run_until(lambda: cluster.master.topologies[name].status == "running" and all_acked() and all_have_their_state())
    counted, truth = counts(cluster), expected_counts(limit, ways)
    assert counted.keys() == truth.keys()
    assert all(counted[key] >= truth[key] for key in truth)
    assert {(key, number) for key, number, _ in parts.WRITTEN} == set(expected_rows(limit, 1))
