"""Records the calls of a component that runs outside an engine, so that a unit test can read them.

    bolt = Split()
    bolt.process(tup)
    assert [emitted.values for emitted in bolt.emitted] == [("mill",), ("race",)]

See docs/TESTING.md, and `millrace.testing` for components with state and settings.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import DEFAULT_STREAM, Tuple

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Emitted:
    """One call of `emit` or `emit_arrow`, or one row of `emit_rows`."""

    values: Any  # a tuple of the values; for emit_arrow the record batch
    stream: str = DEFAULT_STREAM
    tup_id: Any = None
    anchors: list[Any] | None = None  # None: the tuple being processed
    direct_task: int | None = None


@dataclass
class Recorder:
    """A task handle that keeps every call in a list. It does not check emits against `outputs`: `run_reference` does."""

    chunk_tuples = sys.maxsize
    emitted: list[Emitted] = field(default_factory=list)
    acked: list[Tuple | str] = field(default_factory=list)
    failed: list[Tuple | str] = field(default_factory=list)
    metrics: list[tuple[str, Any]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)  # passed to `raise_exception`

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any,
             direct_task: int | None, need_task_ids: bool) -> list[int] | None:
        """There are no receiving tasks, so the list of their ids is empty."""
        self._add(tuple(values), tup_id, stream, anchors, direct_task)  # a copy: the caller may reuse a list
        return [] if need_task_ids else None

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None:
        for row in rows:
            self._add(tuple(row), None, stream, None, None)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None:
        self._add(batch, tup_id, stream, anchors, direct_task)

    def ack(self, tup: Tuple | str) -> None:
        self.acked.append(tup)

    def fail(self, tup: Tuple | str) -> None:
        self.failed.append(tup)

    def report_metric(self, name: str, value: Any) -> None:
        self.metrics.append((name, value))

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        self.errors.append(error)

    def _add(self, values: Any, tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None) -> None:
        anchors = None if anchors is None else list(anchors)
        self.emitted.append(Emitted(values, stream or DEFAULT_STREAM, tup_id, anchors, direct_task))


class Recorded:
    """An attribute of a component that reads one list of its recorder.

    Not a data descriptor: a component may have its own attribute of the same name.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if not isinstance(instance._handle, Recorder):
            raise AttributeError(f"{type(instance).__name__}.{self.name} is recorded only outside an engine, for unit tests; "
                                 "an engine sends what the component emits. Keep your own attribute if you need it here.")
        return getattr(instance._handle, self.name)
