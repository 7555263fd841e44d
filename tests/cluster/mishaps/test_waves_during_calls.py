"""Requests of waves that come while a blocking task is in a call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.control.events import Paused, Ticked, WaveRequested
from millrace.control.waves import IDLE, PREPARE, ROLLBACK
from millrace.testing.local_cluster import LocalCluster
from support.cluster import blocking_parts, wave_parts
from support.cluster.blocking_parts import Blocking
from support.cluster.wave_runs import LIMIT, assert_exact, start, until_wave, waves

NAME = "blocking"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    wave_parts.forget()
    blocking_parts.DURING.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wave_parts.Numbers, "clock", wave_parts.Numbers.clock)
        yield


def started() -> LocalCluster:
    """A cluster that has committed its first wave, and begins others only at request."""
    cluster = start(Blocking, **{"topology.checkpoint.interval.secs": 1000.0})
    until_wave(cluster, 1, NAME)
    return cluster


def begin_wave(cluster: LocalCluster) -> None:
    cluster.tell(WaveRequested(NAME))
    cluster.tell(Ticked(cluster.clock.now()))
    assert waves(cluster, NAME).phase == PREPARE
    for worker in cluster.workers.values():  # their loops turn while a call is being made
        worker.step()


def test_a_spout_prepares_a_wave_that_was_requested_during_its_last_call() -> None:
    """The paused spout has nothing else to do after `deactivate`."""
    cluster = started()
    blocking_parts.DURING["deactivate"] = lambda: begin_wave(cluster)
    cluster.tell(Paused(NAME))
    until_wave(cluster, 1, NAME)
    assert waves(cluster, NAME).abandoned == 0


def test_a_snapshot_that_outlasts_its_wave_is_not_deleted() -> None:
    """Later checkpoints need it: no tuple comes that would change the state again."""
    cluster = started()
    cluster.run_until(lambda: sum(task.component.seen for task in cluster.tasks("tally")) == 2 * LIMIT)

    def outlast_the_wave() -> None:
        cluster.clock.advance(100.0)
        cluster.tell(Ticked(cluster.clock.now()))
        assert waves(cluster, NAME).phase == ROLLBACK

    blocking_parts.DURING["snapshot"] = outlast_the_wave
    begin_wave(cluster)
    cluster.run_until(lambda: waves(cluster, NAME).abandoned == 1 and waves(cluster, NAME).phase == IDLE)
    cluster.tell(WaveRequested(NAME))
    until_wave(cluster, 1, NAME)
    assert waves(cluster, NAME).abandoned == 1
    cluster.kill(1)
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running")
    cluster.stop(NAME)
    cluster.run_until(lambda: NAME not in cluster.master.topologies)
    assert_exact()
