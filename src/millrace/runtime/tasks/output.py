"""Unsent output of a task: one `Output` per stream, filled by the `emit` of the hot path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from millrace.errors import EmitError, EncodingError
from millrace.hotpath.plain import SCALARS
from millrace.hotpath.steps import plain_rows
from millrace.model.graph import StreamDef, TaskId
from millrace.runtime.flow.channel import Channel
from millrace.runtime.flow.routing import Custom, Route, ToAll
from millrace.runtime.wire.bodies import holds_extended, through_the_wire
from millrace.state.time_values import EXTENDED


class Output:
    """One stream of one task. `rows` (and, for a spout, `ids` beside it) wait here until the task settles."""

    __slots__ = ("direct", "extended", "fields", "ids", "index", "name", "nested", "owner", "rebinds", "routes", "rows",
                 "targets", "width")

    def __init__(self, owner: TaskId, index: int, stream: StreamDef) -> None:
        self.owner, self.index, self.name = owner, index, stream.name
        self.fields, self.width, self.direct = stream.fields, len(stream.fields), stream.direct
        self.rows: list[tuple[Any, ...]] = []
        self.ids: list[Any] = []
        self.routes: list[Route] = []
        self.targets: dict[int, Channel] = {}  # of a direct stream: by number of the subscribed task
        self.nested = False  # a row with lists or dicts in it has been emitted
        self.extended = False  # a row with decimals, dates or times in it has been emitted
        self.rebinds: list[Callable[[list[Any], list[Any]], None]] = []

    def take(self) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """Return the waiting rows and ids, and install fresh lists."""
        rows, ids = self.rows, self.ids
        self.rows, self.ids = [], []
        for rebind in self.rebinds:
            rebind(self.rows, self.ids)
        return rows, ids

    def row(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Check values and return them as a row of this stream; nested values are copied as if sent over the wire."""
        if not isinstance(values, list | tuple):
            raise TypeError(f"{self.owner} emitted {values!r} ({type(values).__name__}) on stream {self.name!r}: "
                            "emit takes a list or tuple of values")
        if len(values) != self.width:
            raise EmitError(f"{self.owner} emitted {len(values)} values on stream {self.name!r}, which has {self.width} "
                            f"fields ({', '.join(self.fields)}): {values!r:.200}")
        if all(type(value) in SCALARS for value in values):
            return tuple(values)
        self.nested = True
        return tuple(self._copied(field, value) for field, value in zip(self.fields, values, strict=True))

    def shared(self) -> bool:
        """True if two tasks of this worker might receive the same lists and dicts: then each needs its own copy."""
        return self.nested and (len(self.routes) > 1 or any(isinstance(route, ToAll | Custom) for route in self.routes))

    def extend(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add many rows. They are checked together, and one by one only if some row is not plain."""
        if not isinstance(rows, list | tuple):
            rows = list(rows)  # a generator can be iterated only once
        plain = plain_rows(rows, self.width)
        self.rows.extend([self.row(row) for row in rows] if plain is None else plain)

    def _copied(self, field: str, value: Any) -> Any:
        if type(value) in SCALARS:
            return value
        if type(value) in EXTENDED:
            return self._extended_value(value)
        try:
            copied = through_the_wire([value])[0]
            if copied == value or not holds_extended(value):
                return copied
            self.extended = True
            return through_the_wire([value], extended=True)[0]
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self.owner} emitted a {type(value).__name__} in field {field!r} of stream {self.name!r}, "
                                f"which cannot be encoded ({error}). Emit str, int, float, bool, bytes, None, Decimal, dates "
                                "and times, or lists and dicts of them.") from None

    def _extended_value(self, value: Any) -> Any:
        """A decimal, a date or a time as it arrives: unchanged, except that a datetime with a zone is in UTC."""
        if type(value) is datetime and value.tzinfo is not None:
            return value.astimezone(UTC)
        self.extended = True
        return value

    def send_as_rows(self) -> None:
        """Expect values of every kind in rows made from Arrow batches, which `row` has not seen."""
        self.nested = self.extended = True

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check that the columns of an Arrow batch are the stream's fields, in order."""
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"{self.owner} emitted {type(batch).__name__} on stream {self.name!r}: "
                            "emit_arrow takes a pyarrow.RecordBatch")
        if tuple(batch.schema.names) != self.fields:
            raise EmitError(f"{self.owner} emitted a batch with columns {batch.schema.names} on stream {self.name!r}, "
                            f"whose fields are {list(self.fields)}")
        return batch
