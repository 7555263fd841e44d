"""Bolts: components that consume tuples one by one, by the chunk, or in batches."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.api.component import Component
from millrace.api.keyed.declared import State
from millrace.api.tuple import SYSTEM_COMPONENT, TICK_STREAM, Tuple
from millrace.errors import is_interrupt

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.api.topology import ComponentSpec


class Bolt(Component):
    """Consumes tuples and may emit. Define one of `process`, `process_rows` and `process_arrow`."""

    auto_anchor: ClassVar[bool] = True  # emits belong to the tuple being processed, unless `anchors` is given
    auto_ack: ClassVar[bool] = True  # ack when `process` returns
    auto_fail: ClassVar[bool] = True  # fail the tuple when `process` raises
    acks_itself: ClassVar[bool] = False  # True: `process` keeps the tuple and acks it later
    named_rows: ClassVar[bool] = True  # False: values come as plain tuples, without field names; a little cheaper

    # True: if `process_rows` raises it has kept nothing of the chunk, so that its rows can be processed again one by one
    keeps_all_or_none: ClassVar[bool] = False

    # A staticmethod (one, other) -> values that merges two input tuples of a key into one that has the same effect, as plain
    # tuples in the order in which they were emitted: for example (word, 3) and (word, 4) into (word, 7). Tasks that send to the
    # bolt by a fields grouping then merge the tuples of hot keys in a chunk, so that a hot key does not overload its owner, or
    # of all keys if the grouping says combine="merge". Only a staticmethod with two parameters counts: anything else named
    # merge is the bolt's own.
    merge: ClassVar[Callable[[tuple[Any, ...], tuple[Any, ...]], Sequence[Any]] | None] = None

    # Keyed by the fields grouping; snapshotted at each wave. See api/keyed/declared.py for other kinds.
    state = State()

    @classmethod
    def spec(cls, name: str | None = None, inputs: Any = None, par: Any = None,
             config: dict[str, Any] | None = None) -> ComponentSpec:
        from millrace.api.topology import ComponentSpec

        return ComponentSpec(cls, name=name, inputs=inputs, par=par, config=config)

    def process(self, tup: Tuple) -> None:
        """Called for every tuple. An exception fails the tuple and is counted and reported; the task continues."""
        raise NotImplementedError(f"{type(self).__name__} must define process, process_rows or process_arrow")

    # A subclass may define `process_rows(self, rows: list)` or `process_arrow(self, batch: pyarrow.RecordBatch)` instead:
    # they take a whole chunk, acked when the call returns. Rows are named tuples of the stream's fields.

    def process_tick(self, tup: Tuple) -> None:
        """Called every `topology.tick.tuple.freq.secs` seconds if the topology's or the bolt's config sets it."""

    def _takes_more(self) -> bool:
        """Called after each chunk and each timer: while it returns False, senders get no credit and wait."""
        return True

    def emit(self, tup: Sequence[Any], stream: str | None = None, anchors: Any = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        """Sends one tuple. `anchors`: the tuples it derives from; `[]` sends it untracked."""
        return self._handle.emit(tup, None, stream, anchors, direct_task, need_task_ids)

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None = None) -> None:
        """Sends many tuples at once: the same as `emit` for each, at a third of the cost."""
        self._handle.emit_rows(rows, stream)

    def emit_arrow(self, batch: pa.RecordBatch, stream: str | None = None, anchors: Any = None,
                   direct_task: int | None = None) -> None:
        """Sends a whole Arrow batch, one column for each field of the stream."""
        self._handle.emit_arrow(batch, None, stream, anchors, direct_task)

    def ack(self, tup: Tuple | str) -> None:
        self._handle.ack(tup)

    def fail(self, tup: Tuple | str) -> None:
        self._handle.fail(tup)

    @staticmethod
    def is_tick(tup: Tuple) -> bool:
        return tup.component == SYSTEM_COMPONENT and tup.stream == TICK_STREAM


class BatchingBolt(Bolt):
    """Collects tuples by `group_key` and processes them together every few ticks.

    A batch runs when the number of ticks since the last one exceeds `ticks_between_batches`.
    """

    ticks_between_batches: ClassVar[int] = 1
    acks_itself: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._batches: defaultdict[Hashable, list[Tuple]] = defaultdict(list)
        self._current: tuple[Tuple, ...] = ()
        self._ticks = 0

    def group_key(self, tup: Tuple) -> Hashable:
        """The key of the tuple's batch; by default all tuples share one batch."""
        return None

    def process_batch(self, key: Hashable, tups: list[Tuple]) -> None:
        """Called with each batch; its emits are anchored to the whole batch."""
        raise NotImplementedError(f"{type(self).__name__} must define process_batch")

    def emit(self, tup: Sequence[Any], stream: str | None = None, anchors: Any = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> None:
        if anchors is None and self.auto_anchor:
            anchors = self._current
        self._handle.emit(tup, None, stream, anchors, direct_task, False)

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None = None) -> None:
        for row in rows:
            self.emit(row, stream)

    def emit_arrow(self, batch: pa.RecordBatch, stream: str | None = None, anchors: Any = None,
                   direct_task: int | None = None) -> None:
        if anchors is None and self.auto_anchor:
            anchors = self._current
        self._handle.emit_arrow(batch, None, stream, anchors, direct_task)

    def process(self, tup: Tuple) -> None:
        self._batches[self.group_key(tup)].append(tup)

    def process_tick(self, tup: Tuple) -> None:
        self._ticks += 1
        if self._ticks > self.ticks_between_batches and self._batches:
            self._ticks = 0
            self.process_batches()

    def _before_wave(self) -> None:
        self.process_batches()

    def process_batches(self) -> None:
        """Runs all waiting batches. One that raises is failed as a whole; the others still run."""
        batches, self._batches = self._batches, defaultdict(list)
        for key, tups in batches.items():
            self._current = tuple(tups)
            try:
                self.process_batch(key, tups)
            except BaseException as error:  # of any kind: the tuples of the other batches must not be lost with these
                if self._commits or is_interrupt(error):  # a sink that could not write: the engine handles the batch
                    raise
                self.raise_exception(error, tups[0])
                if self.auto_fail:
                    for tup in tups:
                        self.fail(tup)
            else:
                if self.auto_ack:
                    for tup in tups:
                        self.ack(tup)
            finally:
                self._current = ()


class TicklessBatchingBolt(BatchingBolt):
    """A batching bolt that runs its batches every `secs_between_batches` seconds, without ticks."""

    secs_between_batches: ClassVar[float] = 2

    def process_tick(self, tup: Tuple) -> None: ...

    def _timer_seconds(self) -> float | None:
        if not self.secs_between_batches > 0:
            raise ValueError(f"{type(self).__name__}.secs_between_batches is {self.secs_between_batches!r}: it must be above 0")
        return self.secs_between_batches

    def _on_timer(self) -> None:
        self.process_batches()


def declares_merge(component_cls: type[Component]) -> bool:
    """True for a bolt with a static method `merge` of two parameters. Anything else of that name is the bolt's own."""
    declared = inspect.getattr_static(component_cls, "merge", None)
    if not isinstance(declared, staticmethod) or not issubclass(component_cls, Bolt):
        return False
    try:
        parameters = inspect.signature(declared.__func__).parameters.values()
    except ValueError:  # some built-in functions do not tell
        return False
    return [parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            for parameter in parameters] == [True, True]
