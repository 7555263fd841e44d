"""Keyed state whose entries expire some time after they were last written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from millrace.api.keyed.changes import Changes
from millrace.api.keyed.keys import ATOMS, KeyPlaces
from millrace.api.keyed.paged import Page, PagedState
from millrace.api.keyed.plain import MISSING, Loaded

if TYPE_CHECKING:
    from millrace.api.keyed.declared import State


class ExpiringState(PagedState):
    """Entries not written for `ttl` seconds expire. Getting a mutable value by `[]`, `get` or `setdefault` counts as writing
    it, because it may be changed; seeing it in a loop or a copy does not.

    Every access reads the clock, so this costs several times as much as a plain state.
    """

    __slots__ = ("_clock", "_dues", "_in_order", "_time", "_ttl")

    def __init__(self, declared: State, places: KeyPlaces, now: Callable[[], float]) -> None:
        super().__init__(declared, places)
        self._ttl = declared.ttl or 0.0
        self._clock, self._time = now, now()
        self._dues: OrderedDict[Any, float] = OrderedDict()  # when each entry expires, earliest first,
        self._in_order = True  # unless groups were loaded since the last sweep

    def _sweep(self) -> None:
        self._time = now = max(self._time, self._clock())  # a clock that is set back must not change the order
        if not self._in_order:
            self._dues = OrderedDict(sorted(self._dues.items(), key=itemgetter(1)))
            self._in_order = True
        dues = self._dues
        while dues:
            key = next(iter(dues))
            if dues[key] > now:
                break
            self._remove(key)

    def _written(self, key: Any) -> None:
        self._dues[key] = self._time + self._ttl
        self._dues.move_to_end(key)

    # -- one key --

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

    def popitem(self) -> tuple[Any, Any]:
        self._sweep()
        key, value = super().popitem()
        del self._dues[key]
        return key, value

    def _remove(self, key: Any) -> None:
        super()._remove(key)
        self._dues.pop(key, None)

    # -- the whole mapping. These return lists: an entry that expires meanwhile must not break a loop --

    def clear(self) -> None:
        super().clear()
        self._dues.clear()

    def __len__(self) -> int:
        self._sweep()
        return super().__len__()

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
            dict.update(self, [pair for pair in pairs if type(pair[1]) not in ATOMS])
        return iter(pairs)

    # -- for the engine --

    def changes(self) -> Changes:
        self._sweep()
        return super().changes()

    def _unchanged(self, home: Page, key: Any, value: Any) -> bool:
        return False  # its expiry time has changed

    def dues_of(self, keys: Iterable[Any]) -> list[float]:
        return list(map(self._dues.__getitem__, keys))

    def sizes(self) -> dict[int, int]:
        self._sweep()
        return super().sizes()

    def peek(self, key: Any) -> Any:
        self._sweep()
        return super().peek(key)

    def load(self, groups: Mapping[int, Loaded]) -> None:
        super().load(groups)
        fallback = self._time + self._ttl  # for entries written before the state had a ttl
        for entries, dues in groups.values():
            self._dues.update((key, dues.get(key, fallback)) for key in entries)
        self._in_order = False

    def adopt(self, entries: Mapping[Any, Any], dues: Mapping[Any, float], deleted: Iterable[Any]) -> None:
        super().adopt(entries, dues, deleted)
        self._dues.update((key, dues.get(key, self._time + self._ttl)) for key in entries)
        self._in_order = False

    def unload(self, numbers: Collection[int]) -> list[Any]:
        gone = super().unload(numbers)
        for key in gone:
            del self._dues[key]
        return gone
