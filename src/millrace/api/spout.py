"""Spouts: sources of tuples, and the replay of tuples that fail."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.api.component import Component
from millrace.errors import EmitError

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.api.topology import ComponentSpec


class Spout(Component):
    """A source of tuples. `next_tuple` is called repeatedly while there is room downstream."""

    # The source divides its tuples among any number of tasks by itself, and gives those that a task leaves unacked to others:
    # the number of tasks can change while the spout runs. `parallelism` is the current number.
    divided_by_source: ClassVar[bool] = False

    _repeats: Mapping[Any, Any] = {}  # tuples of a reliable spout in flight whose id another one has
    fail_cause: str = "error"  # the reason of a call of `fail`: "error", "timeout" or "lost" (a worker died)

    @classmethod
    def spec(cls, name: str | None = None, par: Any = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        from millrace.api.topology import ComponentSpec

        return ComponentSpec(cls, name=name, par=par, config=config)

    @staticmethod
    def from_dataframe(dataframe: Any, name: str | None = None, par: Any = None, outputs: Sequence[str] | None = None,
                       checkpoint: str | None = None, config: dict[str, Any] | None = None,
                       splits: int | None = None) -> ComponentSpec:
        """Declares a spout that emits the rows of a streaming DataFrame; its columns are the fields. `dataframe` may also be a
        function (spark) -> DataFrame, or its name as "module:function", called when the topology is submitted: then `outputs`
        names the columns. `checkpoint`: Spark's directory for its reading position; unset, below the engine's store. `splits`:
        the number of shares to which the rows of each micro-batch are dealt, so that the number of tasks can change while the
        spout runs."""
        from millrace.api.dataframe import dataframe_spec

        return dataframe_spec(dataframe, name, par, outputs, checkpoint, config, splits)

    def next_tuple(self) -> None:
        """Emits some tuples, or none. Must not block unless `blocking = True`."""
        raise NotImplementedError(f"{type(self).__name__} must define next_tuple")

    def ack(self, tup_id: Any) -> None:
        """Called when the tuple and everything derived from it has been processed."""

    def fail(self, tup_id: Any) -> None:
        """Called when the tuple failed: by an exception, a timeout or a lost worker (see `fail_cause`)."""

    def lag(self) -> int | None:
        """Returns the number of tuples that the source has for this task and that it has not emitted; None if that is not
        known. Called a few times a second, where `next_tuple` is called, so it must be cheap. Tasks that share a source return
        their shares of what it has. The engine computes from it the rate that the source offers."""
        return None

    def due_in(self) -> float | None:
        """Returns the seconds until the source has a tuple for this task; None if that is not known. `next_tuple` is called
        again then, or else after `topology.spout.wait.ms`. Called when that has emitted nothing, where it is called, so it
        must be cheap."""
        return None

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


class Repeat:
    """Stands for an id that is emitted while another tuple with the same id is in flight: each of them is acked or fails."""

    __slots__ = ("tup_id",)

    def __init__(self, tup_id: Any) -> None:
        self.tup_id = tup_id


Saved = tuple[Any, str | None, int | None, bool]  # values or batch, stream, direct_task, need_task_ids
_NONE: Any = object()  # no tuple is failing; any value may be an id


class ReliableSpout(Spout):
    """Remembers tuples in flight and sends them again when they fail.

    `max_fails` counts failures in user code only: a tuple that timed out, or was lost with a worker, is always sent again.
    An id may be emitted several times, on one stream or several: only the tuple that failed is sent again.
    """

    max_fails: ClassVar[int] = 3
    _notified: Repeat | None = None  # the repeat that `ack` or `fail` is being called for
    _failing: Any = _NONE  # the id, or the repeat, that `fail` is being called for, until it is sent again

    def __init__(self) -> None:
        super().__init__()
        self.failed_tuples: Counter[Any] = Counter()
        self.unacked_tuples: dict[Any, Saved] = {}
        self._repeats: dict[Repeat, Saved] = {}

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        if tup_id is None:
            raise ValueError(f"{type(self).__name__} is reliable: emit needs a tup_id, to send {tup!r} again if it fails")
        if not self.tracked:
            return self._handle.emit(tup, tup_id, stream, None, direct_task, need_task_ids)
        kept = tup[:] if isinstance(tup, list) else tup  # the caller may reuse the list
        saved = (kept, stream, direct_task, need_task_ids)
        if self.unacked_tuples.setdefault(tup_id, saved) is not saved:
            return self._emit_again(saved, tup_id)
        try:
            return self._handle.emit(tup, tup_id, stream, None, direct_task, need_task_ids)
        except BaseException:
            del self.unacked_tuples[tup_id]  # a tuple that cannot be emitted is not in flight
            raise

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        if tup_id is None:
            raise ValueError(f"{type(self).__name__} is reliable: emit_arrow needs a tup_id, to send a failed batch again")
        if not self.tracked:
            self._handle.emit_arrow(batch, tup_id, stream, None, direct_task)
            return
        saved = (batch, stream, direct_task, False)
        if self.unacked_tuples.setdefault(tup_id, saved) is not saved:
            self._emit_again(saved, tup_id)
            return
        try:
            self._handle.emit_arrow(batch, tup_id, stream, None, direct_task)
        except BaseException:
            del self.unacked_tuples[tup_id]
            raise

    def _emit_again(self, saved: Saved, tup_id: Any) -> list[int] | None:
        """Send a tuple whose id is in flight: one that failed, which keeps its place, or another one with the same id."""
        if self._fails(tup_id):
            key, self._failing = self._failing, _NONE
        else:
            key = Repeat(tup_id)
        task_ids = self._send(saved, key)
        if isinstance(key, Repeat):
            self._repeats[key] = saved
        else:
            self.unacked_tuples[tup_id] = saved
        return task_ids

    def _fails(self, tup_id: Any) -> bool:
        """True while `fail` is called for a tuple with this id, and it has not been sent again."""
        key = self._failing
        return bool((key.tup_id if isinstance(key, Repeat) else key) == tup_id)

    def _send(self, saved: Saved, key: Any) -> list[int] | None:
        tup, stream, direct_task, need_task_ids = saved
        if isinstance(tup, list | tuple):
            return self._handle.emit(tup, key, stream, None, direct_task, need_task_ids)
        self._handle.emit_arrow(tup, key, stream, None, direct_task)
        return None

    def _notify_of_failure(self, key: Any) -> None:
        """Calls `fail` for a tuple. If it emits the id, that sends this tuple again, even if a subclass does it by itself."""
        self._failing = key
        try:
            if isinstance(key, Repeat):
                self._notify_of(key, self.fail, False)
            else:
                self.fail(key)
        finally:
            self._failing = _NONE

    def _notify_of(self, repeat: Repeat, call: Callable[[Any], None], acked: bool) -> None:
        """Calls `ack` or `fail` for one of several tuples with the same id; the others stay in flight."""
        tup_id = repeat.tup_id
        first, failures = self.unacked_tuples.get(tup_id), self.failed_tuples.get(tup_id)
        saved = self._repeats.get(repeat)
        if saved is not None:
            self.unacked_tuples[tup_id] = saved  # for the call, which may look there for the tuple that is meant
        self._notified = repeat
        try:
            call(tup_id)
        finally:
            self._notified = None
            if saved is not None and self.unacked_tuples.get(tup_id) is saved:
                del self.unacked_tuples[tup_id]
            if first is not None:
                self.unacked_tuples.setdefault(tup_id, first)
            if failures:
                self.failed_tuples[tup_id] = failures
            if acked:
                self._forget(repeat)

    def _forget(self, repeat: Repeat) -> None:
        self._repeats.pop(repeat, None)
        self.failed_tuples.pop(repeat, None)

    def ack(self, tup_id: Any) -> None:
        if self.unacked_tuples.pop(tup_id, None) is None:
            self.logger.debug("ack for unknown tuple id %r", tup_id)
        if self.failed_tuples:
            self.failed_tuples.pop(tup_id, None)

    def _all_acked(self, ids: list[Any]) -> None:
        """`ack` for each of these ids, where that is the method above: one call for a chunk."""
        if None in list(map(self.unacked_tuples.pop, ids, itertools.repeat(None))):
            self.logger.debug("ack for tuple ids of which one is unknown: %r", ids)
        if self.failed_tuples:
            for tup_id in ids:
                self.failed_tuples.pop(tup_id, None)

    def fail(self, tup_id: Any) -> None:
        repeat = self._notified
        key = tup_id if repeat is None else repeat
        saved = self.unacked_tuples.get(tup_id) if repeat is None else self._repeats.get(repeat)
        if saved is None:
            self.logger.debug("fail for unknown tuple id %r", tup_id)
            return
        self._failing = _NONE
        if self.fail_cause == "error":
            self.failed_tuples[key] += 1
            if self.failed_tuples[key] > self.max_fails:
                self.logger.error("tuple %r failed %d times: abandoned", tup_id, self.failed_tuples[key])
                self.ack(tup_id) if repeat is None else self._forget(repeat)
                return
        if repeat is not None:
            self._send(saved, repeat)
            return
        tup, stream, direct_task, need_task_ids = saved
        self._failing = tup_id
        try:
            if isinstance(tup, list | tuple):
                self.emit(tup, tup_id, stream, direct_task, need_task_ids)
            else:
                self.emit_arrow(tup, tup_id, stream, direct_task)
        finally:
            self._failing = _NONE


class ReplayableSpout(ReliableSpout):
    """A reliable spout whose source can be read again from any position, so that it survives the loss of its worker.

    Emit with `tup_id` = the tuple's position, an int that rises from one tuple to the next. The engine stores the lowest
    position that is not fully processed; when the task restarts, on any worker, it calls `seek` with that position, after
    `initialize` and before the first `next_tuple`.

    `splits`, here or in the config, divides the source into that many splits, whatever the number of tasks, which can then
    change while the spout runs. Each task reads some of the splits, and has an instance of the class for each. An instance
    behaves as the only one of a task: its `task_index` is the number of the split, its `parallelism` the number of splits, and
    it has its own position. It must choose its share of the source by these two alone. When a split goes to another task, that
    one makes an instance and lets it `seek`, and `take_over` if the other one has left it something. Instances of one task may
    keep in `shared_by_splits` what they have in common, for example a connection; it is there in `initialize`. The number of
    splits is fixed for the life of the topology; 0: there are none, and each task has its own share.
    """

    splits: int = 0

    def __init__(self) -> None:
        super().__init__()
        self._next_position = 0
        self.shared_by_splits: dict[str, Any] = {}

    def seek(self, position: int) -> None:
        """Moves to `position`: the next tuple emitted must be the first whose position is not below it."""
        raise NotImplementedError(f"{type(self).__name__} must define seek")

    def position(self) -> int:
        """The lowest position that is not fully processed."""
        return next(iter(self.unacked_tuples), self._next_position)  # a dict keeps the order in which they were sent

    def hand_over(self) -> Any:
        """Called on the instance whose task moves, or whose split goes to another task, when nothing of it is in flight any
        more. Returns what the next instance needs beside the position and `snapshot`, of plain types, such as the begin of a
        timetable; None if nothing. It is not saved: after the loss of a worker there is no such instance to ask."""
        return None

    def take_over(self, left: Any) -> None:
        """Called after `seek` on the instance that continues, with the value of `hand_over`, unless that is None."""

    def _check_replay(self, position: int) -> None:
        """Refuse a position that does not rise, unless its tuple has failed: a restart would skip it, or repeat others."""
        if not self._fails(position):
            raise EmitError(f"{type(self).__name__} emitted position {position} after position {self._next_position - 1}: "
                            "positions must rise from one tuple to the next. Use another tup_id, or derive the spout from "
                            "ReliableSpout if its source has no positions")

    def emit(self, tup: Sequence[Any], tup_id: Any = None, stream: str | None = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        if tup_id is None:
            return super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        tup_id = operator.index(tup_id)  # a plain int, because it is sent to the master
        if tup_id < self._next_position:
            self._check_replay(tup_id)
            return super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        task_ids = super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        self._next_position = tup_id + 1  # not before: a tuple that cannot be emitted has not been
        return task_ids

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any = None, stream: str | None = None,
                   direct_task: int | None = None) -> None:
        if tup_id is None:
            super().emit_arrow(batch, tup_id, stream, direct_task)
            return
        tup_id = operator.index(tup_id)  # a plain int, because it is sent to the master
        if tup_id < self._next_position:
            self._check_replay(tup_id)
            super().emit_arrow(batch, tup_id, stream, direct_task)
            return
        super().emit_arrow(batch, tup_id, stream, direct_task)
        self._next_position = tup_id + 1
