"""Maps keys of keyed state to key groups, and checks that this task owns them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from millrace.errors import EncodingError, KeyNotOwned

# Values of these types are immutable: the same object means no change.
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
KEY_TYPES = ATOMS | {Decimal, date, datetime, time, timedelta}
KEYS_REMEMBERED = 100_000  # keys whose group is cached; beyond this, keys that no state holds are dropped


AddBatch = Callable[[Any, Any, Any], list[Any]]


def no_batches(state: Any, keys: Any, amounts: Any) -> list[Any]:
    raise NotImplementedError(f"{state.name!r} was opened without support of Arrow batches")


class KeyPlaces:
    """The key groups of keys, and the groups that this task owns. All states of a task share one, so that a key that several
    of them use is hashed once."""

    def __init__(self, group_of: Callable[[Any], int], owned: Collection[int], key_groups: int, label: str,
                 owner_of: Callable[[int], int] | None = None, add_batch: AddBatch = no_batches) -> None:
        """`add_batch`: adds an Arrow batch to a state; the API itself does not load Arrow."""
        self.group_of, self.key_groups, self.label, self.owner_of = group_of, key_groups, label, owner_of
        self.add_batch = add_batch
        self.states: list[dict[Any, Any]] = []  # the next snapshot needs the groups of the keys in these
        self._owned = set(owned)
        self._groups: dict[Any, int] = {}
        self._limit = KEYS_REMEMBERED

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    def own(self, group: int) -> None:
        self._owned.add(group)

    def disown(self, group: int) -> None:
        self._owned.discard(group)
        self._groups.clear()

    def find(self, key: Any, state: str) -> int:
        """The key's group; an error if the key is invalid or belongs to another task."""
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= self._limit:
                self._make_room()
            self._groups[key] = group = self._checked(key, state)
        return group

    def find_all(self, keys: Iterable[Any], state: str) -> list[int]:
        """The groups of these keys, in their order."""
        group_of_known = self._groups.get
        return [group if (group := group_of_known(key)) is not None else self.find(key, state) for key in keys]

    def foreign(self, keys: Iterable[Any]) -> list[Any]:
        """Those of the keys that belong to other tasks."""
        return [key for key in keys if is_key(key) and self.group_of(key) % self.key_groups not in self._owned]

    def _make_room(self) -> None:
        held = sum(map(dict.__len__, self.states))  # of a paged state, the touched entries
        self._limit = max(KEYS_REMEMBERED, 2 * held)
        if len(self._groups) >= self._limit:  # at least half of the keys are in no state
            self._groups = {key: group for key, group in self._groups.items()
                           if any(dict.__contains__(state, key) for state in self.states)}

    def settled(self) -> None:
        """Called after a snapshot: from now on the states know the groups of their keys."""
        if len(self._groups) > KEYS_REMEMBERED:
            self._groups, self._limit = {}, KEYS_REMEMBERED

    def _checked(self, key: Any, state: str) -> int:
        if not is_key(key):
            raise EncodingError(f"{self.label}: {key!r} ({type(key).__name__}) cannot be a key of {state!r}. Keys are the "
                                "values of the fields grouping: str, int, float, bool, None, bytes, Decimal, dates and "
                                "times, or tuples of those")
        group = self.group_of(key) % self.key_groups
        if group not in self._owned:
            owner = "another task" if self.owner_of is None else f"task {self.owner_of(group)}"
            raise KeyNotOwned(f"{self.label}: {key!r} is not a key of this task's part of {state!r}: it belongs to key group "
                              f"{group}, which {owner} owns. Use the value of the fields grouping as key, or the tuple of its "
                              "values if it has several fields: tuples with that value reach only this task")
        return group


def is_key(value: Any) -> bool:
    return type(value) in KEY_TYPES or (isinstance(value, tuple) and all(map(is_key, value)))
