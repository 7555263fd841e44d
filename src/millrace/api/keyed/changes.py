"""The changes of a keyed state since its last snapshot, by key group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any


class Change:
    """The changes of one key group since the last snapshot."""

    __slots__ = ("deleted", "keys", "size", "values")

    def __init__(self, size: int) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.deleted: list[Any] = []
        self.size = size  # entries it has now

    def __bool__(self) -> bool:
        return bool(self.keys or self.deleted)


class Changes(dict[int, Change]):
    """The changes of one state, by group, with the keys that had no entry before. Computing them changes nothing."""

    __slots__ = ("_size_before", "all_keys", "all_values", "new_groups", "new_keys")

    def __init__(self, size_before: Callable[[int], int], new_keys: list[Any], new_groups: list[int]) -> None:
        """`size_before`: the number of entries of a group without new ones. `new_groups`: the groups of the new keys."""
        super().__init__()
        self._size_before = size_before
        self.new_keys, self.new_groups = new_keys, new_groups
        self.all_keys: list[Any] = []  # at this time; a paged state does not need them
        self.all_values: list[Any] = []
        for number, count in Counter(new_groups).items():
            self.of(number).size += count

    def of(self, number: int) -> Change:
        change = self.get(number)
        if change is None:
            self[number] = change = Change(self._size_before(number))
        return change

    def collect(self, rows: Iterable[tuple[Any, Any, int]]) -> None:
        """Adds keys that were set, with their values and groups."""
        adders: dict[int, tuple[Callable[[Any], None], Callable[[Any], None]]] = {}
        for key, value, number in rows:
            if number not in adders:
                change = self.of(number)
                adders[number] = change.keys.append, change.values.append
            add_key, add_value = adders[number]
            add_key(key)
            add_value(value)
