"""Output of a task that has not been sent: ordinary tuples wait in the `Output` of their stream, others in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.api.tuple import DEFAULT_STREAM, Tuple
from millrace.errors import EmitError
from millrace.model.graph import ComponentDef, TaskId
from millrace.runtime.flow.channel import Outlet
from millrace.runtime.tasks.output import Output


class EmitGroup(NamedTuple):
    """Tuples that are sent together: with the same anchors and channels, or one Arrow batch."""

    output: Output
    body: Any  # list of rows, or a RecordBatch
    anchors: Any  # None: the chunks being processed; otherwise a tuple of tuples or ids
    channels: tuple[Outlet, ...] | None  # None: chosen by the groupings
    ids: list[Any]


class Outbox:
    """Filled by user code, perhaps on the task's own thread; emptied by the loop while user code does not run."""

    def __init__(self, name: TaskId, definition: ComponentDef) -> None:
        self._name = name
        self._keeps_ids = definition.kind == "spout"
        self.outputs = [Output(name, i, stream) for i, stream in enumerate(definition.outputs)]
        self.by_stream = {output.name: output for output in self.outputs}
        self.groups: list[EmitGroup] = []

    # -- called by the component -------------------------------------------------------------------------------------

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None,
             need_task_ids: bool) -> list[int] | None:
        """Handle every case beyond the fast path: other streams, anchors, direct tasks, nested values, mistakes."""
        output = self._output(stream)
        row = output.row(values)
        anchors = _frozen(anchors)
        if anchors is None and direct_task is None and not need_task_ids and not output.direct:
            output.rows.append(row)
            if self._keeps_ids:
                output.ids.append(tup_id)
            return None
        channels = self._chosen(output, row, direct_task, need_task_ids)
        self.add(output, row, anchors, channels, tup_id)
        return [channel.target for channel in channels] if need_task_ids and channels is not None else None

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None:
        output = self._output(stream)
        if output.direct:
            raise EmitError(f"{self._name}, stream {output.name!r}: a direct stream needs emit with direct_task=")
        output.extend(rows)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None:
        output = self._output(stream)
        checked = output.batch(batch)
        channels = self._chosen(output, None, direct_task, False)
        self._keep_order(output)
        self.groups.append(EmitGroup(output, checked, _frozen(anchors), channels, [tup_id]))

    def _output(self, stream: str | None) -> Output:
        output = self.by_stream.get(stream or DEFAULT_STREAM)
        if output is None:
            names = ", ".join(repr(name) for name in self.by_stream) or "none"
            raise EmitError(f"{self._name} emitted on stream {stream or DEFAULT_STREAM!r}, which it does not declare; "
                            f"it has {names}. Add it to `outputs`.")
        return output

    def _chosen(self, output: Output, row: Any, direct_task: int | None, need_task_ids: bool) -> tuple[Outlet, ...] | None:
        if output.direct != (direct_task is not None):
            raise EmitError(f"{self._name}, stream {output.name!r}: " + (
                "a direct stream needs direct_task=" if output.direct else
                f"direct_task={direct_task} was given, but the stream is not direct. Declare it with direct=True."))
        if direct_task is not None:
            channel = output.targets.get(direct_task)
            if channel is None:
                raise EmitError(f"{self._name} emitted to task {direct_task} on stream {output.name!r}; "
                                f"its targets are {sorted(output.targets)}")
            return (channel,)
        if need_task_ids:
            return tuple(channel for route in output.routes for channel, _ in route.split([row]))
        return None

    # -- groups ------------------------------------------------------------------------------------------------------

    def add(self, output: Output, row: tuple[Any, ...], anchors: Any, channels: Any, tup_id: Any) -> None:
        """Add a row to the last group if output, anchors and channels are the same, else to a new group."""
        self._keep_order(output)
        last = self.groups[-1] if self.groups else None
        if last and last.output is output and (last.anchors is anchors or last.anchors == anchors) \
                and last.channels == channels and isinstance(last.body, list):
            last.body.append(row)
            last.ids.append(tup_id)
        else:
            self.groups.append(EmitGroup(output, [row], anchors, channels, [tup_id]))

    def _keep_order(self, output: Output) -> None:
        """Put waiting rows of this stream ahead of the next group: they were emitted earlier."""
        if output.rows:
            rows, ids = output.take()
            self.groups.append(EmitGroup(output, rows, None, None, ids))

    # -- called by the loop ------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """Tuples emitted and not yet sent."""
        total = 0
        for output in self.outputs:
            total += len(output.rows)
        for group in self.groups:
            total += len(group.body)
        return total

    def take(self) -> list[EmitGroup]:
        """Everything emitted since the last time, in order of emission within each stream."""
        for output in self.outputs:
            if output.rows:
                rows, ids = output.take()
                self.groups.append(EmitGroup(output, rows, None, None, ids))
        groups, self.groups = self.groups, []
        return groups


def _frozen(anchors: Any) -> Any:
    """A copy of the anchors: the caller may change its list before the tuple is sent."""
    if anchors is None or isinstance(anchors, tuple):
        return anchors
    return (anchors,) if isinstance(anchors, Tuple | str) else tuple(anchors)
