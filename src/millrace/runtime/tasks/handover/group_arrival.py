"""Key groups that a task takes over from another task of its component, while it works on with its own.

Their state as of the last committed wave is read and decoded aside: the component must not see it while the old owner still
works with it. Their input waits in a lane of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.control.assignment import Move
from millrace.errors import MillraceError
from millrace.runtime.tasks.checkpointing.wave_copy import CopiedGroups
from millrace.runtime.tasks.handover.parts import Closing
from millrace.runtime.tasks.handover.takeover import TAKE, Takeover

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask


class GroupArrival(Takeover):
    """The new owner's part in a move of key groups."""

    _task: BoltTask

    def __init__(self, task: BoltTask, move: Move, predecessor: int) -> None:
        super().__init__(task, move, predecessor)
        self._read = CopiedGroups()
        self._delta: list[tuple[int, bytes]] = []
        self._closing = Closing()

    def begin(self) -> None:
        """Read the state of the wave that the move names."""
        self._load()

    @property
    def _cancelled(self) -> bool:
        return self._task.ended or self._task.group_arrivals.get(self.move.number) is not self

    def _copy(self, base: tuple[int, int, int], done: Callable[[int, BaseException | None], None]) -> None:
        self._task.snapshots.read_groups(base, self.move.groups, self._read, done)

    def _on_piece(self, group: int, piece: bytes) -> None:
        self._delta.append((group, piece))

    def _complete(self, closing: Closing) -> None:
        self._closing = closing
        self._task.worker.ready(self._task)

    def take_over(self) -> None:
        """Add the key groups to the task's own, between two chunks, if all of their state is there. Runs on the loop, while the
        task's code does not."""
        task = self._task
        if self._phase != TAKE:
            return
        try:
            task.snapshots.take_groups(self.move.groups, self._read, self._delta)
        except MillraceError as error:
            self._fail(error)
            return
        self._read, self._delta = CopiedGroups(), []
        task.send_waiting()
        self._start()
        task.inbox.take_lane(self.move.number)
        self._tell_taken(self._closing)
