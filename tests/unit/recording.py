"""`millrace.testing` as the tests here use it: a component and its record side by side."""

from __future__ import annotations

from typing import Any, TypeVar

from millrace.api.component import Component
from millrace.api.recorder import Emitted
from millrace.api.spout import Spout
from millrace.testing import components
from millrace.testing.components import rows, tuples

__all__ = ["Record", "attach", "drain", "rows", "tuples"]

C = TypeVar("C", bound=Component)


class Record:
    """The calls of one component."""

    def __init__(self, component: Component) -> None:
        self.component = component

    @property
    def emits(self) -> list[Emitted]:
        return self.component.emitted

    @property
    def metrics(self) -> list[tuple[str, Any]]:
        return self.component.metrics

    def take(self) -> list[Emitted]:
        return components.take(self.component)

    def values(self) -> list[Any]:
        return components.values(self.component)


def attach(component_cls: type[C], *args: Any, **options: Any) -> tuple[C, Record]:
    component = components.start(component_cls, *args, **{"component_name": "under-test", **options})
    return component, Record(component)


def drain(spout: Spout, record: Record, calls: int = 1000) -> list[Emitted]:
    return components.drain(spout, calls)
