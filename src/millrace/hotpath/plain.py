"""The steps of the hot path in Python: used where the compiled ones could not be built, and what these are tested against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, repeat
from operator import itemgetter
from typing import Any, Protocol

import msgspec

SCALARS = frozenset({str, int, float, bool, bytes, type(None)})

ROW_TYPES = {list, tuple}

BOLT, SPOUT, HANDLE = "bolt", "spout", "handle"
Row = tuple[Any, ...]
Rows = Sequence[Row]


class RowBuffer(Protocol):
    """Rows that wait to be sent, with their ids; `rebinds` are called with the lists that take their place."""

    width: int
    rows: list[tuple[Any, ...]]
    ids: list[Any]
    rebinds: list[Callable[[list[Any], list[Any]], None]]


# The body of `emit` is generated for the width of the stream: unpacking checks the length, and testing each type in line lets
# most rows skip the slow path; one comparison does for strings, which are the most frequent. A tuple of scalars is sent as it
# is; a list may change later and is copied. Rows go to a list in a closure's cell, which is the cheapest append there is;
# `rebind` installs another list.
_TEMPLATE = """
def make(rows, ids, slow, SCALARS):
    def emit({signature}):
        if stream is None and {no_anchors}direct_task is None and need_task_ids is False:
            kind = type(tup)
            if kind is tuple or kind is list:
                try:
                    {names} = tup
                except ValueError:
                    return slow(tup, {tup_id}, stream, {anchors}, direct_task, need_task_ids)
                if {tests}:
                    rows.append(tup if kind is tuple else ({names}))
                    {track}
                    return None
        return slow(tup, {tup_id}, stream, {anchors}, direct_task, need_task_ids)

    def rebind(new_rows, new_ids):
        nonlocal rows, ids
        rows, ids = new_rows, new_ids

    return emit, rebind
"""
_SIGNATURES = {
    BOLT: "tup, stream=None, anchors=None, direct_task=None, need_task_ids=False",
    SPOUT: "tup, tup_id=None, stream=None, direct_task=None, need_task_ids=False",
    HANDLE: "tup, tup_id, stream, anchors, direct_task, need_task_ids",
}


def fast_emit(buffer: RowBuffer, slow: Callable[..., Any], form: str, track: bool, splits: int = 1,
              split: int = 0) -> Callable[..., Any]:
    """Generate an `emit` for the default stream that handles the plain case itself and leaves the rest to `slow`. `form`
    selects the signature: Bolt.emit, Spout.emit or TaskHandle.emit. `track`: keep the tuples' ids; those of one of several
    splits are numbered so that they differ."""
    names = [f"v{i}" for i in range(buffer.width)]
    id_of = "tup_id" if splits == 1 else f"tup_id * {splits} + {split}"
    source = _TEMPLATE.format(
        signature=_SIGNATURES[form], names=", ".join(names) + ",",
        tests=" and ".join(f"(type({name}) is str or type({name}) in SCALARS)" for name in names),
        no_anchors="" if form == SPOUT else "anchors is None and ", anchors="None" if form == SPOUT else "anchors",
        tup_id="None" if form == BOLT else "tup_id", track=f"ids.append({id_of})" if track else "")
    scope: dict[str, Any] = {}
    exec(source, scope)
    emit: Callable[..., Any]
    emit, rebind = scope["make"](buffer.rows, buffer.ids, slow, SCALARS)
    buffer.rebinds.append(rebind)
    return emit


def plain_rows(rows: Sequence[Any], width: int) -> Rows | None:
    """The rows as tuples, if all are lists or tuples of this width with scalars only; otherwise None."""
    kinds = set(map(type, rows))
    if kinds <= ROW_TYPES and set(map(len, rows)) <= {width} and SCALARS.issuperset(map(type, chain.from_iterable(rows))):
        return rows if list not in kinds else list(map(tuple, rows))
    return None


def buckets(rows: Rows, memory: dict[Any, int], positions: tuple[int, ...], count: int) -> list[list[tuple[Any, ...]]]:
    """The rows for each of `count` channels, by the number that `memory` has for the values at these positions. TypeError if
    such a value cannot be hashed."""
    parts: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    for row, index in zip(rows, map(memory.__getitem__, map(itemgetter(*positions), rows)), strict=True):
        parts[index].append(row)
    return parts


class Tuple(msgspec.Struct, gc=False, eq=False, frozen=True):
    """A tuple as a bolt sees it: `id`, `component`, `stream`, `task` and `values`, in that order.

    `values` is a named tuple of the stream's fields: `tup.values[0]` and `tup.values.word` are the same.
    """

    values: Any
    origin: Any  # has component, stream, task and tuple_id(index); shared by all tuples of a chunk
    index: int = 0

    @staticmethod
    def of(id: str, component: str, stream: str, task: int, values: Any) -> Tuple:
        """A tuple without a chunk, for tests of a component."""
        return Tuple(values, FixedOrigin(id, component, stream, task))

    @property
    def id(self) -> str:
        return self.origin.tuple_id(self.index)

    @property
    def component(self) -> str:
        return self.origin.component

    @property
    def stream(self) -> str:
        return self.origin.stream

    @property
    def task(self) -> int:
        return self.origin.task

    def __iter__(self) -> Iterator[Any]:
        return iter((self.id, self.component, self.stream, self.task, self.values))

    def __getitem__(self, index: int) -> Any:
        return (self.id, self.component, self.stream, self.task, self.values)[index]

    def __len__(self) -> int:
        return 5


class FixedOrigin(msgspec.Struct, frozen=True):
    """The origin of a tuple that is in no chunk."""

    id: str
    component: str
    stream: str
    task: int

    def tuple_id(self, index: int) -> str:
        return self.id


def tuples_of(rows: Rows, origin: Any) -> Iterator[Tuple]:
    """The rows of a chunk as tuples."""
    return map(Tuple, rows, repeat(origin), count())


def name_rows(rows: Rows, row_type: Any) -> list[Any]:
    """The rows as named tuples of this class. ValueError if one has another width."""
    return msgspec.convert(rows, list[row_type])


class QuickDict(dict[Any, Any]):
    """A dict as a base class: the compiled one needs no call of a method to read an item."""

    def add(self, key: Any, n: Any = 1) -> Any:
        """Adds to the key's number; returns the new value."""
        self[key] = total = self[key] + n
        return total


class RowDecoder:
    """Decodes chunk bodies; `row_type`: `tuple`, or the named tuple of a stream. `other` is a decoder of every valid body:
    the compiled class decodes plain values by itself."""

    def __init__(self, row_type: Any, other: msgspec.msgpack.Decoder[Any]) -> None:
        self.decode: Callable[[Any], list[Any]] = other.decode
