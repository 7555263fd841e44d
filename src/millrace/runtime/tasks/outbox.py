"""What a task has emitted and not yet sent: ordinary tuples wait in the output of their stream, others in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.api.tuple import DEFAULT_STREAM, Tuple
from millrace.errors import EmitError
from millrace.model.graph import ComponentDef, TaskId
from millrace.runtime.flow.channel import Channel
from millrace.runtime.tasks.output import Output


class Group(NamedTuple):
    """Tuples that were emitted in an unusual way and leave apart from the rest: own anchors, chosen channels, Arrow."""

    output: Output
    body: Any  # list of rows, or a RecordBatch
    anchors: Any  # None: whatever is being processed; a tuple of tuples or ids otherwise
    channels: tuple[Channel, ...] | None  # None: by the groupings
    ids: list[Any]


class Outbox:
    """Filled by user code, perhaps on a thread of the task's own; emptied by the loop, when that is not running."""

    def __init__(self, name: TaskId, definition: ComponentDef) -> None:
        self._name = name
        self._keeps_ids = definition.kind == "spout"
        self.outputs = [Output(name, i, stream) for i, stream in enumerate(definition.outputs)]
        self.by_stream = {output.name: output for output in self.outputs}
        self.groups: list[Group] = []

    # -- what the component emits ------------------------------------------------------------------------------------

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None,
             need_task_ids: bool) -> list[int] | None:
        """Every case that the fast path leaves: other streams, anchors, direct tasks, nested values, mistakes."""
        output = self._output(stream)
        row = output.row(values)
        anchors = _fixed(anchors)
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
        self.groups.append(Group(output, checked, _fixed(anchors), channels, [tup_id]))

    def _output(self, stream: str | None) -> Output:
        output = self.by_stream.get(stream or DEFAULT_STREAM)
        if output is None:
            names = ", ".join(repr(name) for name in self.by_stream) or "none"
            raise EmitError(f"{self._name} emitted on stream {stream or DEFAULT_STREAM!r}, which it does not declare; "
                            f"it has {names}. Add it to `outputs`.")
        return output

    def _chosen(self, output: Output, row: Any, direct_task: int | None, need_task_ids: bool) -> tuple[Channel, ...] | None:
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
        """A row that leaves apart; together with the one before it if they are of a kind."""
        self._keep_order(output)
        last = self.groups[-1] if self.groups else None
        if last and last.output is output and (last.anchors is anchors or last.anchors == anchors) \
                and last.channels == channels and isinstance(last.body, list):
            last.body.append(row)
            last.ids.append(tup_id)
        else:
            self.groups.append(Group(output, [row], anchors, channels, [tup_id]))

    def _keep_order(self, output: Output) -> None:
        """Rows that wait already were emitted before what comes now: they go first."""
        if output.rows:
            rows, ids = output.take()
            self.groups.append(Group(output, rows, None, None, ids))

    # -- what is to be sent ------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """Tuples emitted and not yet sent."""
        total = 0
        for output in self.outputs:
            total += len(output.rows)
        for group in self.groups:
            total += len(group.body)
        return total

    def take(self) -> list[Group]:
        """Everything emitted since the last time, in order of emission within each stream."""
        for output in self.outputs:
            if output.rows:
                rows, ids = output.take()
                self.groups.append(Group(output, rows, None, None, ids))
        groups, self.groups = self.groups, []
        return groups


def _fixed(anchors: Any) -> Any:
    """Anchors as they are now: the list may be another one by the time the tuple is sent."""
    if anchors is None or isinstance(anchors, tuple):
        return anchors
    return (anchors,) if isinstance(anchors, Tuple | str) else tuple(anchors)
