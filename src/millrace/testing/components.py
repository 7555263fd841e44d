"""Starts one spout or bolt by hand, for unit tests. Its calls are recorded in `emitted`, `acked`, `failed`, `metrics` and
`errors`.

    bolt = start(Count)
    for tup in tuples("word", [["mill"], ["race"], ["mill"]]):
        bolt.process(tup)
    assert values(bolt) == [("mill", 1), ("race", 1), ("mill", 2)]
    assert bolt.counts == {"mill": 2, "race": 1}
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.recorder import Emitted
from millrace.api.spout import Spout
from millrace.api.tuple import DEFAULT_STREAM, Tuple
from millrace.testing.states import with_state

C = TypeVar("C", bound=Component)


def start(component_cls: type[C], config: dict[str, Any] | None = None, task_index: int = 0, parallelism: int = 1,
          tracked: bool = True, **attributes: Any) -> C:
    """Builds a component as an engine would: settings from `config`, empty keyed state that owns all keys, then `initialize`.

    `tracked`: as in an at-least-once topology, so that a reliable spout remembers its tuples. `attributes` are set on the
    instance before `initialize`.
    """
    component = component_cls()
    component.component_name, component.topology_name = component_cls.__name__, "test"
    component.task_index, component.task_id, component.parallelism = task_index, task_index, parallelism
    component.tracked = tracked
    component.storm_conf, component.context = {**(component_cls.config or {}), **(config or {})}, {}
    for name, value in attributes.items():
        setattr(component, name, value)
    if isinstance(component, Bolt):
        with_state(component)
    component.initialize(component.storm_conf, component.context)
    return component


def rows(fields: str, values: Iterable[Sequence[Any]]) -> list[Any]:
    """Rows as `process_rows` gets them: named tuples. `fields` is separated by spaces."""
    make = namedtuple("Row", fields)  # type: ignore[misc]
    return [make(*row) for row in values]


def tuples(fields: str, values: Iterable[Sequence[Any]], stream: str = DEFAULT_STREAM,
           component: str = "source") -> list[Tuple]:
    """Tuples as `process` gets them, from task 0 of `component`. `fields` is separated by spaces."""
    return [Tuple.of(f"t:{number}", component, stream, 0, row) for number, row in enumerate(rows(fields, values))]


def values(component: Component, stream: str = DEFAULT_STREAM) -> list[Any]:
    """The values that the component has emitted on the stream so far."""
    return [emitted.values for emitted in component.emitted if emitted.stream == stream]


def take(component: Component) -> list[Emitted]:
    """Everything emitted since the last call; clears the record."""
    taken = component.emitted[:]
    component.emitted.clear()
    return taken


def drain(spout: Spout, calls: int = 1000) -> list[Emitted]:
    """Calls `next_tuple` until a call emits nothing; returns everything that was emitted."""
    drained: list[Emitted] = []
    for _ in range(calls):
        spout.next_tuple()
        if not spout.emitted:
            return drained
        drained += take(spout)
    raise AssertionError(f"{type(spout).__name__} still emits after {calls} calls of next_tuple: give it a limit")
