"""Stores and sinks that are slow, down or lose something: waves are late, and every row is visible once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.errors import RowsLost, StoreUnreachable
from millrace.model.graph import TaskId
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast, Exact, expected_counts, expected_rows
from support.cluster.wave_runs import LIMIT, assert_exact, counts, finish, finish_at_least, start, until_wave, visible, waves

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


def test_a_store_that_is_down_delays_waves_and_not_the_stream() -> None:
    cluster = start()
    until_wave(cluster, 2)
    cluster.store.broken = StoreUnreachable("it is away: bring it back")
    done = counts(cluster).total()
    cluster.run_until(lambda: waves(cluster).abandoned >= 3)
    assert counts(cluster).total() > done
    assert len([text for text in cluster.said if "is abandoned and the stream continues" in text]) == 1  # reported once
    cluster.store.broken = None
    until_wave(cluster, 1)
    cluster.kill(1)
    finish(cluster)
    assert_exact()


def test_an_emptied_store_is_filled_again() -> None:
    cluster = start()
    cluster.run_until(lambda: counts(cluster).total() == 2 * LIMIT)
    until_wave(cluster, 2)  # state no longer changes: later waves refer to stored blobs
    cluster.store.blobs.clear()
    cluster.run_until(lambda: waves(cluster).abandoned >= 1)
    until_wave(cluster, 1)
    cluster.kill(0)
    finish(cluster)
    assert_exact()


def test_a_worker_dies_while_the_store_is_down() -> None:
    """Its state cannot be restored until the store is back; then the stream continues."""
    cluster = start()
    until_wave(cluster, 2)
    cluster.store.broken = StoreUnreachable("it is away: bring it back")
    cluster.kill(1)
    cluster.run(3.0)
    assert cluster.master.topologies["exact"].status == "starting"
    assert any("cannot restore the state of wave" in text and "bring it back" in text for text in cluster.said)
    cluster.store.broken = None
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("topology", [Exact, AtLeast])
@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.5])
def test_a_slow_store_costs_time_and_nothing_else(topology: Any, seconds: float) -> None:
    """The store takes longer than the master waits before it asks again. The spout has a snapshot too."""
    name = topology.__name__.lower()
    parts.SPOUTS_SNAPSHOT = True
    cluster = start(topology, limit=9000)
    cluster.store_seconds = seconds
    until_wave(cluster, 1, name)
    cluster.run(0.4)
    cluster.kill(1)
    until_wave(cluster, 1, name)
    cluster.store_seconds = 0.0
    if topology is Exact:
        finish(cluster)
        assert_exact(9000)
    else:
        finish_at_least(cluster, 9000)


def test_a_snapshot_that_fails_once_loses_nothing() -> None:
    """Keys that do not change again must be in the next snapshot."""
    cluster = start(limit=1000)
    cluster.run_until(lambda: counts(cluster).total() > 500)
    parts.FAIL_SNAPSHOT.append(OSError("not now"))
    cluster.run_until(lambda: not parts.FAIL_SNAPSHOT)
    cluster.run_until(lambda: counts(cluster).total() == 2000)
    until_wave(cluster, 2)
    cluster.kill(0)
    until_wave(cluster, 1)
    assert counts(cluster) == expected_counts(1000, 2)


def test_a_move_waits_for_a_store_that_is_down() -> None:
    cluster = start()
    until_wave(cluster, 2)
    cluster.store.broken = StoreUnreachable("it is away: bring it back")
    task = TaskId("tally", 0)
    home = cluster.where("exact")[task]
    cluster.move("exact", task, (home + 1) % 3)
    done = counts(cluster).total()
    cluster.run_until(lambda: waves(cluster).abandoned >= 3)
    assert counts(cluster).total() > done and cluster.where("exact")[task] == home
    cluster.store.broken = None
    cluster.run_until(lambda: cluster.where("exact")[task] != home)
    finish(cluster)
    assert_exact()


def test_a_failed_commit_of_a_sink_is_retried() -> None:
    cluster = start()
    parts.FAIL_COMMIT.update(range(1, 100))
    until_wave(cluster, 3)
    assert len(parts.FAIL_COMMIT) < 99, "none has failed"
    finish(cluster)
    assert_exact()


def test_a_failed_write_of_a_sink_rolls_back_to_the_last_wave() -> None:
    cluster = start()
    until_wave(cluster, 2)
    parts.FAIL_WRITE.append(OSError("the disk is full"))
    finish(cluster)
    assert_exact()
    assert any("could not write (OSError: the disk is full): rolled back to the last" in text for text in cluster.said)


def test_staged_rows_that_a_sink_has_lost_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a roll-back the next wave would be committed without them."""
    cluster = start()
    until_wave(cluster, 2)
    prepare, lost = parts.FakeLedger.prepare, []

    def lose_rows(sink: Any, wave: int) -> None:
        rows = [key for key in parts.STAGED if key[:3] == (sink.task_index, sink.epoch, -1)]
        if not lost and rows:
            lost.extend(parts.STAGED.pop(key) for key in rows)
            raise RowsLost("the disk has failed")
        prepare(sink, wave)

    monkeypatch.setattr(parts.FakeLedger, "prepare", lose_rows)
    finish(cluster)
    assert lost
    assert_exact()
    assert any("has lost staged rows (RowsLost: the disk has failed): rolled back to the last" in text for text in cluster.said)


def test_a_sink_may_be_down_for_long() -> None:
    """It fails repeatedly: no row is lost, and the pause before each retry grows."""
    cluster = start()
    until_wave(cluster, 2)
    parts.FAIL_WRITE.extend([OSError("the disk is full")] * 6)
    finish(cluster)
    assert_exact()
    assert any("back to the last committed wave, spouts continue in 2 s" in text for text in cluster.said)


def test_only_the_row_that_can_never_be_written_becomes_a_dead_letter() -> None:
    cluster = start(workers=2)
    parts.POISON.update([("k3", 1499), ("k9", 800)])
    finish(cluster)
    missing = expected_rows(LIMIT, 2) - visible()
    assert missing == Counter({row: 2 for row in parts.POISON if row in expected_rows(LIMIT, 2)})
    assert not visible() - expected_rows(LIMIT, 2)
    assert sum(worker.counters["dead_letters"] for worker in cluster.workers.values()) == missing.total() > 0
