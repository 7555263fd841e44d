"""The component of a spout task that reads splits: an instance of the spout's class for each of them.

Such an instance behaves as the only one of a task: its share of the source is that of task `split` of as many tasks as there
are splits. Positions of different splits may be equal, so the id of a tuple outside its instance is position * splits + split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.api.component import Component
from millrace.api.spout import ReliableSpout, ReplayableSpout, Saved, Spout
from millrace.api.tuple import DEFAULT_STREAM
from millrace.control.assignment import SplitStart
from millrace.hotpath.plain import HANDLE
from millrace.hotpath.steps import fast_emit
from millrace.runtime.tasks.user_errors import USER_ERRORS
from millrace.state.checkpoint import SplitRecord
from millrace.state.packing import pack_value, unpack_value

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.api.dataframe import TaskFeed
    from millrace.api.tuple import Tuple
    from millrace.runtime.tasks.task import Task


class SplitHandle:
    """The task as the instance of one split sees it: ids of tuples get the number of the split."""

    def __init__(self, task: Task, split: int, metrics: dict[str, dict[int, Any]]) -> None:
        self._task, self._split, self._splits, self._metrics = task, split, task.definition.splits, metrics
        output = task.outbox.by_stream.get(DEFAULT_STREAM)
        self.emit: Callable[..., list[int] | None] = self._emit
        self._forget: Callable[[], None] = lambda: None
        if output is not None and output.width and not output.direct:
            self.emit = fast_emit(output, self._emit, HANDLE, track=True, splits=self._splits, split=split)
            rebind = output.rebinds[-1]
            self._forget = lambda: output.rebinds.remove(rebind)

    def end(self) -> None:
        """Nothing more is emitted."""
        self._forget()

    @property
    def chunk_tuples(self) -> int:
        return self._task.chunk_tuples

    def _emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None,
              need_task_ids: bool) -> list[int] | None:
        return self._task.outbox.emit(values, tup_id * self._splits + self._split, stream, anchors, direct_task, need_task_ids)

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None:
        self._task.outbox.emit_rows(rows, stream)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None:
        self._task.outbox.emit_arrow(batch, tup_id * self._splits + self._split, stream, anchors, direct_task)

    def ack(self, tup: Tuple | str) -> None:
        self._task.ack(tup)

    def fail(self, tup: Tuple | str) -> None:
        self._task.fail(tup)

    def report_metric(self, name: str, value: Any) -> None:
        """Numbers that several splits report under one name are added."""
        by_split = self._metrics.setdefault(name, {})
        by_split[self._split] = value
        numbers = all(isinstance(each, int | float) for each in by_split.values())
        self._task.report_metric(name, sum(by_split.values()) if numbers else value)

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        self._task.report_error(error, tup)


class Splits(ReliableSpout):
    """The splits of one task. `make` creates the instance of a split, which gets the handle. Calls of user code run where the
    task's code runs."""

    def __init__(self, task: Task, kind: type[ReplayableSpout], make: Callable[[int, SplitHandle], ReplayableSpout]) -> None:
        Spout.__init__(self)  # not that of a reliable spout: its instances remember their tuples
        self._task, self._kind, self._make, self._splits = task, kind, make, task.definition.splits
        self.parts: dict[int, ReplayableSpout] = {}
        self._turns: deque[ReplayableSpout] = deque()  # those that are read, the next one first
        self._ready: dict[int, ReplayableSpout] = {}  # initialized, for splits that other tasks still have
        self._handles: dict[int, SplitHandle] = {}
        self._metrics: dict[str, dict[int, Any]] = {}
        self._shared: dict[str, Any] = {}
        self.feed: TaskFeed | None = None  # of a spout that reads a DataFrame
        self._active = False

    # -- splits --------------------------------------------------------------------------------------------------------

    def prepare(self, split: int) -> None:
        """Make the instance of a split that another task may still have."""
        if split in self._ready or split in self.parts:
            return
        handle = SplitHandle(self._task, split, self._metrics)
        part = self._make(split, handle)
        part.shared_by_splits = self._shared
        if self.feed is not None:
            vars(part)["feed"] = self.feed.split(split)
        try:
            part.initialize(part.storm_conf, part.context)
        except BaseException:
            handle.end()
            raise
        vars(part)["max_fails"] = max(part.max_fails, self._task.max_fails)
        self._ready[split], self._handles[split] = part, handle

    def begin(self, split: int, position: int | None, own: bytes = b"", left: bytes = b"") -> None:
        """Read a split from this position on; None: from the start of the source. `own`, `left`: as in `SplitStart`."""
        if split not in self.parts:
            self.prepare(split)
        part = self.parts[split] if split in self.parts else self._ready[split]
        if own:
            part.restore(unpack_value(own))
        if position is not None:
            part._next_position = position
            part.seek(position)
        if left:
            part.take_over(unpack_value(left))
        if split in self._ready:
            self.parts[split] = self._ready.pop(split)
            self._turns.append(part)
            if self._active:
                part.activate()

    def become(self, owned: Collection[int], places: Mapping[int, SplitRecord | None]) -> None:
        """Have exactly these splits, at these places; None: at the start of the source."""
        self.drop([split for split in self.parts if split not in owned])
        for split in sorted(owned):
            place, part = places.get(split), self.parts.get(split)
            if part is None or (place is not None and part.position() != place.position):
                self.begin(split, *((place.position, place.own) if place is not None else (None,)))

    def rest(self, splits: Iterable[int]) -> None:
        """Stop reading splits. Tuples of them that fail are sent again nevertheless."""
        resting = [self.parts[split] for split in splits if split in self.parts]
        self._turns = deque(part for part in self._turns if part not in resting)

    def read_on(self, splits: Iterable[int]) -> None:
        """Read splits again that have rested."""
        self._turns.extend(part for split in splits if (part := self.parts.get(split)) is not None and part not in self._turns)

    def settled(self, splits: Iterable[int]) -> bool:
        """True if no tuple of these splits is in flight."""
        return not any(self.parts[split].unacked_tuples for split in splits if split in self.parts)

    def drop(self, splits: Iterable[int]) -> None:
        """Close splits that other tasks read from now on, and those that were prepared in vain."""
        splits = list(splits)
        self.rest(splits)
        for split in splits:
            part = self.parts.pop(split, None) or self._ready.pop(split, None)
            if part is not None:
                self._handles.pop(split).end()
                for by_split in self._metrics.values():
                    by_split.pop(split, None)
                self._guarded(part.close)

    def places(self, splits: Iterable[int] | None = None) -> dict[int, SplitRecord]:
        """The place of each of these splits, or of all."""
        return {split: SplitRecord(part.position(), b"" if (own := part.snapshot()) is None else pack_value(own))
                for split, part in sorted(self.parts.items()) if splits is None or split in splits}

    def starts(self, splits: Iterable[int]) -> dict[int, SplitStart]:
        """The places where the next owner of these splits goes on. Nothing of them is in flight."""
        return {split: SplitStart(place.position, place.own, b"" if left is None else pack_value(left))
                for split, place in self.places(splits).items() for left in (self.parts[split].hand_over(),)}

    def hand_over(self) -> Any:
        """The results of the splits' own calls, for the next incarnation of the task."""
        return {split: left for split, part in self.parts.items() if (left := part.hand_over()) is not None} or None

    def take_over(self, left: Mapping[int, Any]) -> None:
        for split, theirs in left.items():
            self.parts[split].take_over(theirs)

    def positions(self) -> dict[int, int]:
        """The lowest position of each split that is not fully processed."""
        return {split: part.position() for split, part in self.parts.items()}

    # -- calls of the engine -------------------------------------------------------------------------------------------

    def next_tuple(self) -> None:
        """Let the splits emit in turns, until one does."""
        turns, waiting = self._turns, self._task.waiting
        if not turns and self.feed is not None:
            self.feed.receive()  # senders may not know yet that other tasks have its splits
        before = waiting()
        for _ in range(len(turns)):
            part = turns[0]
            turns.rotate(-1)
            part.next_tuple()
            if waiting() > before:
                return

    def due_in(self) -> float | None:
        dues = [due for part in self._turns if (due := part.due_in()) is not None]
        return min(dues) if dues and len(dues) == len(self._turns) else None

    def ack(self, tup_id: Any) -> None:
        position, split = divmod(tup_id, self._splits)
        part = self.parts.get(split)
        if part is not None:
            part.ack(position)

    def _notify_of_failure(self, key: Any) -> None:
        position, split = divmod(key, self._splits)
        part = self.parts.get(split)
        if part is not None:
            part.fail_cause = self.fail_cause
            part._notify_of_failure(position)

    def lag(self) -> int | None:
        if self._kind.lag is Spout.lag:
            return None
        lags = [part.lag() for part in self.parts.values()]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    def activate(self) -> None:
        self._active = True
        for part in self.parts.values():
            self._guarded(part.activate)

    def deactivate(self) -> None:
        self._active = False
        for part in self.parts.values():
            self._guarded(part.deactivate)

    def close(self) -> None:
        self.drop([*self.parts, *self._ready])
        if self.feed is not None:
            self.feed.close()

    def _guarded(self, call: Callable[[], None]) -> None:
        """An error of one split must not keep the others from being called."""
        try:
            call()
        except USER_ERRORS as error:
            self._task.report_error(error, None)

    # -- as of a single spout ------------------------------------------------------------------------------------------

    @property
    def unacked_tuples(self) -> dict[Any, Saved]:  # type: ignore[override]
        return {position * self._splits + split: saved for split, part in self.parts.items()
                for position, saved in part.unacked_tuples.items()}

    @property
    def exhausted(self) -> bool:
        """True if every split is at its end, as far as the spout's class tells."""
        return all(getattr(part, "exhausted", False) for part in self.parts.values())


def place_of(component: Component) -> tuple[int | None, dict[int, SplitRecord]]:
    """The position of a replayable spout, or the places of its splits."""
    if isinstance(component, Splits):
        return None, component.places()
    return (component.position() if isinstance(component, ReplayableSpout) else None), {}
