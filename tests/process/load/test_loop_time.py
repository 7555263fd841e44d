"""The time in which the loop of a real worker had something to do."""

from __future__ import annotations

from pathlib import Path

from millrace.master.load.monitor import WorkerMeters
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, AuditedStream, assert_nothing_lost


def meters(cluster: ForkedCluster) -> WorkerMeters:
    found = cluster.master.connections[0].meters
    assert found is not None
    return found


def test_the_loop_is_busy_for_longer_than_its_tasks_are_in_user_code(tmp_path: Path) -> None:
    with ForkedCluster(1, settings={"history.url": "none"}) as cluster:
        assert cluster.master.wait_until(lambda: cluster.master.connections[0].meters is not None, SECONDS)
        first = meters(cluster)
        assert cluster.master.wait_until(lambda: meters(cluster).at > first.at + 1.0, SECONDS)
        idle = meters(cluster)
        assert 0 < idle.loop_seconds - first.loop_seconds < idle.at - first.at, "it sleeps without tasks"
        stream = AuditedStream(cluster.master, tmp_path)
        stream.advance(1000)
        tasks = cluster.master.observed[stream.name].tasks
        in_user_code = sum(task.total("busy_seconds") for task in tasks.values())
        assert meters(cluster).loop_seconds - idle.loop_seconds > in_user_code > 0
        assert cluster.master.wait_until(lambda: meters(cluster).delays.turns.count > 0, SECONDS), "a new window may have none"
        assert_nothing_lost(stream.finish())
