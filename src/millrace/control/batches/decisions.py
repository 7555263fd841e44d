"""The batches of one topology, decided: attempts, the commit point, publishing, collecting, repair, resumption.

Spark offers batches by number. One step is under way at a time: the driver carries it out and reports the outcome, which
gives the next step.

    AwaitPlan        wait until the topology has a plan                        planned
    RunAttempt       run the batch, all or nothing, in a new epoch             attempted, plan_moved
    CommitPoint      write the manifest                                        stored
    Announce         tell the master that the batch is committed               announced
    CommitSinks      sinks make visible what they prepared                     sinks_committed
    WriteRows        the driver writes the rows that sinks kept for it         rows_written
    Collect          delete what the kept manifests do not need                collected
    FindLost         ask the store which blobs of a manifest it has lost       lost
    Rewrite          tasks write again what the store has lost                 rewritten
    ReplaceManifest  write the committed manifest again, repaired              stored
    Rest             pause before a step is tried again                        rested
    BatchDone        the offered batch is committed and published              -
    StopBatches      the topology is ending                                    -

A step that fails is reported with `failed`. Before the commit point a failure discards the attempt: the batch is run again
as a whole, in a new epoch, from the wave before it. The commit point, publishing (CommitSinks, WriteRows) and repair are
retried by themselves; what is committed is published by this run or by the one that resumes the topology. Announce and
Collect are not retried: an error in them ends the run. A store that cannot delete is no such error: Spark's driver logs it,
and a later collection deletes what was left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
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
LISTED = 100  # batches between two listings of all names: only a listing finds what writers that died left behind


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
        raise TopologyError(f"the checkpoint of {checkpoint.topology!r} was made by the resident engine, which keeps elsewhere "
                            f"how far {', '.join(sources)} was read: it would be read from its start once more. Resume "
                            "it there, or start it under another name")
    offsets = checkpoint.offsets if checkpoint.of_batches else batch_offsets(epoch, checkpoint.wave)
    return Start(msgspec.structs.replace(checkpoint, epoch=epoch), offsets)


def needs_offsets(checkpoint: Manifest) -> bool:
    """Batches were committed since Spark began to read, so its offsets must still be there to resume."""
    return checkpoint.of_batches and checkpoint.wave > base_wave(checkpoint.offsets)


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
        self._graph = graph if committed is None else _with_parallelism(graph, committed.parallelism)  # as it was committed
        self._attempted = graph  # as the last attempt has run it
        self.base, self.committed = start.base, committed
        self.epoch = committed.epoch if committed is not None else 0
        self.attempts = 0  # at the batch under way
        self.good: deque[int] = deque(maxlen=GOOD_KNOWN)
        self._step: BatchStep = BatchDone(ran=False)
        self.batch = -1  # the one that Spark has offered
        self._ran = False  # it was committed since it was offered
        self._lacking = 0  # its last consecutive attempts that missed a part of the state
        self._failures = 0  # of the step under way
        self._batch_failures = 0  # attempts at the batch, and waits for its plan, that have failed
        self._whole = False
        self._repair_rounds, self._rounds_left = repair_rounds, 0
        self._version = 0  # of the plan by which the batch is to run
        self._resident: int | None = None  # the plan by which processes have the committed state; None: it may be gone
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

    def offered(self, batch: int) -> BatchStep:
        """Spark offers a batch. After a crash Spark may offer the last batch again. First the sinks publish what an earlier
        run has committed."""
        self._expect(BatchDone)
        self.batch, self._ran = batch, False
        return self._next(self._publish() if not self._published else self._check_offered())

    def _check_offered(self) -> BatchStep:
        wave = self.base + self.batch + 1
        committed = self.committed.wave if self.committed is not None else self.base
        if wave == committed:
            return BatchDone(self._ran)
        if wave != committed + 1:
            raise CorruptCheckpoint(f"Spark continues {self._topology!r} with batch {self.batch}, and the last one in the "
                                    f"store is batch {self.batch_of(committed)}: the two do not belong together. Restore the "
                                    "store from a backup, or start without its checkpoints (--fresh)")
        self.attempts, self._batch_failures, self._lacking, self._whole = 0, 0, 0, False
        return AwaitPlan()

    # -- attempts ------------------------------------------------------------------------------------------------------

    def planned(self, version: int, life: Life = Life.RUNNING) -> BatchStep:
        """The topology has a plan, or is ending. Under a new plan tasks leave their processes, which then forget their
        state: what the store has lost of it is rewritten first, once for each plan."""
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
        """The attempt was not begun: there is a newer plan, for which lost blobs may have to be rewritten first."""
        self._expect(RunAttempt)
        self.attempts -= 1
        return self._next(AwaitPlan() if life is Life.RUNNING else StopBatches())

    def attempted(self, graph: TopologyGraph, records: Iterable[TaskRecord], now: float,
                  life: Life = Life.RUNNING) -> BatchStep:
        """Every partition has reported. `now`: unix time."""
        step = self._expect(RunAttempt)
        if life is Life.GONE:
            return self._next(StopBatches())
        manifest = Manifest(self._topology, step.wave, step.epoch, graph.key_groups,
                            {component.name: component.par for component in graph.components},
                            sorted(records, key=lambda record: record.task), now, step.epoch, self._offsets)
        self._check_groups(manifest)
        self._attempted, self._rounds_left = graph, self._repair_rounds
        return self._next(CommitPoint(manifest))

    def _check_groups(self, manifest: Manifest) -> None:
        """A key group that had state still has some, or a piece that empties it."""
        if self.committed is None:
            return
        for component in manifest.parallelism:
            lost = self.committed.chains(component).keys() - manifest.chains(component).keys()
            if lost:
                raise CorruptCheckpoint(f"key groups {sorted(lost)} of {component!r} are missing after wave {manifest.wave} of "
                                        f"{self._topology!r}, which is not committed. This is an error in Millrace")

    # -- commit --------------------------------------------------------------------------------------------------------

    def stored(self) -> BatchStep:
        """The manifest is in the store."""
        step = self._expect(CommitPoint, ReplaceManifest)
        self.committed = step.manifest
        if isinstance(step, CommitPoint):
            self._ran, self._published, self._graph, self._resident = True, False, self._attempted, self._version
            self.good.append(step.manifest.wave_epoch)
        return self._next(Announce(step.manifest))

    def announced(self, life: Life = Life.RUNNING) -> BatchStep:
        """The next step publishes the batch, or begins the attempt that a repair has delayed."""
        self._expect(Announce)
        if not self._published:
            return self._next(self._publish())
        return self._next(self._attempt() if life is Life.RUNNING else StopBatches())

    # -- publish -------------------------------------------------------------------------------------------------------

    def _publish(self) -> BatchStep:
        """Sinks make visible what was committed, in this run or before it."""
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
        """Delete what only the oldest kept manifest needed. All names are listed instead if writers may have left something
        that is in no manifest: an earlier run, a failed attempt, a repair; and now and then."""
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
        """The blobs of the manifest that the store has lost."""
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
        """Records of the tasks that still had their state. A topology that is being killed still writes the manifest: the
        state that was rewritten would be lost without it."""
        step = self._expect(Rewrite)
        if life in (Life.ENDED, Life.GONE):
            return self._next(StopBatches())
        self._list_all = True  # blobs that were rewritten and are still there are in no manifest
        manifest = repaired(step.manifest, records, step.epoch)
        return self._next(CommitPoint(manifest) if step.reason is Reason.COMMIT else ReplaceManifest(manifest))

    def _refuse_lost(self, manifest: Manifest, lost: Collection[str]) -> None:
        """State that no attempt has found and the store does not have will not come back by itself."""
        if lost:
            tasks = ", ".join(str(record.task) for record in damaged(manifest, lost))
            raise CheckpointMissing(f"the state of {tasks} of {self._topology!r} as of wave {manifest.wave} is in no process, "
                                    f"in no fragments and not in the store, which has lost {shown(lost)}. Restore the store "
                                    "from a backup and start with --resume, or start without state with --fresh")

    # -- failures ------------------------------------------------------------------------------------------------------

    def failed(self, missing: bool = False, life: Life = Life.RUNNING) -> BatchStep:
        """The step could not be carried out. `missing`: a part of the state was neither in the store nor in a process."""
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
        """Tasks that still have the state rewrite it. Failing that, the next attempt writes all state whole."""
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
        """The step under way, which must be of one of these kinds."""
        if not isinstance(self._step, kinds):
            raise RuntimeError(f"the outcome of {' or '.join(kind.__name__ for kind in kinds)} was reported, and the step "
                               f"under way is {type(self._step).__name__}")
        return self._step

    def _advance_epoch(self) -> int:
        """Nothing that is written under one epoch can be taken for what another has written."""
        epoch = self._new_epoch()
        if epoch <= self.epoch:
            raise RuntimeError(f"epoch {epoch} of {self._topology!r} does not rise above {self.epoch}")
        self.epoch = epoch
        return epoch


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures: `FIRST_PAUSE` after one, doubled with each further one up to `LAST_PAUSE`."""
    return doubled_pause(failures, FIRST_PAUSE, LAST_PAUSE)


def _is_to_stop(step: BatchStep, life: Life) -> bool:
    """The step is not tried again, and nothing follows it."""
    return life in (Life.ENDED, Life.GONE) or (life is Life.STOPPING and not is_of_commit(step))


def _with_parallelism(graph: TopologyGraph, par: Mapping[str, int]) -> TopologyGraph:
    return replace(graph, components=tuple(replace(component, par=par[component.name]) for component in graph.components))
