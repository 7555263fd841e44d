"""Key groups of a task that another task takes over, while this one works on with its others.

Behind the marks of all senders, the input for these groups is complete. When everything that came before is processed, their
state is handed over, and dropped here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millrace.control.assignment import Move
from millrace.runtime.tasks.handover.parts import Closing, send_state
from millrace.runtime.tasks.user_errors import describe, error_of
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.flow.channel import Channel
    from millrace.runtime.tasks.bolt import BoltTask
    from millrace.runtime.tasks.checkpointing.snapshot import Pieces


class GroupDeparture:
    """The old owner's part in a move of key groups. `limit`: seconds that the switch may take."""

    def __init__(self, task: BoltTask, move: Move, limit: float) -> None:
        self._task = task
        self._queued = False
        self._ends: dict[Channel, int] | None = None  # number of the END in each channel, once it was sent
        self._ends_at = task.worker.clock.now() + 2 * limit
        self._pieces: Pieces | None = None
        self._error: BaseException | None = None
        self.update(move)

    def update(self, move: Move) -> None:
        """Take the move as of a new plan, which may have fewer senders to wait for."""
        number = self._task.topology.graph.number
        self.move = move
        self._awaited = {(number(source), incarnation) for source, incarnation in move.sources}
        self.check()

    def check(self) -> None:
        """Queue the cut behind all input, once the marks of all senders have come."""
        inbox, number = self._task.inbox, self.move.number
        if not self._queued and inbox.moved.get(number, set()) >= self._awaited:
            self._queued = True
            inbox.cut(number)

    @property
    def over(self) -> bool:
        """True if every receiver has had its end."""
        ends, late = self._ends, self._task.worker.clock.now() >= self._ends_at
        return late or (ends is not None and all(channel.consumed >= ends.get(channel, 0)
                                                 for channel in self._task.channels.values()))

    def rewired(self) -> None:
        """Tell receivers that were placed anew since the groups left, too, that this task sends nothing more of them."""
        if self._ends is None:
            return
        for channel in self._task.channels.values():
            if channel not in self._ends:
                channel.send_mark(wire.HandoverMark(wire.END, self.move.number))
                self._ends[channel] = channel.seq

    def hand_over(self) -> None:
        """Everything before the cut is processed. Runs on the loop."""
        changed, lost = self._task.snapshots.unsettled()
        since = self._task.worker.clock.now()
        self._task.on_own_thread(partial(self._pack, changed if self.move.base[0] else True, lost),
                                 partial(self._packed, since))

    def _pack(self, changed: set[int] | bool, lost: set[int]) -> None:
        def pack() -> None:
            self._pieces = self._task.snapshots.hand_over_groups(self.move.groups, changed, lost)

        self._task.before_wave()
        self._error = error_of(pack)

    def _packed(self, since: float) -> None:
        task, pieces = self._task, self._pieces
        task.busy = False
        if task.ended:
            return
        task.send_waiting()
        for channel in task.channels.values():
            channel.send_mark(wire.HandoverMark(wire.END, self.move.number))
        self._ends = {channel: channel.seq for channel in task.channels.values()}
        if pieces is not None:
            task.snapshots.forget_groups(self.move.groups)
            send_state(task, self.move, pieces, Closing(paused=task.worker.clock.now() - since, stopped_at=since))
        else:
            assert self._error is not None
            task.report_error(self._error, None)
            send_state(task, self.move, {}, Closing(error=describe(self._error)))
        task.worker.ready(task)
