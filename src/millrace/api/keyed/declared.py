"""Keyed state: what a bolt remembers of each key, as mappings that cost what a dict costs and can be snapshotted at any time.

    class Count(Bolt):
        state = State(default=0)
        seen = ListState(ttl=3600)

        def process(self, tup):
            self.state[tup.values.word] += 1

Here is what stands in a bolt's class body. The mappings themselves: `keyed_state`, `paged_state` and `expiring_state`.
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
    """From values to what msgpack can hold, and back."""

    def encode(self, value: Any) -> Any: ...

    def decode(self, plain: Any) -> Any: ...


class Typed:
    """A codec for values of one type: a dataclass, a msgspec Struct, `set[str]`, `tuple[int, datetime]`, Decimal."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def encode(self, value: Any) -> Any:
        """Refuses what would not be after a recovery what it was before."""
        try:
            plain = msgspec.to_builtins(value, builtin_types=(bytes,))
            back = self.decode(plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self!r} cannot keep {value!r} ({type(value).__name__}): {error}") from error
        if not _same(back, value):
            raise EncodingError(f"{self!r} cannot keep {value!r} ({type(value).__name__}): it would come back as {back!r} "
                                f"({type(back).__name__}). Give Typed the type that the values have, or change them")
        return plain

    def decode(self, plain: Any) -> Any:
        return msgspec.convert(plain, self.kind, builtin_types=(bytes,))

    def __repr__(self) -> str:
        return f"Typed({getattr(self.kind, '__name__', self.kind)})"


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down: 1 and 1.0, or a set and a frozenset, are equal too."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in ATOMS:
        return bool(one == other or (one != one and other != other))  # not a number is not equal to itself
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(_same, one, other)) and all(map(_same, one.values(), other.values()))
    if isinstance(one, set | frozenset):
        twins = {item: item for item in other}
        return one == other and all(_same(item, twins[item]) for item in one)
    names = getattr(one, "__struct_fields__", None) or getattr(one, "__dataclass_fields__", None)
    if names:
        return all(_same(getattr(one, name, NO_DEFAULT), getattr(other, name, NO_DEFAULT)) for name in names)
    return bool(one == other)


class State:
    """Declares a mapping from the keys of the bolt's fields grouping to values; the engine opens it before `initialize`.

    `default`: what a key without entry reads as: a value, or a function that makes one (`list`, `dict`). A default that
    cannot be changed in place is not stored by reading it. `ttl`: an entry not written for so many seconds is gone; to get
    a value that can be changed in place by `[]`, `get` or `setdefault` counts as writing it, to loop over it does not.
    `codec`: how values are kept, for those that are more than str, int, float, bool, None, bytes and lists, tuples, sets
    and dicts of them; `Typed(T)` does for most.

    Do not keep bound methods (`get = self.state.get`) or views (`self.state.items()`) from one call to the next: a snapshot
    between them may change the form of the state. A value changed through a reference kept from an earlier call is not
    noticed: get it from the state again.
    """

    def __init__(self, default: Any = NO_DEFAULT, ttl: float | None = None, codec: Codec | None = None) -> None:
        if default is not NO_DEFAULT and not callable(default) and not is_key(default):
            raise TypeError(f"State(default={default!r}): all keys would share that one {type(default).__name__}. Give what "
                            f"makes a new one: default={type(default).__name__}, or a function")
        if ttl is not None and not ttl > 0:
            raise ValueError(f"State(ttl={ttl!r}): it must be a number of seconds above 0, or None to keep entries for ever")
        self.default, self.ttl, self.codec = default, ttl, codec
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    # No __set__: what the engine puts into the instance's __dict__ under this name is found first, at no cost.
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise NotRunning(f"{type(instance).__name__}.{self.name} has no keys here. Either it is used outside a running task: "
                         "use it from initialize on, in a topology. Or the bolt has no fields grouping, which gives each "
                         "task its keys: subscribe with Grouping.fields(...)")

    def open(self, places: KeyPlaces, now: Callable[[], float]) -> KeyedState:
        """The mapping itself, empty."""
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
    """The states that the class and those it inherits from declare, by name; a subclass can replace or, with None, take
    away one of them."""
    members: dict[str, Any] = {}
    for each in reversed(component_cls.__mro__):
        members.update(vars(each))
    return {name: member for name, member in members.items() if isinstance(member, State)}
