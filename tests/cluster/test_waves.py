"""Waves on a whole cluster in one process, and workers and messages that are lost. The output is compared with independently
computed rows."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.control.events import Paused, Unpaused, WaveRequested
from millrace.control.waves import IDLE
from millrace.errors import StoreUnreachable, TopologyError
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast, AtMost, Batched, NotReplayable, expected_counts, expected_rows
from support.cluster.wave_runs import (
    LIMIT,
    assert_exact,
    counts,
    finish,
    finish_at_least,
    start,
    tasks,
    until_wave,
    visible,
    waves,
)
from support.examples import examples

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


def test_without_faults_every_row_is_visible_once() -> None:
    cluster = start()
    until_wave(cluster, 3)
    assert 0 < sum(visible().values()) < 2 * LIMIT  # rows become visible with the waves, not at the end
    finish(cluster)
    assert_exact()
    assert not parts.STAGED


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_worker_dies(slot: int) -> None:
    cluster = start()
    until_wave(cluster, 2)
    cluster.run(0.05)
    cluster.kill(slot)
    until_wave(cluster, 2)
    finish(cluster)
    assert_exact()
    assert any("every task has restored the state of wave" in text for text in cluster.said)


def test_a_worker_dies_before_the_first_wave_is_committed() -> None:
    cluster = start()
    cluster.store.broken = StoreUnreachable("it is away: bring it back")
    cluster.run_until(lambda: counts(cluster).total() > 100)
    assert waves(cluster).committed == 0
    cluster.kill(1)
    cluster.run(3.0)
    assert cluster.master.topologies["exact"].status == "starting"  # nothing is discarded before the store is updated
    cluster.store.broken = None
    finish(cluster)
    assert_exact()


def test_all_workers_but_one_die_and_come_back() -> None:
    cluster = start()
    until_wave(cluster, 2)
    cluster.kill(0)
    cluster.kill(1)
    until_wave(cluster, 1)
    cluster.start(0)
    cluster.start(1)
    until_wave(cluster, 2)
    finish(cluster)
    assert_exact()


def test_all_workers_die() -> None:
    cluster = start()
    until_wave(cluster, 2)
    for slot in (0, 1, 2):
        cluster.kill(slot)
    assert cluster.master.topologies["exact"].status == "waiting"
    cluster.start(1)
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("phase", ["prepare", "store", "commit", "init", "rollback"])
@pytest.mark.parametrize("slot", [0, 2])
def test_a_worker_dies_in_the_middle_of(phase: str, slot: int) -> None:
    cluster = start()
    until_wave(cluster, 1)
    if phase == "init":
        cluster.kill(1)
    if phase == "rollback":
        cluster.lose = lambda message: getattr(message, "kind", "") == "prepare"  # until it times out
    cluster.run_until(lambda: waves(cluster).phase == phase)
    cluster.lose = lambda message: False
    committed, epoch, before = waves(cluster).committed, cluster.master.topologies["exact"].epoch, len(cluster.said)
    cluster.kill(slot)
    assert waves(cluster).phase != IDLE and cluster.master.topologies["exact"].epoch > epoch, "the wave was in progress"
    cluster.run_until(lambda: waves(cluster).phase == IDLE)
    assert f"exact: every task has restored the state of wave {committed}" in cluster.said[before:]
    finish(cluster)
    assert_exact()


def test_more_workers_die_during_recovery() -> None:
    cluster = start(workers=4)
    until_wave(cluster, 2)
    for slot in (0, 1, 2):
        cluster.kill(slot)
        cluster.step(3)
    finish(cluster)
    assert_exact()


def test_state_is_restored() -> None:
    """Keyed state of three kinds, and the result of snapshot()."""
    cluster = start()
    finish_line = LIMIT
    until_wave(cluster, 2)
    cluster.kill(2)
    cluster.run_until(lambda: sum(counts(cluster).values()) == 2 * finish_line)
    assert counts(cluster) == expected_counts(LIMIT, 2)
    assert sum(task.component.seen for task in cluster.tasks("tally")) == 2 * LIMIT
    for task in cluster.tasks("tally"):
        for key, entry in task.component.state.items():
            assert entry["sum"] == 2 * sum(number for number in range(LIMIT) if f"k{number % parts.KEYS}" == key)
            assert len(task.component.recent[key]) == 3


def test_the_last_wave_does_not_wait_for_the_interval() -> None:
    """The topology is killed during a wave. The store takes two seconds, and the interval is thirty."""
    cluster = start(**{"topology.checkpoint.interval.secs": 30.0})
    cluster.run_until(lambda: counts(cluster).total() == 2 * LIMIT)
    cluster.store_seconds = 2.0
    cluster.tell(WaveRequested("exact"))
    cluster.run_until(lambda: waves(cluster).phase == "prepare")
    cluster.stop("exact", wait=5)
    cluster.run_until(lambda: "exact" not in cluster.master.topologies)
    assert_exact()
    assert "exact: drained, and its last wave is committed" in cluster.said


def test_a_lost_report_of_a_missing_chunk_is_repeated() -> None:
    cluster = start()
    until_wave(cluster, 2)
    dropped: list[Any] = []
    unheard: list[Any] = []

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        if len(frames) == 2 and not dropped:
            dropped.append(frames)
        return len(frames) == 2 and dropped == [frames]

    def lose(message: Any) -> bool:
        if isinstance(message, wire.Broken) and len(unheard) < 2:
            unheard.append(message)
            return True
        return False

    cluster.drop, cluster.lose = drop, lose
    cluster.run_until(lambda: bool(dropped))
    finish(cluster)
    assert len(unheard) == 2
    assert_exact()


def test_every_control_message_may_be_lost_or_late() -> None:
    cluster = start(limit=1500, **{"topology.checkpoint.timeout.secs": 60.0})
    chance = Random(1)
    cluster.lose = lambda message: chance.random() < 0.4
    until_wave(cluster, 1)
    cluster.kill(1)
    until_wave(cluster, 1)
    cluster.lose = lambda message: False
    finish(cluster)
    assert_exact(1500)


def test_a_lost_chunk_rolls_back_to_the_last_wave() -> None:
    cluster = start()
    until_wave(cluster, 2)
    dropped = []

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        if len(frames) == 2 and not dropped:
            dropped.append(frames)
            return True
        return False

    cluster.drop = drop
    cluster.run_until(lambda: bool(dropped))
    epoch = cluster.master.topologies["exact"].epoch
    cluster.run_until(lambda: cluster.master.topologies["exact"].epoch > epoch)
    assert any("chunks on their way to" in text for text in cluster.said)
    finish(cluster)
    assert_exact()


def test_a_worker_that_was_cut_off_changes_nothing() -> None:
    """It continues for a while, and its output is ignored."""
    cluster = start()
    until_wave(cluster, 2)
    cluster.cut.add(1)
    cluster.run_until(lambda: any("no heartbeat" in text for text in cluster.said))
    finish(cluster)
    assert_exact()


def test_state_moves_with_its_task() -> None:
    cluster = start()
    until_wave(cluster, 2)
    task = TaskId("tally", 0)
    target = (cluster.where("exact")[task] + 1) % 3
    cluster.move("exact", task, target)
    cluster.run_until(lambda: cluster.where("exact")[task] == target)
    until_wave(cluster, 1)
    finish(cluster)
    assert_exact()


def test_pause_and_unpause() -> None:
    cluster = start()
    until_wave(cluster, 1)
    cluster.tell(Paused("exact"))
    until_wave(cluster, 2)
    cluster.kill(0)
    cluster.run_until(lambda: cluster.master.topologies["exact"].status == "paused")
    cluster.tell(Unpaused("exact"))
    finish(cluster)
    assert_exact()


def test_batches_are_due_at_a_wave() -> None:
    cluster = start(Batched)
    until_wave(cluster, 2, "batched")
    assert parts.VISIBLE
    cluster.kill(1)
    finish(cluster, "batched")
    assert visible() == expected_rows(LIMIT, 1)


def test_spouts_that_cannot_be_read_again_are_refused() -> None:
    with pytest.raises(TopologyError, match="plain cannot be read again from a position: derive it from ReplayableSpout"):
        LocalCluster(1).submit(NotReplayable)


def test_old_checkpoints_are_collected() -> None:
    cluster = start()
    until_wave(cluster, 8)
    manifests = [name for name in cluster.store.blobs if name.endswith(".manifest")]
    assert len(manifests) <= 3
    assert len(cluster.store.blobs) < 120  # two checkpoints of five components with chains, not eight


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_at_least_once_never_counts_less(slot: int) -> None:
    cluster = start(AtLeast)
    until_wave(cluster, 2, "atleast")
    cluster.run(0.05)
    cluster.kill(slot)
    finish_at_least(cluster)


def test_at_most_once_repeats_at_most_one_report() -> None:
    """State of lost tasks returns to the wave; the spouts do not."""
    cluster = start(AtMost)
    until_wave(cluster, 3, "atmost")
    cluster.run(0.15)
    sent = {task.name: task.component._next_position for task in tasks(cluster, "numbers")}
    cluster.kill(0)
    cluster.run_until(lambda: cluster.master.topologies["atmost"].status == "running")
    for task in tasks(cluster, "numbers"):
        assert task.component._next_position >= sent[task.name] - 150 - 32  # a tenth of a second and a burst
    counted = counts(cluster)
    assert counted and all(counted[key] <= expected_counts(LIMIT, 1)[key] + 30 for key in counted)


def test_at_least_once_without_faults_is_exact() -> None:
    cluster = start(AtLeast)
    finish_at_least(cluster)
    assert counts(cluster) == expected_counts(LIMIT, 1)
    assert Counter((key, number) for key, number, _ in parts.WRITTEN) == expected_rows(LIMIT, 1)


FAULTS = st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["kill", "start", "store", "cut", "move"]), st.integers(0, 3)),
                  max_size=8)


@settings(max_examples=examples(12), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate],
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS)
def test_every_number_is_visible_once_through_random_faults(faults: list[tuple[int, str, int]]) -> None:
    parts.forget()
    cluster = start(workers=4, limit=1500)
    for steps, fault, slot in faults:
        cluster.step(steps)
        if fault == "kill" and slot in cluster.workers and len(cluster.workers) > 1:
            cluster.kill(slot)
        elif fault == "start" and slot not in cluster.workers:
            cluster.start(slot)
        elif fault == "store":
            cluster.store.broken = None if cluster.store.broken else StoreUnreachable("it is away: bring it back")
        elif fault == "cut" and slot in cluster.workers and len(cluster.cut) < 2:
            cluster.cut.add(slot)
        elif fault == "move" and slot in cluster.master.workers and "exact" in cluster.master.topologies \
                and cluster.master.topologies["exact"].status in ("running", "paused"):
            with suppress(TopologyError):  # it is being moved
                cluster.move("exact", TaskId("tally", slot % 3), slot)
    cluster.store.broken = None
    for slot in range(4):
        if slot not in cluster.workers:
            cluster.start(slot)
    finish(cluster)
    assert_exact(1500)
