"""Declares keyed state: mappings by key that cost as much as a dict and can be snapshotted at any time.

    class WordCounter(Bolt):
        state = State(default=0)
        seen = ListState(ttl=3600)

        def process(self, tup):
            self.state[tup.values.word] += 1

This module has the declarations for a bolt's class body. The mappings themselves are in `plain`, `paged` and `expiring`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millrace.api.keyed.expiring import ExpiringState
from millrace.api.keyed.keys import ATOMS, KeyPlaces, is_key
from millrace.api.keyed.plain import NO_DEFAULT, KeyedState
from millrace.errors import EncodingError, NotRunning


class Codec(Protocol):
    """Converts values to types that msgpack can hold, and back."""

    def encode(self, value: Any) -> Any: ...

    def decode(self, plain: Any) -> Any: ...


class Typed:
    """A codec for values of one type: a dataclass, a msgspec Struct, `set[str]`, `tuple[int, datetime]`, Decimal."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def encode(self, value: Any) -> Any:
        """Refuses a value that recovery would change."""
        try:
            plain = msgspec.to_builtins(value, builtin_types=(bytes,))
            back = self.decode(plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self!r} cannot keep {value!r} ({type(value).__name__}): {error}") from error
        if not _same(back, value):
            raise EncodingError(f"{self!r} cannot keep {value!r} ({type(value).__name__}): recovery would turn it into "
                                f"{back!r} ({type(back).__name__}). Give Typed the type of the values, or change them")
        return plain

    def decode(self, plain: Any) -> Any:
        return msgspec.convert(plain, self.kind, builtin_types=(bytes,))

    def __repr__(self) -> str:
        return f"Typed({getattr(self.kind, '__name__', self.kind)})"


def _same(value: Any, other: Any) -> bool:
    """True if the values are equal and of equal types at every level; 1 and 1.0, or a set and a frozenset, are not."""
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if type(value) in ATOMS:
        return bool(value == other or (value != value and other != other))  # NaN is not equal to itself
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict):
        return len(value) == len(other) and all(map(_same, value, other)) and all(map(_same, value.values(), other.values()))
    if isinstance(value, set | frozenset):
        twins = {item: item for item in other}
        return value == other and all(_same(item, twins[item]) for item in value)
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names:
        return all(_same(getattr(value, name, NO_DEFAULT), getattr(other, name, NO_DEFAULT)) for name in names)
    return bool(value == other)


class State:
    """Declares a mapping from the keys of the bolt's fields grouping to values; the engine opens it before `initialize`.

    `default`: the value of a key without an entry, or a function that makes it (`list`, `dict`). Reading an immutable default
    does not store it. `ttl`: an entry expires when it was not written for that many seconds; getting a mutable value by `[]`,
    `get` or `setdefault` counts as writing it, iterating over it does not. `codec`: converts values other than str, int, float,
    bool, None, bytes and lists, tuples, sets and dicts of them; `Typed(T)` covers most.

    Do not keep bound methods (`get = self.state.get`) or views (`self.state.items()`) from one call to the next: a snapshot
    between them may change the form of the state. A change through a reference kept from an earlier call is not noticed: get
    the value from the state again.
    """

    def __init__(self, default: Any = NO_DEFAULT, ttl: float | None = None, codec: Codec | None = None) -> None:
        if default is not NO_DEFAULT and not callable(default) and not is_key(default):
            raise TypeError(f"State(default={default!r}): all keys would share that one {type(default).__name__}. Pass a "
                            f"function that makes a new one, for example default={type(default).__name__}")
        if ttl is not None and not ttl > 0:
            raise ValueError(f"State(ttl={ttl!r}): it must be a number of seconds above 0, or None to keep entries forever")
        self.default, self.ttl, self.codec = default, ttl, codec
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    # No __set__: the mapping that the engine puts into the instance's __dict__ is found first, at no cost.
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise NotRunning(f"{type(instance).__name__}.{self.name} is not open. Either it is used outside a running task: "
                         "use it from initialize on, in a topology, or open it with millrace.testing.with_state in a test. Or "
                         "the bolt has no fields grouping, which gives each task its keys: subscribe with Grouping.fields(...)")

    def open(self, places: KeyPlaces, now: Callable[[], float]) -> KeyedState:
        """Makes the empty mapping."""
        return KeyedState(self, places) if self.ttl is None else ExpiringState(self, places, now)


class CounterState(State):
    """Numbers, 0 at first: `self.hits.add(key)`, or `self.hits[key] += n`."""

    def __init__(self, ttl: float | None = None) -> None:
        super().__init__(0, ttl)


class ListState(State):
    """Lists, empty at first: `self.seen.append(key, item)`, or `self.seen[key].append(item)`."""

    def __init__(self, ttl: float | None = None, codec: Codec | None = None) -> None:
        super().__init__(list, ttl, codec)


def declared_states(component_cls: type) -> dict[str, State]:
    """The states that the class and its bases declare, by name; a subclass can replace one, or remove it with None."""
    members: dict[str, Any] = {}
    for each in reversed(component_cls.__mro__):
        members.update(vars(each))
    return {name: member for name, member in members.items() if isinstance(member, State)}
