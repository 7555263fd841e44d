"""The part of one task in waves: snapshot on PREPARE, publish on COMMIT, discard on ROLLBACK, restore on INIT."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from millrace.control.waves import INIT, PREPARE, ROLLBACK
from millrace.errors import RowsLost
from millrace.runtime.tasks.checkpointing.snapshot import Snapshot
from millrace.runtime.tasks.user_errors import describe, error_of
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import IN_FLIGHT

if TYPE_CHECKING:
    from millrace.runtime.flow.overtaken import Overtaken
    from millrace.runtime.tasks.task import Task


class TaskWaves:
    """Queues the master's requests until the task is between two chunks, then carries them out one by one."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.pending: deque[wire.WaveMark] = deque()
        self._preparing = False  # a snapshot is being taken
        self._snapshot: Snapshot | None = None  # that one, until it is saved
        self.overtaken: Overtaken | None = None  # the input that the wave being prepared has overtaken
        self._unsaved: tuple[wire.WaveMark, Snapshot] | None = None  # taken, while overtaken input may still arrive
        self._error: BaseException | None = None
        self._emitted: dict[int, int] = {}  # of a spout: tuples before each wave, from the last one committed on
        self.committed = 0  # of a spout: the last wave that this incarnation has committed

    def on_request(self, mark: wire.WaveMark, sweep: bool) -> None:
        """Handle a request of the master, which repeats unanswered ones. A finished request is answered again; one in progress,
        or one that a mark from upstream will start, is left alone."""
        task = self._task
        if mark.dropped > mark.wave:  # a loss ended that wave: a task that went on would hold back input until the next one
            task.abandon_wave(mark.dropped)
        if task.snapshots.answers.given_again(mark):
            return
        if mark.kind == INIT:
            retires = task.departure is not None and task.departure.frozen  # it has nothing to restore
            if task.started or retires:  # others restore that wave; this task has continued from it
                task.snapshots.answers.give(mark)
            task.life.allow_restore()
        elif mark.kind == ROLLBACK:
            task.abandon_wave(mark.wave)
            task.snapshots.rolled_back(mark, self._preparing)
        elif not sweep or task.begins_waves:
            if task.snapshots.answers.begins(mark):
                self.pending.append(mark)
                task.worker.ready(task)
        else:  # the mark comes along the edges; input still held back for an earlier, failed wave would block it
            task.abandon_wave(mark.wave - 1)
            if mark.overtakes and task.snapshots.answers.begins(mark):
                self.pending.append(mark)
                task.worker.ready(task)

    def abandon(self, wave: int) -> None:
        """Drop a wave that will not be committed. The next wave covers it."""
        for mark in [mark for mark in self.pending if mark.wave == wave]:
            self.pending.remove(mark)
            self._task.snapshots.answers.dropped(mark)
        if self.overtaken is not None and self.overtaken.mark.wave <= wave:
            self.overtaken = None
        if self._unsaved is not None and self._unsaved[0].wave <= wave:
            (mark, snapshot), self._unsaved = self._unsaved, None
            self._task.snapshots.lost(snapshot)
            self._task.snapshots.answers.dropped(mark)

    def emitted_since(self, wave: int) -> int:
        """Tuples that this incarnation of a spout has emitted after the last committed wave."""
        return self._task.meters.emitted - self._emitted.get(wave, 0)

    def run_next(self) -> bool:
        """Carry out the next request, if any; return whether there was one. Call it between two chunks."""
        task = self._task
        if not self.pending or not task.started or task.busy:
            return False
        mark = self.pending.popleft()
        if mark.kind == PREPARE:
            self._prepare_now(mark)
        elif task.commits:
            task.on_own_thread(partial(self._commit, mark), partial(self._committed, mark))
        else:
            task.snapshots.committed(mark)
            self._emitted = {wave: tuples for wave, tuples in self._emitted.items() if wave >= mark.wave}
            self.committed = mark.wave
            task.worker.ready(task)
        return True

    # -- PREPARE -------------------------------------------------------------------------------------------------------

    def prepare(self, mark: wire.WaveMark) -> None:
        """Take the snapshot once all input before the wave is processed or overtaken, then forward the mark behind the
        output."""
        task = self._task
        if task.topology.broken:
            task.snapshots.answers.give(mark, error=task.topology.broken)
            return
        if task.snapshots.saving is not None:  # a store that hangs must not fill the memory with snapshots
            task.snapshots.answers.give(mark, error=f"the checkpoint store is still writing the snapshot of wave "
                                              f"{task.snapshots.saving}")
            task.worker.ready(task)
            return
        task.captured = mark.captures and task.topology.capturing  # the migration may be given up already
        spoiled, self._preparing = task.snapshots.spoiled(), True
        task.on_own_thread(partial(self._prepare, mark, spoiled), partial(self._prepared, mark, spoiled))

    def _prepare(self, mark: wire.WaveMark, spoiled: set[int]) -> None:
        def prepare() -> None:
            self._snapshot = self._task.snapshots.snapshot(mark, spoiled)

        self._task.before_wave()
        self._error = error_of(prepare)

    def _prepared(self, mark: wire.WaveMark, spoiled: set[int]) -> None:
        task = self._task
        task.busy = self._preparing = False
        if task.ended:
            return
        task.send_waiting()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            assert self._error is not None
            task.report_error(self._error, None)
            task.snapshots.failed(mark, spoiled, describe(self._error))
            if isinstance(self._error, RowsLost):  # the next wave would miss them too
                task.worker.broken(task, f"{task.name} has lost staged rows ({describe(self._error)})")
        else:
            if task.begins_waves:
                self._emitted[mark.wave] = task.emitted_for_good()
            for channel in task.channels.values():
                channel.send_mark(mark)
            self._unsaved = mark, snapshot
            self._save_if_complete()
        task.worker.ready(task)

    # -- PREPARE of a wave that overtakes ------------------------------------------------------------------------------

    def _prepare_now(self, mark: wire.WaveMark) -> None:
        """Prepare the wave at the master's request: a spout, which has no input, or a bolt that the wave is to pass at once."""
        task = self._task
        if not task.begins_waves:
            overtaken = task.overtake(mark)
            if overtaken is None:
                task.snapshots.answers.dropped(mark)
                return
            self.overtaken = overtaken
        self.prepare(mark)

    def passes(self, mark: wire.WaveMark, source: int) -> bool:
        """Record a mark that comes after its wave has overtaken the input here; False if it is of another wave."""
        if self.overtaken is None or self.overtaken.mark.wave != mark.wave:
            return False
        self.overtaken.missing.discard(source)
        self._save_if_complete()
        return True

    def await_only(self, sources: Collection[int]) -> None:
        """Wait for the marks of these senders only: the others have retired."""
        if self.overtaken is not None and not self.overtaken.missing <= set(sources):
            self.overtaken.missing &= set(sources)
            self._save_if_complete()

    def has_passed(self) -> bool:
        """True while the task works on input that the wave being prepared no longer waits for: its snapshot is being written,
        or the wave has overtaken what waits."""
        return self.overtaken is not None or self._task.snapshots.saving is not None

    def _save_if_complete(self) -> None:
        """Save the snapshot, once the wave has come on every channel: until then, what arrives belongs to it."""
        if self._unsaved is None or (self.overtaken is not None and self.overtaken.missing):
            return
        (mark, snapshot), overtaken = self._unsaved, self.overtaken
        self._unsaved = self.overtaken = None
        if overtaken is not None and overtaken.error:
            self._task.snapshots.lost(snapshot)
            self._task.snapshots.answers.give(mark, error=overtaken.error)
            return
        if overtaken is not None and overtaken.chunks:
            snapshot.pieces[IN_FLIGHT] = True, overtaken.packed()
            snapshot = snapshot._replace(streams=overtaken.streams(self._task.name.component))
        self._task.snapshots.save(mark, snapshot)

    # -- COMMIT --------------------------------------------------------------------------------------------------------

    def _commit(self, mark: wire.WaveMark) -> None:
        self._error = error_of(lambda: self._task.component.commit(mark.wave))

    def _committed(self, mark: wire.WaveMark) -> None:
        task = self._task
        task.busy = False
        if task.ended:
            return
        if self._error is None:
            task.snapshots.committed(mark)
        else:  # the master asks again, and the sink retries
            task.report_error(self._error, None)
            task.snapshots.answers.give(mark, error=describe(self._error))
        task.worker.ready(task)
