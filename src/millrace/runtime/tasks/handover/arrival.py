"""The beginning of an incarnation that takes over from another one, on another worker, while the stream runs.

It is made and initialized, and copies the state of the last committed wave, beside the old incarnation, which works. What it
receives waits until the old one has handed over the rest of its state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millrace.control.assignment import SWITCH, Move
from millrace.errors import MillraceError
from millrace.runtime.tasks.handover.parts import STAGED, Closing, StateParts
from millrace.runtime.tasks.user_errors import describe, error_of
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import OWN

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

MAKE, LOAD, READY, TAKE, TAKEN, FAILED = "make", "load", "ready", "take", "taken", "failed"
RETRY_SECONDS = 1.0  # before it tries again to make its component or to copy its state: a server may be away


class Arrival:
    """The new incarnation's part in a move. `predecessor`: generation of the worker of the old one."""

    def __init__(self, task: Task, move: Move, predecessor: int) -> None:
        self._task, self.move, self._predecessor = task, move, predecessor
        self._phase = MAKE
        self._wave = -1  # whose state it has
        self._copied = 0  # bytes so far
        self._parts = StateParts(self._on_piece, self._close)
        self._own: bytes | None = None
        self._staged = b""
        self._first_at = 0.0
        self._error: BaseException | None = None
        self._told: wire.Armed | wire.Taken | None = None

    # -- arming --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the component and initialize it. What it emits then is dropped: the old incarnation has emitted it before."""
        task = self._task
        if task.ended:
            return
        self._phase = MAKE
        if task.definition.dataframe:  # its feed can have one receiver only: it is made when the old incarnation has ended
            self._made()
        else:
            task.on_own_thread(self._make, self._made)

    def _make(self) -> None:
        self._error = error_of(partial(self._task.life.build, empty_state=True))
        self._task.outbox.take()

    def _made(self) -> None:
        self._task.busy = False
        if self._task.ended:
            return
        if self._error is not None:
            self._fail(self._error, self.begin)
        else:
            self._load()

    def update(self, move: Move) -> None:
        """Take the move as of a new plan: there may be a newer wave to copy."""
        self.move = move
        if self._phase == READY and self._wave < move.base[0]:
            self._load()

    def _load(self) -> None:
        if self._task.ended:
            return
        self._phase = LOAD
        if self.move.base[0]:
            self._task.snapshots.copy(self.move.base, partial(self._loaded, self.move.base[0]))
        else:
            self._loaded(0, 0, None)

    def _loaded(self, wave: int, copied: int, error: BaseException | None) -> None:
        if self._task.ended:
            return
        if error is not None:
            self._fail(error, self._load)  # the component is there, and would never be closed if another were made
            return
        self._phase, self._wave = READY, wave
        self._copied += copied
        if wave < self.move.base[0]:
            self.update(self.move)
        else:
            worker, run = self._task.worker, self._task.topology
            self._tell(wire.Armed(worker.slot, worker.generation, run.number, run.epoch, self.move.number, wave,
                                  self._copied))

    # -- taking over ---------------------------------------------------------------------------------------------------

    def on_part(self, part: wire.StatePart, body: bytes) -> None:
        """A part of the state has come from the old incarnation."""
        if self._phase != READY:
            return
        if not self._parts.any:
            self._first_at = self._task.worker.clock.now()
        try:
            self._parts.add(part, body)
        except MillraceError as error:
            self._fail(error)

    def _on_piece(self, group: int, piece: bytes) -> None:
        if group == OWN:
            self._own = piece
        elif group == STAGED:
            self._staged = piece
        else:
            self._task.snapshots.adopt(group, piece)

    def _close(self, closing: Closing) -> None:
        if closing.error:
            self._fail(MillraceError(f"its state could not be handed over: {closing.error}"))
            return
        self._phase = TAKE
        self._task.on_own_thread(partial(self._take, closing), partial(self._taken, closing))

    def _take(self, closing: Closing) -> None:
        def take() -> None:
            if self._task.definition.dataframe:
                self._task.life.build(empty_state=True)
            self._task.snapshots.take_over(self._own, closing.position, self._staged)

        self._error = error_of(take)

    def _taken(self, closing: Closing) -> None:
        task = self._task
        task.busy = False
        if task.ended:
            return
        if self._error is not None:
            self._fail(self._error)
            return
        start = wire.HandoverMark(wire.START, self.move.number, task.number, self.move.old.incarnation, self.move.old.slot,
                                  self._predecessor)
        for channel in task.channels.values():
            channel.send_mark(start)
        self._phase = TAKEN
        task.start_taken(closing.due)
        worker, run = task.worker, task.topology
        now = worker.clock.now()
        self._tell(wire.Taken(worker.slot, worker.generation, run.number, run.epoch, self.move.number, self._parts.bytes,
                              closing.paused + now - (self._first_at or now), "", self.move.old.slot, closing.stopped_at, now))

    # -- answers -------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, again: Callable[[], None] | None = None) -> None:
        """Report the error. `again`: the step of arming to try again later; None once the old incarnation has handed over."""
        task, move = self._task, self.move
        worker, run, text = task.worker, task.topology, describe(error)
        self._phase = FAILED
        task.report_error(error, None)
        if again is None or move.phase == SWITCH:
            self._tell(wire.Taken(worker.slot, worker.generation, run.number, run.epoch, move.number, error=text))
            return
        self._tell(wire.Armed(worker.slot, worker.generation, run.number, run.epoch, move.number, self._wave, error=text))
        worker.timers.at(worker.clock.now() + RETRY_SECONDS, again)

    def _tell(self, answer: wire.Armed | wire.Taken) -> None:
        self._told = answer
        self._task.worker.tell_master(answer)

    def tell_again(self) -> None:
        """Repeat the last answer: the master may not have received it."""
        if self._told is not None:
            self._task.worker.tell_master(self._told)

    @property
    def over(self) -> bool:
        return self._phase == TAKEN
