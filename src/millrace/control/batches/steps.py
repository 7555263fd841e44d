"""The steps of a batch, decided by `millrace.control.batches.decisions` and carried out by a driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from millrace.model.graph import TaskId, TopologyGraph
from millrace.state.checkpoint import Manifest, TaskRecord


class Life(enum.Enum):
    """The topology's condition when a step has ended. STOPPING: it is being killed; the current batch is finished, but not run
    again. ENDED: the query is stopping; abandon the batch. GONE: the master has no such topology; nothing may be committed."""

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
    """Tell the master. Sinks may take a long time to publish, so this does not wait for them."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CommitSinks:
    """Have these sink tasks publish their prepared output of the committed wave. `graph`: the topology as it was committed."""

    graph: TopologyGraph
    tasks: tuple[TaskId, ...]
    epoch: int
    doing: ClassVar[str] = "commit the prepared output of the sinks"


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Write the rows that sinks kept in the checkpoint, in the driver. If the topology is killed, the run that resumes it
    writes them."""

    manifest: Manifest
    doing: ClassVar[str] = "write the rows kept by the sinks"


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
    """Have the tasks of these records rewrite their lost blobs, in a new epoch. They ran in the attempt whose epoch is the
    manifest's `wave_epoch`, and may still have their state in memory."""

    manifest: Manifest
    records: tuple[TaskRecord, ...]
    lost: frozenset[str]
    epoch: int
    reason: Reason
    doing: ClassVar[str] = "rewrite the blobs that the store has lost"


@dataclass(frozen=True, slots=True)
class ReplaceManifest:
    """Write the repaired manifest of the committed wave, without checking its blobs."""

    manifest: Manifest
    doing: ClassVar[str] = "write the manifest"


@dataclass(frozen=True, slots=True)
class Rest:
    """Pause before `step` is tried again. `patient`: even while the topology is being killed. `failed`: the failure, for
    messages."""

    seconds: float
    step: BatchStep
    patient: bool
    failed: str


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The offered batch is committed and published. `ran`: True if it was committed during this offer; False if it had been
    committed before and Spark offered it again."""

    ran: bool


@dataclass(frozen=True, slots=True)
class StopBatches:
    """The topology is ending; no further step. `unwritten`: the step left to the run that resumes the topology."""

    unwritten: str = ""


BatchStep = (AwaitPlan | RunAttempt | CommitPoint | Announce | CommitSinks | WriteRows | Collect | FindLost | Rewrite
             | ReplaceManifest | Rest | BatchDone | StopBatches)
RETRIED = CommitPoint, CommitSinks, WriteRows, FindLost, Rewrite, ReplaceManifest
MAY_FAIL = AwaitPlan, RunAttempt, *RETRIED  # an error in any other step ends the run


def is_of_commit(step: BatchStep) -> bool:
    """True if the step is part of the commit, so that it is retried even while the topology is being killed. WriteRows is not:
    the resumed run can write the rows."""
    return isinstance(step, CommitPoint | CommitSinks) or (isinstance(step, FindLost | Rewrite)
                                                           and step.reason is Reason.COMMIT)
