"""The views that `keys`, `items` and `values` of a paged state return."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any

from millrace.api.keyed.plain import MISSING

if TYPE_CHECKING:
    from millrace.api.keyed.paged import PagedState


class PagedKeys(KeysView[Any]):
    def __init__(self, state: PagedState) -> None:
        super().__init__(state)
        self._state = state

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._state)


class PagedItems(ItemsView[Any, Any]):
    def __init__(self, state: PagedState) -> None:
        super().__init__(state)
        self._state = state

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._state.pairs(touch=True)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        yield from reversed(list(self))

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        value = self._state.get(item[0], MISSING)  # not `[]`: a default is not an item
        return value is not MISSING and bool(value is item[1] or value == item[1])


class PagedValues(ValuesView[Any]):
    def __init__(self, state: PagedState) -> None:
        super().__init__(state)
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return iter(value for _, value in self._state.pairs(touch=True))

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(list(self))

    def __contains__(self, value: object) -> bool:
        return any(each is value or each == value for _, each in self._state.pairs(touch=False))
