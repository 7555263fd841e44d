"""The base class of spouts and bolts. An engine attaches a running task through `TaskHandle`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from millrace.api.recorder import Recorded, Recorder
from millrace.api.tuple import Tuple

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.api.topology import ComponentSpec


class TaskHandle(Protocol):
    """The calls that a running task offers its component. The engine sets it before `initialize`.
    `chunk_tuples`: the number of tuples that its receivers can process soon; a spout that emits more in one call makes them
    wait."""

    @property
    def chunk_tuples(self) -> int: ...

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any,
             direct_task: int | None, need_task_ids: bool) -> list[int] | None: ...

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None: ...

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None: ...

    def ack(self, tup: Tuple | str) -> None: ...

    def fail(self, tup: Tuple | str) -> None: ...

    def report_metric(self, name: str, value: Any) -> None: ...

    def report_error(self, error: BaseException, tup: Tuple | None) -> None: ...


class Component:
    """Base of spouts and bolts. The engine builds it with no arguments; settings come through `config`.

    A component that no engine runs records its calls, for unit tests: `emitted` (a list of `Emitted`), `acked`, `failed`,
    `metrics` and `errors`. See docs/TESTING.md.
    """

    outputs: ClassVar[Any] = None
    par: ClassVar[Any] = 1
    config: ClassVar[dict[str, Any] | None] = None
    exit_on_exception: ClassVar[bool] = False  # True: a bolt is replaced by a new instance after an exception
    only_on: ClassVar[str] = ""  # "resident" or "microbatch": the only engine that it supports
    blocking: ClassVar[bool] = False  # True: its calls may block, so the task gets its own thread

    topology_name: str = ""
    component_name: str = ""
    task_id: int = -1
    task_index: int = 0
    parallelism: int = 1
    debug: bool = False
    storm_conf: dict[str, Any] = {}  # replaced on the instance before initialize
    context: dict[str, Any] = {}
    logger: logging.Logger = logging.getLogger("millrace.component")
    tracked: bool = False  # True: the topology is at-least-once or better, so ack and fail are called
    exactly_once: bool = False  # True: the topology is exactly-once
    epoch: int = 0  # rises each time the topology rolls back to a committed wave
    _commits: bool = False  # True: a sink that takes part in the two-phase commit
    _handle: TaskHandle  # the engine's task, or a Recorder

    emitted: Any = Recorded()
    acked: Any = Recorded()
    failed: Any = Recorded()
    metrics: Any = Recorded()
    errors: Any = Recorded()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # not in __init__: a subclass may leave that call out
        component = super().__new__(cls)
        component._handle = Recorder()
        return component

    def __init__(self) -> None:
        self.pid = os.getpid()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        """Called once each time the task starts, on any worker, before any other method. Arguments are positional."""

    def close(self) -> None:
        """Called when the task is stopped gracefully; not after a crash, so nothing may depend on it."""

    def snapshot(self) -> Any:
        """Returns the state to save in addition to the keyed state: str, int, float, bool, bytes, None, and lists, tuples,
        sets and dicts of them; None if there is nothing. Called at each wave."""
        return None

    def restore(self, snapshot: Any) -> None:
        """Called after `initialize` when the task resumes from a wave, with the value that `snapshot` returned at it."""
        raise NotImplementedError(f"{type(self).__name__} defines snapshot: it must define restore too")

    def log(self, message: str, level: str | None = None) -> None:
        levels = {"trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO,
                  "warn": logging.WARNING, "error": logging.ERROR}
        if level is not None and level not in levels:
            raise ValueError(f"log level {level!r} is not one of {', '.join(levels)}")
        self.logger.log(levels[level or "info"], message)

    def report_metric(self, name: str, value: Any) -> None:
        """Adds a number to the task's meters, shown beside the engine's own."""
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
        """The interval at which the engine calls `_on_timer`; None for never."""
        return None

    def _on_timer(self) -> None: ...

    def _before_wave(self) -> None:
        """Called right before the snapshot: process everything held back for later."""
