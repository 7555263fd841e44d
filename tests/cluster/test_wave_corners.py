"""Edge cases of waves: empty snapshots, sinks that write batches, late plans, requests during a call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.control.events import WaveRequested
from millrace.control.waves import COMMIT, IDLE, STORING
from millrace.errors import StoreUnreachable
from support.cluster import corner_parts as corners
from support.cluster import wave_parts as parts
from support.cluster.corner_parts import BatchedSink, Forgetful, Sometimes, ToBlocking
from support.cluster.wave_parts import AtLeast, expected_rows
from support.cluster.wave_runs import LIMIT, assert_exact, finish, finish_at_least, start, until_wave, visible, waves


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    corners.forget()
    with pytest.MonkeyPatch.context() as patch:  # the spout's clock is its own again afterwards
        patch.setattr(parts.Numbers, "clock", parts.Numbers.clock)
        yield


def test_an_empty_snapshot_replaces_the_previous_one() -> None:
    cluster = start(Forgetful)
    until_wave(cluster, 2, "forgetful")
    Sometimes.pending = None
    until_wave(cluster, 2, "forgetful")
    cluster.kill(cluster.where("forgetful")[cluster.tasks("sometimes")[0].name])
    until_wave(cluster, 1, "forgetful")
    assert corners.RESTORED == []
    finish(cluster, "forgetful")


def test_a_sink_that_writes_batches_loses_none_when_a_write_fails() -> None:
    cluster = start(BatchedSink)
    until_wave(cluster, 2, "batchedsink")
    parts.FAIL_WRITE.append(OSError("the disk is full"))
    finish(cluster, "batchedsink")
    assert visible() == expected_rows(LIMIT, 1)
    assert any("could not write" in text for text in cluster.said)


def test_at_least_once_no_wave_starts_before_all_workers_have_the_plan() -> None:
    """A survivor with the old plan would send the wave to a task that is gone."""
    cluster = start(AtLeast, **{"topology.checkpoint.timeout.secs": 500.0})
    until_wave(cluster, 2, "atleast")
    places = cluster.where("atleast")
    survivor = next(slot for task, slot in places.items() if task.component == "one")
    cluster.deaf.add(survivor)
    cluster.kill(next(slot for slot in (0, 1, 2) if slot != survivor))
    cluster.run(1.0)
    cluster.hear(survivor)
    until_wave(cluster, 2, "atleast")
    assert waves(cluster, "atleast").abandoned == 0
    finish_at_least(cluster)


def test_successive_abandoned_waves_leave_no_gap_in_the_checkpoint() -> None:
    """The store is slower than a wave may take, then fails: snapshots are refused meanwhile, and some of them are lost."""
    cluster = start(limit=3000, rate=300.0)
    until_wave(cluster, 1)
    cluster.store_seconds = 4.0
    cluster.run_until(lambda: waves(cluster).abandoned >= 2)
    cluster.store.broken = StoreUnreachable("it is away: bring it back")
    cluster.run(2.0)
    cluster.store.broken = None
    cluster.run(1.5)
    cluster.store_seconds = 0.0
    until_wave(cluster, 2)
    cluster.kill(1)
    finish(cluster)
    assert_exact(3000)


def test_a_commit_that_is_requested_during_the_last_call_of_a_blocking_sink_is_carried_out() -> None:
    """No input follows that would give the task another turn, and the master's repeated requests do not."""
    cluster = start(ToBlocking, workers=1, limit=2, rate=1.0)
    cluster.run_until(lambda: sum(map(len, parts.STAGED.values())) == 1)
    [ledger] = cluster.tasks("ledger")
    cluster.store_hangs = True
    cluster.tell(WaveRequested("toblocking"))
    cluster.run_until(lambda: waves(cluster, "toblocking").phase == STORING)
    cluster.calls_hang = True
    cluster.run_until(lambda: ledger.busy)  # with the second and last number
    cluster.store_hangs = False
    cluster.run_until(lambda: bool(ledger.waves.pending))
    cluster.run(3.0)
    assert ledger.busy and [mark.kind for mark in ledger.waves.pending] == [COMMIT] and not visible()
    cluster.calls_hang = False
    cluster.run_until(lambda: waves(cluster, "toblocking").phase == IDLE, seconds=5.0)
    assert visible() == expected_rows(1, 1), "the second number belongs to the next wave"
