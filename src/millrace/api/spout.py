"""Spouts: what brings tuples in, and what becomes of those that fail."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.api.component import Component

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.api.topology import ComponentSpec


class Spout(Component):
    """Brings tuples in. `next_tuple` is called again and again while there is room downstream."""

    fail_cause: str = "error"  # why `fail` is being called: "error", "timeout" or "lost" (a worker died)

    @classmethod
    def spec(cls, name: str | None = None, par: Any = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        from millrace.api.topology import ComponentSpec

        return ComponentSpec(cls, name=name, par=par, config=config)

    @staticmethod
    def from_dataframe(dataframe: Any, name: str | None = None, par: Any = None, outputs: Sequence[str] | None = None,
                       checkpoint: str | None = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        """A spout that emits the rows of a streaming DataFrame; its columns are the fields. `dataframe` may also be a function
        (spark) -> DataFrame, or its name as "module:function", called when the topology is submitted: then `outputs` names the
        columns. `checkpoint`: where Spark keeps how far it has read; unset, below the engine's checkpoint store."""
        from millrace.api.dataframe import dataframe_spec

        return dataframe_spec(dataframe, name, par, outputs, checkpoint, config)

    def next_tuple(self) -> None:
        """Emit some tuples, or none. Must not block (unless `blocking = True`)."""
        raise NotImplementedError(f"{type(self).__name__} must define next_tuple")

    def ack(self, tup_id: Any) -> None:
        """The tuple and everything that came of it has been processed."""

    def fail(self, tup_id: Any) -> None:
        """It was not: an exception, a timeout, a lost worker (`fail_cause` says which)."""

    def activate(self) -> None: ...

    def deactivate(self) -> None: ...

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        """Send one tuple. Without `tup_id` it is not tracked: neither `ack` nor `fail` will come."""
        return self._handle.emit(tup, tup_id, stream, None, direct_task, need_task_ids)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        """Send a whole Arrow batch, one column for each field of the stream, tracked under one id."""
        self._handle.emit_arrow(batch, tup_id, stream, None, direct_task)


class ReliableSpout(Spout):
    """Remembers what is in flight and sends it again when it fails.

    `max_fails` counts failures in user code only: what was lost with a worker, or timed out, is sent again for as
    long as it takes.
    """

    max_fails: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__()
        self.failed_tuples: Counter[Any] = Counter()
        self.unacked_tuples: dict[Any, tuple[Any, str | None, int | None, bool]] = {}

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        if tup_id is None:
            raise ValueError(f"{type(self).__name__} is reliable: emit needs a tup_id to send {tup!r} again by")
        task_ids = self._handle.emit(tup, tup_id, stream, None, direct_task, need_task_ids)
        if self.tracked:  # not before: a tuple that cannot be emitted is not in flight
            kept = tup[:] if isinstance(tup, list) else tup  # the caller may fill the list with other values
            self.unacked_tuples[tup_id] = (kept, stream, direct_task, need_task_ids)
        return task_ids

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        if tup_id is None:
            raise ValueError(f"{type(self).__name__} is reliable: emit_arrow needs a tup_id to send the batch again by")
        self._handle.emit_arrow(batch, tup_id, stream, None, direct_task)
        if self.tracked:
            self.unacked_tuples[tup_id] = (batch, stream, direct_task, False)

    def ack(self, tup_id: Any) -> None:
        if self.unacked_tuples.pop(tup_id, None) is None:
            self.logger.debug("ack for unknown tuple id %r", tup_id)
        if self.failed_tuples:
            self.failed_tuples.pop(tup_id, None)

    def fail(self, tup_id: Any) -> None:
        saved = self.unacked_tuples.get(tup_id)
        if saved is None:
            self.logger.debug("fail for unknown tuple id %r", tup_id)
            return
        if self.fail_cause == "error":
            self.failed_tuples[tup_id] += 1
            if self.failed_tuples[tup_id] > self.max_fails:
                self.logger.error("tuple %r failed %d times: given up", tup_id, self.failed_tuples[tup_id])
                self.ack(tup_id)
                return
        tup, stream, direct_task, need_task_ids = saved
        if isinstance(tup, list | tuple):
            self.emit(tup, tup_id, stream, direct_task, need_task_ids)
        else:
            self.emit_arrow(tup, tup_id, stream, direct_task)


class ReplayableSpout(ReliableSpout):
    """A reliable spout whose source can be read again from any position, so that it survives the loss of its worker.

    Emit with `tup_id` = the tuple's position, an int that rises from one tuple to the next. The engine keeps the
    lowest position that is not yet fully processed with the master; when the task starts anew anywhere it calls
    `seek` with it, after `initialize` and before the first `next_tuple`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next_position = 0

    def seek(self, position: int) -> None:
        """Go to `position`: the next tuple emitted must be the first whose position is not below it."""
        raise NotImplementedError(f"{type(self).__name__} must define seek")

    def position(self) -> int:
        """Everything below this has been fully processed."""
        return next(iter(self.unacked_tuples), self._next_position)  # a dict keeps the order in which they were sent

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        if tup_id is not None:
            tup_id = operator.index(tup_id)  # an int, whatever library it came from: it travels
            self._next_position = max(self._next_position, tup_id + 1)
        return super().emit(tup, tup_id, stream, direct_task, need_task_ids)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        if tup_id is not None:
            tup_id = operator.index(tup_id)  # an int, whatever library it came from: it travels
            self._next_position = max(self._next_position, tup_id + 1)
        super().emit_arrow(batch, tup_id, stream, direct_task)
