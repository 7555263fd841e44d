"""Keyed state in pages: one dict for each key group, as of the last snapshot, and the entries touched since.

`state[key]` of a touched key uses the dict's own C code; `__missing__` fetches the others from their page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from millrace.api.keyed.changes import Changes
from millrace.api.keyed.keys import ATOMS, KeyPlaces
from millrace.api.keyed.plain import MISSING, KeyedState, Loaded
from millrace.api.keyed.views import PagedItems, PagedKeys, PagedValues

if TYPE_CHECKING:
    from millrace.api.keyed.declared import State


class Page(dict[Any, Any]):
    """The entries of one key group of a paged state as of the last snapshot, without those deleted since."""

    __slots__ = ("deleted", "number")

    def __init__(self, number: int, entries: Iterable[tuple[Any, Any]] = ()) -> None:
        super().__init__(entries)
        self.number = number
        self.deleted: set[Any] = set()  # some may have been set again


class PagedState(KeyedState):
    """Holds as a dict only the entries touched since the last snapshot; all methods work on the whole, in the order of a dict.

    A mutable value counts as changed when any method returns it. C code that reads a dict without its methods (`json.dumps`,
    msgspec) sees only a part: give it `copy()`.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, declared: State, places: KeyPlaces) -> None:
        super().__init__(declared, places)
        self.start_pages((), {})

    def start_pages(self, entries: Iterable[tuple[Any, Any, int]], deleted: Mapping[int, Iterable[Any]]) -> None:
        """Starts with `entries` (key, value, group) of the last snapshot and the keys `deleted` since, by group."""
        self._homes = {}  # the page of each key that had an entry at the last snapshot
        self._pages = {}
        self._counted = 0  # number of keys of the dict that `_count` has seen,
        self._new = {}  # and those of them that have no page
        homes, pages = self._homes, self._pages
        for key, value, number in entries:
            home = pages.get(number) or self._page(number)
            home[key] = value
            homes[key] = home
        for number, gone in deleted.items():
            self._page(number).deleted.update(gone)

    def _page(self, number: int) -> Page:
        page = self._pages.get(number)
        if page is None:
            self._pages[number] = page = Page(number)
        return page

    # -- one key --

    def __missing__(self, key: Any) -> Any:
        home = self._homes.get(key)
        if home is not None:
            self[key] = value = home[key]
            return value
        return super().__missing__(key)

    def _fetch(self, key: Any) -> Any:
        """The value, or MISSING; no default. Touches a mutable value."""
        value = dict.get(self, key, MISSING)
        if value is MISSING:
            home = self._homes.get(key)
            if home is None:
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
        return dict.__contains__(self, key) or key in self._homes

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
        # Uses popitem of the dicts: finding the last key and deleting it gets slower each time, because a dict keeps the gaps.
        self._count()
        if self._new:
            key, _ = self._new.popitem()
            self._counted -= 1
            return key, dict.pop(self, key)
        if not self._homes:
            raise KeyError("popitem(): dictionary is empty")
        key, home = self._homes.popitem()
        home.deleted.add(key)
        value = home.pop(key)
        if dict.__contains__(self, key):
            self._counted -= 1
            value = dict.pop(self, key)
        return key, value

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
        if home is None:
            del self._new[key]
        else:
            del home[key]
            home.deleted.add(key)

    # -- the whole mapping --

    def _count(self) -> None:
        """Finds the new keys among those added since the last call: the last ones of the dict."""
        touched = dict.__len__(self)
        if touched != self._counted:
            homes = self._homes
            latest = list(islice(dict.__reversed__(self), touched - self._counted))
            self._new.update((key, None) for key in reversed(latest) if key not in homes)
            self._counted = touched

    def _new_keys(self) -> dict[Any, None]:
        self._count()
        return self._new

    def __len__(self) -> int:
        return len(self._homes) + len(self._new_keys())

    def __iter__(self) -> Iterator[Any]:
        yield from self._homes
        yield from self._new_keys()

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(self._new_keys())
        yield from reversed(self._homes)

    def pairs(self, touch: bool) -> Iterator[tuple[Any, Any]]:
        """Keys and values. With `touch`, mutable values count as changed."""
        for key, home in self._homes.items():
            value = dict.get(self, key, MISSING)
            if value is MISSING:
                value = home[key]
                if touch and type(value) not in ATOMS:
                    self[key] = value
            yield key, value
        for key in self._new_keys():
            yield key, dict.__getitem__(self, key)

    def items(self) -> Any:
        return PagedItems(self)

    def values(self) -> Any:
        return PagedValues(self)

    def keys(self) -> Any:
        return PagedKeys(self)

    def clear(self) -> None:
        for page in self._pages.values():
            page.deleted.update(page)
            page.clear()
        self._homes.clear()
        self._clear_touched()

    def _clear_touched(self) -> None:
        dict.clear(self)
        self._new.clear()
        self._counted = 0

    def copy(self) -> dict[Any, Any]:
        """A plain dict."""
        return dict(self.pairs(touch=True))

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
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
        new_keys = list(self._new_keys())
        changes = Changes(self._size_before, new_keys, self._places.find_all(new_keys, self.name))
        for page in self._pages.values():
            deleted = [key for key in page.deleted if not dict.__contains__(self, key)]
            if deleted:
                changes.of(page.number).deleted = deleted
        changes.collect(self._touched(changes.new_groups))
        return changes

    def _touched(self, new_groups: list[int]) -> Iterator[tuple[Any, Any, int]]:
        """Key, value and group of the entries that differ from the last snapshot."""
        homes, next_group = self._homes, iter(new_groups).__next__
        for key, value in dict.items(self):
            home = homes.get(key)
            if home is None:
                yield key, value, next_group()
            elif not self._unchanged(home, key, value):
                yield key, value, home.number

    def _size_before(self, number: int) -> int:
        return len(self._pages.get(number, ()))

    def _unchanged(self, home: Page, key: Any, value: Any) -> bool:
        return home[key] is value and type(value) in ATOMS

    def last_snapshot(self) -> tuple[list[tuple[Any, Any, int]], dict[int, Collection[Any]]]:
        return ([(key, home[key], home.number) for key, home in self._homes.items()],
                {page.number: page.deleted for page in self._pages.values() if page.deleted})

    def drop_foreign(self) -> list[Any]:
        foreign = self._places.foreign(self._new_keys())
        for key in foreign:
            self._remove(key)
        return foreign

    def entries(self, numbers: Collection[int], changes: Changes) -> dict[int, dict[Any, Any]]:
        entries = {number: dict(self._page(number)) for number in numbers}
        for number in entries:
            if number in changes:
                entries[number].update(zip(changes[number].keys, changes[number].values))
        return entries

    def settle(self, changes: Changes) -> None:
        pages = {number: self._page(number) for number in changes}
        self._homes.update(zip(changes.new_keys, map(pages.__getitem__, changes.new_groups)))
        for number, change in changes.items():
            pages[number].update(zip(change.keys, change.values))
        for page in self._pages.values():
            page.deleted.clear()
        self._clear_touched()

    def sizes(self) -> dict[int, int]:
        sizes = Counter({number: len(page) for number, page in self._pages.items()})
        sizes.update(self._places.find_all(self._new_keys(), self.name))
        return {number: size for number, size in sizes.items() if size}

    def peek(self, key: Any) -> Any:
        home = self._homes.get(key)
        return super().peek(key) if home is None or dict.__contains__(self, key) else home[key]

    def load(self, groups: Mapping[int, Loaded]) -> None:
        self.unload(groups)
        for number, (entries, _) in groups.items():
            self._pages[number] = page = Page(number, entries.items())
            self._homes.update(dict.fromkeys(entries, page))

    def adopt(self, entries: Mapping[Any, Any], dues: Mapping[Any, float], deleted: Iterable[Any]) -> None:
        for key in deleted:
            if dict.__contains__(self, key) or key in self._homes:
                self._remove(key)
        dict.update(self, entries)

    def unload(self, numbers: Collection[int]) -> list[Any]:
        new = self._new_keys()
        gone = [key for key, number in zip(new, self._places.find_all(new, self.name)) if number in numbers]
        for number in numbers:
            gone += self._pages.pop(number, ())
        for key in gone:
            self._homes.pop(key, None)
            dict.pop(self, key, None)
        self._counted = 0
        self._new.clear()
        return gone
