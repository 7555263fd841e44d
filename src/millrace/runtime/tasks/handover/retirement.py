"""The end of a task that nobody takes over from, because its component has fewer tasks from now on.

Its senders have stopped routing tuples to it. Behind the marks of all of them it has had everything; when that is processed and
every receiver has what it has sent, nothing of the task is left and the master may take it out of the topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.control.assignment import Move
from millrace.runtime.tasks.handover.departure import PATIENCE
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task


class Retirement:
    """The part of a task that retires. `limit`: seconds that it may take."""

    def __init__(self, task: Task, move: Move, limit: float) -> None:
        self._task = task
        self._impatient_at = task.worker.clock.now() + PATIENCE * limit
        self._flushing = False
        self._told: wire.Taken | None = None
        self.frozen = False
        self.update(move)

    def update(self, move: Move) -> None:
        """Take the move as of a new plan, which may have fewer senders to wait for."""
        number = self._task.topology.graph.number
        self.move = move
        self._awaited = {(number(source), incarnation) for source, incarnation in move.sources}

    def go_on(self) -> None:
        """Stop working, if nothing is left to do, and tell the master once all output has arrived. Runs on the loop."""
        task = self._task
        if task.ended or self._told is not None:
            return
        if self.over:
            self._tell()
        elif not self._flushing and not self.frozen and task.started and not task.busy and task.drained(
                self.move.number, self._awaited, task.worker.clock.now() >= self._impatient_at):
            self._flushing = True
            task.on_own_thread(task.before_wave, self._flushed)

    def _flushed(self) -> None:
        task = self._task
        task.busy = self._flushing = False
        if task.ended:
            return
        task.send_waiting()
        task.leave()
        self.frozen, task.started = True, False

    def rewired(self) -> None:
        """Do nothing: its receivers have no successor to wait for."""

    @property
    def over(self) -> bool:
        """True if every receiver that has a place has consumed everything."""
        task = self._task
        return self.frozen and all(channel.consumed >= channel.seq for channel in task.channels.values()
                                   if channel.target_name in task.topology.places)

    def _tell(self) -> None:
        worker, run = self._task.worker, self._task.topology
        self._told = wire.Taken(worker.slot, worker.generation, run.number, run.epoch, self.move.number,
                                source=worker.slot)
        worker.tell_master(self._told)

    def tell_again(self) -> None:
        """Repeat the answer: the master may not have received it."""
        if self._told is not None:
            self._task.worker.tell_master(self._told)
