"""Decides the batches of one topology: attempts, the commit point, publishing, collecting, repair, resumption.

Spark offers batches by number. There is one current step: the driver carries it out and reports the outcome, which gives the
next step.

    AwaitPlan        wait until the topology has a plan                        planned
    RunAttempt       run the batch, all or nothing, in a new epoch             attempted, plan_moved
    CommitPoint      write the manifest                                        stored
    Announce         tell the master that the batch is committed               announced
    CommitSinks      sinks publish their prepared output                       sinks_committed
    WriteRows        the driver writes the rows that sinks kept for it         rows_written
    Collect          delete blobs that the kept manifests do not need          collected
    FindLost         ask the store which blobs of a manifest it has lost       lost
    Rewrite          tasks rewrite the blobs that the store has lost           rewritten
    ReplaceManifest  write the committed manifest again, repaired              stored
    Rest             pause before a step is tried again                        rested
    BatchDone        the offered batch is committed and published              -
    StopBatches      the topology is ending                                    -

A step that fails is reported with `failed`. Before the commit point a failure discards the attempt: the whole batch is run
again, in a new epoch, from the wave before it. The commit point, publishing (CommitSinks, WriteRows) and repair are retried
step by step; a committed batch is published by this run or by the one that resumes the topology. Announce and Collect are not
retried: an error in them ends the run. A store that cannot delete is no such error: Spark's driver logs it, and a later
collection deletes the leftovers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

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
    Reason,
    ReplaceManifest,
    Rest,
    Rewrite,
    RunAttempt,
    StopBatches,
    WriteRows,
    is_of_commit,
)
from millrace.control.pauses import doubled_pause
from millrace.control.wording import shown
from millrace.errors import CheckpointMissing, CorruptCheckpoint, TopologyError
from millrace.model.graph import TaskId, TopologyGraph
from millrace.state.checkpoint import Manifest, TaskRecord, base_wave, batch_offsets, manifest_name

FIRST_PAUSE, LAST_PAUSE = 0.1, 30.0  # seconds before a failed step is tried again: after its first failure, and at most
LACKING = 5  # consecutive attempts that miss a part of the state, before it counts as lost
REPAIR_ROUNDS = 3  # a round may miss the process that has the state
GOOD_KNOWN = 200  # committed epochs that are remembered; a process idle for longer recreates its components
LISTED = 100  # batches between two listings of all names: only a listing finds blobs of writers that died


# ---- resuming ----


class Start(NamedTuple):
    """The checkpoint that a run continues, and the name of the directory in which Spark notes how far it has read, see
    `batch_offsets`."""

    committed: Manifest | None
    offsets: str

    @property
    def base(self) -> int:
        return base_wave(self.offsets)


def start_from(checkpoint: Manifest | None, epoch: int, sources: Collection[str] = ()) -> Start:
    """Resume a checkpoint under a new epoch, or start without one. `sources`: spouts that read a DataFrame."""
    if checkpoint is None:
        return Start(None, batch_offsets(epoch, 0))
    if sources and not checkpoint.of_batches:
        raise TopologyError(f"the checkpoint of {checkpoint.topology!r} was made by the resident engine, which stores the read "
                            f"position of {', '.join(sources)} elsewhere, so this engine would read it from the beginning "
                            "again. Resume it with --engine resident, or start it under another name")
    offsets = checkpoint.offsets if checkpoint.of_batches else batch_offsets(epoch, checkpoint.wave)
    return Start(msgspec.structs.replace(checkpoint, epoch=epoch), offsets)


def needs_offsets(checkpoint: Manifest) -> bool:
    """True if batches were committed since Spark began to read, so that resuming needs its offsets."""
    return checkpoint.of_batches and checkpoint.wave > base_wave(checkpoint.offsets)


def check_digest(committed: Manifest, found: str) -> None:
    """Raise `CorruptCheckpoint` if Spark's offsets of the committed batch are no longer those that it was committed with. Older
    manifests have no digest."""
    if committed.offsets_digest and found != committed.offsets_digest:
        batch = committed.wave - base_wave(committed.offsets) - 1
        raise CorruptCheckpoint(f"batch {batch} of {committed.topology!r} is committed, but Spark's offsets of it are not "
                                f"those that it was committed with: offsets/{batch} in the directory {committed.offsets}, or "
                                f"the lists of files in its sources, were lost or changed (digest {found or 'missing'}, not "
                                f"{committed.offsets_digest}). To continue would skip or repeat rows. Restore the directory "
                                "from a backup and start with --resume, or start over with --fresh and empty sinks")


# ---- repair ----


def damaged(manifest: Manifest, lost: Collection[str]) -> list[TaskRecord]:
    """Records of the tasks that need a lost blob."""
    return [record for record in manifest.records if any(piece.blob in lost for piece in record.pieces())]


def repaired(manifest: Manifest, rewritten: Iterable[TaskRecord], epoch: int) -> Manifest:
    """The manifest with the rewritten records; tasks that did not answer keep theirs."""
    by_task = {record.task: record for record in rewritten}
    return msgspec.structs.replace(manifest, epoch=epoch,
                                   records=[by_task.get(record.task, record) for record in manifest.records])


# ---- the decider ----


class Batches:
    """Decides for one run of one topology. `new_epoch` returns a number larger than all before; `writes_rows`: the driver
    writes rows for some sinks; `keep`: how many manifests stay in the store; `repair_rounds`: how often tasks are asked to
    rewrite lost blobs."""

    def __init__(self, graph: TopologyGraph, start: Start, new_epoch: Callable[[], int], *, keep: int,
                 writes_rows: bool = False, repair_rounds: int = REPAIR_ROUNDS) -> None:
        self._topology, self._offsets, self._new_epoch, self._writes_rows = graph.name, start.offsets, new_epoch, writes_rows
        committed = start.committed
        self._graph = graph if committed is None else graph.with_par(committed.parallelism)  # as it was committed
        self._attempted = graph  # as the last attempt has run it
        self.base, self.committed = start.base, committed
        self.epoch = committed.epoch if committed is not None else 0
        self.attempts = 0  # at the current batch
        self.good: deque[int] = deque(maxlen=GOOD_KNOWN)
        self._step: BatchStep = BatchDone(ran=False)
        self.batch, self._digest = -1, ""  # the one that Spark has offered, and the digest of its offsets
        self._ran = False  # the batch was committed since it was offered
        self._lacking = 0  # consecutive attempts, up to the last one, that missed a part of the state
        self._failures = 0  # of the current step
        self._batch_failures = 0  # attempts at the batch, and waits for its plan, that have failed
        self._whole = False
        self._repair_rounds, self._rounds_left = repair_rounds, 0
        self._version = 0  # of the plan for the batch
        self._resident: int | None = None  # the plan under which processes have the committed state; None: it may be gone
        self._published = committed is None
        self._kept: deque[Manifest] = deque(maxlen=keep)
        self._collections = 0
        self._list_all, self._forgot_runs = True, False

    @property
    def step(self) -> BatchStep:
        return self._step

    @property
    def restore(self) -> tuple[int, int, int]:
        """The committed wave, the epoch that prepared it, and the epoch of its manifest; zeros if there is none."""
        done = self.committed
        return (done.wave, done.wave_epoch, done.epoch) if done is not None else (0, 0, 0)

    def batch_of(self, wave: int) -> int:
        """The number by which Spark knows the batch that made the wave."""
        return wave - self.base - 1

    # -- a batch is offered --------------------------------------------------------------------------------------------

    def offered(self, batch: int, digest: str = "") -> BatchStep:
        """Begin a batch that Spark offers; after a crash Spark may offer the last one again. If output that an earlier run has
        committed is not published yet, the first step publishes it. `digest`: of Spark's offsets of the batch."""
        self._expect(BatchDone)
        self.batch, self._digest, self._ran = batch, digest, False
        return self._next(self._publish() if not self._published else self._check_offered())

    def _check_offered(self) -> BatchStep:
        wave = self.base + self.batch + 1
        committed = self.committed.wave if self.committed is not None else self.base
        if wave == committed:
            if self.committed is not None:
                check_digest(self.committed, self._digest)
            return BatchDone(self._ran)
        if wave != committed + 1:
            raise CorruptCheckpoint(f"Spark continues {self._topology!r} with batch {self.batch}, but the last batch in "
                                    f"the store is {self.batch_of(committed)}: offsets and checkpoints do not match. Restore "
                                    "the store from a backup, or start without its checkpoints (--fresh)")
        self.attempts, self._batch_failures, self._lacking, self._whole = 0, 0, 0, False
        return AwaitPlan()

    # -- attempts ------------------------------------------------------------------------------------------------------

    def planned(self, version: int, life: Life = Life.RUNNING) -> BatchStep:
        """Record the version of the topology's plan, and return the step that begins an attempt; stop if the topology is
        ending. Under a new plan tasks leave their processes, which then forget their state, so lost blobs are rewritten first,
        once for each plan."""
        self._expect(AwaitPlan)
        if life is not Life.RUNNING:
            return self._next(StopBatches())
        self._version = version
        self.attempts += 1
        if self._resident is None or self._resident == version or self.committed is None:
            return self._next(self._attempt())
        self._resident = None
        return self._next(FindLost(self.committed, Reason.NEW_PLAN))

    def _attempt(self) -> RunAttempt:
        return RunAttempt(self.base + self.batch + 1, self._advance_epoch(), self._version, self.attempts, self._whole,
                          tuple(self.good))

    def plan_moved(self, life: Life = Life.RUNNING) -> BatchStep:
        """Wait for the plan again: the attempt was not begun, because there is a newer plan, for which lost blobs may have to
        be rewritten first."""
        self._expect(RunAttempt)
        self.attempts -= 1
        return self._next(AwaitPlan() if life is Life.RUNNING else StopBatches())

    def attempted(self, graph: TopologyGraph, records: Iterable[TaskRecord], now: float,
                  life: Life = Life.RUNNING) -> BatchStep:
        """Make the manifest of a finished attempt, and return the step that commits it. `now`: unix time."""
        step = self._expect(RunAttempt)
        if life is Life.GONE:
            return self._next(StopBatches())
        manifest = Manifest(self._topology, step.wave, step.epoch, graph.key_groups,
                            graph.parallelism, sorted(records, key=lambda record: record.task), now, step.epoch,
                            self._offsets, self._digest, graph.declared, graph.splits)
        self._check_groups(manifest)
        self._attempted, self._rounds_left = graph, self._repair_rounds
        return self._next(CommitPoint(manifest))

    def _check_groups(self, manifest: Manifest) -> None:
        """Raise `CorruptCheckpoint` if a key group that had a chain in the last manifest has none in this one."""
        if self.committed is None:
            return
        for component in manifest.parallelism:
            lost = self.committed.chains(component).keys() - manifest.chains(component).keys()
            if lost:
                raise CorruptCheckpoint(f"key groups {sorted(lost)} of {component!r} are missing after wave {manifest.wave} of "
                                        f"{self._topology!r}, which is not committed. This is an error in Millrace")

    # -- commit --------------------------------------------------------------------------------------------------------

    def stored(self) -> BatchStep:
        """Record that the manifest is stored, and return the step that announces it."""
        step = self._expect(CommitPoint, ReplaceManifest)
        self.committed = step.manifest
        if isinstance(step, CommitPoint):
            self._ran, self._published, self._graph, self._resident = True, False, self._attempted, self._version
            self.good.append(step.manifest.wave_epoch)
        return self._next(Announce(step.manifest))

    def announced(self, life: Life = Life.RUNNING) -> BatchStep:
        """Return the step that publishes the batch, or begins the attempt that a repair has delayed."""
        self._expect(Announce)
        if not self._published:
            return self._next(self._publish())
        return self._next(self._attempt() if life is Life.RUNNING else StopBatches())

    # -- publish -------------------------------------------------------------------------------------------------------

    def _publish(self) -> BatchStep:
        """The first step that publishes committed output, of this run or an earlier one."""
        tasks = tuple(TaskId(component.name, index) for component in self._graph.components if component.commits
                      for index in range(component.par))
        return CommitSinks(self._graph, tasks, self._advance_epoch()) if tasks else self._write_rows()

    def sinks_committed(self) -> BatchStep:
        self._expect(CommitSinks)
        return self._next(self._write_rows())

    def _write_rows(self) -> BatchStep:
        assert self.committed is not None
        return WriteRows(self.committed) if self._writes_rows else self._collect()

    def rows_written(self) -> BatchStep:
        self._expect(WriteRows)
        return self._next(self._collect())

    # -- collect -------------------------------------------------------------------------------------------------------

    def _collect(self) -> Collect:
        """Delete blobs that only the oldest kept manifest needs. List all names instead, periodically and whenever an earlier
        run, a failed attempt or a repair may have left blobs that are in no manifest."""
        assert self.committed is not None
        self._published = True
        oldest = self._kept[0] if len(self._kept) == self._kept.maxlen else None
        self._kept.append(self.committed)
        self._collections += 1
        list_all = oldest is None or self.attempts != 1 or self._list_all or self._collections % LISTED == 0
        self._list_all = False
        if oldest is None or list_all:
            return Collect(None, self.committed.epoch, False)
        needed = set().union(*(manifest.blobs() for manifest in self._kept))
        name = manifest_name(oldest.topology, oldest.epoch, oldest.wave)
        forget, self._forgot_runs = not self._forgot_runs, True
        return Collect((name, *sorted(oldest.blobs() - needed)), self.committed.epoch, forget)

    def collected(self) -> BatchStep:
        self._expect(Collect)
        return self._next(self._check_offered())

    # -- repair --------------------------------------------------------------------------------------------------------

    def lost(self, blobs: Collection[str], life: Life = Life.RUNNING) -> BatchStep:
        """Return the step that follows a search for lost blobs. `blobs`: those of the manifest that the store has lost."""
        step = self._expect(FindLost)
        if _is_to_stop(step, life):
            return self._next(StopBatches())
        if step.reason is Reason.LACKING:
            self._refuse_lost(step.manifest, blobs)
            return self._next(self._rest_after_attempt())
        records = damaged(step.manifest, blobs)
        if not records:
            return self._next(CommitPoint(step.manifest) if step.reason is Reason.COMMIT else self._attempt())
        return self._next(Rewrite(step.manifest, tuple(records), frozenset(blobs), self._advance_epoch(), step.reason))

    def rewritten(self, records: Iterable[TaskRecord], life: Life = Life.RUNNING) -> BatchStep:
        """Put the rewritten records into the manifest, and return the step that writes it. `records`: those of the tasks that
        still had their state. A topology that is being killed still writes the manifest, or the rewritten state would be
        lost."""
        step = self._expect(Rewrite)
        if life in (Life.ENDED, Life.GONE):
            return self._next(StopBatches())
        self._list_all = True  # blobs that were replaced but are still in the store are in no manifest
        manifest = repaired(step.manifest, records, step.epoch)
        return self._next(CommitPoint(manifest) if step.reason is Reason.COMMIT else ReplaceManifest(manifest))

    def _refuse_lost(self, manifest: Manifest, lost: Collection[str]) -> None:
        """Raise `CheckpointMissing` if the store has lost blobs: no attempt found that state, so retrying cannot help."""
        if lost:
            tasks = ", ".join(str(record.task) for record in damaged(manifest, lost))
            raise CheckpointMissing(f"the state of {tasks} of {self._topology!r} as of wave {manifest.wave} is lost: no "
                                    f"process holds it, its fragments are not enough, and the store has lost {shown(lost)}. "
                                    "Restore the store from a backup and start with --resume, or start without state with "
                                    "--fresh")

    # -- failures ------------------------------------------------------------------------------------------------------

    def failed(self, missing: bool = False, life: Life = Life.RUNNING) -> BatchStep:
        """Return the step that follows a failed one: a retry, a repair, or the end. `missing`: a part of the state was neither
        in the store nor in a process."""
        step = self._expect(*MAY_FAIL)
        if isinstance(step, AwaitPlan):
            self._batch_failures += 1
            return self._next(self._rest_before_attempt("no plan") if life is Life.RUNNING else StopBatches())
        if isinstance(step, RunAttempt):
            return self._next(self._attempt_failed(missing, life))
        if _is_to_stop(step, life):
            return self._next(StopBatches(step.doing if isinstance(step, WriteRows) else ""))
        if isinstance(step, CommitPoint) and missing:
            return self._next(self._blobs_missing(step, life))
        self._failures += 1
        self._step = Rest(pause_after(self._failures), step, is_of_commit(step), f"cannot {step.doing}")
        return self._step

    def _blobs_missing(self, step: CommitPoint, life: Life) -> BatchStep:
        """Have tasks that still have the state rewrite it. If that does not help, the next attempt writes all state in full."""
        if self._rounds_left:
            self._rounds_left -= 1
            return FindLost(step.manifest, Reason.COMMIT)
        self._whole = True
        return self._attempt_failed(True, life)

    def _attempt_failed(self, missing: bool, life: Life) -> BatchStep:
        """State counts as lost only after several attempts: each may have run in another process than the one that has it."""
        if life is not Life.RUNNING:
            return StopBatches()
        self._batch_failures += 1
        self._lacking = self._lacking + 1 if missing else 0
        if self._lacking >= LACKING and self.committed is not None:
            return FindLost(self.committed, Reason.LACKING)
        return self._rest_after_attempt()

    def _rest_after_attempt(self) -> Rest:
        return self._rest_before_attempt(f"attempt {self.attempts} at the batch failed")

    def _rest_before_attempt(self, failed: str) -> Rest:
        return Rest(pause_after(self._batch_failures), AwaitPlan(), False, failed)

    def rested(self) -> BatchStep:
        step: BatchStep = self._expect(Rest).step
        if isinstance(step, CommitSinks | Rewrite):
            step = replace(step, epoch=self._advance_epoch())
        self._step = step
        return step

    # -- steps and epochs ----------------------------------------------------------------------------------------------

    def _next(self, step: BatchStep) -> BatchStep:
        self._step, self._failures = step, 0
        return step

    def _expect(self, *kinds: type) -> Any:
        """The current step, which must be of one of these kinds."""
        if not isinstance(self._step, kinds):
            raise RuntimeError(f"the outcome of {' or '.join(kind.__name__ for kind in kinds)} was reported, but the "
                               f"current step is {type(self._step).__name__}")
        return self._step

    def _advance_epoch(self) -> int:
        """Begin a new epoch, so that blobs of one attempt cannot be mistaken for those of another."""
        epoch = self._new_epoch()
        if epoch <= self.epoch:
            raise RuntimeError(f"epoch {epoch} of {self._topology!r} is not larger than {self.epoch}")
        self.epoch = epoch
        return epoch


def pause_after(failures: int) -> float:
    """Seconds to wait after this many failures: `FIRST_PAUSE` after one, doubled with each further one up to `LAST_PAUSE`."""
    return doubled_pause(failures, FIRST_PAUSE, LAST_PAUSE)


def _is_to_stop(step: BatchStep, life: Life) -> bool:
    """True if the step must not be retried because the topology is ending."""
    return life in (Life.ENDED, Life.GONE) or (life is Life.STOPPING and not is_of_commit(step))
