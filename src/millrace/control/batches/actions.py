"""Carries out the steps of a batch: calls the driver's action for each step, classifies its errors, reports the outcome.

Every driver runs this loop, so an error means the same to all of them. A driver adds the transport: its actions raise
`CheckpointMissing` if a process lacked a part of the state, and one of its `transport_errors` if a job failed otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from millrace.control.batches.decisions import Batches
from millrace.control.batches.steps import (
    MAY_FAIL,
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
from millrace.errors import CheckpointMissing, MillraceError, NotTheAuthor, OffsetsChanged
from millrace.model.graph import TopologyGraph
from millrace.state.checkpoint import TaskRecord


class BatchFailed(MillraceError):
    """The attempt cannot be finished; the whole batch is run again."""


ATTEMPT_ERRORS = BatchFailed, CheckpointMissing, OSError  # errors that fail an attempt, with any driver


class Attempted(NamedTuple):
    """An attempt that has succeeded: the topology that ran, the records of its tasks, unix time."""

    graph: TopologyGraph
    records: list[TaskRecord]
    now: float


class BatchActions(Protocol):
    """The actions of a driver, one for each step. An action that fails raises."""

    transport_errors: tuple[type[Exception], ...]  # errors with which jobs fail

    def life(self) -> Life: ...

    def entering(self, step: BatchStep) -> None:
        """Called before the step is carried out."""
        ...

    def note_failure(self, error: Exception) -> Life:
        """Note the error of a step that may be tried again; returns the topology's condition."""
        ...

    def rest(self, step: Rest) -> None:
        """Pause, or raise to pause until the driver continues with the next step."""
        ...

    def await_plan(self) -> int:
        """Returns the plan's version; any number if the topology is ending."""
        ...

    def run_attempt(self, step: RunAttempt) -> Attempted | None:
        """Returns None, without having run anything, if the plan is no longer of the step's version."""
        ...

    def find_lost(self, step: FindLost) -> Collection[str]: ...

    def rewrite(self, step: Rewrite) -> Iterable[TaskRecord]: ...

    def commit(self, step: CommitPoint) -> None: ...

    def replace_manifest(self, step: ReplaceManifest) -> None: ...

    def announce(self, step: Announce) -> None: ...

    def commit_sinks(self, step: CommitSinks) -> None: ...

    def write_rows(self, step: WriteRows) -> None: ...

    def collect(self, step: Collect) -> None: ...


def run_steps(step: BatchStep, batches: Batches, actions: BatchActions) -> BatchDone | StopBatches:
    """Carry out this step and all that follow it."""
    while not isinstance(step, BatchDone | StopBatches):
        step = _next_step(step, batches, actions)
    return step


def _next_step(step: BatchStep, batches: Batches, actions: BatchActions) -> BatchStep:
    if isinstance(step, Rest):
        actions.rest(step)
        return batches.rested()
    actions.entering(step)
    try:
        report = _carry_out(step, batches, actions)
    except Exception as error:
        if is_fatal(step, error, actions.transport_errors):
            raise
        failure = error
    else:
        return report()
    # Called outside the handler, so that nothing raised from here on has the failure as its context: Spark fails on exceptions
    # with long chained causes.
    return batches.failed(lacks_state(failure), actions.note_failure(failure))


def is_fatal(step: BatchStep, error: Exception, transport_errors: tuple[type[Exception], ...]) -> bool:
    """True if the error ends the run; otherwise the step has failed and may be retried. After the attempt, a store, a job or a
    user's function may raise anything. A run that another one has replaced retries nothing, nor does one whose
    batch is no longer what Spark has noted."""
    if isinstance(error, NotTheAuthor | OffsetsChanged) or not isinstance(step, MAY_FAIL):
        return True
    return isinstance(step, AwaitPlan | RunAttempt) and not isinstance(error, (*ATTEMPT_ERRORS, *transport_errors))


def lacks_state(error: BaseException) -> bool:
    """True if a part of the state was missing: the error, or one that it was raised from, is CheckpointMissing. An error merely
    raised while another was handled does not count."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CheckpointMissing):
            return True
        cause = cause.__cause__
    return False


def _carry_out(step: BatchStep, batches: Batches, actions: BatchActions) -> Callable[[], BatchStep]:
    """Carry out the step. Returns a function that reports the outcome and returns the next step. Call it outside the error
    handling of the step: an exception from it is fatal for the batch, not a failed step."""
    match step:
        case AwaitPlan():
            return partial(batches.planned, actions.await_plan(), actions.life())
        case RunAttempt():
            attempted = actions.run_attempt(step)
            if attempted is None:
                return partial(batches.plan_moved, actions.life())
            return partial(batches.attempted, *attempted, actions.life())
        case FindLost():
            return partial(batches.lost, actions.find_lost(step), actions.life())
        case Rewrite():
            return partial(batches.rewritten, actions.rewrite(step), actions.life())
        case CommitPoint():
            actions.commit(step)
            return batches.stored
        case ReplaceManifest():
            actions.replace_manifest(step)
            return batches.stored
        case Announce():
            actions.announce(step)
            return partial(batches.announced, actions.life())
        case CommitSinks():
            actions.commit_sinks(step)
            return batches.sinks_committed
        case WriteRows():
            actions.write_rows(step)
            return batches.rows_written
        case Collect():
            actions.collect(step)
            return batches.collected
    raise AssertionError(f"no action for {step}")
