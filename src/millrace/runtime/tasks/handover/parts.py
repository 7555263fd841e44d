"""State on its way from one task to another: pieces of key groups and of its own, cut into parts, and a closing part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from millrace.control.assignment import Move
from millrace.errors import WireError
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

PART_BYTES = 1 << 20  # of one message: the receiving loop takes its turn between two
STAGED, CLOSING = -4, -3  # in place of a key group: what a sink or a spout hands over, and the last part


class Closing(msgspec.Struct, array_like=True, frozen=True):
    """The last part: what is not in pieces. `due`: seconds until the task's tick and timer. `paused`: seconds since it stopped
    working; `stopped_at`: when that was. `error`: why there is no state. `reached`: the position before which a spout has sent
    everything. `splits`: position, `snapshot()` and that position, of each split of a spout that has some."""

    position: int | None = None
    due: dict[str, float] = {}
    paused: float = 0.0
    error: str = ""
    stopped_at: float = 0.0
    reached: int = 0
    splits: dict[int, tuple[int, bytes, int]] = {}


_closing = msgspec.msgpack.Decoder(Closing)


def send_state(task: Task, move: Move, pieces: Mapping[int, tuple[bool, bytes]], closing: Closing) -> None:
    """Send pieces, by key group, and the closing part to the target of a move."""
    part, target = 0, task.topology.graph.number(move.target)

    def send(group: int, more: bool, body: bytes) -> None:
        nonlocal part
        task.worker.send_state(move.new.slot, wire.StatePart(
            task.worker.slot, task.worker.generation, task.topology.number, task.topology.epoch, target, move.new.incarnation,
            move.number, part, group, more), body)
        part += 1

    size = min(PART_BYTES, task.worker.frame_limit)
    for group, (_, piece) in pieces.items():
        for start in range(0, max(1, len(piece)), size):
            send(group, start + size < len(piece), piece[start:start + size])
    send(CLOSING, False, wire.encode(closing))


class StateParts:
    """Puts parts together again. `on_piece` is called with each piece, `on_closing` at the end; a part that is missing raises
    `WireError`."""

    def __init__(self, on_piece: Callable[[int, bytes], None], on_closing: Callable[[Closing], None]) -> None:
        self._on_piece, self._on_closing = on_piece, on_closing
        self._next = 0
        self._begun: list[bytes] = []  # parts of the piece that is arriving
        self.bytes = 0

    def add(self, part: wire.StatePart, body: bytes) -> None:
        if part.part < self._next:
            return  # it came twice
        if part.part > self._next:
            raise WireError(f"part {self._next} of the state was lost on the way")
        self._next += 1
        if part.group == CLOSING:
            try:
                closing = _closing.decode(body)
            except wire.UNREADABLE as error:
                raise WireError(f"the last part of the state cannot be read: {error}") from None
            self._on_closing(closing)
            return
        self._begun.append(body)
        if not part.more:
            piece, self._begun = b"".join(self._begun), []
            self.bytes += len(piece)
            self._on_piece(part.group, piece)
