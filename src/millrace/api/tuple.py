"""Tuples as bolts see them, and the names of streams and components that the engine uses itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

DEFAULT_STREAM = "default"
DEAD_LETTERS = "dead-letters"
DEAD_LETTER_FIELDS = ("component", "task", "stream", "values", "error")
SYSTEM_COMPONENT = "__system"
TICK_STREAM = "__tick"


class Tuple(msgspec.Struct, gc=False, eq=False):
    """A tuple as a bolt sees it: `id`, `component`, `stream`, `task` and `values`, in that order.

    `values` is a named tuple of the stream's fields: `tup.values[0]` and `tup.values.word` are the same.
    """

    values: Any
    origin: Any  # has component, stream, task and tuple_id(index); shared by all tuples of a chunk
    index: int = 0

    @classmethod
    def of(cls, id: str, component: str, stream: str, task: int, values: Any) -> Tuple:
        """A tuple without a chunk, for tests of a component."""
        return cls(values, _FixedOrigin(id, component, stream, task))

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


class _FixedOrigin(msgspec.Struct, frozen=True):
    id: str
    component: str
    stream: str
    task: int

    def tuple_id(self, index: int) -> str:
        return self.id
