"""Waves on a whole cluster in one process. The output is compared with independently computed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.control.events import Paused, Submitted, Unpaused, WaveRequested
from millrace.control.submission import Resume
from millrace.control.waves import IDLE
from millrace.errors import CorruptCheckpoint, RowsLost, StoreUnreachable, TopologyError
from millrace.model.graph import TaskId, graph_of
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.wire import messages as wire
from millrace.schedulers.base import SchedulingResult
from millrace.state.checkpoint import manifest_names
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import (
    AtLeast,
    AtMost,
    Batched,
    Exact,
    ExactKeyed,
    NotReplayable,
    expected_counts,
    expected_rows,
)
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


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    parts.forget()
    with pytest.MonkeyPatch.context() as patch:  # the spout's clock is its own again afterwards
        patch.setattr(parts.Numbers, "clock", parts.Numbers.clock)
        yield


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


def test_it_resumes_after_the_driver_died() -> None:
    store = MemoryStore()
    cluster = start(store=store)
    until_wave(cluster, 2)
    cluster.run(0.07)
    del cluster  # with all state of its workers
    again = start(store=store, workers=2, resume=True)
    until_wave(again, 1)
    finish(again)
    assert_exact()


@pytest.mark.parametrize("committed", [0, 2])
def test_the_driver_dies_after_rolling_back_a_wave_whose_manifest_was_stored(committed: int) -> None:
    """A worker dies while the manifest is being written: the master rolls back to the previous wave, but the manifest is
    stored. If the driver then dies before the new epoch has committed anything, that manifest must not be resumed, because
    the sinks have discarded the rows prepared for it."""
    store = MemoryStore()
    cluster = start(store=store)
    if committed:
        until_wave(cluster, committed)
    else:
        waves(cluster).due = float("inf")
        cluster.run_until(lambda: counts(cluster).total() > 300)
        cluster.tell(WaveRequested("exact"))
    cluster.run_until(lambda: waves(cluster).phase == "store")
    cluster.kill(1)
    cluster.run_until(lambda: waves(cluster).phase == "init")
    cluster.run_until(lambda: waves(cluster).phase == IDLE)
    finish(start(store=store, resume=True))
    assert_exact()


@pytest.mark.parametrize("par", [1, 5])
def test_it_resumes_with_another_parallelism(par: int) -> None:
    store = MemoryStore()
    cluster = start(ExactKeyed, store=store)
    until_wave(cluster, 2, "exactkeyed")
    again = start(ExactKeyed, store=store, resume=True, par={"tally": par})
    finish(again, "exactkeyed")
    assert_exact()


def test_state_of_tasks_cannot_be_resumed_with_another_parallelism() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 2)
    with pytest.raises(TopologyError, match="3 tasks of 'tally', each with its own state"):
        start(store=store, resume=True, par={"tally": 1})


def test_a_fresh_start_beside_an_old_checkpoint() -> None:
    store = MemoryStore()
    cluster = start(store=store)
    until_wave(cluster, 2)
    parts.forget()
    old = set(manifest_names(store.names("exact/")))
    again = start(store=store, resume=False)
    before = waves(cluster).committed
    until_wave(again, 1)
    assert waves(again).committed > before
    until_wave(again, 1)
    again.run_until(lambda: not old & set(store.names("exact/")))  # the new run has as many checkpoints as are kept
    finish(again)
    assert_exact()


def test_a_checkpoint_of_another_shape_is_refused() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 2)
    again = LocalCluster(2, store=store)
    with pytest.raises(TopologyError, match="key groups"):
        again.submit(Exact, resume=True, config={"limit": LIMIT, "topology.key.groups": 64})
    assert not again.master.topologies


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


def test_a_superseded_master_commits_nothing() -> None:
    store = MemoryStore()
    zombie = start(store=store)
    until_wave(zombie, 2)
    again = start(store=store, resume=True)
    until_wave(again, 1)
    seen = visible()
    zombie.run(2.0)  # with its own workers, unaware of its successor
    assert visible() == seen
    assert any("another driver took over 'exact'" in text for text in zombie.said)
    parts.Numbers.clock = staticmethod(again.clock.now)
    finish(again)
    assert_exact()


def test_a_submission_without_a_choice_is_refused() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 3)
    before = store.names("")
    forgetful = LocalCluster(3, store=store)
    with pytest.raises(TopologyError, match=r"checkpoints of 'exact', the last of wave 3.*--resume \(.*--fresh \("):
        forgetful.submit(Exact)
    assert not forgetful.master.topologies and store.names("") == before
    finish(start(store=store, resume=True))
    assert_exact()


def test_a_run_that_a_fresh_one_began_to_replace_is_resumed_only_by_name() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 3)
    hasty = start(store=store, resume=False)
    hasty.run(0.02)  # before it commits anything
    names = store.names("")
    for resume in (True, None):
        with pytest.raises(TopologyError, match=r"'exact' was started with --fresh, at .* up to wave 3.* "
                                                r"--resume older \(resume='older'\) .* --fresh \(resume=False\)"):
            start(store=store, resume=resume)
    assert store.names("") == names
    finish(start(store=store, resume="older"))
    assert_exact()


def test_auto_starts_a_fresh_run_over_again_that_committed_nothing() -> None:
    """A person chose --fresh, and its supervisor restarts it with --resume auto."""
    store = MemoryStore()
    until_wave(start(store=store), 3)
    start(store=store, resume=False).run(0.02)
    parts.forget()  # rows of the earlier run
    finish(start(store=store, resume="auto"))
    assert_exact()


def test_a_fresh_run_that_committed_a_wave_is_resumed() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 3)
    begun = start(store=store, resume=False)
    until_wave(begun, 1)
    with pytest.raises(TopologyError, match=r"--resume .*--fresh"):
        start(store=store)
    again = start(store=store, resume=True)
    assert again.master.topologies["exact"].checkpoint == begun.master.topologies["exact"].checkpoint


def rolled_back_fresh_run(store: MemoryStore) -> None:
    """A fresh run that stops before its first commit, and after a roll-back: that leaves a manifest without a wave."""
    hasty = start(store=store, resume=False)
    hasty.run(0.02)
    hasty.kill(1)
    hasty.run_until(lambda: len(manifest_names(store.names("exact/"))) > 2)
    assert waves(hasty).committed == 0


def test_a_fresh_run_that_rolled_back_before_its_first_commit_replaces_nothing() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 3)
    rolled_back_fresh_run(store)
    with pytest.raises(TopologyError, match="--resume older"):
        start(store=store, resume=True)
    finish(start(store=store, resume="older"))
    assert_exact()


def test_auto_continues_the_run_that_a_refused_fresh_start_was_to_replace() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 3)
    before = dict(store.blobs)
    with pytest.raises(TopologyError, match="plain cannot be read again"):
        LocalCluster(3, store=store).submit(NotReplayable, name="exact", resume=False)
    assert store.blobs == before
    again = start(store=store, resume="auto")
    checkpoint = again.master.topologies["exact"].checkpoint
    assert checkpoint is not None and checkpoint.wave == 3
    finish(again)
    assert_exact()


@pytest.mark.parametrize("resume", [True, False, "auto"])
def test_a_refused_start_leaves_a_running_driver_alone(resume: Resume) -> None:
    store = MemoryStore()
    running = start(store=store)
    until_wave(running, 1)
    with pytest.raises(TopologyError, match=r"topology\.message\.timeout\.secs"):
        start(store=store, resume=resume, **{"topology.message.timeout.secs": "soon"})
    parts.Numbers.clock = staticmethod(running.clock.now)
    finish(running)
    assert_exact()


class BrokenScheduler:
    def schedule(self, *question: Any) -> SchedulingResult:
        raise ZeroDivisionError


@pytest.mark.parametrize("earlier", [False, True], ids=["the first run", "an earlier run"])
def test_a_start_that_fails_after_the_takeover_gives_the_topology_back(earlier: bool) -> None:
    store = MemoryStore()
    if earlier:
        until_wave(start(store=store), 3)
    before = dict(store.blobs)
    with pytest.raises(ZeroDivisionError):
        LocalCluster(3, scheduler=BrokenScheduler(), store=store).submit(Exact, resume=False)
    assert store.blobs == before


def test_a_run_is_resumed_past_the_fresh_one_that_it_was_chosen_over() -> None:
    """The fresh run has left a manifest without a wave, and the driver that was to continue the older run died first."""
    store = MemoryStore()
    until_wave(start(store=store), 3)
    rolled_back_fresh_run(store)
    start(store=store, workers=0, resume="older")  # waits for a slot until it is killed
    again = start(store=store, resume=True)
    checkpoint = again.master.topologies["exact"].checkpoint
    assert checkpoint is not None and checkpoint.wave == 3
    finish(again)
    assert_exact()


def test_the_older_run_is_the_one_that_has_committed() -> None:
    """Two fresh runs in a row committed nothing; the first has left a manifest without a wave."""
    store = MemoryStore()
    until_wave(start(store=store), 3)
    rolled_back_fresh_run(store)
    start(store=store, workers=0, resume="auto")
    with pytest.raises(TopologyError, match=r"up to wave 3.*--resume older"):
        start(store=store, resume=True)
    finish(start(store=store, resume="older"))
    assert_exact()


def test_damaged_waves_are_not_replaced_by_a_manifest_without_a_wave() -> None:
    store = MemoryStore()
    until_wave(start(store=store), 3)
    committed = manifest_names(store.names("exact/"))
    rolled_back_fresh_run(store)
    start(store=store, workers=0, resume="older")
    for name in committed:
        store.blobs[name] = b"torn"
    with pytest.raises(CorruptCheckpoint, match="none can be used"):
        start(store=store, resume=True)


def test_a_fresh_run_publishes_what_the_earlier_one_committed() -> None:
    """The driver died between the commit and the sinks' publishing."""
    store = MemoryStore()
    cluster = start(store=store)
    until_wave(cluster, 2)
    parts.FAIL_COMMIT.update(range(1, 100))
    cluster.run_until(lambda: waves(cluster).committed == 3)
    committed, seen = waves(cluster).committed, visible()
    assert waves(cluster).phase == "commit"
    parts.FAIL_COMMIT.clear()
    fresh = start(store=store, resume=False)
    fresh.run_until(lambda: fresh.master.topologies["exact"].status == "running")
    published = visible() - seen
    assert published, f"rows of wave {committed}"
    finish(fresh)
    assert visible() == seen + published + expected_rows(LIMIT, 2)


def test_an_epoch_without_a_wave_is_not_resumed() -> None:
    """Its manifest only records that it started from the beginning."""
    store = MemoryStore()
    cluster = start(store=store)
    waves(cluster).due = float("inf")
    cluster.run_until(lambda: counts(cluster).total() > 300)
    cluster.kill(1)
    cluster.run_until(lambda: bool(manifest_names(store.names("exact/"))))
    finish(start(store=store))
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


def test_a_worker_dies_while_it_is_being_stopped() -> None:
    """It ends as of its last wave; a later run can resume from there."""
    store = MemoryStore()
    cluster = start(store=store)
    until_wave(cluster, 2)
    cluster.run(0.05)
    cluster.stop("exact", wait=100)
    cluster.kill(1)
    cluster.run_until(lambda: "exact" not in cluster.master.topologies)
    assert any("ends as of wave" in text for text in cluster.said)
    assert 0 < sum(visible().values()) < 2 * LIMIT
    finish(start(store=store, resume=True))
    assert_exact()


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


def test_at_least_once_continues_after_the_driver_died() -> None:
    store = MemoryStore()
    cluster = start(AtLeast, store=store)
    until_wave(cluster, 3, "atleast")
    again = start(AtLeast, store=store, resume=True)
    finish_at_least(again)


def test_checkpoints_name_the_run_whose_positions_go_with_them() -> None:
    """A run that was started and killed in between does not matter."""
    store = MemoryStore()

    def submitted(offsets: str, resume: bool) -> LocalCluster:
        cluster, checkpoints = LocalCluster(3, nodes=3, store=store), Checkpoints(store, "atleast")
        parts.Numbers.clock = staticmethod(cluster.clock.now)
        graph = graph_of(AtLeast, config={"limit": LIMIT, "rate": 3000.0})
        cluster.tell(Submitted(graph, checkpoints.latest() if resume else None, checkpoints.newest(), offsets))
        return cluster

    until_wave(submitted("1", resume=False), 2, "atleast")
    assert submitted("2", resume=False).master.topologies["atleast"].offsets == "2"  # no wave is committed
    resumed = submitted("3", resume=True)
    until_wave(resumed, 1, "atleast")
    assert resumed.master.topologies["atleast"].offsets == "1"
    manifest = Checkpoints(store, "atleast").latest()
    assert manifest is not None and manifest.offsets == "1" and not manifest.of_batches


def resubmitted(before: str) -> LocalCluster:
    """Resume a topology that is fed by a DataFrame from a checkpoint with these offsets."""
    store = MemoryStore()
    until_wave(start(AtLeast, store=store), 1, "atleast")
    checkpoints = Checkpoints(store, "atleast")
    manifest = checkpoints.latest()
    assert manifest is not None
    cluster = LocalCluster(3, nodes=3, store=store)
    manifest = msgspec.structs.replace(manifest, offsets=before)
    cluster.tell(Submitted(graph_of(AtLeast, config={"limit": LIMIT}), manifest, checkpoints.newest(), "3"))
    return cluster


def test_a_checkpoint_without_offsets_keeps_the_new_ones() -> None:
    """The checkpoint was made by a run without a DataFrame."""
    assert resubmitted("").master.topologies["atleast"].offsets == "3"


def test_a_checkpoint_made_in_batches_has_no_dataframe_positions() -> None:
    with pytest.raises(TopologyError, match=r"was made by the microbatch engine.* from the beginning again"):
        resubmitted("7-0")


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
            cluster.move("exact", TaskId("tally", slot % 3), slot)
    cluster.store.broken = None
    for slot in range(4):
        if slot not in cluster.workers:
            cluster.start(slot)
    finish(cluster)
    assert_exact(1500)
