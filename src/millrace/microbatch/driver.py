"""The actions that all drivers share, with Spark and without: the commit point, and attempts that may be committed."""

from __future__ import annotations

import time
from collections.abc import Collection

from millrace.control.batches.actions import Attempted
from millrace.control.batches.decisions import Batches
from millrace.control.batches.steps import Announce, BatchStep, CommitPoint, FindLost, ReplaceManifest, Rewrite, RunAttempt
from millrace.microbatch.batch_checkpoints import BatchCheckpoints
from millrace.microbatch.work import Attempt, BatchWork, PartitionReport, repair_work
from millrace.state.checkpoint import TaskRecord


class BatchDriver:
    """Carries out the steps that `decider` decides for one run of a topology. A subclass adds the actions that need processes:
    it prepares the work of an attempt, runs it, and lets tasks rewrite lost blobs."""

    def __init__(self, checkpoints: BatchCheckpoints, decider: Batches) -> None:
        self._store, self.decider = checkpoints, decider
        self._ran: dict[int, tuple[Attempt, list[PartitionReport]]] = {}  # by epoch: attempts that are, or may be, committed

    # -- for a subclass to define ------------------------------------------------------------------------------------

    def _prepare(self, step: RunAttempt) -> BatchWork:
        """The work of the next attempt, under the current plan."""
        raise NotImplementedError

    def _run(self, attempt: Attempt) -> list[PartitionReport]:
        raise NotImplementedError

    def _rewrite(self, attempt: Attempt, work: BatchWork, step: Rewrite) -> list[TaskRecord]:
        """Have tasks rewrite lost blobs. `attempt`: the one that prepared the state."""
        raise NotImplementedError

    # -- actions -----------------------------------------------------------------------------------------------------

    def entering(self, step: BatchStep) -> None: ...

    def run_attempt(self, step: RunAttempt) -> Attempted | None:
        work = self._prepare(step)
        if work.assignment.version != step.version:
            return None
        attempt = Attempt.of(work.for_attempt(step))
        reports = self._run(attempt)
        self._ran[step.epoch] = attempt, reports
        return Attempted(attempt.graph, [task.record for report in reports for task in report.tasks], time.time())

    def rewrite(self, step: Rewrite) -> list[TaskRecord]:
        attempt, _ = self._ran[step.manifest.wave_epoch]
        return self._rewrite(attempt, repair_work(attempt.work, step.manifest, step.records, step.epoch), step)

    def find_lost(self, step: FindLost) -> Collection[str]:
        return self._store.lost(step.manifest)

    def commit(self, step: CommitPoint) -> None:
        self._store.commit(step.manifest)

    def replace_manifest(self, step: ReplaceManifest) -> None:
        self._store.enter(step.manifest)

    def announce(self, step: Announce) -> None:
        self._ran = {epoch: ran for epoch, ran in self._ran.items() if epoch == step.manifest.wave_epoch}

    def _committed(self) -> tuple[Attempt, list[PartitionReport]]:
        """The committed attempt, if it ran here."""
        return self._ran[self.decider.restore[1]]
