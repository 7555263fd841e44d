"""The next run of a topology on the store of an earlier one: it resumes, starts afresh, or is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace.control.events import Submitted, WaveRequested
from millrace.control.submission import Resume
from millrace.control.waves import IDLE
from millrace.errors import CorruptCheckpoint, TopologyError
from millrace.model.graph import graph_of
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.schedulers.base import SchedulingResult
from millrace.state.checkpoint import manifest_names
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast, Exact, ExactKeyed, NotReplayable, expected_rows
from support.cluster.wave_runs import LIMIT, assert_exact, counts, finish, finish_at_least, start, until_wave, visible, waves

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


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
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(again.clock.now)
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
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(running.clock.now)
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
        parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
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
