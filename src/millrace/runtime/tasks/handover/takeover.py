"""The receiving side of a move, be it of a task or of key groups: it copies the state of the last committed wave while the old
owner works, gets from that owner what has changed since, and tells the master of each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millrace.control.assignment import SWITCH, Move
from millrace.errors import MillraceError
from millrace.runtime.tasks.handover.parts import Closing, StateParts
from millrace.runtime.tasks.user_errors import describe
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

LOAD, READY, TAKE, TAKEN, FAILED = "load", "ready", "take", "taken", "failed"
RETRY_SECONDS = 1.0  # before a step of arming is tried again: a server or the store may be away


class Takeover:
    """The new owner's part in a move. `predecessor`: generation of the worker of the old one."""

    def __init__(self, task: Task, move: Move, predecessor: int) -> None:
        self._task, self.move, self._predecessor = task, move, predecessor
        self._phase = LOAD
        self._wave = -1  # whose state it has
        self._copied = 0  # bytes so far
        self._parts = StateParts(self._on_piece, self._close)
        self._first_at = 0.0  # when the first part came
        self._bare = move.cold  # nothing is copied before it switches
        self._early: list[tuple[wire.StatePart, bytes]] = []  # parts that came while it was bare
        self._told: wire.Armed | wire.Taken | None = None

    # -- for subclasses ------------------------------------------------------------------------------------------------

    @property
    def _cancelled(self) -> bool:
        return self._task.ended

    def _copy(self, base: tuple[int, int, int], done: Callable[[int, BaseException | None], None]) -> None:
        """Copy the state of this wave, then call `done` with the bytes copied, or with an error."""
        raise NotImplementedError

    def _on_piece(self, group: int, piece: bytes) -> None:
        """A piece of the state has come from the old owner."""
        raise NotImplementedError

    def _complete(self, closing: Closing) -> None:
        """All of the state has come."""
        raise NotImplementedError

    # -- arming --------------------------------------------------------------------------------------------------------

    def update(self, move: Move) -> None:
        """Take the move as of a new plan: there may be a newer wave to copy."""
        self.move = move
        if self._phase == READY and (self._wave < move.base[0] or (self._bare and self._switched)):
            self._load()

    @property
    def _switched(self) -> bool:
        """True once the old owner hands over; its state can come before the plan that says so."""
        return self.move.phase == SWITCH or bool(self._early)

    def _load(self) -> None:
        if self._cancelled:
            return
        self._phase = LOAD
        if self.move.base[0] and (self._switched or not self._bare):
            self._copy(self.move.base, partial(self._loaded, self.move.base[0]))
        else:
            self._loaded(self.move.base[0], 0, None)

    def _loaded(self, wave: int, copied: int, error: BaseException | None) -> None:
        if self._cancelled:
            return
        if error is not None:
            self._fail(error, self._load)
            return
        self._phase, self._wave = READY, wave
        self._copied += copied
        if wave < self.move.base[0]:
            self.update(self.move)
        elif self._bare and self._switched:
            self._bare, early, self._early = False, self._early, []
            for part, body in early:
                self.on_part(part, body)
        else:
            worker, run = self._task.worker, self._task.topology
            self._tell(wire.Armed(worker.slot, worker.generation, run.number, run.epoch, self.move.number, wave,
                                  self._copied))

    # -- taking over ---------------------------------------------------------------------------------------------------

    def on_part(self, part: wire.StatePart, body: bytes) -> None:
        """A part of the state has come from the old owner."""
        if not self._first_at:
            self._first_at = self._task.worker.clock.now()
        if self._bare:
            self._early.append((part, body))
            self.update(self.move)
            return
        if self._phase != READY:
            return
        try:
            self._parts.add(part, body)
        except MillraceError as error:
            self._fail(error)

    def _close(self, closing: Closing) -> None:
        if closing.error:
            self._fail(MillraceError(f"its state could not be handed over: {closing.error}"))
        else:
            self._phase = TAKE
            self._complete(closing)

    def _start(self) -> None:
        """Tell the receivers that from now on this task sends what was another's."""
        move, number = self.move, self._task.topology.graph.number
        start = wire.HandoverMark(wire.START, move.number, number(move.task), move.old.incarnation, move.old.slot,
                                  self._predecessor)
        for channel in self._task.channels.values():
            channel.send_mark(start)
        self._phase = TAKEN

    def _tell_taken(self, closing: Closing) -> None:
        worker, run, move = self._task.worker, self._task.topology, self.move
        now = worker.clock.now()
        self._tell(wire.Taken(worker.slot, worker.generation, run.number, run.epoch, move.number, self._parts.bytes,
                              closing.paused + now - (self._first_at or now), "", move.old.slot, closing.stopped_at, now,
                              self._copied))

    @property
    def over(self) -> bool:
        return self._phase == TAKEN

    # -- answers -------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, again: Callable[[], None] | None = None) -> None:
        """Report the error. `again`: the step of arming to try again later; None once the old owner has handed over."""
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
