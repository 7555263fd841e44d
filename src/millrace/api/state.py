"""Keyed state: what a bolt remembers of each key, as mappings that cost what a dict costs and can be snapshotted at any time.

    class Count(Bolt):
        state = State(default=0)
        seen = ListState(ttl=3600)

        def process(self, tup):
            self.state[tup.values.word] += 1

A `KeyedState` is a dict, and reading and writing it is the dict's own C code: a snapshot finds what has changed by comparing
the values with those of the last one. That is right only for values that cannot be changed in place, and takes time for
every key. So a state with other values, or with very many keys, turns into a `PagedState` at a snapshot: the dict then holds
only what was touched since, and `__missing__` fetches the rest from the dicts of the key groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, ValuesView
from itertools import chain, compress, islice
from operator import is_not
from typing import Any, Protocol

import msgspec

from millrace.errors import EncodingError, KeyNotOwned, NotRunning

# Values of these types cannot be changed in place: equal identity means that nothing has changed.
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
PAGED_ABOVE = 200_000  # keys; comparing so many takes about 13 ms at each snapshot
KEYS_REMEMBERED = 100_000  # keys whose group is known before they have an entry; all are forgotten beyond this
MISSING: Any = object()
NO_DEFAULT: Any = object()


# ---- what stands in a bolt's class body ----


class Codec(Protocol):
    """From values to what msgpack can hold, and back."""

    def encode(self, value: Any) -> Any: ...

    def decode(self, plain: Any) -> Any: ...


class Typed:
    """A codec for values of one type: a dataclass, a msgspec Struct, `set[str]`, `tuple[int, datetime]`, Decimal."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def encode(self, value: Any) -> Any:
        plain = msgspec.to_builtins(value, builtin_types=(bytes,))
        msgspec.convert(plain, self.kind, builtin_types=(bytes,))  # a snapshot must not take what a restore would refuse
        return plain

    def decode(self, plain: Any) -> Any:
        return msgspec.convert(plain, self.kind, builtin_types=(bytes,))

    def __repr__(self) -> str:
        return f"Typed({getattr(self.kind, '__name__', self.kind)})"


class State:
    """Declares a mapping from the keys of the bolt's fields grouping to values; the engine opens it before `initialize`.

    `default`: what a key without entry reads as: a value, or a function that makes one (`list`, `dict`). A default that
    cannot be changed in place is not stored by reading it. `ttl`: an entry not written for so many seconds is gone.
    `codec`: how values are kept, for those that are more than str, int, float, bool, None, bytes and lists, tuples, sets
    and dicts of them; `Typed(T)` does for most.
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


# ---- where keys belong ----


class KeyPlaces:
    """Which group a key belongs to, and whether this task has it. One for all states of a task, so that a key that several
    of them use is hashed once."""

    def __init__(self, group_of: Callable[[Any], int], owned: Collection[int], key_groups: int, label: str,
                 owner_of: Callable[[int], int] | None = None) -> None:
        self.group_of, self.key_groups, self.label, self.owner_of = group_of, key_groups, label, owner_of
        self._owned = set(owned)
        self._found: dict[Any, int] = {}

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    def own(self, group: int) -> None:
        self._owned.add(group)

    def disown(self, group: int) -> None:
        self._owned.discard(group)
        self._found.clear()

    def find(self, key: Any, state: str) -> int:
        """The key's group; an error if the key cannot be one, or is another task's."""
        group = self._found.get(key)
        if group is None:
            if len(self._found) >= KEYS_REMEMBERED:
                self._found.clear()
            self._found[key] = group = self._checked(key, state)
        return group

    def _checked(self, key: Any, state: str) -> int:
        if not is_key(key):
            raise EncodingError(f"{self.label}: {key!r} ({type(key).__name__}) cannot be a key of {state!r}. Keys are the "
                                "values of the fields grouping: str, int, float, bool, None, bytes, or tuples of those")
        group = self.group_of(key) % self.key_groups
        if group not in self._owned:
            whose = "another task" if self.owner_of is None else f"task {self.owner_of(group)}"
            raise KeyNotOwned(f"{self.label}: {key!r} is not a key of this task's part of {state!r}: it belongs to key group "
                              f"{group}, which {whose} has. Use the value of the fields grouping as key, or the tuple of its "
                              "values if it has several fields: tuples with that value come to this task and to no other")
        return group


def is_key(value: Any) -> bool:
    return type(value) in ATOMS or (isinstance(value, tuple) and all(map(is_key, value)))


# ---- the mappings ----


class Change:
    """What became of one key group since the last snapshot."""

    __slots__ = ("deleted", "keys", "size", "values")

    def __init__(self, size: int) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.deleted: list[Any] = []
        self.size = size  # entries it has now

    def __bool__(self) -> bool:
        return bool(self.keys or self.deleted)


class Changes(dict[int, Change]):
    """Those of one state, by group; nothing is changed by finding them. Knows the keys that had no entry before, too."""

    __slots__ = ("all_keys", "all_values", "newcomers")

    def __init__(self, all_keys: list[Any], all_values: list[Any]) -> None:
        super().__init__()
        self.all_keys, self.all_values = all_keys, all_values  # at this time; a paged state has no use for them
        self.newcomers: list[tuple[Any, int]] = []


class Group(dict[Any, Any]):
    """The entries of one key group of a paged state, as of the last snapshot, but for those deleted since."""

    __slots__ = ("deleted", "number")

    def __init__(self, number: int, entries: Iterable[tuple[Any, Any]] = ()) -> None:
        super().__init__(entries)
        self.number = number
        self.deleted: set[Any] = set()  # some may have come again


class KeyedState(dict[Any, Any]):
    """One state of one task. It is a dict in all respects, but that another task's keys have no place in it."""

    # The first three: keys, values and groups of the last snapshot, in the order that the dict has. `_sizes` and `_deleted`
    # are by group. The others are a paged state's; they are here because the class of an object can only be changed to one
    # with the same slots.
    __slots__ = ("_counted", "_default", "_deleted", "_groups", "_homes", "_keys", "_newcomers", "_numbers", "_places",
                 "_sizes", "_values", "codec", "name")

    def __init__(self, declared: State, places: KeyPlaces) -> None:
        super().__init__()
        self.name, self.codec = declared.name, declared.codec
        self._default, self._places = declared.default, places
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._numbers: list[int] = []
        self._sizes: dict[int, int] = {}
        self._deleted: dict[int, list[Any]] = {}

    def __missing__(self, key: Any) -> Any:
        self._places.find(key, self.name)
        default = self._default
        if default is NO_DEFAULT:
            raise KeyError(key)
        value = default() if callable(default) else default
        if type(value) not in ATOMS:
            self[key] = value
        return value

    def add(self, key: Any, n: Any = 1) -> Any:
        """Adds to the key's number; returns what it is now."""
        self[key] = total = self[key] + n
        return total

    def append(self, key: Any, item: Any) -> None:
        """Appends to the key's list."""
        self[key].append(item)

    def __reduce__(self) -> tuple[Any, ...]:  # for copy.copy and deepcopy too: a copy is a plain dict, as from `copy`
        return dict, (self.copy(),)

    # -- for the engine: snapshots and groups --

    def changes(self) -> Changes:
        """What became of each group since the last snapshot."""
        keys, values = list(self), list(self.values())
        self._align(keys)
        found = Changes(keys, values)
        for number, gone in self._deleted.items():
            deleted = [key for key in gone if not dict.__contains__(self, key)]
            if deleted:
                self._change(found, number).deleted = deleted
        adders: dict[int, tuple[Callable[[Any], None], Callable[[Any], None]]] = {}
        for key, value, number in compress(zip(keys, values, self._numbers), map(is_not, values, self._values)):
            if number not in adders:
                change = self._change(found, number)
                adders[number] = change.keys.append, change.values.append
            add_key, add_value = adders[number]
            add_key(key)
            add_value(value)
        known = len(self._keys)
        for key, value in zip(keys[known:], values[known:]):
            number = self._places.find(key, self.name)
            found.newcomers.append((key, number))
            change = self._change(found, number)
            change.keys.append(key)
            change.values.append(value)
            change.size += 1
        return found

    def _change(self, found: Changes, number: int) -> Change:
        change = found.get(number)
        if change is None:
            found[number] = change = Change(self._sizes.get(number, 0))
        return change

    def _align(self, keys: list[Any]) -> None:
        """Finds the keys of the last snapshot that were deleted since. Those that are left come first in the dict, in their
        order; one that was deleted and set again comes after them."""
        if keys[:len(self._keys)] == self._keys:
            return
        here = iter(keys)
        at = next(here, MISSING)
        stay = []
        for key, number in zip(self._keys, self._numbers):
            stay.append(at is not MISSING and (key is at or key == at))
            if stay[-1]:
                at = next(here, MISSING)
            else:
                self._deleted.setdefault(number, []).append(key)
                self._sizes[number] -= 1
        self._keys, self._values, self._numbers = (list(compress(column, stay))
                                                   for column in (self._keys, self._values, self._numbers))

    def entries(self, numbers: Collection[int], found: Changes) -> dict[int, dict[Any, Any]]:
        """All entries of these groups, in one pass; `found`: what `changes` says now."""
        entries: dict[int, dict[Any, Any]] = {number: {} for number in numbers}
        for (key, value), number in zip(self.items(), chain(self._numbers, (number for _, number in found.newcomers))):
            if number in entries:
                entries[number][key] = value
        return entries

    def settle(self, found: Changes) -> None:
        """The changes are in a snapshot."""
        self._keys, self._values = found.all_keys, found.all_values
        self._numbers.extend(number for _, number in found.newcomers)
        self._sizes.update((number, change.size) for number, change in found.items())
        self._deleted.clear()
        if len(self) > PAGED_ABOVE or not all(ATOMS.issuperset(map(type, change.values)) for change in found.values()):
            self._turn_into_pages()
            dict.clear(self)

    def _turn_into_pages(self) -> None:
        """What was in no snapshot yet still is in none."""
        keys, values, numbers, deleted = self._keys, self._values, self._numbers, self._deleted
        self._keys, self._values, self._numbers, self._sizes, self._deleted = [], [], [], {}, {}
        self.__class__ = PagedState
        self._start_pages()
        for key, value, number in zip(keys, values, numbers):
            self._page(number)[key] = value
            self._homes[key] = self._page(number)
        for number, gone in deleted.items():
            self._page(number).deleted.update(gone)

    def _start_pages(self) -> None:
        self._homes: dict[Any, Group] = {}  # where a key that had an entry at the last snapshot has it
        self._groups: dict[int, Group] = {}
        self._counted = 0  # so many keys of the dict are counted,
        self._newcomers = 0  # of which so many have no home

    def _page(self, number: int) -> Group:
        group = self._groups.get(number)
        if group is None:
            self._groups[number] = group = Group(number)
        return group

    def size(self, number: int, found: Changes) -> int:
        """How many entries the group has; `found`: what `changes` says now."""
        return found[number].size if number in found else self._sizes.get(number, 0)

    def dues_of(self, keys: Iterable[Any]) -> list[float]:
        """When these entries expire, in this order; empty if they never do."""
        return []

    def sizes(self) -> dict[int, int]:
        """How many entries each group has."""
        found = self.changes()
        sizes = self._sizes | {number: change.size for number, change in found.items()}
        return {number: size for number, size in sizes.items() if size}

    def peek(self, key: Any) -> Any:
        """The value, untouched; a KeyError if there is none, whatever the default."""
        value = dict.get(self, key, MISSING)
        if value is MISSING:
            self._places.find(key, self.name)
            raise KeyError(key)
        return value

    def load(self, number: int, entries: dict[Any, Any], dues: dict[Any, float]) -> None:
        """These are the group's entries now, and they are in a snapshot."""
        self.unload(number)
        if not ATOMS.issuperset(map(type, entries.values())):
            self._turn_into_pages()
            self.load(number, entries, dues)
            return
        known = len(self._keys)
        later = list(islice(self.items(), known, None))
        for key, _ in later:
            dict.__delitem__(self, key)
        dict.update(self, entries)
        dict.update(self, later)
        self._keys.extend(entries)
        self._values.extend(entries.values())
        self._numbers.extend([number] * len(entries))
        self._sizes[number] = len(entries)

    def unload(self, number: int) -> None:
        """Forgets the group's entries, without a trace in snapshots."""
        self._align(list(self))
        self._deleted.pop(number, None)
        if number not in self._sizes and len(self) == len(self._keys):
            return
        later = [key for key in islice(self, len(self._keys), None) if self._places.find(key, self.name) == number]
        stay = [each != number for each in self._numbers]
        for key in [*(key for key, each in zip(self._keys, self._numbers) if each == number), *later]:
            dict.__delitem__(self, key)
        self._keys, self._values, self._numbers = (list(compress(column, stay))
                                                   for column in (self._keys, self._values, self._numbers))
        self._sizes.pop(number, None)


class PagedState(KeyedState):
    """Holds as a dict only what was touched since the last snapshot; all methods work on the whole, in the order of a dict.

    A value that can be changed in place counts as changed when it is handed out, by whatever method. Code in C that looks
    into a dict without its methods (`json.dumps`, msgspec) sees only a part: give it `copy()`.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, declared: State, places: KeyPlaces) -> None:
        super().__init__(declared, places)
        self._start_pages()

    # -- one key --

    def __missing__(self, key: Any) -> Any:
        home = self._homes.get(key)
        if home is not None:
            self[key] = value = home[key]
            return value
        return super().__missing__(key)

    def _fetch(self, key: Any) -> Any:
        """The value, or MISSING; no default. Touches it if it can be changed in place."""
        value = dict.get(self, key, MISSING)
        if value is MISSING:
            home = self._homes.get(key)
            if home is None:
                self._places.find(key, self.name)
                return MISSING
            value = home[key]
            if type(value) not in ATOMS:
                self[key] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        value = dict.get(self, key, MISSING)
        if value is MISSING:
            value = self._fetch(key)
            return default if value is MISSING else value
        return value

    def __contains__(self, key: Any) -> bool:
        return self._known(key)

    def _known(self, key: Any) -> bool:
        if dict.__contains__(self, key) or key in self._homes:
            return True
        self._places.find(key, self.name)  # asking for a key of another task is as wrong as setting it
        return False

    def setdefault(self, key: Any, default: Any = None) -> Any:
        value = self._fetch(key)
        if value is MISSING:
            self[key] = value = default
        return value

    def pop(self, key: Any, *default: Any) -> Any:
        if len(default) > 1:
            raise TypeError(f"pop expected at most 2 arguments, got {1 + len(default)}")
        value = self._fetch(key)
        if value is MISSING:
            if default:
                return default[0]
            raise KeyError(key)
        self._remove(key)
        return value

    def popitem(self) -> tuple[Any, Any]:
        for key in reversed(self):
            return key, self.pop(key)
        raise KeyError("popitem(): dictionary is empty")

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._remove(key)

    def _remove(self, key: Any) -> None:
        self._count()
        home = self._homes.pop(key, None)
        if dict.__contains__(self, key):
            dict.__delitem__(self, key)
            self._counted -= 1
            self._newcomers -= home is None
        if home is not None:
            del home[key]
            home.deleted.add(key)

    # -- all of it --

    def _count(self) -> None:
        """Counts the newcomers among the keys that came since the last call: the last ones of the dict."""
        touched = dict.__len__(self)
        if touched != self._counted:
            homes = self._homes
            self._newcomers += sum(key not in homes for key in islice(dict.__reversed__(self), touched - self._counted))
            self._counted = touched

    def __len__(self) -> int:
        self._count()
        return len(self._homes) + self._newcomers

    def _new_keys(self) -> list[Any]:
        homes = self._homes
        self._count()
        return [key for key in dict.__iter__(self) if key not in homes] if self._newcomers else []

    def __iter__(self) -> Iterator[Any]:
        yield from self._homes
        for key in self._new_keys():
            yield self._still_there(key)

    def __reversed__(self) -> Iterator[Any]:
        for key in reversed(self._new_keys()):
            yield self._still_there(key)
        yield from reversed(self._homes)

    def _still_there(self, key: Any) -> Any:
        if not dict.__contains__(self, key):
            raise RuntimeError("dictionary changed size during iteration")
        return key

    def pairs(self, touch: bool) -> Iterator[tuple[Any, Any]]:
        """Keys and values. With `touch`, a value that can be changed in place counts as changed."""
        for key, home in self._homes.items():
            value = dict.get(self, key, MISSING)
            if value is MISSING:
                value = home[key]
                if touch and type(value) not in ATOMS:
                    self[key] = value
            yield key, value
        for key in self._new_keys():
            yield self._still_there(key), dict.__getitem__(self, key)

    def items(self) -> Any:
        return _Items(self)

    def values(self) -> Any:
        return _Values(self)

    def keys(self) -> Any:
        return _Keys(self)

    def clear(self) -> None:
        for group in self._groups.values():
            group.deleted.update(group)
            group.clear()
        self._homes.clear()
        dict.clear(self)
        self._counted = self._newcomers = 0

    def copy(self) -> dict[Any, Any]:
        """A plain dict."""
        return dict(self.pairs(touch=True))

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self._known(key)
            self[key] = value

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __or__(self, other: Any) -> Any:
        return self.copy() | dict(other) if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return dict(other) | self.copy() if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PagedState):
            other = dict(other.pairs(touch=False))
        return dict(self.pairs(touch=False)) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(dict(self.pairs(touch=False)))

    # -- for the engine --

    def changes(self) -> Changes:
        found = Changes([], [])
        for group in self._groups.values():
            deleted = [key for key in group.deleted if not dict.__contains__(self, key)]
            if deleted:
                self._change(found, group.number).deleted = deleted
        homes = self._homes
        for key, value in dict.items(self):
            home = homes.get(key)
            if home is None:
                number = self._places.find(key, self.name)
                found.newcomers.append((key, number))
                self._change(found, number).size += 1
            elif self._unchanged(home, key, value):
                continue
            else:
                number = home.number
            change = found.get(number) or self._change(found, number)
            change.keys.append(key)
            change.values.append(value)
        return found

    def _change(self, found: Changes, number: int) -> Change:
        change = found.get(number)
        if change is None:
            found[number] = change = Change(len(self._page(number)))
        return change

    def _unchanged(self, home: Group, key: Any, value: Any) -> bool:
        return home[key] is value and type(value) in ATOMS

    def entries(self, numbers: Collection[int], found: Changes) -> dict[int, dict[Any, Any]]:
        entries = {number: dict(self._page(number)) for number in numbers}
        for number in entries:
            if number in found:
                entries[number].update(zip(found[number].keys, found[number].values))
        return entries

    def size(self, number: int, found: Changes) -> int:
        return found[number].size if number in found else len(self._page(number))

    def settle(self, found: Changes) -> None:
        for key, number in found.newcomers:
            self._homes[key] = self._page(number)
        for number, change in found.items():
            self._page(number).update(zip(change.keys, change.values))
        for group in self._groups.values():
            group.deleted.clear()
        dict.clear(self)
        self._counted = self._newcomers = 0

    def sizes(self) -> dict[int, int]:
        sizes = {number: len(group) for number, group in self._groups.items()}
        for key in self._new_keys():
            number = self._places.find(key, self.name)
            sizes[number] = sizes.get(number, 0) + 1
        return {number: size for number, size in sizes.items() if size}

    def peek(self, key: Any) -> Any:
        home = self._homes.get(key)
        return super().peek(key) if home is None or dict.__contains__(self, key) else home[key]

    def load(self, number: int, entries: dict[Any, Any], dues: dict[Any, float]) -> None:
        self.unload(number)
        self._groups[number] = group = Group(number, entries.items())
        self._homes.update(dict.fromkeys(entries, group))

    def unload(self, number: int) -> None:
        for key in [key for key in self._new_keys() if self._places.find(key, self.name) == number]:
            dict.__delitem__(self, key)
        for key in self._groups.pop(number, ()):
            del self._homes[key]
            dict.pop(self, key, None)
        self._counted = self._newcomers = 0


class ExpiringState(PagedState):
    """Entries not written for `ttl` seconds are gone. Handing out a value that can be changed in place counts as writing it.

    Every access looks at the clock, so this costs several times what a plain state does.
    """

    __slots__ = ("_clock", "_dues", "_time", "_ttl")

    def __init__(self, declared: State, places: KeyPlaces, now: Callable[[], float]) -> None:
        super().__init__(declared, places)
        self._ttl = declared.ttl or 0.0
        self._clock, self._time = now, now()
        self._dues: OrderedDict[Any, float] = OrderedDict()  # when each entry expires, the first one first

    def _sweep(self) -> None:
        self._time = now = max(self._time, self._clock())  # a clock that is set back must not disturb the order
        dues = self._dues
        while dues:
            key = next(iter(dues))
            if dues[key] > now:
                break
            self._remove(key)

    def _written(self, key: Any) -> None:
        self._dues[key] = self._time + self._ttl
        self._dues.move_to_end(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._sweep()
        super().__setitem__(key, value)
        self._written(key)

    def __getitem__(self, key: Any) -> Any:
        self._sweep()
        value = self._fetch(key)
        return self.__missing__(key) if value is MISSING else value

    def _fetch(self, key: Any) -> Any:
        value = super()._fetch(key)
        if value is not MISSING and type(value) not in ATOMS:
            self._written(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        self._sweep()
        value = self._fetch(key)
        return default if value is MISSING else value

    def __contains__(self, key: Any) -> bool:
        self._sweep()
        return super().__contains__(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._sweep()
        return super().setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self._sweep()
        return super().pop(key, *default)

    def _remove(self, key: Any) -> None:
        super()._remove(key)
        self._dues.pop(key, None)

    def clear(self) -> None:
        super().clear()
        self._dues.clear()

    def __len__(self) -> int:
        self._sweep()
        return super().__len__()

    # These hand out lists: an entry that expires meanwhile must not end a loop with an error.

    def __iter__(self) -> Iterator[Any]:
        self._sweep()
        return iter(list(super().__iter__()))

    def __reversed__(self) -> Iterator[Any]:
        self._sweep()
        return iter(list(super().__reversed__()))

    def pairs(self, touch: bool) -> Iterator[tuple[Any, Any]]:
        self._sweep()
        pairs = list(super().pairs(touch=False))
        if touch:
            for key, value in pairs:
                if type(value) not in ATOMS:
                    dict.__setitem__(self, key, value)
                    self._written(key)
        return iter(pairs)

    def changes(self) -> Changes:
        self._sweep()
        return super().changes()

    def _unchanged(self, home: Group, key: Any, value: Any) -> bool:
        return False  # at least it expires later than before

    def dues_of(self, keys: Iterable[Any]) -> list[float]:
        return [self._dues[key] for key in keys]

    def sizes(self) -> dict[int, int]:
        self._sweep()
        return super().sizes()

    def peek(self, key: Any) -> Any:
        self._sweep()
        return super().peek(key)

    def load(self, number: int, entries: dict[Any, Any], dues: dict[Any, float]) -> None:
        super().load(number, entries, dues)
        fallback = self._time + self._ttl  # for entries written before the state had a ttl
        self._dues.update((key, dues.get(key, fallback)) for key in entries)
        self._dues = OrderedDict(sorted(self._dues.items(), key=lambda due: due[1]))

    def unload(self, number: int) -> None:
        super().unload(number)
        for key in [key for key in self._dues if key not in self._homes and not dict.__contains__(self, key)]:
            del self._dues[key]


class _Keys(KeysView[Any]):
    def __init__(self, state: PagedState) -> None:
        super().__init__(state)
        self._state = state

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._state)


class _Items(ItemsView[Any, Any]):
    def __init__(self, state: PagedState) -> None:
        super().__init__(state)
        self._state = state

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        pairs: Iterator[tuple[Any, Any]] = self._state.pairs(touch=True)
        return pairs

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        yield from reversed(list(self))

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        value = self._state.get(item[0], MISSING)  # not `[]`: a default is not an item
        return value is not MISSING and bool(value is item[1] or value == item[1])


class _Values(ValuesView[Any]):
    def __init__(self, state: PagedState) -> None:
        super().__init__(state)
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return iter(value for _, value in self._state.pairs(touch=True))

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(list(self))

    def __contains__(self, value: object) -> bool:
        return any(each is value or each == value for _, each in self._state.pairs(touch=False))
