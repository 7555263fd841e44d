"""Spouts and bolts: what users subclass. The engine attaches a running task through `TaskHandle`."""

from __future__ import annotations

import logging
import operator
import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from millrace.api.state import State, declared_states
from millrace.errors import NotRunning

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.api.topology import ComponentSpec

DEFAULT_STREAM = "default"
DEAD_LETTERS = "dead-letters"
DEAD_LETTER_FIELDS = ("component", "task", "stream", "values", "error")
SYSTEM_COMPONENT = "__system"
TICK_STREAM = "__tick"


class Origin(Protocol):
    """Where a tuple came from. One object serves every tuple of a chunk, so a tuple costs three references."""

    component: str
    stream: str
    task: int

    def tuple_id(self, index: int) -> str: ...


class Tuple(msgspec.Struct, gc=False, eq=False):
    """A tuple as a bolt sees it: `id`, `component`, `stream`, `task` and `values`, in that order.

    `values` is a named tuple of the stream's fields: `tup.values[0]` and `tup.values.word` are the same.
    """

    values: Any
    origin: Any
    index: int = 0

    @classmethod
    def of(cls, id: str, component: str, stream: str, task: int, values: Any) -> Tuple:
        """A tuple that came from nowhere: for tests of a component."""
        return cls(values, _Nowhere(id, component, stream, task))

    @property
    def id(self) -> str:
        return self.origin.tuple_id(self.index)  # type: ignore[no-any-return]

    @property
    def component(self) -> str:
        return self.origin.component  # type: ignore[no-any-return]

    @property
    def stream(self) -> str:
        return self.origin.stream  # type: ignore[no-any-return]

    @property
    def task(self) -> int:
        return self.origin.task  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.id, self.component, self.stream, self.task, self.values))

    def __getitem__(self, index: int) -> Any:
        return (self.id, self.component, self.stream, self.task, self.values)[index]

    def __len__(self) -> int:
        return 5


class _Nowhere(msgspec.Struct, frozen=True):
    id: str
    component: str
    stream: str
    task: int

    def tuple_id(self, index: int) -> str:
        return self.id


class TaskHandle(Protocol):
    """What a running task offers its component. The engine sets it before `initialize`."""

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any,
             direct_task: int | None, need_task_ids: bool) -> list[int] | None: ...

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None: ...

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None: ...

    def ack(self, tup: Tuple | str) -> None: ...

    def fail(self, tup: Tuple | str) -> None: ...

    def report_metric(self, name: str, value: Any) -> None: ...

    def report_error(self, error: BaseException, tup: Tuple | None) -> None: ...


class _Detached:
    """Stands where the handle will be, so that a mistake says what to do instead of `None has no attribute`."""

    def __getattr__(self, name: str) -> Any:
        raise NotRunning(f"{name} was called outside a running task. Call it from initialize, process or next_tuple, "
                         "or run the component in a topology.")


class Component:
    """Common to spouts and bolts. The engine builds it with no arguments; settings come through `config`."""

    outputs: ClassVar[Any] = None
    par: ClassVar[Any] = 1
    config: ClassVar[dict[str, Any] | None] = None
    exit_on_exception: ClassVar[bool] = False  # True: a bolt gets a new instance, with `initialize`, after an exception
    only_on: ClassVar[str] = ""  # "resident" or "microbatch": the one engine that it works on
    blocking: ClassVar[bool] = False  # True: its calls may block, so the task gets a thread of its own

    topology_name: str = ""
    component_name: str = ""
    task_id: int = -1
    task_index: int = 0
    parallelism: int = 1
    debug: bool = False
    storm_conf: dict[str, Any] = {}  # replaced on the instance before initialize
    context: dict[str, Any] = {}
    logger: logging.Logger = logging.getLogger("millrace.component")
    tracked: bool = False  # True: the topology runs at least once, ack and fail will come
    exactly_once: bool = False  # True: the topology does
    epoch: int = 0  # of this incarnation: it rises each time the topology goes back to a committed wave
    _commits: bool = False  # it is a sink that takes part in the two-phase commit
    _handle: TaskHandle = _Detached()

    def __init__(self) -> None:
        self.pid = os.getpid()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        """Called once, before anything else, each time the task starts anywhere. Called positionally."""

    def close(self) -> None:
        """Called when the task is stopped in good order; not after a crash, so nothing may depend on it."""

    def snapshot(self) -> Any:
        """What must survive beside the keyed state: str, int, float, bool, bytes, None, and lists, tuples, sets and dicts of
        them; None if there is nothing. Called at each wave."""
        return None

    def restore(self, snapshot: Any) -> None:
        """Called after `initialize` when the task goes on from a wave, with what `snapshot` had returned at it."""
        raise NotImplementedError(f"{type(self).__name__} defines snapshot: it must define restore too")

    def log(self, message: str, level: str | None = None) -> None:
        levels = {"trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO,
                  "warn": logging.WARNING, "error": logging.ERROR}
        if level is not None and level not in levels:
            raise ValueError(f"log level {level!r} is not one of {', '.join(levels)}")
        self.logger.log(levels[level or "info"], message)

    def report_metric(self, name: str, value: Any) -> None:
        """Adds a number of yours to the task's meters, shown beside the engine's own."""
        self._handle.report_metric(name, value)

    def raise_exception(self, exception: BaseException, tup: Tuple | None = None) -> None:
        """Reports an error with its traceback. Does not raise."""
        self._handle.report_error(exception, tup)

    @staticmethod
    def is_heartbeat(tup: Tuple) -> bool:
        return tup.task == -1 and tup.stream == "__heartbeat"

    @classmethod
    def spec(cls, *args: Any, **kwargs: Any) -> ComponentSpec:
        raise TypeError(f"{cls.__name__} is neither a Spout nor a Bolt: subclass one of those and call its spec()")

    def _timer_seconds(self) -> float | None:
        """How often the engine calls `_on_timer`; None for never."""
        return None

    def _on_timer(self) -> None: ...

    def _before_wave(self) -> None:
        """Called right before the snapshot: what has been kept for later is due now."""


class Spout(Component):
    """Brings tuples in. `next_tuple` is called again and again while there is room downstream."""

    fail_cause: str = "error"  # why `fail` is being called: "error", "timeout" or "lost" (a worker died)

    @classmethod
    def spec(cls, name: str | None = None, par: Any = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        from millrace.api.topology import ComponentSpec

        return ComponentSpec(cls, name=name, par=par, config=config)

    @staticmethod
    def from_dataframe(frame: Any, name: str | None = None, par: Any = None, outputs: Sequence[str] | None = None,
                       checkpoint: str | None = None, config: dict[str, Any] | None = None) -> ComponentSpec:
        """A spout that emits the rows of a streaming DataFrame; its columns are the fields. `frame` may also be a function
        (spark) -> DataFrame, or its name as "module:function", called when the topology is submitted: then `outputs` names the
        columns. `checkpoint`: where Spark keeps how far it has read; unset, below the engine's checkpoint store."""
        from millrace.api.frame import frame_spec

        return frame_spec(frame, name, par, outputs, checkpoint, config)

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


class Bolt(Component):
    """Consumes tuples and may emit. Define one of `process`, `process_rows` and `process_arrow`."""

    auto_anchor: ClassVar[bool] = True  # emits belong to the tuple being processed, unless `anchors` is given
    auto_ack: ClassVar[bool] = True  # ack when `process` returns
    auto_fail: ClassVar[bool] = True  # fail the tuple when `process` raises
    acks_itself: ClassVar[bool] = False  # True: `process` keeps the tuple and acks it later
    named_rows: ClassVar[bool] = True  # False: values come as plain tuples, without field names; a little cheaper

    # By the key of its fields grouping; snapshotted at each wave. See api/state.py for others beside it.
    state = State()

    @classmethod
    def spec(cls, name: str | None = None, inputs: Any = None, par: Any = None,
             config: dict[str, Any] | None = None) -> ComponentSpec:
        from millrace.api.topology import ComponentSpec

        return ComponentSpec(cls, name=name, inputs=inputs, par=par, config=config)

    def process(self, tup: Tuple) -> None:
        """Called for every tuple. An exception fails the tuple, is counted and shown; the task goes on."""
        raise NotImplementedError(f"{type(self).__name__} must define process, process_rows or process_arrow")

    # `process_rows(self, rows: list)` and `process_arrow(self, batch: pyarrow.RecordBatch)` are looked for on the
    # subclass: whole chunks at a time, acked when the call returns. Rows are named tuples of the stream's fields.

    def process_tick(self, tup: Tuple) -> None:
        """Called every `topology.tick.tuple.freq.secs` seconds if the topology's or the bolt's config sets it."""

    def _takes_more(self) -> bool:
        """Asked after each chunk and each timer: while it says no, its senders get no credit, and wait."""
        return True

    def emit(self, tup: Sequence[Any], stream: str | None = None, anchors: Any = None,
             direct_task: int | None = None, need_task_ids: bool = False) -> list[int] | None:
        """Send one tuple. `anchors`: the tuples it stands for; `[]` sends it untracked."""
        return self._handle.emit(tup, None, stream, anchors, direct_task, need_task_ids)

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None = None) -> None:
        """Send many tuples at once: the same as `emit` for each of them, at a third of the cost."""
        self._handle.emit_rows(rows, stream)

    def emit_arrow(self, batch: pa.RecordBatch, stream: str | None = None, anchors: Any = None,
                   direct_task: int | None = None) -> None:
        """Send a whole Arrow batch, one column for each field of the stream."""
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
        """Which batch the tuple belongs to; one for all by default."""
        return None

    def process_batch(self, key: Hashable, tups: list[Tuple]) -> None:
        """Called with each batch; what it emits is anchored to the whole batch."""
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
            except Exception as error:
                if self._commits:  # a sink that could not write: the engine decides what becomes of the batch
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


def uses_state(component_cls: type[Component]) -> bool:
    """Whether the class declares keyed state of its own or mentions `state` in its code. Found without running it, so that
    a topology knows before it starts whether it has something to snapshot."""
    return any(isinstance(member, State) or "state" in _names(member) for member in _own_members(component_cls))


def used_states(component_cls: type[Component]) -> list[str]:
    """Names of the keyed states that the class declares; `state`, which every bolt has, only if its code mentions it."""
    mentioned = any("state" in _names(member) for member in _own_members(component_cls))
    return [name for name, state in declared_states(component_cls).items() if mentioned or state is not Bolt.state]


def _own_members(component_cls: type[Component]) -> list[Any]:
    """All that was written by whoever wrote the class."""
    own = [base for base in component_cls.__mro__ if base.__module__ != __name__]
    return [member for base in own for member in vars(base).values()]


def _names(member: Any) -> set[str]:
    """The names that a function uses; also one inside a property, a decorator that tells what it wraps, or the like."""
    inside = [getattr(member, name, None) for name in ("__func__", "__wrapped__", "func", "fget", "fset")]
    code = member if hasattr(member, "co_names") else getattr(member, "__code__", None)
    if code is not None:
        inside += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    found = set(code.co_names) if code is not None else set()
    return found.union(*(_names(one) for one in inside if one is not None))
