"""Keyed state as one dict: reads and writes use the dict's own C code.

A snapshot finds changes by comparing the values with those of the last one. That works only for immutable values, and takes
time for every key. So a state with other values, or with very many keys, turns into a `PagedState` at a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain, compress, islice
from operator import is_not, not_
from typing import TYPE_CHECKING, Any

from millrace.api.keyed.changes import Changes
from millrace.api.keyed.keys import ATOMS, KeyPlaces
from millrace.hotpath.steps import QuickDict

if TYPE_CHECKING:
    from millrace.api.keyed.declared import State

PAGED_ABOVE = 200_000  # keys; comparing this many takes about 13 ms at each snapshot
MISSING: Any = object()
NO_DEFAULT: Any = object()

Loaded = tuple[dict[Any, Any], dict[Any, float]]  # the entries of a group, and when they expire


class KeyedState(QuickDict):
    """One state of one task. It is a dict in every respect, except that it refuses keys of other tasks."""

    # `_keys`, `_values` and `_numbers`: keys, values and groups of the last snapshot, in the order of the dict. `_sizes` and
    # `_deleted` are by group. `_only_dicts`: this is not turned into arrays. Slots without a value in `__init__` belong to a
    # state in pages or in arrays; they are here because the class of an object can only be changed to one with the same slots.
    __slots__ = ("_arrays", "_counted", "_default", "_deleted", "_homes", "_keys", "_new", "_numbers", "_only_dicts", "_pages",
                 "_places", "_sizes", "_values", "codec", "name")

    _arrays: Any
    _homes: dict[Any, Any]
    _pages: dict[int, Any]
    _counted: int
    _new: dict[Any, None]

    def __init__(self, declared: State, places: KeyPlaces) -> None:
        super().__init__()
        self.name, self.codec = declared.name, declared.codec
        self._default, self._places = declared.default, places
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._numbers: list[int] = []
        self._sizes: dict[int, int] = {}
        self._deleted: dict[int, list[Any]] = {}
        self._only_dicts = False
        places.states.append(self)

    def __missing__(self, key: Any) -> Any:
        self._places.find(key, self.name)
        default = self._default
        if default is NO_DEFAULT:
            raise KeyError(key)
        value = default() if callable(default) else default
        if type(value) not in ATOMS:
            self[key] = value
        return value

    def _fetch(self, key: Any) -> Any:
        """The value, or MISSING; no default."""
        return dict.get(self, key, MISSING)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        value = self._fetch(key)
        if value is MISSING:
            self._places.find(key, self.name)
            self[key] = value = default
        return value

    def add_batch(self, keys: Any, amounts: Any = None) -> list[Any]:
        """Adds 1, or the integer in `amounts`, to the number of the key in each row of an Arrow column of strings, bytes,
        integers or booleans. Returns two Arrow arrays: the different keys, and their new numbers.

            words, totals = self.counts.add_batch(batch["word"])

        As with a snapshot, bound methods and views that were taken before must not be used after it.
        """
        return self._places.add_batch(self, keys, amounts)

    def append(self, key: Any, item: Any) -> None:
        """Appends to the key's list."""
        self[key].append(item)

    def __reduce__(self) -> tuple[Any, ...]:  # for copy.copy and deepcopy too: a copy is a plain dict, as from `copy`
        return dict, (self.copy(),)

    # -- for the engine: snapshots --

    def changes(self) -> Changes:
        """The changes of each group since the last snapshot."""
        keys, values = list(self), list(self.values())
        self._align(keys)
        known = len(self._keys)
        new_keys = keys[known:]
        changes = Changes(self._size_before, new_keys, self._places.find_all(new_keys, self.name))
        changes.all_keys, changes.all_values = keys, values
        for number, gone in self._deleted.items():
            deleted = [key for key in gone if not dict.__contains__(self, key)]
            if deleted:
                changes.of(number).deleted = deleted
        changes.collect(compress(zip(keys, values, self._numbers), map(is_not, values, self._values)))
        changes.collect(zip(new_keys, values[known:], changes.new_groups))
        return changes

    def _size_before(self, number: int) -> int:
        return self._sizes.get(number, 0)

    def _align(self, keys: list[Any]) -> None:
        """Finds the keys of the last snapshot that were deleted since. The remaining ones come first in the dict, in their
        order; a key that was deleted and set again comes after them."""
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
        self._retain(stay)

    def _retain(self, stay: list[bool]) -> None:
        self._keys, self._values, self._numbers = (list(compress(column, stay))
                                                   for column in (self._keys, self._values, self._numbers))

    def drop_foreign(self) -> list[Any]:
        """Drops the entries of other tasks' groups; returns their keys. Only new entries can be such."""
        self._align(list(self))
        foreign = self._places.foreign(self._later())
        for key in foreign:
            dict.__delitem__(self, key)
        return foreign

    def entries(self, numbers: Collection[int], changes: Changes) -> dict[int, dict[Any, Any]]:
        """All entries of these groups, in one pass; `changes`: the result of `changes()` now."""
        entries: dict[int, dict[Any, Any]] = {number: {} for number in numbers}
        for (key, value), number in zip(self.items(), chain(self._numbers, changes.new_groups)):
            if number in entries:
                entries[number][key] = value
        return entries

    def settle(self, changes: Changes) -> None:
        """Records that the changes are in a snapshot."""
        self._keys, self._values = changes.all_keys, changes.all_values
        self._numbers.extend(changes.new_groups)
        self._sizes.update((number, change.size) for number, change in changes.items())
        self._deleted.clear()
        if len(self) > PAGED_ABOVE or not all(ATOMS.issuperset(map(type, change.values)) for change in changes.values()):
            self._turn_into_pages()
            dict.clear(self)

    def _turn_into_pages(self) -> None:
        """Turns this object into a paged state; changes since the last snapshot stay changes."""
        from millrace.api.keyed.paged import PagedState  # a subclass of KeyedState

        keys, values, numbers, deleted = self._keys, self._values, self._numbers, self._deleted
        self._keys, self._values, self._numbers, self._sizes, self._deleted = [], [], [], {}, {}
        self.__class__ = PagedState
        assert isinstance(self, PagedState)
        self.start_pages(zip(keys, values, numbers), deleted)

    def last_snapshot(self) -> tuple[list[tuple[Any, Any, int]], dict[int, Collection[Any]]]:
        """Key, value and group of the entries of the last snapshot that were not deleted since; and by group, the keys that
        were."""
        self._align(list(self))
        return list(zip(self._keys, self._values, self._numbers)), dict(self._deleted)

    def size(self, number: int, changes: Changes) -> int:
        """The number of entries of the group; `changes`: the result of `changes()` now."""
        return changes[number].size if number in changes else self._size_before(number)

    def dues_of(self, keys: Iterable[Any]) -> list[float]:
        """The times at which these entries expire, in this order; empty if they never do."""
        return []

    def sizes(self) -> dict[int, int]:
        """The number of entries of each group."""
        changes = self.changes()
        sizes = self._sizes | {number: change.size for number, change in changes.items()}
        return {number: size for number, size in sizes.items() if size}

    def peek(self, key: Any) -> Any:
        """The value, untouched; KeyError if there is none, even with a default."""
        value = dict.get(self, key, MISSING)
        if value is MISSING:
            self._places.find(key, self.name)
            raise KeyError(key)
        return value

    # -- for the engine: loading and unloading groups. Many at once, because each call looks at all keys --

    def load(self, groups: Mapping[int, Loaded]) -> None:
        """Replaces the entries of these groups by entries that are in a snapshot."""
        self.unload(groups)
        total = len(self) + sum(len(entries) for entries, _ in groups.values())
        if total > PAGED_ABOVE or not all(ATOMS.issuperset(map(type, entries.values())) for entries, _ in groups.values()):
            self._turn_into_pages()
            self.load(groups)
            return
        later = {key: self[key] for key in self._later()}
        for key in later:
            dict.__delitem__(self, key)
        for number, (entries, _) in groups.items():
            dict.update(self, entries)
            self._keys.extend(entries)
            self._values.extend(entries.values())
            self._numbers.extend([number] * len(entries))
            self._sizes[number] = len(entries)
        dict.update(self, later)

    def adopt(self, entries: Mapping[Any, Any], dues: Mapping[Any, float], deleted: Iterable[Any]) -> None:
        """Sets and deletes entries: changes since the last snapshot, of another object of this state."""
        for key in deleted:
            dict.pop(self, key, None)
        dict.update(self, entries)

    def _later(self) -> list[Any]:
        """The keys added since the last snapshot; call `_align` before."""
        later = list(islice(reversed(self), len(self) - len(self._keys)))
        later.reverse()
        return later

    def unload(self, numbers: Collection[int]) -> list[Any]:
        """Drops the entries of these groups without recording deletions; returns their keys."""
        self._align(list(self))
        for number in numbers:
            self._deleted.pop(number, None)
        later = self._later()
        gone = [key for key, number in zip(later, self._places.find_all(later, self.name)) if number in numbers]
        if any(number in self._sizes for number in numbers):
            goes = list(map(frozenset(numbers).__contains__, self._numbers))
            gone += compress(self._keys, goes)
            self._retain(list(map(not_, goes)))
        for key in gone:
            dict.__delitem__(self, key)
        for number in numbers:
            self._sizes.pop(number, None)
        return gone
