"""The position of a replayable spout: restored when it starts, and reported for its next incarnation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.api.spout import ReplayableSpout
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.spout import SpoutTask

POSITION_SECONDS = 0.2  # between two reads of the position of a blocking spout


class SpoutPosition:
    """The last known position of one spout. Reading it runs the spout's code, which may be busy on its own thread."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self._known: int | None = None
        self._known_at = 0.0

    def restore(self) -> None:
        """Continue from the position that the master has kept."""
        task = self._task
        if isinstance(task.component, ReplayableSpout) and task.name in task.topology.positions:
            position = task.topology.positions[task.name]
            task.component._next_position = position
            task.component.seek(position)

    def reported(self) -> int | None:
        """The position that the master keeps for the next incarnation; None if the source cannot be replayed."""
        if not self._task.busy:
            self._read()
        return self._known

    def refresh(self, now: float) -> None:
        """Read it on the thread of a blocking spout, so that the report need not wait for the spout."""
        if now - self._known_at > POSITION_SECONDS:
            self._read()

    def _read(self) -> None:
        task = self._task
        if isinstance(task.component, ReplayableSpout):
            self._known_at = task.worker.clock.now()
            try:
                self._known = task.component.position()
            except USER_ERRORS as error:  # the master keeps the position that it has
                task.report_error(error, None)
