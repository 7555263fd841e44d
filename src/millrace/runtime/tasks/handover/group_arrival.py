"""Key groups that a task takes over from another task of its component, while it works on with its own.

Their state as of the last committed wave is read and decoded aside: the component must not see it while the old owner still
works with it. Their input waits in a lane of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millrace.control.assignment import SWITCH, Move
from millrace.errors import MillraceError
from millrace.runtime.tasks.checkpointing.wave_copy import CopiedGroups
from millrace.runtime.tasks.handover.parts import Closing, StateParts
from millrace.runtime.tasks.user_errors import describe
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask

LOADING, READY, COMPLETE, TAKEN, FAILED = "loading", "ready", "complete", "taken", "failed"
RETRY_SECONDS = 1.0  # before it tries again to read the state: the store may be away


class GroupArrival:
    """The new owner's part in a move of key groups. `predecessor`: generation of the worker of the old owner."""

    def __init__(self, task: BoltTask, move: Move, predecessor: int) -> None:
        self._task, self.move, self._predecessor = task, move, predecessor
        self._phase = LOADING
        self._wave = -1  # whose state it has
        self._copied = 0  # bytes so far
        self._read = CopiedGroups()
        self._delta: list[tuple[int, bytes]] = []
        self._parts = StateParts(self._on_piece, self._close)
        self._first_at, self._closing = 0.0, Closing()
        self._told: wire.Armed | wire.Taken | None = None

    # -- arming --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the state of the wave that the move names, unless the move was cancelled."""
        if self._cancelled:
            return
        self._phase = LOADING
        if self.move.base[0]:
            self._task.snapshots.read_groups(self.move.base, self.move.groups, self._read,
                                             partial(self._loaded, self.move.base[0]))
        else:
            self._loaded(0, 0, None)

    def update(self, move: Move) -> None:
        """Take the move as of a new plan: there may be a newer wave to read."""
        self.move = move
        if self._phase == READY and self._wave < move.base[0]:
            self.begin()

    @property
    def _cancelled(self) -> bool:
        return self._task.ended or self._task.group_arrivals.get(self.move.number) is not self

    def _loaded(self, wave: int, copied: int, error: BaseException | None) -> None:
        task = self._task
        if self._cancelled:
            return
        worker, run = task.worker, task.topology
        if error is not None:
            task.report_error(error, None)
            self._tell(wire.Armed(worker.slot, worker.generation, run.number, run.epoch, self.move.number, self._wave,
                                  error=describe(error)))
            worker.timers.at(worker.clock.now() + RETRY_SECONDS, self.begin)
            return
        self._phase, self._wave = READY, wave
        self._copied += copied
        self._tell(wire.Armed(worker.slot, worker.generation, run.number, run.epoch, self.move.number, wave, self._copied))
        self.update(self.move)

    # -- taking over ---------------------------------------------------------------------------------------------------

    def on_part(self, part: wire.StatePart, body: bytes) -> None:
        """A part of the state has come from the old owner."""
        if self._phase != READY:
            return
        if not self._parts.any:
            self._first_at = self._task.worker.clock.now()
        try:
            self._parts.add(part, body)
        except MillraceError as error:
            self._fail(describe(error))

    def _on_piece(self, group: int, piece: bytes) -> None:
        self._delta.append((group, piece))

    def _close(self, closing: Closing) -> None:
        if closing.error:
            self._fail(f"the state could not be handed over: {closing.error}")
            return
        self._phase, self._closing = COMPLETE, closing
        self._task.worker.ready(self._task)

    def take_over(self) -> None:
        """Add the key groups to the task's own, between two chunks, if all of their state is there. Runs on the loop, while the
        task's code does not."""
        task = self._task
        if self._phase != COMPLETE:
            return
        try:
            task.snapshots.take_groups(self.move.groups, self._read, self._delta)
        except MillraceError as error:
            self._fail(describe(error))
            return
        self._phase, self._read, self._delta = TAKEN, CopiedGroups(), []
        task.send_waiting()
        start = wire.HandoverMark(wire.START, self.move.number, task.topology.graph.number(self.move.task),
                                  self.move.old.incarnation, self.move.old.slot, self._predecessor)
        for channel in task.channels.values():
            channel.send_mark(start)
        task.inbox.take_lane(self.move.number)
        worker, run = task.worker, task.topology
        now, closing = worker.clock.now(), self._closing
        self._tell(wire.Taken(worker.slot, worker.generation, run.number, run.epoch, self.move.number, self._parts.bytes,
                              closing.paused + now - self._first_at, "", self.move.old.slot, closing.stopped_at, now))

    # -- answers -------------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        worker, run = self._task.worker, self._task.topology
        self._phase = FAILED
        self._tell(wire.Taken(worker.slot, worker.generation, run.number, run.epoch, self.move.number, error=reason))

    def _tell(self, answer: wire.Armed | wire.Taken) -> None:
        self._told = answer
        self._task.worker.tell_master(answer)

    def tell_again(self) -> None:
        """Repeat the last answer: the master may not have received it."""
        if self._told is not None and (self.move.phase == SWITCH) == isinstance(self._told, wire.Taken):
            self._task.worker.tell_master(self._told)
