"""Sends the output of a task: routes each group to its channels and cuts it into chunks."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any

from millrace.config import CHUNK_TUPLES
from millrace.runtime.flow.channel import Lineage, Outlet
from millrace.runtime.flow.routing import rows_of_batch
from millrace.runtime.tasks.outbox import EmitGroup
from millrace.runtime.tasks.output import Output
from millrace.runtime.wire.bodies import through_the_wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

CHUNK_STRETCH = 4  # a group emitted together may exceed the chunk size by this factor before it is cut


class Sender:
    """Sends the groups of one task down its channels. Runs on the worker's loop."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.chunk_tuples: int = CHUNK_TUPLES.of(task.topology.graph.config)
        self.random = Random()

    def send(self, group: EmitGroup, lineage: Lineage) -> int:
        """Send a group. Returns the XOR of the chunks' ids (0 if untracked). An exception raised by a custom grouping passes
        through; nothing has been sent then."""
        output, body = group.output, group.body
        size = len(body) if isinstance(body, list) else body.num_rows
        if not size:
            return 0
        parts = self._route(group)
        self._task.meters.emitted += size
        return self._send_parts(output, parts, lineage)

    def _route(self, group: EmitGroup) -> list[tuple[Outlet, Any]]:
        output, body = group.output, group.body
        rows = isinstance(body, list)
        if group.channels is not None:
            return [(channel, body[:] if rows else body) for channel in group.channels]
        if not rows:
            parts = [part for route in output.routes for part in route.split_batch(body)]
            if any(isinstance(part, list) for _, part in parts):  # of a custom grouping
                output.send_as_rows()
            return parts
        several = len(output.routes) > 1  # receivers must not share a list
        return [part for route in output.routes for part in route.split(list(body) if several else body)]

    def _send_parts(self, output: Output, parts: Iterable[tuple[Outlet, Any]], lineage: Lineage) -> int:
        edges, limit = 0, self.chunk_tuples * CHUNK_STRETCH
        for channel, part in parts:
            rows = isinstance(part, list)
            pieces = [part[i:i + limit] for i in range(0, len(part), limit)] if rows and len(part) > limit else [part]
            for piece in pieces:
                edges ^= self._send_piece(output, channel, piece, rows, lineage)
        return edges

    def _send_piece(self, output: Output, channel: Outlet, piece: Any, rows: bool, lineage: Lineage) -> int:
        size = len(piece) if rows else piece.num_rows
        edge = self.random.getrandbits(63) if lineage.roots else 0
        if rows and channel.local is not None and output.shared():
            piece = [tuple(row) for row in through_the_wire(piece, output.extended)]
        try:
            if rows:
                channel.send_rows(output.index, piece, edge, lineage, output.extended)
            else:
                channel.send_batch(output.index, piece, edge, lineage)
        except (TypeError, ValueError, OverflowError) as error:  # too long for a message frame, or not encodable
            if size == 1:
                self._task.unsendable(output, piece[0] if rows else rows_of_batch(piece)[0], error)
                return 0
            half = size // 2
            halves = (piece[:half], piece[half:]) if rows else (piece.slice(0, half), piece.slice(half))
            return self._send_piece(output, channel, halves[0], rows, lineage) \
                ^ self._send_piece(output, channel, halves[1], rows, lineage)
        self._task.meters.transferred += size
        return edge
