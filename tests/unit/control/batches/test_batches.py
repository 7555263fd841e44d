"""Decisions about batches: attempts, the commit point, publishing, collecting, repair, resumption."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest
from batch_world import FAILS, KEEP, MISSES, OK, World, after, graph_with

from millrace.control.batches.decisions import (
    FIRST_PAUSE,
    GOOD_KNOWN,
    LACKING,
    LAST_PAUSE,
    LISTED,
    REPAIR_ROUNDS,
    Batches,
    Start,
    needs_offsets,
    pause_after,
    start_from,
)
from millrace.control.batches.steps import (
    Announce,
    AwaitPlan,
    BatchDone,
    BatchStep,
    Collect,
    CommitPoint,
    CommitSinks,
    FindLost,
    Life,
    ReplaceManifest,
    Rest,
    Rewrite,
    RunAttempt,
    StopBatches,
    WriteRows,
)
from millrace.errors import CheckpointMissing, CorruptCheckpoint, TopologyError
from millrace.model.graph import TaskId
from millrace.state.checkpoint import Manifest, TaskRecord

OTHER_ENDINGS = [Life.STOPPING, Life.ENDED, Life.GONE]


# ---- one batch ----


def test_the_steps_of_a_batch_in_order() -> None:
    world = World(writes_rows=True)
    assert world.offer() == BatchDone(ran=True)
    assert world.kinds() == [AwaitPlan, RunAttempt, CommitPoint, Announce, CommitSinks, WriteRows, Collect, BatchDone]
    assert (world.committed, world.published, world.written) == ([1], [1], [1])


def test_a_topology_without_sinks_publishes_nothing() -> None:
    world = World(graph=graph_with(sinks=0))
    world.offer()
    assert world.kinds() == [AwaitPlan, RunAttempt, CommitPoint, Announce, Collect, BatchDone]


def test_all_tasks_of_all_sinks_publish_as_they_were_committed() -> None:
    world = after(1)
    sinks = next(step for step in _steps_of_one_batch(world) if isinstance(step, CommitSinks))
    assert sinks.tasks == (TaskId("sink", 0), TaskId("sink", 1))


def _steps_of_one_batch(world: World) -> list[BatchStep]:
    world.steps.clear()
    world.offer()
    return world.steps


def test_a_batch_that_spark_offers_again_is_done_already() -> None:
    world = after(2)
    assert world.offer(1) == BatchDone(ran=False) and world.kinds() == [BatchDone]


@pytest.mark.parametrize("batch", [0, 3, 7])
def test_a_batch_that_does_not_follow_the_store_is_refused(batch: int) -> None:
    world = after(2)
    with pytest.raises(CorruptCheckpoint, match=f"with batch {batch}, but the last batch in the store is 1"):
        world.offer(batch)


def test_a_report_of_another_step_than_the_one_under_way_is_refused() -> None:
    decider = World().decider
    for report in [decider.stored, decider.rested, decider.collected, decider.failed, lambda: decider.planned(1)]:
        with pytest.raises(RuntimeError, match="the current step is BatchDone"):
            report()
    decider.offered(0)
    with pytest.raises(RuntimeError, match="the current step is AwaitPlan"):
        decider.stored()


def test_epochs_must_rise() -> None:
    decider = Batches(graph_with(), Start(None, "1-0"), lambda: 0, keep=KEEP)
    decider.offered(0)
    with pytest.raises(RuntimeError, match="epoch 0 of 'words' is not larger"):
        decider.planned(1)


def test_key_groups_that_had_state_must_not_vanish() -> None:
    world = after(1)
    world.decider.offered(1)
    world.decider.planned(1)
    with pytest.raises(CorruptCheckpoint, match=r"key groups \[0\] of 'count' are missing after wave 2"):
        world.decider.attempted(world.graph, [TaskRecord("count", 0)], 0.0)


# ---- attempts ----


def test_a_failed_attempt_is_run_again_in_a_new_epoch() -> None:
    world = after(1)
    world.outcomes = iter([FAILS, FAILS])
    world.offer()
    attempts = [step for step in world.steps if isinstance(step, RunAttempt)]
    assert [(step.attempt, step.wave, step.whole) for step in attempts] == [(1, 2, False), (2, 2, False), (3, 2, False)]
    rests = [step for step in world.steps if isinstance(step, Rest)]
    assert [rest.seconds for rest in rests] == [FIRST_PAUSE, 2 * FIRST_PAUSE] and not rests[0].patient
    assert world.decider.attempts == 3 and world.committed == [1, 2]


def test_the_next_attempt_waits_for_a_plan_again() -> None:
    world = World()
    world.outcomes = iter([FAILS])
    world.offer()
    assert world.kinds()[:5] == [AwaitPlan, RunAttempt, Rest, AwaitPlan, RunAttempt]


def test_pauses_double_up_to_a_limit_however_many_failures() -> None:
    pauses = [pause_after(failures) for failures in range(1, 5000)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE] and pauses == sorted(pauses)
    assert pauses[20] == pauses[-1] == LAST_PAUSE


def test_waits_for_a_plan_that_fail_are_backed_off_and_are_not_attempts() -> None:
    world = after(1)
    world.plans, world.outcomes = iter([FAILS, FAILS, OK, FAILS]), iter([FAILS])
    assert world.offer() == BatchDone(ran=True)
    rests = [(step.seconds, step.failed) for step in world.steps if isinstance(step, Rest)]
    assert rests == [(FIRST_PAUSE, "no plan"), (2 * FIRST_PAUSE, "no plan"),
                     (4 * FIRST_PAUSE, "attempt 1 at the batch failed"), (8 * FIRST_PAUSE, "no plan")]
    assert world.decider.attempts == 2
    world.steps.clear()
    world.plans = iter([FAILS])
    world.offer()
    assert next(step for step in world.steps if isinstance(step, Rest)).seconds == FIRST_PAUSE, "the next batch begins afresh"


@pytest.mark.parametrize("life", OTHER_ENDINGS)
def test_an_ending_topology_does_not_wait_for_a_plan_again(life: Life) -> None:
    world = World()
    world.plans = iter([FAILS])
    assert world.offer(life=life) == StopBatches()


@pytest.mark.parametrize("life", OTHER_ENDINGS)
def test_a_failed_attempt_of_an_ending_topology_is_not_run_again(life: Life) -> None:
    world = after(1)
    world.outcomes = iter([FAILS])
    assert world.offer(life=life) == StopBatches() and world.committed == [1]


@pytest.mark.parametrize("life", OTHER_ENDINGS)
def test_no_attempt_is_begun_when_the_topology_is_ending(life: Life) -> None:
    decider = World().decider
    decider.offered(0)
    assert decider.planned(1, life) == StopBatches()


@pytest.mark.parametrize("life", Life)
def test_only_a_topology_that_is_gone_does_not_commit_a_finished_attempt(life: Life) -> None:
    decider = World().decider
    decider.offered(0)
    decider.planned(1)
    step = decider.attempted(graph_with(), [], 0.0, life)
    assert step == StopBatches() if life is Life.GONE else isinstance(step, CommitPoint)


def test_committed_epochs_are_remembered_up_to_a_limit() -> None:
    world = after(GOOD_KNOWN + 5)
    assert len(world.decider.good) == GOOD_KNOWN
    world.outcomes = iter([FAILS])
    failed = next(step for step in _steps_of_one_batch(world) if isinstance(step, RunAttempt))
    assert failed.epoch not in world.decider.good and world.decider.restore[1] == world.decider.good[-1]


# ---- state that is lost ----


def test_lost_blobs_are_rewritten_in_the_attempt_that_misses_them() -> None:
    world = after(1)
    world.blobs.clear()
    world.offer()
    assert world.kinds() == [AwaitPlan, RunAttempt, CommitPoint, FindLost, Rewrite, CommitPoint, Announce, CommitSinks, Collect,
                             BatchDone]
    manifest = world.decider.committed
    assert manifest is not None and world.decider.attempts == 1 and manifest.blobs() <= world.blobs
    assert manifest.wave_epoch < manifest.epoch, "prepared by the attempt, entered by the repair"


def test_after_some_rounds_of_repair_the_next_attempt_writes_all_state() -> None:
    world = after(1)
    lost, world.blobs = world.blobs, set()
    world.answers_rewrites = False
    world.offer()
    assert sum(isinstance(step, Rewrite) for step in world.steps) == REPAIR_ROUNDS
    attempts = [step for step in world.steps if isinstance(step, RunAttempt)]
    assert [step.whole for step in attempts] == [False, True] and not lost & world.blobs
    world.steps.clear()
    world.offer()
    assert [step.whole for step in world.steps if isinstance(step, RunAttempt)] == [False], "the next batch writes deltas"


def test_blobs_that_are_back_by_then_need_no_repair() -> None:
    world = after(1)
    world.outcomes = iter([OK, MISSES])
    world.offer()
    assert world.kinds()[2:5] == [CommitPoint, FindLost, CommitPoint]


def test_state_that_several_attempts_have_missed_and_the_store_lacks_is_lost() -> None:
    world = after(1)
    world.blobs.clear()
    world.outcomes = iter([MISSES] * LACKING)
    with pytest.raises(CheckpointMissing, match=r"the state of count\[0\] of 'words' as of wave 1 is lost: no process"):
        world.offer()
    assert sum(isinstance(step, RunAttempt) for step in world.steps) == LACKING and world.committed == [1]


def test_state_that_the_store_still_has_is_not_lost_however_often_it_is_missed() -> None:
    world = after(1)
    world.outcomes = iter([*[MISSES] * (LACKING - 1), *[MISSES, OK] * 4])
    assert world.offer() == BatchDone(ran=True)
    assert sum(isinstance(step, FindLost) for step in world.steps) == 4


def test_only_consecutive_misses_count() -> None:
    world = after(1)
    world.blobs.clear()
    world.outcomes = iter([*[MISSES] * (LACKING - 1), FAILS, *[MISSES] * (LACKING - 1)])
    assert world.offer() == BatchDone(ran=True)
    assert all(step.reason.name == "COMMIT" for step in world.steps if isinstance(step, FindLost))


def test_before_a_new_plan_lost_blobs_are_rewritten() -> None:
    """Tasks that leave their processes take nothing along."""
    world = after(2)
    world.blobs.clear()
    world.version = 2
    world.offer()
    assert world.kinds()[:6] == [AwaitPlan, FindLost, Rewrite, ReplaceManifest, Announce, RunAttempt]
    assert [manifest.wave for manifest in world.announced] == [1, 2, 2, 3] and world.committed == [1, 2, 3]


def test_a_new_plan_is_checked_for_lost_blobs_once() -> None:
    world = after(1)
    world.version = 2
    world.outcomes = iter([OK, FAILS, FAILS])
    world.offer()
    world.offer()
    assert sum(isinstance(step, FindLost) for step in world.steps) == 1
    assert not any(isinstance(step, Rewrite | ReplaceManifest) for step in world.steps)


def test_a_plan_that_arrives_just_before_the_attempt_is_checked_for_lost_blobs_too() -> None:
    world = after(2)
    world.blobs.clear()
    world.moves = iter([True])
    world.offer()
    assert world.kinds()[:7] == [AwaitPlan, RunAttempt, AwaitPlan, FindLost, Rewrite, ReplaceManifest, Announce]
    assert world.ran_by == [1, 1, 2] and world.committed == [1, 2, 3]


def test_an_attempt_that_a_new_plan_has_prevented_does_not_count() -> None:
    world = after(3)
    world.moves = iter([True, True])
    world.offer()
    attempts = [step for step in world.steps if isinstance(step, RunAttempt)]
    assert [(step.version, step.attempt) for step in attempts] == [(1, 1), (2, 1), (3, 1)]
    assert world.decider.attempts == 1 and not any(isinstance(step, Rest) for step in world.steps)


@pytest.mark.parametrize("life", OTHER_ENDINGS)
def test_an_ending_topology_does_not_follow_a_new_plan(life: Life) -> None:
    world = after(1)
    world.moves = iter([True])
    assert world.offer(life=life, ends_at=1) == StopBatches() and world.committed == [1]


@pytest.mark.parametrize("life", OTHER_ENDINGS)
@pytest.mark.parametrize("kind", [FindLost, Rewrite, ReplaceManifest])
def test_a_repair_before_a_new_plan_is_not_retried_when_the_topology_is_ending(kind: type, life: Life) -> None:
    world = repairing()
    world.outcomes = iter([OK] * [FindLost, Rewrite, ReplaceManifest].index(kind) + [FAILS])
    assert world.offer(life=life) == StopBatches() and world.kinds()[-2:] == [kind, StopBatches]


def repairing() -> World:
    """The next batch begins with a repair."""
    world = after(1)
    world.blobs.clear()
    world.version = 2
    return world


@pytest.mark.parametrize(("life", "at", "last"), [
    (Life.STOPPING, FindLost, FindLost), (Life.ENDED, FindLost, FindLost), (Life.GONE, FindLost, FindLost),
    (Life.STOPPING, Rewrite, Announce), (Life.ENDED, Rewrite, Rewrite), (Life.GONE, Rewrite, Rewrite),
    (Life.STOPPING, Announce, Announce), (Life.ENDED, Announce, Announce), (Life.GONE, Announce, Announce)])
def test_no_attempt_follows_a_repair_when_the_topology_is_ending(life: Life, at: type, last: type) -> None:
    """Rewritten state is entered in the manifest if there is time: otherwise it is lost."""
    world = repairing()
    order = [AwaitPlan, FindLost, Rewrite, ReplaceManifest, Announce]
    assert world.offer(life=life, ends_at=order.index(at)) == StopBatches()
    assert world.kinds() == [*order[:order.index(last) + 1], StopBatches] and world.committed == [1]


@pytest.mark.parametrize("kind", [FindLost, Rewrite])
def test_a_repair_for_the_commit_is_retried_while_the_topology_is_being_killed(kind: type) -> None:
    world = after(1)
    world.blobs.clear()
    world.outcomes = iter([OK, OK, FAILS] if kind is FindLost else [OK, OK, OK, FAILS])
    assert world.offer(life=Life.STOPPING) == BatchDone(ran=True) and world.kinds().count(kind) == 2
    assert next(step for step in world.steps if isinstance(step, Rest)).patient


# ---- after the commit point ----


def failing_at(kind: type, writes_rows: bool = True) -> Iterator[str]:
    """Outcomes up to a step of that kind, which fails."""
    order = [RunAttempt, CommitPoint, CommitSinks, *([WriteRows] if writes_rows else [])]
    return iter([OK] * order.index(kind) + [FAILS])


@pytest.mark.parametrize("kind", [CommitPoint, CommitSinks, WriteRows])
def test_steps_after_the_attempt_are_retried_by_themselves(kind: type) -> None:
    world = after(1, writes_rows=True)
    world.outcomes = itertools.chain(failing_at(kind), [FAILS, FAILS])
    assert world.offer() == BatchDone(ran=True)
    assert world.kinds().count(kind) == 4 and world.kinds().count(RunAttempt) == 1
    rests = [step for step in world.steps if isinstance(step, Rest)]
    assert [rest.seconds for rest in rests] == [pause_after(failures) for failures in (1, 2, 3)]
    assert {rest.patient for rest in rests} == {kind is not WriteRows}


@pytest.mark.parametrize("kind", [CommitPoint, CommitSinks, WriteRows])
@pytest.mark.parametrize("life", OTHER_ENDINGS)
def test_rows_are_left_to_the_resumption_and_the_rest_only_if_nobody_waits(kind: type, life: Life) -> None:
    world = after(1, writes_rows=True)
    world.outcomes = failing_at(kind)
    ended = world.offer(life=life)
    if kind is WriteRows:
        assert ended == StopBatches("write the rows kept by the sinks")
    else:
        assert ended == (BatchDone(ran=True) if life is Life.STOPPING else StopBatches())
    assert world.committed == ([1] if kind is CommitPoint and life is not Life.STOPPING else [1, 2])


# ---- collecting ----


def collections(world: World, batches: int, outcomes: Callable[[int], list[str]] = lambda number: []) -> list[Collect]:
    world.steps.clear()
    for number in range(batches):
        world.outcomes = iter(outcomes(number))
        world.offer()
    return [step for step in world.steps if isinstance(step, Collect)]


def test_names_are_listed_at_first_and_now_and_then() -> None:
    listed = [number + 1 for number, step in enumerate(collections(World(), LISTED + 1)) if step.names is None]
    assert listed == [1, 2, LISTED]


def test_names_are_listed_after_a_failed_attempt_and_after_a_repair() -> None:
    world = after(4)
    first = collections(world, 3, lambda number: [FAILS] if number == 1 else [])
    assert [step.names is None for step in first] == [False, True, False]
    world.blobs.clear()
    assert [step.names is None for step in collections(world, 2)] == [True, False]


def test_nothing_is_left_in_the_store_but_what_the_kept_manifests_need() -> None:
    world = World()
    for step in collections(world, 30, lambda number: [FAILS] if number % 7 == 3 else []):
        assert step.epoch
    needed = set().union(*(manifest.blobs() for manifest in world.manifests.values()))
    assert len(world.manifests) == KEEP and world.blobs == needed


def test_offsets_of_other_runs_go_once_all_manifests_are_of_this_run() -> None:
    steps = collections(World(), 8)
    assert [step.forget_runs for step in steps] == [False, False, True, *[False] * 5]


# ---- resuming ----


def test_a_resumed_run_publishes_first_and_then_runs_the_offered_batch() -> None:
    world = after(2)
    world.outcomes = failing_at(CommitSinks, writes_rows=False)
    assert world.offer(life=Life.ENDED) == StopBatches() and (world.committed, world.published) == ([1, 2, 3], [1, 2])
    world.resume()
    world.steps.clear()
    assert world.offer(2) == BatchDone(ran=False), "Spark does not know that it is done"
    assert world.kinds() == [CommitSinks, Collect, BatchDone] and world.published == [1, 2, 3]
    assert world.offer(3) == BatchDone(ran=True) and world.published == [1, 2, 3, 4]


def test_a_resumed_run_that_is_offered_the_next_batch_publishes_first_too() -> None:
    world = after(2)
    world.resume()
    assert world.offer(2) == BatchDone(ran=True)
    assert world.kinds()[:4] == [CommitSinks, Collect, AwaitPlan, RunAttempt] and world.published == [1, 2, 2, 3]


def manifest(wave: int, offsets: str) -> Manifest:
    return Manifest("words", wave, 7, 8, {"numbers": 1, "count": 1, "sink": 3}, [], 0.0, 7, offsets)


def test_batches_are_counted_from_the_wave_at_which_spark_began_to_read() -> None:
    start = start_from(manifest(12, "3-9"), 20)
    assert start.offsets == "3-9" and start.base == 9 and start.committed is not None
    assert (start.committed.epoch, start.committed.wave_epoch) == (20, 7)
    decider = Batches(graph_with(), start, itertools.count(21).__next__, keep=KEEP)
    step = decider.offered(3)
    assert isinstance(step, CommitSinks) and len(step.tasks) == 3, "as many sinks as were committed"
    decider.sinks_committed()
    assert decider.collected() == AwaitPlan()
    run = decider.planned(1)
    assert isinstance(run, RunAttempt) and run.wave == 13


def test_a_checkpoint_of_the_resident_engine_is_resumed_from_its_wave() -> None:
    assert start_from(manifest(12, ""), 20).offsets == "20-12"
    with pytest.raises(TopologyError, match="the read position of lines elsewhere"):
        start_from(manifest(12, "4"), 20, ["lines"])
    assert start_from(None, 20, ["lines"]) == Start(None, "20-0")


@pytest.mark.parametrize(("wave", "offsets", "needed"),
                         [(12, "3-9", True), (9, "3-9", False), (12, "", False), (12, "4", False)])
def test_spark_s_offsets_are_needed_once_it_has_read(wave: int, offsets: str, needed: bool) -> None:
    assert needs_offsets(manifest(wave, offsets)) == needed


# ---- Spark's offsets of a batch ----


def committed_with(digest: str) -> World:
    """A batch was committed while Spark's offsets of it had this digest, and the driver died before Spark knew."""
    world = World()
    assert world.offer(0, digest=digest) == BatchDone(ran=True)
    world.resume()
    return world


def test_the_manifest_has_the_digest_of_the_offsets() -> None:
    world = committed_with("d1")
    assert world.decider.committed is not None and world.decider.committed.offsets_digest == "d1"
    assert world.offer(0, digest="d1") == BatchDone(ran=False)
    assert world.offer(1, digest="d2") == BatchDone(ran=True)
    assert world.decider.committed.offsets_digest == "d2" and world.committed == [1, 2]


@pytest.mark.parametrize(("found", "shown"), [("d2", "digest d2"), ("", "digest missing")])
def test_a_committed_batch_with_other_offsets_is_refused(found: str, shown: str) -> None:
    """To take it for done would skip the rows by which it is larger now."""
    world = committed_with("d1")
    with pytest.raises(CorruptCheckpoint, match=rf"batch 0 of 'words' is committed, but.*{shown}, not d1.*--fresh"):
        world.offer(0, digest=found)
    assert world.published == [1, 1], "what is committed is published all the same"


def test_a_manifest_of_an_older_version_has_no_digest_to_compare() -> None:
    world = committed_with("")
    assert world.offer(0, digest="d2") == BatchDone(ran=False)
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest(12, "3-9")))[:-1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Manifest) == manifest(12, "3-9")
