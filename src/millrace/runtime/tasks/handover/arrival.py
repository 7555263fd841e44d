"""The beginning of an incarnation that takes over from another one, on another worker, while the stream runs.

It is made and initialized, and copies the state of the last committed wave, beside the old incarnation, which works. What it
receives waits until the old one has handed over the rest of its state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millrace.control.assignment import Move
from millrace.model.graph import TaskId
from millrace.runtime.tasks.handover.parts import STAGED, Closing
from millrace.runtime.tasks.handover.takeover import Takeover
from millrace.runtime.tasks.user_errors import error_of
from millrace.state.checkpoint import OWN

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

MAKE = "make"  # the phase before those of every `Takeover`


class Arrival(Takeover):
    """The new incarnation's part in a move."""

    def __init__(self, task: Task, move: Move, predecessor: int) -> None:
        super().__init__(task, move, predecessor)
        self._own: bytes | None = None
        self._staged = b""
        self._error: BaseException | None = None

    # -- arming --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the component and initialize it. What it emits then, or puts into keyed state, is dropped: the old incarnation
        has done so before."""
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
        self._task.snapshots.empty()

    def _made(self) -> None:
        self._task.busy = False
        if self._task.ended:
            return
        if self._error is not None:
            self._fail(self._error, self.begin)  # once it is made, only the copying is tried again: nobody closes a second one
        else:
            self._load()

    def _copy(self, base: tuple[int, int, int], done: Callable[[int, BaseException | None], None]) -> None:
        self._task.snapshots.copy(base, done, awaited=self.move.cold)

    # -- taking over ---------------------------------------------------------------------------------------------------

    def _on_piece(self, group: int, piece: bytes) -> None:
        if group == OWN:
            self._own = piece
        elif group == STAGED:
            self._staged = piece
        else:
            self._task.snapshots.adopt(group, piece)

    def _complete(self, closing: Closing) -> None:
        self._task.on_own_thread(partial(self._take, closing), partial(self._taken, closing))

    def _take(self, closing: Closing) -> None:
        def take() -> None:
            if self._task.definition.dataframe:
                self._task.life.build(empty_state=True)
            for split, (_, _, reached) in closing.splits.items():
                self._task.topology.sent[TaskId(self._task.name.component, split)].reached = reached
            self._task.snapshots.take_over(self._own, closing.position, self._staged, closing.splits)

        self._error = error_of(take)

    def _taken(self, closing: Closing) -> None:
        task = self._task
        task.busy = False
        if task.ended:
            return
        if self._error is not None:
            self._fail(self._error)
            return
        if closing.reached:
            task.topology.sent[task.name].reached = closing.reached
        self._start()
        task.start_taken(closing.due)
        self._tell_taken(closing)
