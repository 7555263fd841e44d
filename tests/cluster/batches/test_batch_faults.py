"""Batches without Spark, with failures in and between them: every word once, every count right."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.control.batches.actions import BatchFailed
from millrace.control.batches.stages import stages_of
from millrace.control.batches.steps import CommitPoint
from millrace.errors import MillraceError, NotTheAuthor
from millrace.model.graph import TaskId, batched, graph_of
from millrace.testing.local_batches import AttemptFailed, LocalBatches
from millrace.workloads.audit import NumberedLines, SplitNumbered, TallyNumbered
from millrace.workloads.wordcount import expected_counts
from support.suites.batch_words import check, fail, give_some, run_to_the_end, words
from support.suites.kept_state import state_of


def test_a_run_without_failures(tmp_path: Path) -> None:
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"))
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


@pytest.mark.parametrize("seed", range(6))
def test_results_are_exact_through_random_failures(tmp_path: Path, seed: int) -> None:
    """Aborted attempts, killed processes, new parallelism and new owners of key groups, in random order."""
    rng = random.Random(seed)
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"), processes=3, seed=seed,
                           most_tuples=rng.choice([7, 60]))
    actions = [lambda: fail(batches, rng), lambda: fail(batches, rng), lambda: give_some(batches, rng, "count"),
               lambda: batches.kill(rng.randrange(3)), lambda: batches.scale("count", rng.randint(1, 6)),
               lambda: batches.scale("sink", rng.randint(1, 4)), lambda: batches.scale("split", rng.randint(1, 4))]
    for _ in range(15):
        rng.choice(actions)()
        batches.batch()
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


def test_an_error_in_a_step_that_is_not_retried_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"))

    def collect(epoch: int) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(batches.checkpoints, "collect", collect)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            batches.batch()
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


def test_a_run_that_is_replaced_ends_at_its_commit_point(tmp_path: Path) -> None:
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"))
    batches.batch()
    later = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"), resume=True)
    with pytest.raises(NotTheAuthor, match="another driver took over"):
        batches.batch()
    assert isinstance(batches.decider.step, CommitPoint), "not a pause before it is tried again"
    run_to_the_end(later)
    check(later, tmp_path / "out")


@pytest.mark.parametrize("resumed", [False, True], ids=["processes die", "driver dies too"])
def test_a_crash_between_the_commit_point_and_the_sinks(tmp_path: Path, resumed: bool) -> None:
    """The batch is committed and its output not visible yet when every process dies: it is published before the next batch,
    by the same run or by one that resumes the topology."""
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"))
    for number in range(4):
        if number % 2:
            batches.before_publishing = raise_failure
            visible = sorted((tmp_path / "out").glob("part-*"))
            with pytest.raises(AttemptFailed):
                batches.batch()
            assert sorted((tmp_path / "out").glob("part-*")) == visible
            batches.kill(0)
            batches.kill(1)
            if resumed:
                batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"), resume=True)
            batches.before_publishing = lambda: None
        batches.batch()
    run_to_the_end(batches)
    check(batches, tmp_path / "out")


def raise_failure() -> None:
    raise AttemptFailed("before the sinks publish")


class Grumpy(TallyNumbered):
    """A bolt that cannot process some words."""

    def process(self, tup: Tuple) -> None:
        if tup.values.index == 3:
            raise ValueError("not the fourth")
        super().process(tup)


class Letters(Bolt):
    outputs: ClassVar[list[str]] = []
    seen: ClassVar[list[Any]] = []

    def process(self, tup: Tuple) -> None:
        self.seen.append(tuple(tup.values.values))


class GrumpyCount(Topology):
    lines = NumberedLines.spec(par=1)
    split = SplitNumbered.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=1)
    count = Grumpy.spec(inputs={split: Grouping.fields("word")}, par=2)
    letters = Letters.spec(inputs={count.dead_letters: Grouping.GLOBAL}, par=1)


def test_tuples_that_user_code_rejects_become_dead_letters(tmp_path: Path) -> None:
    Letters.seen.clear()
    batches = LocalBatches(batched(graph_of(GrumpyCount, config={"limit": 50})), str(tmp_path / "store"), most_tuples=20)
    run_to_the_end(batches)
    assert len(Letters.seen) == 50 and {row[2] for row in Letters.seen} == {3}
    kept = state_of(batches.checkpoints.store, batches.graph)["count"]["counts"]
    assert kept == expected_counts(1, 50) - Counter(row[3] for row in Letters.seen)


def test_a_sink_that_cannot_write_fails_the_attempt(tmp_path: Path) -> None:
    out = tmp_path / "out"
    batches = LocalBatches(words(out), str(tmp_path / "store"))
    batches.batch()
    staged = next(out.glob(".staged-*"))
    aside = staged.rename(tmp_path / "away")
    staged.write_text("a file where the directory was")
    for process in range(2):
        batches.kill(process)
    with pytest.raises((BatchFailed, MillraceError, OSError)):
        batches.batch()
    staged.unlink()
    aside.rename(staged)
    run_to_the_end(batches)
    check(batches, out)


def test_state_stays_in_its_process_from_batch_to_batch(tmp_path: Path) -> None:
    batches = LocalBatches(words(tmp_path / "out"), str(tmp_path / "store"), processes=1)
    batches.batch()
    reports = batches.batch()
    counters: Counter[str] = Counter()
    for report in reports:
        counters.update(report.counters)
    assert counters["resident"] == batches.graph.component("count").par and not counters["restored"]


def test_locally_connected_bolts_share_a_partition(tmp_path: Path) -> None:
    graph = words(tmp_path)
    together = stages_of(graph, {task: task.index for task in graph.tasks()})
    assert together.places[TaskId("sink", 2)] == together.places[TaskId("count", 2)]
    apart = stages_of(graph, {task: (task.index + (task.component == "sink")) % 3 for task in graph.tasks()})
    assert apart.places[TaskId("sink", 2)][0] == apart.places[TaskId("count", 2)][0] + 1
