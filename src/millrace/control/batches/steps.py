"""The steps of a batch: what `millrace.control.batches.decisions` decides and a driver carries out."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from millrace.model.graph import TaskId, TopologyGraph
from millrace.state.checkpoint import Manifest, TaskRecord


class Life(enum.Enum):
    """The topology's condition when a step has ended. STOPPING: it is being killed; the batch under way is finished, and not
    run again. ENDED: the query is stopping; abandon the batch. GONE: the master has no such topology; nothing may be
    committed."""

    RUNNING = enum.auto()
    STOPPING = enum.auto()
    ENDED = enum.auto()
    GONE = enum.auto()


class Reason(enum.Enum):
    """The reason for a search for lost blobs: the manifest cannot be committed, tasks are about to leave their processes, or
    several attempts have missed state."""

    COMMIT = enum.auto()
    NEW_PLAN = enum.auto()
    LACKING = enum.auto()


# ---- steps; retried steps carry a description for messages ----


@dataclass(frozen=True, slots=True)
class AwaitPlan:
    """Wait until the topology is neither paused nor without slots."""


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """Run the batch from the committed wave, by the plan of that version and no other. `whole`: tasks write all their state,
    since the store has lost some. `good`: epochs of the last committed attempts."""

    wave: int
    epoch: int
    version: int
    attempt: int  # 1 for the first
    whole: bool
    good: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """Check that the store has the manifest's blobs, then write it. The batch is committed when, and only when, that
    succeeds: a failure before it goes back to the wave before, a failure after it to this one."""

    manifest: Manifest
    doing: ClassVar[str] = "write the manifest"


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the master. Sinks may take long to publish, so this does not wait for them."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CommitSinks:
    """These tasks make visible what they prepared for the committed wave. `graph`: the topology as it was committed."""

    graph: TopologyGraph
    tasks: tuple[TaskId, ...]
    epoch: int
    doing: ClassVar[str] = "commit what the sinks have prepared"


@dataclass(frozen=True, slots=True)
class WriteRows:
    """The driver writes the rows that sinks kept in the checkpoint. A topology that is killed leaves this to its resumption."""

    manifest: Manifest
    doing: ClassVar[str] = "write what the sinks have kept"


@dataclass(frozen=True, slots=True)
class Collect:
    """Delete these names; None: list all names and delete those that no kept manifest needs. `forget_runs`: every manifest
    is of this run now, so Spark's offsets of other runs can go."""

    names: tuple[str, ...] | None
    epoch: int
    forget_runs: bool


@dataclass(frozen=True, slots=True)
class FindLost:
    manifest: Manifest
    reason: Reason
    doing: ClassVar[str] = "look for blobs"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The tasks of these records write again what the store has lost, in an epoch of its own. They ran in the attempt whose
    epoch is the manifest's `wave_epoch`, and may still have their state in memory."""

    manifest: Manifest
    records: tuple[TaskRecord, ...]
    lost: frozenset[str]
    epoch: int
    reason: Reason
    doing: ClassVar[str] = "write again what the store has lost"


@dataclass(frozen=True, slots=True)
class ReplaceManifest:
    """Write the repaired manifest of the committed wave, without checking its blobs."""

    manifest: Manifest
    doing: ClassVar[str] = "write the manifest"


@dataclass(frozen=True, slots=True)
class Rest:
    """Pause before `step` is tried again. `patient`: also while the topology is being killed. `failed`: what has failed, for
    messages."""

    seconds: float
    step: BatchStep
    patient: bool
    failed: str


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The offered batch is committed and published. `ran`: by this offer; not by one that Spark has forgotten."""

    ran: bool


@dataclass(frozen=True, slots=True)
class StopBatches:
    """The topology is ending; no further step. `unwritten`: what was left to the resumption."""

    unwritten: str = ""


BatchStep = (AwaitPlan | RunAttempt | CommitPoint | Announce | CommitSinks | WriteRows | Collect | FindLost | Rewrite
             | ReplaceManifest | Rest | BatchDone | StopBatches)
RETRIED = CommitPoint, CommitSinks, WriteRows, FindLost, Rewrite, ReplaceManifest
MAY_FAIL = AwaitPlan, RunAttempt, *RETRIED  # an error in any other step ends the run


def is_of_commit(step: BatchStep) -> bool:
    """The step finishes the batch under way, so it is retried also while the topology is being killed. Rows can wait for the
    resumption."""
    return isinstance(step, CommitPoint | CommitSinks) or (isinstance(step, FindLost | Rewrite)
                                                           and step.reason is Reason.COMMIT)
