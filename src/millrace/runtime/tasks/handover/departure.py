"""The end of an incarnation whose task moves: it drains, hands its state over to the new incarnation, and freezes.

It works on until the marks of all its senders have come: what they send after that goes to the new incarnation. Then it sends
its end down every channel and, to the new worker, everything that has changed since the wave that the new incarnation has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.control.assignment import Move
from millrace.errors import WireError
from millrace.runtime.tasks.user_errors import describe, error_of
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.snapshots import Snapshot
    from millrace.runtime.tasks.task import Task

PART_BYTES = 1 << 20  # of one message: the receiving loop takes its turn between two
CLOSING = -3  # in place of a key group: the last part
PATIENCE = 0.5  # share of the time for a switch after which a spout leaves its open roots to be replayed


class Closing(msgspec.Struct, array_like=True, frozen=True):
    """The last part: what is not in pieces. `due`: seconds until its tick and its timer. `paused`: seconds since it froze."""

    parts: int
    position: int | None
    staged: bytes  # of a two-phase sink
    due: dict[str, float]
    paused: float
    error: str = ""


_closing = msgspec.msgpack.Decoder(Closing)


def decode_closing(body: bytes) -> Closing:
    try:
        return _closing.decode(body)
    except wire.UNREADABLE as error:
        raise WireError(f"the last part of a hand-over cannot be read: {error}") from None


class Departure:
    """The old incarnation's part in a move. `limit`: seconds that the switch may take."""

    def __init__(self, task: Task, move: Move, limit: float) -> None:
        self._task = task
        self._impatient_at = task.worker.clock.now() + PATIENCE * limit
        self._ends_at = task.worker.clock.now() + 2 * limit
        self._froze_at = 0.0
        self._packing = False
        self._snapshot: Snapshot | None = None
        self._error: BaseException | None = None
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
        if not task.drained(self._awaited, task.worker.clock.now() >= self._impatient_at):
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
        task = self._task
        task.busy = False
        if task.ended:
            return
        task.send_waiting()
        task.leave()
        self.frozen, task.started = True, False
        for channel in task.channels.values():
            channel.send_mark(wire.HandoverMark(wire.END))
        if self._error is not None:
            task.report_error(self._error, None)
        self._send_state()

    def rewired(self) -> None:
        """Tell receivers that were placed anew since it froze, too, that it has ended."""
        for channel in self._task.channels.values() if self.frozen else ():
            if not channel.seq:
                channel.send_mark(wire.HandoverMark(wire.END))

    @property
    def over(self) -> bool:
        """True if every receiver has had its end. Until then it is there to be asked for lost chunks."""
        task = self._task
        late = task.worker.clock.now() >= self._ends_at
        return self.frozen and (late or all(channel.consumed >= channel.seq for channel in task.channels.values()))

    def _send_state(self) -> None:
        snapshot, parts = self._snapshot, 0
        if snapshot is not None:
            for group, (_, piece) in snapshot.pieces.items():
                parts = self._send_piece(parts, group, piece)
        closing = Closing(parts, snapshot.position if snapshot is not None else None,
                          snapshot.staged if snapshot is not None else b"", self._task.due_in(),
                          self._task.worker.clock.now() - self._froze_at,
                          describe(self._error) if self._error is not None else "")
        self._send(parts, CLOSING, False, wire.encode(closing))

    def _send_piece(self, part: int, group: int, piece: bytes) -> int:
        """Send a piece in parts; returns the number of the next part."""
        for start in range(0, max(1, len(piece)), PART_BYTES):
            self._send(part, group, start + PART_BYTES < len(piece), piece[start:start + PART_BYTES])
            part += 1
        return part

    def _send(self, part: int, group: int, more: bool, body: Any) -> None:
        task, new = self._task, self.move.new
        task.worker.send_state(new.slot, wire.StatePart(
            task.worker.slot, task.worker.generation, task.topology.number, task.topology.epoch, task.number, new.incarnation,
            part, group, more), body)
