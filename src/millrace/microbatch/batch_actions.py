"""Carries out the steps of a batch: the action that each takes of a driver, and the outcome that is reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from millrace.control.batch_steps import (
    Announce,
    AwaitPlan,
    BatchStep,
    Collect,
    CommitPoint,
    CommitSinks,
    FindLost,
    Life,
    ReplaceManifest,
    Rewrite,
    RunAttempt,
    WriteRows,
)
from millrace.control.batches import Batches
from millrace.model.graph import TopologyGraph
from millrace.state.checkpoint import TaskRecord


class Attempted(NamedTuple):
    """An attempt that has succeeded: the topology that ran, the version of its plan, the records of its tasks, unix time."""

    graph: TopologyGraph
    version: int
    records: list[TaskRecord]
    now: float


class BatchActions(Protocol):
    """The actions of a driver, one for each step. An action that fails raises."""

    def life(self) -> Life: ...

    def await_plan(self) -> int:
        """Returns the plan's version; any number if the topology is ending."""
        ...

    def run_attempt(self, step: RunAttempt) -> Attempted: ...

    def find_lost(self, step: FindLost) -> Collection[str]: ...

    def rewrite(self, step: Rewrite) -> Iterable[TaskRecord]: ...

    def commit(self, step: CommitPoint) -> None: ...

    def replace_manifest(self, step: ReplaceManifest) -> None: ...

    def announce(self, step: Announce) -> None: ...

    def commit_sinks(self, step: CommitSinks) -> None: ...

    def write_rows(self, step: WriteRows) -> None: ...

    def collect(self, step: Collect) -> None: ...


def carry_out(step: BatchStep, batches: Batches, actions: BatchActions) -> Callable[[], BatchStep]:
    """Carry out the step. Returns the report of its outcome, to be called by itself: what it raises is an error of the batch,
    not of the step."""
    match step:
        case AwaitPlan():
            return partial(batches.planned, actions.await_plan(), actions.life())
        case RunAttempt():
            return partial(batches.attempted, *actions.run_attempt(step), actions.life())
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
    raise AssertionError(f"{step} is not carried out")
