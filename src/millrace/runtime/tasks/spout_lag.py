"""The lag of a spout: read once for each report of the worker, where the spout's code runs."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from millrace.api.spout import Spout
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.spout import SpoutTask


class SpoutLag:
    """The last known lag of one spout, and the tuples that it had emitted then. Reading it runs the spout's code: a spout with
    a thread of its own, which may wait for a server, is asked there after a report, and its answer is in the next one."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self._known: tuple[int, int] | None = None
        self.due = False  # it was asked for while the spout's code was running

    def reported(self) -> tuple[int, int] | None:
        """(lag, tuples emitted when it was read); None if the source does not know its lag."""
        if self._known_here() and not self._task.definition.blocking:
            self.read()
        return self._known

    def ask(self) -> None:
        """Ask a spout with a thread of its own for the next value."""
        task = self._task
        if self._known_here() and task.definition.blocking:
            self.due = True
            if not task.busy:
                task.on_own_thread(self.read, self._done)

    def _known_here(self) -> bool:
        return self._task.started and type(self._task.component).lag is not Spout.lag

    def read(self) -> None:
        """Ask the spout, where its code runs."""
        task, self.due = self._task, False
        emitted = task.meters.emitted + task.waiting()
        try:
            lag = task.component.lag()
            self._known = None if lag is None else (max(operator.index(lag), 0), emitted)
        except USER_ERRORS as error:
            self._known = None
            task.report_error(error, None)

    def _done(self) -> None:
        self._task.busy = False
        if not self._task.ended:
            self._task.worker.ready(self._task)  # it may have missed a turn
