"""The end of an incarnation whose task moves: it drains, hands its state over to the new incarnation, and freezes.

It works on until the marks of all its senders have come: what they send after that goes to the new incarnation. Then it sends
its end down every channel and, to the new worker, everything that has changed since the wave that the new incarnation has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millrace.control.assignment import Move
from millrace.model.graph import TaskId
from millrace.runtime.tasks.handover.parts import STAGED, Closing, send_state
from millrace.runtime.tasks.user_errors import describe, error_of
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.flow.channel import Channel
    from millrace.runtime.tasks.checkpointing.snapshot import Snapshot
    from millrace.runtime.tasks.task import Task

PATIENCE = 0.5  # share of the time for a switch after which a task leaves what is not acked to be replayed


class Departure:
    """The old incarnation's part in a move. `limit`: seconds that the switch may take."""

    def __init__(self, task: Task, move: Move, limit: float) -> None:
        self._task = task
        self._impatient_at = task.worker.clock.now() + PATIENCE * limit
        self._froze_at = 0.0
        self._packing = False
        self._snapshot: Snapshot | None = None
        self._error: BaseException | None = None
        self._ended: set[Channel] = set()  # channels that it has sent its end down
        self.frozen = False
        self.update(move)

    def update(self, move: Move) -> None:
        """Take the move as of a new plan, which may have fewer senders to wait for."""
        number = self._task.topology.graph.number
        self.move = move
        self._awaited = {(number(source), incarnation) for source, incarnation in move.sources}

    def go_on(self) -> None:
        """Hand over, if nothing is left to do. Runs on the loop."""
        task = self._task
        if self._packing or not task.started or task.busy or task.ended:
            return
        if not task.drained(self.move.number, self._awaited, task.worker.clock.now() >= self._impatient_at):
            return
        self._packing, self._froze_at = True, task.worker.clock.now()
        changed, lost = task.snapshots.unsettled()
        task.on_own_thread(partial(self._pack, changed if self.move.base[0] else True, lost), self._packed)

    def _pack(self, changed: set[int] | bool, lost: set[int]) -> None:
        def pack() -> None:
            self._snapshot = self._task.snapshots.hand_over(changed, lost)

        self._task.before_wave()
        self._error = error_of(pack)

    def _packed(self) -> None:
        task, snapshot = self._task, self._snapshot
        task.busy = False
        if task.ended:
            return
        task.send_waiting()
        task.leave()
        self.frozen, task.started = True, False
        self._send_ends()
        paused = task.worker.clock.now() - self._froze_at
        if snapshot is not None:
            pieces = {**snapshot.pieces, STAGED: (True, snapshot.staged)} if snapshot.staged else snapshot.pieces
            send_state(task, self.move, pieces, Closing(
                snapshot.position, task.due_in(), paused, stopped_at=self._froze_at,
                reached=task.topology.sent[task.name].reached if task.begins_waves and not snapshot.splits else 0,
                splits={split: (place.position, place.own, task.topology.sent[TaskId(task.name.component, split)].reached)
                        for split, place in snapshot.splits.items()}))
        else:
            assert self._error is not None
            task.report_error(self._error, None)
            send_state(task, self.move, {}, Closing(error=describe(self._error)))

    def rewired(self) -> None:
        """Tell receivers that were placed anew since it froze, too, that it has ended."""
        if self.frozen:
            self._send_ends()

    def _send_ends(self) -> None:
        for channel in self._task.channels.values():
            if channel not in self._ended:
                channel.send_mark(wire.HandoverMark(wire.END, self.move.number))
                self._ended.add(channel)

    @property
    def over(self) -> bool:
        """True if every receiver that has a place has had its end. Until then it is there to be asked for lost chunks, however
        long that takes: a receiver without the end waits for it, and takes nothing of the new incarnation."""
        task = self._task
        return self.frozen and all(channel.consumed >= channel.seq for channel in task.channels.values()
                                   if channel.target_name in task.topology.places)
