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
    a thread of its own, which may wait for a server, is asked there, and its answer is in the next report."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self._known: tuple[int, int] | None = None
        self.due = False  # it was asked for while the spout's code was running

    def reported(self) -> tuple[int, int] | None:
        """(lag, tuples emitted when it was read); None if the source does not know its lag. Asks for the next value."""
        task = self._task
        if task.started and type(task.component).lag is not Spout.lag:
            self.due = True
            if not task.busy:
                task.on_own_thread(self.read, self._done)
        return self._known

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
        task = self._task
        if task.definition.blocking:
            task.busy = False
            if not task.ended:
                task.worker.ready(task)  # it may have missed a turn
