"""Workers as real processes are removed and restarted on purpose, under load, and the output stays exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.control.moving.slots import EVACUATE, STOP
from millrace.errors import MillraceError, NotEnoughSlots
from millrace.master.requests.client import ask
from support.processes.family import alive
from support.processes.forked import ForkedCluster
from support.processes.supplied import SuppliedWorkers
from support.topologies.audited import SECONDS, AuditedStream, StatefulStream, assert_all_exact, assert_exact

SLOTS = 3


@pytest.fixture
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS) as cluster, SuppliedWorkers(cluster) as supply:
        cluster.master.pool.supply = supply
        yield cluster


def pid_of(cluster: ForkedCluster, slot: int) -> int:
    return cluster.master.connections[slot].hello.pid


def test_restarted_added_and_removed_under_load(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path, rate=1000)
    stream.wave(2)
    epoch, old = stream.state.epoch, pid_of(cluster, 1)
    answer = cluster.master.restart_worker(1)
    assert (answer["old_pid"], answer["new_pid"]) == (old, pid_of(cluster, 1)) and answer["new_pid"] != old and not alive(old)
    assert 1 in stream.slots()
    assert cluster.master.add_workers(1)["slots"] == [3]
    removed = pid_of(cluster, 0)
    assert cluster.master.remove_worker(0)["pid"] == removed and not alive(removed)
    assert [row["slot"] for row in ask(cluster.master.name, "workers")] == [1, 2, 3]
    assert 0 not in stream.slots()
    stream.wave(2)
    assert (stream.state.epoch, stream.state.losses) == (epoch, 0), stream.story()
    assert_all_exact(stream.finish_both())


def test_at_least_once_nothing_is_repeated(cluster: ForkedCluster, tmp_path: Path) -> None:
    """Ackers and spouts are handed over, too."""
    stream = AuditedStream(cluster.master, tmp_path, rate=1000)
    stream.advance(500)
    cluster.master.restart_worker(0)
    stream.advance(500)
    cluster.master.remove_worker(2)
    stream.advance(500)
    assert stream.state.losses == 0
    assert_exact(stream.finish())


@pytest.mark.parametrize("phase", [EVACUATE, STOP])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_worker_is_killed_while_it_leaves(cluster: ForkedCluster, tmp_path: Path, phase: str, restarts: bool) -> None:
    stream = StatefulStream(cluster.master, tmp_path, rate=1000)
    stream.wave(1)
    pid = pid_of(cluster, 1)
    pool = cluster.master.pool
    answer = cluster.master.call(lambda: (pool.restart if restarts else pool.remove)(1))
    leaves = cluster.master.state._slots._leaves

    def killed_in_phase() -> bool:
        if leaves[1].phase != phase:
            return False
        os.kill(pid, signal.SIGKILL)  # on the master's thread, so that the phase cannot be missed
        return True

    stream.until(killed_in_phase)
    assert answer.result(SECONDS)["slot"] == 1
    assert (1 in cluster.master.state.workers) is restarts
    stream.wave(2)
    assert_all_exact(stream.finish_both())


def test_refused(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = AuditedStream(cluster.master, tmp_path, rate=500)
    places = stream.state.plan.placement
    with pytest.raises(MillraceError, match="there is no worker 8; there are 0, 1, 2"):
        ask(cluster.master.name, "workers restart", slot=8)
    cluster.master.pool.supply = None
    with pytest.raises(MillraceError, match="this cluster has no workers of its own"):
        ask(cluster.master.name, "workers add", count=1)
    assert stream.state.plan.placement == places
    stream.end()


def test_the_last_worker_is_not_removed(cluster: ForkedCluster) -> None:
    for slot in (0, 1):
        cluster.master.remove_worker(slot)
    with pytest.raises(NotEnoughSlots, match="worker 2 cannot be removed: no other worker is there"):
        cluster.master.remove_worker(2)
    assert sorted(cluster.master.state.workers) == [2]
