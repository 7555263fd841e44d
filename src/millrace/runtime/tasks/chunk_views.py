"""Presents a chunk in the form a bolt asks for: rows, with or without names, or an Arrow batch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from millrace.hotpath.steps import name_rows
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.flow.routing import rows_of_batch
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import decode_batch, row_decoder

if TYPE_CHECKING:
    from millrace.runtime.tasks.host import TaskTopology


class ChunkReader:
    """Decodes the chunks of one task. A body that does not match its header raises `WireError`."""

    def __init__(self, topology: TaskTopology) -> None:
        self._topology = topology
        self._plain = row_decoder(tuple)  # of this task, which may have a thread: a decoder is for one thread at a time
        self._row_types: dict[tuple[str, int], tuple[Any, Any]] = {}  # by component and stream, with their decoders

    def rows(self, delivery: Delivery, named: bool) -> list[Any]:
        """The chunk's tuples, local or decoded; `named`: as named tuples."""
        try:
            body, local = delivery.body, delivery.local
            if delivery.form == wire.ARROW:
                body, local = rows_of_batch(self.batch(delivery)), True
            if not named:
                return body if local else self._plain.decode(body)
            row_type, decoder = self._row_type(delivery)
            return name_rows(body, row_type) if local else decoder.decode(body)
        except wire.UNREADABLE as error:
            raise wire.WireError(f"a chunk from {delivery.component} does not fit {delivery.stream!r}: {error}") from None

    def cut(self, delivery: Delivery, size: int) -> tuple[Delivery, Delivery]:
        """Two deliveries in place of one: the first `size` tuples, and the rest. Together they are one chunk of the channel."""
        if delivery.form == wire.ARROW:
            batch = self.batch(delivery)
            bodies = batch.slice(0, size), batch.slice(size)
        else:
            rows = self.rows(delivery, named=False)
            bodies = rows[:size], rows[size:]
        first, rest = (Delivery(delivery.inlet, delivery.stream_index, body, count, delivery.form, True, delivery.edge,
                                delivery.lineage) for body, count in zip(bodies, (size, delivery.count - size), strict=True))
        first.arrived = rest.arrived = delivery.arrived
        first.more, rest.more = True, delivery.more
        return first, rest

    def batch(self, delivery: Delivery) -> pa.RecordBatch:
        """The Arrow batch of a chunk in Arrow form."""
        return delivery.body if delivery.local else decode_batch(delivery.body)

    def as_batch(self, delivery: Delivery, rows: list[Any]) -> pa.RecordBatch:
        """An Arrow batch from rows. Arrow raises if no column type can hold the values."""
        return pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)],
                                          names=list(self._fields(delivery)))

    def _fields(self, delivery: Delivery) -> tuple[str, ...]:
        return self._topology.graph.component(delivery.component).outputs[delivery.stream_index].fields

    def _row_type(self, delivery: Delivery) -> tuple[Any, Any]:
        """The named tuple of the delivery's stream, and its decoder."""
        key = (delivery.component, delivery.stream_index)
        known = self._row_types.get(key)
        if known is None:
            title = re.sub(r"[\W_]", "", f"{delivery.component}_{delivery.stream}".title())
            row_type = NamedTuple(f"T{title}Tuple", [(field, Any) for field in self._fields(delivery)])  # type: ignore[misc]
            known = self._row_types[key] = (row_type, row_decoder(row_type))
        return known
