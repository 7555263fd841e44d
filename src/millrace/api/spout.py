"""Spouts: sources of tuples, and the replay of tuples that fail."""

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
    """A source of tuples. `next_tuple` is called repeatedly while there is room downstream."""

    fail_cause: str = "error"  # the reason of a call of `fail`: "error", "timeout" or "lost" (a worker died)

    @classmethod
    def spec(cls, name: str | None = None, par: Any = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        from millrace.api.topology import ComponentSpec

        return ComponentSpec(cls, name=name, par=par, config=config)

    @staticmethod
    def from_dataframe(dataframe: Any, name: str | None = None, par: Any = None, outputs: Sequence[str] | None = None,
                       checkpoint: str | None = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        """Declares a spout that emits the rows of a streaming DataFrame; its columns are the fields. `dataframe` may also be a
        function (spark) -> DataFrame, or its name as "module:function", called when the topology is submitted: then `outputs`
        names the columns. `checkpoint`: Spark's directory for its reading position; unset, below the engine's store."""
        from millrace.api.dataframe import dataframe_spec

        return dataframe_spec(dataframe, name, par, outputs, checkpoint, config)

    def next_tuple(self) -> None:
        """Emits some tuples, or none. Must not block unless `blocking = True`."""
        raise NotImplementedError(f"{type(self).__name__} must define next_tuple")

    def ack(self, tup_id: Any) -> None:
        """Called when the tuple and everything derived from it has been processed."""

    def fail(self, tup_id: Any) -> None:
        """Called when the tuple failed: by an exception, a timeout or a lost worker (see `fail_cause`)."""

    def activate(self) -> None: ...

    def deactivate(self) -> None: ...

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        """Sends one tuple. Without `tup_id` it is not tracked: neither `ack` nor `fail` is called."""
        return self._handle.emit(tup, tup_id, stream, None, direct_task, need_task_ids)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        """Sends a whole Arrow batch, one column for each field of the stream, tracked under one id."""
        self._handle.emit_arrow(batch, tup_id, stream, None, direct_task)


class ReliableSpout(Spout):
    """Remembers tuples in flight and sends them again when they fail.

    `max_fails` counts failures in user code only: a tuple that timed out, or was lost with a worker, is always sent again.
    """

    max_fails: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__()
        self.failed_tuples: Counter[Any] = Counter()
        self.unacked_tuples: dict[Any, tuple[Any, str | None, int | None, bool]] = {}

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        if tup_id is None:
            raise ValueError(f"{type(self).__name__} is reliable: emit needs a tup_id, to send {tup!r} again if it fails")
        task_ids = self._handle.emit(tup, tup_id, stream, None, direct_task, need_task_ids)
        if self.tracked:  # after the emit: a tuple that cannot be emitted is not in flight
            kept = tup[:] if isinstance(tup, list) else tup  # the caller may reuse the list
            self.unacked_tuples[tup_id] = (kept, stream, direct_task, need_task_ids)
        return task_ids

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        if tup_id is None:
            raise ValueError(f"{type(self).__name__} is reliable: emit_arrow needs a tup_id, to send a failed batch again")
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
                self.logger.error("tuple %r failed %d times: abandoned", tup_id, self.failed_tuples[tup_id])
                self.ack(tup_id)
                return
        tup, stream, direct_task, need_task_ids = saved
        if isinstance(tup, list | tuple):
            self.emit(tup, tup_id, stream, direct_task, need_task_ids)
        else:
            self.emit_arrow(tup, tup_id, stream, direct_task)


class ReplayableSpout(ReliableSpout):
    """A reliable spout whose source can be read again from any position, so that it survives the loss of its worker.

    Emit with `tup_id` = the tuple's position, an int that rises from one tuple to the next. The engine stores the lowest
    position that is not fully processed; when the task restarts, on any worker, it calls `seek` with that position, after
    `initialize` and before the first `next_tuple`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next_position = 0

    def seek(self, position: int) -> None:
        """Moves to `position`: the next tuple emitted must be the first whose position is not below it."""
        raise NotImplementedError(f"{type(self).__name__} must define seek")

    def position(self) -> int:
        """The lowest position that is not fully processed."""
        return next(iter(self.unacked_tuples), self._next_position)  # a dict keeps the order in which they were sent

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        if tup_id is not None:
            tup_id = operator.index(tup_id)  # a plain int, because it is sent to the master
            self._next_position = max(self._next_position, tup_id + 1)
        return super().emit(tup, tup_id, stream, direct_task, need_task_ids)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        if tup_id is not None:
            tup_id = operator.index(tup_id)  # a plain int, because it is sent to the master
            self._next_position = max(self._next_position, tup_id + 1)
        super().emit_arrow(batch, tup_id, stream, direct_task)
