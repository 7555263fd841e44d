"""A task handle that records a component's calls."""

from __future__ import annotations

import functools
from typing import Any

from millrace.api.component import Component
from millrace.api.tuple import SYSTEM_COMPONENT, TICK_STREAM, Tuple

TICK = Tuple.of("tick", SYSTEM_COMPONENT, TICK_STREAM, -1, (1,))


class Diary:
    """A task handle: every call becomes an entry."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def emit(self, values: Any, tup_id: Any, stream: Any, anchors: Any, direct_task: Any, need_task_ids: bool) -> None:
        named = list(anchors) if isinstance(anchors, tuple) else anchors
        self.entries.append(("emit", values, tup_id, stream, named, direct_task))

    def emit_arrow(self, batch: Any, tup_id: Any, stream: Any, anchors: Any, direct_task: Any) -> None:
        self.entries.append(("emit_arrow", batch, tup_id, stream, anchors, direct_task))

    def ack(self, tup: Any) -> None:
        self.entries.append(("ack", tup))

    def fail(self, tup: Any) -> None:
        self.entries.append(("fail", tup))

    def report_metric(self, name: str, value: Any) -> None:
        self.entries.append(("metric", name, value))

    def report_error(self, error: BaseException, tup: Any) -> None:
        self.entries.append(("error", str(error), tup))

    def take(self) -> list[tuple[Any, ...]]:
        entries, self.entries = self.entries, []
        return entries


def running(component: Component) -> Diary:
    """Attach the component to a diary, as the engine would to a task."""
    component._handle = diary = Diary()
    component.tracked = True
    return diary


@functools.cache
def word(text: str) -> Tuple:
    return Tuple.of(text, "split", "default", 7, (text,))
