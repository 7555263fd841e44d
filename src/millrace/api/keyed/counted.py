"""Keyed state of integers in arrays: a batch of keys is added to at once.

The places of keys in the arrays are a dict. As in a state in pages, the dict of this object has only what single reads and
writes have touched; the next batch or snapshot takes it into the arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np

from millrace.api.keyed.changes import Changes
from millrace.api.keyed.paged import PagedState
from millrace.api.keyed.plain import MISSING, KeyedState, Loaded
from millrace.errors import EncodingError, KeyNotOwned

LEAST_ROOM = 1024  # places
GONE = -1  # in place of the key group: the place is not used any more


class Arrays:
    """Columns of a state, by place of the key: total, total at the last snapshot, key group, and whether the key is `fresh`,
    not in the last snapshot."""

    __slots__ = ("fresh", "gone", "groups", "saved", "totals", "used")

    def __init__(self) -> None:
        self.totals, self.saved = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.groups, self.fresh = np.zeros(0, np.int32), np.zeros(0, np.bool_)
        self.used = self.gone = 0

    def append(self, totals: np.ndarray, groups: Sequence[int], fresh: bool) -> range:
        """Add entries; returns their places."""
        start, stop = self.used, self.used + len(totals)
        if stop > len(self.totals):
            self._resize(max(LEAST_ROOM, 2 * stop))
        self.totals[start:stop] = self.saved[start:stop] = totals
        self.groups[start:stop] = groups
        self.fresh[start:stop] = fresh
        self.used = stop
        return range(start, stop)

    def _resize(self, room: int) -> None:
        for name in ("totals", "saved", "groups", "fresh"):
            array = getattr(self, name)
            grown = np.zeros(room, array.dtype)
            grown[:self.used] = array[:self.used]
            setattr(self, name, grown)

    def remove(self, places: Any) -> None:
        """Mark one place or an array of them as not used."""
        self.groups[places] = GONE
        self.gone += np.size(places)

    def keep(self, places: np.ndarray) -> None:
        """Drop all but these places, which are numbered anew."""
        for name in ("totals", "saved", "groups", "fresh"):
            setattr(self, name, getattr(self, name)[places])
        self.used, self.gone = len(places), 0

    def changed(self) -> np.ndarray:
        """The places that differ from the last snapshot."""
        used = self.used
        return np.flatnonzero(((self.totals[:used] != self.saved[:used]) | self.fresh[:used]) & (self.groups[:used] != GONE))

    def there(self) -> np.ndarray:
        """The places that are used."""
        return np.flatnonzero(self.groups[:self.used] != GONE)

    def of_groups(self, numbers: Collection[int]) -> np.ndarray:
        """The places of these key groups."""
        return np.flatnonzero(np.isin(self.groups[:self.used], list(numbers)))

    def settle(self) -> None:
        """Take the totals for those of the last snapshot."""
        self.saved[:self.used] = self.totals[:self.used]
        self.fresh[:self.used] = False


class CountedState(PagedState):
    """Holds integers of 64 bits in arrays. It turns into pages for good when another value is set.

    `_homes` has the place of each key, `_keys` the key of each place, `_sizes` and `_deleted` are those of a state in one dict.
    """

    __slots__ = ()
    __hash__ = None

    def start_arrays(self, entries: Sequence[tuple[Any, int, int]], deleted: Mapping[int, Iterable[Any]]) -> None:
        """Starts with `entries` (key, value, group) of the last snapshot and the keys `deleted` since, by group. The dict has
        what was touched since."""
        keys, totals, groups = zip(*entries, strict=True) if entries else ((), (), ())
        self._arrays = Arrays()
        self._homes = dict(zip(keys, self._arrays.append(np.array(totals, np.int64), groups, False)))
        self._keys = list(keys)
        self._sizes = {number: int(size) for number, size in enumerate(np.bincount(groups)) if size} if groups else {}
        self._deleted = {number: list(gone) for number, gone in deleted.items() if gone}
        self._values, self._numbers, self._pages, self._new, self._counted = [], [], {}, {}, 0

    # -- a batch --

    def add_all(self, keys: list[Any], amounts: np.ndarray) -> np.ndarray | None:
        """Adds to the totals of these keys, which differ from each other; returns the new totals. None if that is not possible
        with integers of 64 bits: then nothing has changed."""
        if not self._fold():
            return None
        arrays, places = self._arrays, np.fromiter(map(self._homes.get, keys, repeat(GONE)), np.int64, len(keys))
        known = places != GONE
        before = np.zeros(len(keys), np.int64)
        before[known] = arrays.totals[places[known]]
        totals: np.ndarray = before + amounts
        if (((before ^ totals) & (amounts ^ totals)) < 0).any():  # an overflow
            return None
        if known.all():
            arrays.totals[places] = totals
        else:
            new = list(compress(keys, ~known))
            numbers = self._places.find_all(new, self.name)  # raises before anything has changed
            arrays.totals[places[known]] = totals[known]
            self._append(new, totals[~known], numbers)
        return totals

    def _append(self, keys: list[Any], totals: np.ndarray, numbers: list[int], fresh: bool = True) -> None:
        if 2 * self._arrays.gone > max(LEAST_ROOM, self._arrays.used):
            self._close_gaps()
        self._homes.update(zip(keys, self._arrays.append(totals, numbers, fresh)))
        self._keys += keys

    def _close_gaps(self) -> None:
        there = self._arrays.there()
        self._arrays.keep(there)
        self._keys = [self._keys[place] for place in there.tolist()]
        self._homes = {key: place for place, key in enumerate(self._keys)}

    def _fold(self) -> bool:
        """Takes what the dict has into the arrays, except for new keys that are not of this task, which stay. False if some
        value does not fit: then the state is in pages."""
        touched = dict.copy(self)
        if not touched:
            return True
        totals = _as_integers(touched.values())
        if totals is None:
            self.turn_into_pages()
            return False
        self._clear_touched()
        places = np.fromiter(map(self._homes.get, touched, repeat(GONE)), np.int64, len(touched))
        known = places != GONE
        self._arrays.totals[places[known]] = totals[known]
        if not known.all():
            self._take_new(list(compress(touched, ~known)), totals[~known])
        return True

    def _take_new(self, keys: list[Any], totals: np.ndarray) -> None:
        try:
            numbers = self._places.find_all(keys, self.name)
        except (KeyNotOwned, EncodingError):
            foreign = {place: key for place, key in enumerate(keys) if not self._is_mine(key)}
            dict.update(self, {key: int(totals[place]) for place, key in foreign.items()})
            mine = [place for place in range(len(keys)) if place not in foreign]
            keys, totals = [keys[place] for place in mine], totals[mine]
            numbers = self._places.find_all(keys, self.name)
        self._append(keys, totals, numbers)

    def _is_mine(self, key: Any) -> bool:
        try:
            self._places.find(key, self.name)
        except (KeyNotOwned, EncodingError):
            return False
        return True

    def _fold_all(self) -> bool:
        """`_fold`, but an error if there is a key that is not of this task."""
        if not self._fold():
            return False
        self._places.find_all(list(dict.keys(self)), self.name)
        return True

    def turn_into_pages(self) -> None:
        """Turns this object into a state in pages; changes since the last snapshot stay changes."""
        arrays, keys, touched = self._arrays, self._keys, dict.copy(self)
        there = arrays.there()
        saved, changed = there[~arrays.fresh[there]], arrays.changed()
        before = [(keys[place], value, number) for place, value, number in
                  zip(saved.tolist(), arrays.saved[saved].tolist(), arrays.groups[saved].tolist(), strict=True)]
        values = dict(zip([keys[place] for place in changed.tolist()], arrays.totals[changed].tolist(), strict=True))
        deleted = self._deleted
        self._keys, self._sizes, self._deleted, self._arrays, self._only_dicts = [], {}, {}, None, True
        self.__class__ = PagedState  # type: ignore[assignment]
        dict.clear(self)
        self.start_pages(before, deleted)
        dict.update(self, values)
        dict.update(self, touched)

    # -- one key --

    def __missing__(self, key: Any) -> Any:
        place = self._homes.get(key)
        if place is None:
            return KeyedState.__missing__(self, key)
        self[key] = value = int(self._arrays.totals[place])
        return value

    def _fetch(self, key: Any) -> Any:
        value = dict.get(self, key, MISSING)
        if value is MISSING and (place := self._homes.get(key)) is not None:
            return int(self._arrays.totals[place])
        return value

    def popitem(self) -> tuple[Any, Any]:
        key = next(reversed(self), MISSING)
        if key is MISSING:
            raise KeyError("popitem(): dictionary is empty")
        return key, self.pop(key)

    def _remove(self, key: Any) -> None:
        self._count()
        place = self._homes.pop(key, None)
        if dict.__contains__(self, key):
            dict.__delitem__(self, key)
            self._counted -= 1
        if place is None:
            del self._new[key]
            return
        if not self._arrays.fresh[place]:
            number = int(self._arrays.groups[place])
            self._deleted.setdefault(number, []).append(key)
            self._sizes[number] -= 1
        self._arrays.remove(place)
        self._keys[place] = None

    # -- the whole mapping --

    def pairs(self, touch: bool) -> Iterator[tuple[Any, Any]]:
        for key in self:
            yield key, self._fetch(key)

    def clear(self) -> None:
        for key in list(self):
            self._remove(key)

    # -- for the engine --

    def changes(self) -> Changes:
        if not self._fold_all():
            return self.changes()
        arrays, places = self._arrays, self._arrays.changed()
        keys, groups = [self._keys[place] for place in places.tolist()], arrays.groups[places]
        new = arrays.fresh[places]
        changes = Changes(self._size_before, list(compress(keys, new)), groups[new].tolist())
        for number, gone in self._deleted.items():
            deleted = [key for key in gone if key not in self._homes]
            if deleted:
                changes.of(number).deleted = deleted
        changes.collect(zip(keys, arrays.totals[places].tolist(), groups.tolist(), strict=True))
        return changes

    def _size_before(self, number: int) -> int:
        return self._sizes.get(number, 0)

    def drop_foreign(self) -> list[Any]:
        if not self._fold():
            return self.drop_foreign()
        foreign = self._places.foreign(list(dict.keys(self)))
        for key in foreign:
            self._remove(key)
        return foreign

    def entries(self, numbers: Collection[int], changes: Changes) -> dict[int, dict[Any, Any]]:
        entries: dict[int, dict[Any, Any]] = {number: {} for number in numbers}
        places = self._arrays.of_groups(numbers)
        for place, number, total in zip(places.tolist(), self._arrays.groups[places].tolist(),
                                        self._arrays.totals[places].tolist(), strict=True):
            entries[number][self._keys[place]] = total
        return entries

    def settle(self, changes: Changes) -> None:
        self._sizes.update((number, change.size) for number, change in changes.items())
        self._deleted.clear()
        self._arrays.settle()

    def sizes(self) -> dict[int, int]:
        if not self._fold_all():
            return self.sizes()
        groups = self._arrays.groups[self._arrays.there()]
        return {number: int(size) for number, size in enumerate(np.bincount(groups)) if size}

    def peek(self, key: Any) -> Any:
        value = self._fetch(key)
        return KeyedState.peek(self, key) if value is MISSING else value

    def load(self, groups: Mapping[int, Loaded]) -> None:
        self.unload(groups)
        totals = {number: _as_integers(entries.values()) for number, (entries, _) in groups.items()}
        if type(self) is CountedState and any(each is None for each in totals.values()):
            self.turn_into_pages()
        if type(self) is not CountedState:
            self.load(groups)
            return
        for number, (entries, _) in groups.items():
            self._append(list(entries), totals[number], [number] * len(entries), fresh=False)  # type: ignore[arg-type]
            self._sizes[number] = len(entries)

    def unload(self, numbers: Collection[int]) -> list[Any]:
        if not self._fold_all():
            return self.unload(numbers)
        places = self._arrays.of_groups(numbers)
        gone = [self._keys[place] for place in places.tolist()]
        for key in gone:
            del self._homes[key]
        for place in places.tolist():
            self._keys[place] = None
        self._arrays.remove(places)
        for number in numbers:
            self._sizes.pop(number, None)
            self._deleted.pop(number, None)
        return gone


def turn_into_arrays(state: KeyedState) -> bool:
    """Turns a state in one dict, or in pages, into one in arrays if all its values are integers; returns whether it is one."""
    if type(state) is CountedState:
        return True
    if state._only_dicts or type(state) not in (KeyedState, PagedState):
        return False
    before, deleted = state.last_snapshot()
    if _as_integers([value for _, value, _ in before]) is None or _as_integers(state.values()) is None:
        state._only_dicts = True
        return False
    touched = dict.copy(state)
    dict.clear(state)
    state.__class__ = CountedState
    assert isinstance(state, CountedState)
    state.start_arrays(before, deleted)
    dict.update(state, touched)
    return True


def _as_integers(values: Iterable[Any]) -> np.ndarray | None:
    """The values as an array; None if one of them is no integer of 64 bits."""
    values = list(values)
    if not {int}.issuperset(map(type, values)):
        return None
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None
