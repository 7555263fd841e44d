"""A checkpoint store that hangs: memory stays bounded, waves are abandoned in time, and spouts wait until one is committed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.control.events import StoreManifest
from millrace.errors import StoreUnreachable
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast, Exact

FAILURES = 3


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    parts.forget()
    made = LocalCluster(2)
    monkeypatch.setattr(parts.Numbers, "clock", staticmethod(made.clock.now))
    monkeypatch.setattr(parts.Numbers, "wall_clock", staticmethod(made.clock.now))
    return made


def start(cluster: LocalCluster, topology: Any = Exact, **config: Any) -> None:
    """Start an endless stream, slow enough for a long virtual time, and commit two waves."""
    cluster.submit(topology, config={"rate": 200.0, "topology.checkpoint.max.failures": FAILURES, **config})
    cluster.run_until(lambda: state(cluster).waves.committed >= 2)


def state(cluster: LocalCluster) -> Any:
    [topology] = cluster.master.topologies.values()
    return topology


def snapshots_in_memory(cluster: LocalCluster) -> int:
    return sum(len(threads._storing) for threads in cluster._threads.values())


def positions(cluster: LocalCluster) -> list[int]:
    return [task.component._next_position for task in cluster.tasks("numbers")]


def finish(cluster: LocalCluster) -> None:
    """Every number that was sent is visible as often as there are paths; nothing else is."""
    cluster.stop("exact", wait=60)
    cluster.run_until(lambda: bool(cluster.ended))
    assert "exact: drained, and its last wave is committed" in cluster.said
    seen = Counter(number for _, number, _ in parts.VISIBLE)
    assert set(seen.values()) == {2}
    for spout in range(2):  # the numbers of a spout are every second one, without a gap
        mine = sorted(number for number in seen if number % 2 == spout)
        assert mine == list(range(spout, spout + 2 * len(mine), 2))


@pytest.mark.parametrize("topology", [Exact, AtLeast])
def test_every_task_has_at_most_one_snapshot_in_memory(cluster: LocalCluster, topology: Any) -> None:
    start(cluster, topology)
    cluster.store_hangs = True
    cluster.run_until(lambda: state(cluster).waves.abandoned >= 6, seconds=120)
    assert 0 < snapshots_in_memory(cluster) <= len(state(cluster).places)


def test_spouts_pause_after_failures_in_a_row_and_continue_by_themselves(cluster: LocalCluster) -> None:
    start(cluster)
    cluster.store_hangs = True
    cluster.run_until(lambda: state(cluster).spouts_wait, seconds=120)
    assert f"exact: {FAILURES} waves in a row have failed: its spouts wait until one is committed" in cluster.said
    cluster.run(0.1)
    before = positions(cluster)
    cluster.run(2.0)
    assert positions(cluster) == before
    assert state(cluster).waves.abandoned > FAILURES, "waves are still tried"
    cluster.store_hangs = False
    cluster.run_until(lambda: positions(cluster) > before)
    assert not state(cluster).spouts_wait
    assert "exact: a wave is committed again: its spouts continue" in cluster.said
    finish(cluster)


def test_a_worker_dies_while_the_spouts_wait(cluster: LocalCluster) -> None:
    """The state rolls back; the spouts wait on until a wave is committed."""
    start(cluster)
    cluster.store.broken = StoreUnreachable("no space left: make room")
    cluster.run_until(lambda: state(cluster).spouts_wait, seconds=120)
    cluster.store.broken = None
    cluster.store_hangs = True
    cluster.kill(1)
    cluster.start(1)
    cluster.run(1.0)
    assert state(cluster).spouts_wait
    cluster.store_hangs = False
    cluster.run_until(lambda: not state(cluster).spouts_wait and state(cluster).status == "running")
    cluster.run(0.5)
    finish(cluster)


def test_at_least_once_the_stream_continues(cluster: LocalCluster) -> None:
    start(cluster, AtLeast)
    cluster.store.broken = StoreUnreachable("no space left: make room")
    cluster.run_until(lambda: state(cluster).failed_waves > FAILURES, seconds=120)
    before = positions(cluster)
    cluster.run(0.5)
    assert all(now > then for now, then in zip(positions(cluster), before))


def test_without_a_limit_the_stream_continues(cluster: LocalCluster) -> None:
    start(cluster, **{"topology.checkpoint.max.failures": 0})
    cluster.store.broken = StoreUnreachable("no space left: make room")
    cluster.run_until(lambda: state(cluster).failed_waves > FAILURES, seconds=120)
    assert state(cluster).active


@pytest.mark.parametrize("later", [0.0, 1.0])
def test_a_manifest_that_is_not_written_in_time_abandons_its_wave(cluster: LocalCluster, later: float) -> None:
    """It is written late, before or after that of the next wave, and does no harm."""
    start(cluster)
    late: list[StoreManifest] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "_store", late.append)
        cluster.run_until(lambda: state(cluster).waves.abandoned >= 1, seconds=10)
    assert any("the checkpoint store has not written its manifest within 3 s" in text for text in cluster.said)
    cluster.run(later)
    for command in late:
        cluster._store(command)
    cluster.kill(0)
    cluster.start(0)
    cluster.run_until(lambda: state(cluster).status == "running")
    cluster.run(0.5)
    finish(cluster)


def test_a_killed_topology_ends_although_the_store_hangs(cluster: LocalCluster) -> None:
    start(cluster)
    cluster.store_hangs = True
    cluster.stop("exact", wait=1)
    cluster.run_until(lambda: bool(cluster.ended), seconds=10)
    assert any("killed as of wave" in text for text in cluster.said)
