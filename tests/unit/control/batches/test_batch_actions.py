"""The loop that carries out the steps of a batch, and what an error means to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from batch_world import KEEP, graph_with

from millrace.control.batches.actions import Attempted, BatchFailed, is_fatal, lacks_state, run_steps
from millrace.control.batches.decisions import Batches, Start
from millrace.control.batches.steps import (
    MAY_FAIL,
    Announce,
    AwaitPlan,
    BatchDone,
    BatchStep,
    Collect,
    CommitPoint,
    Life,
    Rest,
    RunAttempt,
    StopBatches,
)
from millrace.errors import CheckpointMissing, CorruptCheckpoint, NotTheAuthor, OffsetsChanged, StoreUnreachable

KINDS = [kind for kind in get_args(BatchStep) if kind not in (Rest, BatchDone, StopBatches)]


class JobLost(Exception):
    """The transport error of these tests."""


class Actions:
    """Does nothing. A step fails with the next of `errors` for its kind, if there is one."""

    transport_errors = (JobLost,)

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors = errors
        self.entered: list[type] = []
        self.failures: list[Exception] = []
        self.rests: list[str] = []
        self.condition = Life.RUNNING

    def entering(self, step: BatchStep) -> None:
        self.entered.append(type(step))

    def life(self) -> Life:
        return Life.RUNNING

    def note_failure(self, error: Exception) -> Life:
        self.failures.append(error)
        return self.condition

    def rest(self, step: Rest) -> None:
        self.rests.append(step.failed)

    def _act(self, name: str) -> None:
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def await_plan(self) -> int:
        self._act("plan")
        return 1

    def run_attempt(self, step: RunAttempt) -> Attempted:
        self._act("attempt")
        return Attempted(graph_with(sinks=0), [], 0.0)

    def __getattr__(self, name: str) -> Any:
        return lambda step: self._act(name) or ()


def run(actions: Actions) -> BatchStep:
    epochs: Iterator[int] = iter(range(1, 100))
    decider = Batches(graph_with(sinks=0), Start(None, "1-0"), lambda: next(epochs), keep=KEEP)
    return run_steps(decider.offered(0), decider, actions)


def test_the_loop_ends_with_the_batch() -> None:
    actions = Actions()
    assert run(actions) == BatchDone(ran=True)
    assert actions.entered == [AwaitPlan, RunAttempt, CommitPoint, Announce, Collect] and not actions.rests


def test_a_step_that_fails_is_noted_and_tried_again_after_a_pause() -> None:
    lost = JobLost("an executor died")
    actions = Actions(plan=[OSError("no executors")], attempt=[lost], commit=[ValueError("the store is odd")])
    assert run(actions) == BatchDone(ran=True)
    assert actions.rests == ["no plan", "attempt 1 at the batch failed", "cannot write the manifest"]
    assert actions.failures[1] is lost and len(actions.failures) == 3


def test_the_topology_ends_if_it_does_by_the_time_that_a_step_fails() -> None:
    actions = Actions(attempt=[JobLost("Spark is gone")])
    actions.condition = Life.ENDED
    assert run(actions) == StopBatches()


@pytest.mark.parametrize(("errors", "kind"), [
    ({"attempt": [ZeroDivisionError("a bug")]}, ZeroDivisionError), ({"commit": [NotTheAuthor("another run")]}, NotTheAuthor),
    ({"announce": [OSError("a bug")]}, OSError), ({"collect": [OSError("a bug")]}, OSError)])
def test_an_error_that_ends_the_run_is_raised_as_it_is(errors: dict[str, list[Exception]], kind: type[Exception]) -> None:
    actions = Actions(**errors)
    with pytest.raises(kind):
        run(actions)
    assert not actions.failures and not actions.rests


def test_an_error_of_the_decider_is_not_one_of_the_step() -> None:
    """The attempt succeeds, and its report is refused."""
    actions = Actions()
    decider = Batches(graph_with(sinks=0), Start(None, "1-0"), lambda: 0, keep=KEEP)
    with pytest.raises(RuntimeError, match="is not larger"):
        run_steps(decider.offered(0), decider, actions)
    assert not actions.failures


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("error", "fails_an_attempt", "fails_another_step"), [
    (NotTheAuthor("another run"), False, False), (JobLost("no executor"), True, True), (BatchFailed("a bolt"), True, True),
    (CheckpointMissing("a blob"), True, True), (OSError("no room"), True, True), (StoreUnreachable("away"), False, True),
    (ZeroDivisionError("a bug"), False, True), (CorruptCheckpoint("damaged"), False, True),
    (OffsetsChanged("another batch"), False, False)])
def test_the_meaning_of_an_error_depends_on_the_step(kind: type, error: Exception, fails_an_attempt: bool,
                                                 fails_another_step: bool) -> None:
    fails = fails_an_attempt if kind in (AwaitPlan, RunAttempt) else fails_another_step and kind in MAY_FAIL
    step: BatchStep = kind.__new__(kind)
    assert is_fatal(step, error, (JobLost,)) is not fails


def raised_from(cause: Exception) -> Exception:
    try:
        raise RuntimeError("restoring failed") from cause
    except RuntimeError as error:
        return error


def raised_while_handling(first: Exception) -> Exception:
    try:
        try:
            raise first
        except Exception:
            raise OSError("no room")  # noqa: B904
    except OSError as error:
        return error


@pytest.mark.parametrize(("error", "expected"), [
    (CheckpointMissing("a blob"), True), (raised_from(CheckpointMissing("a blob")), True),
    (raised_from(raised_from(CheckpointMissing("a blob"))), True), (raised_while_handling(CheckpointMissing("a blob")), False),
    (ValueError("CheckpointMissing: a blob"), False), (raised_from(ValueError("CheckpointMissing")), False)])
def test_state_is_missing_if_the_error_or_one_that_it_was_raised_from_says_so(error: Exception, expected: bool) -> None:
    assert lacks_state(error) is expected
