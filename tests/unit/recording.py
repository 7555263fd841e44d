"""Runs one component by hand: a task handle that writes down what the component does."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.spout import Spout
from millrace.api.tuple import Tuple
from millrace.testing.states import with_state

C = TypeVar("C", bound=Component)


@dataclass
class Emitted:
    values: Any  # a list or tuple, or an Arrow batch
    tup_id: Any = None
    stream: str | None = None
    anchors: Any = None
    direct_task: int | None = None


@dataclass
class Recorder:
    """A TaskHandle."""

    emits: list[Emitted] = field(default_factory=list)
    acked: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    metrics: list[tuple[str, Any]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any,
             direct_task: int | None, need_task_ids: bool) -> list[int] | None:
        self.emits.append(Emitted(values, tup_id, stream, anchors, direct_task))
        return [0] if need_task_ids else None

    def emit_arrow(self, batch: Any, tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None) -> None:
        self.emits.append(Emitted(batch, tup_id, stream, None, direct_task))

    def ack(self, tup: Any) -> None:
        self.acked.append(tup)

    def fail(self, tup: Any) -> None:
        self.failed.append(tup)

    def report_metric(self, name: str, value: Any) -> None:
        self.metrics.append((name, value))

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        self.errors.append(error)

    def take(self) -> list[Emitted]:
        """What was emitted since the last call."""
        taken = self.emits[:]
        self.emits.clear()
        return taken

    def values(self) -> list[Any]:
        return [emitted.values for emitted in self.emits]


def attach(component_cls: type[C], config: dict[str, Any] | None = None, task_index: int = 0, parallelism: int = 1,
           tracked: bool = True, **attributes: Any) -> tuple[C, Recorder]:
    """A component as the engine would start it, and the record of what it does. `attributes` are set before."""
    component = component_cls()
    recorder = Recorder()
    component._handle = recorder
    component.component_name, component.topology_name = "under-test", "test"
    component.task_index, component.task_id, component.parallelism = task_index, task_index, parallelism
    component.tracked = tracked
    component.storm_conf, component.context = dict(config or {}), {}
    for name, value in attributes.items():
        setattr(component, name, value)
    if isinstance(component, Bolt):
        with_state(component)
    component.initialize(component.storm_conf, component.context)
    return component, recorder


def rows(fields: str, values: Iterable[Sequence[Any]]) -> list[Any]:
    """A chunk as `process_rows` gets it."""
    make = namedtuple("Row", fields)  # type: ignore[misc]
    return [make(*row) for row in values]


def tuples(fields: str, values: Iterable[Sequence[Any]], stream: str = "default") -> list[Tuple]:
    """Tuples as `process` gets them."""
    return [Tuple.of(f"t:{n}", "source", stream, 0, row) for n, row in enumerate(rows(fields, values))]


def drain(spout: Spout, recorder: Recorder, calls: int = 1000) -> list[Emitted]:
    """Calls `next_tuple` until a call emits nothing."""
    taken: list[Emitted] = []
    for _ in range(calls):
        spout.next_tuple()
        if not recorder.emits:
            return taken
        taken += recorder.take()
    raise AssertionError(f"the spout still emits after {calls} calls")
