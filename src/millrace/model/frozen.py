"""An immutable mapping for the fields of frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(dict[K, V]):
    """An immutable, hashable dict in sorted order.

    Not MappingProxyType: msgspec cannot encode that, and pickle cannot send it to a Spark task. Declare the field as
    `Mapping[K, V]`, which msgspec decodes, and turn it into a FrozenMap in `__post_init__`.
    """

    __slots__ = ()

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        pairs: Any = items.items() if isinstance(items, Mapping) else items
        super().__init__(sorted(pairs, key=itemgetter(0)))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:  # pickle would fill a dict item by item, which is refused
        return FrozenMap, (dict(self),)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("plans, loads and graphs are immutable: make a new one with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
