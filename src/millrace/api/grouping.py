"""Groupings: the rules by which tuples are spread over the tasks of a bolt. Plain data; the engine routes by it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from types import FunctionType
from typing import Any, ClassVar

import msgspec

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Grouping:
    """One of the constants below, `Grouping.fields(...)` or `Grouping.custom(...)`."""

    kind: str
    names: tuple[str, ...] = ()
    code: str = ""  # custom: "module:qualified.name" of a function (values, number of tasks) -> task indexes

    SHUFFLE: ClassVar[Grouping]  # spread evenly over the tasks
    LOCAL_OR_SHUFFLE: ClassVar[Grouping]  # tasks in the same worker if there are any, else shuffle
    ALL: ClassVar[Grouping]  # a copy to every task
    GLOBAL: ClassVar[Grouping]  # all tuples to the task with the lowest index
    NONE: ClassVar[Grouping]  # any task; today the same as shuffle
    DIRECT: ClassVar[Grouping]  # the producer names the task with `direct_task`

    @classmethod
    def fields(cls, *names: str | Sequence[str]) -> Grouping:
        """Equal values of these fields go to the same task: `fields("a", "b")` or `fields(["a", "b"])`."""
        if len(names) == 1 and isinstance(names[0], list | tuple):
            names = tuple(names[0])
        if not names:
            raise ValueError("Grouping.fields() needs the name of at least one field")
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"Grouping.fields() takes field names, not {name!r} ({type(name).__name__})")
        return cls("fields", tuple(str(name) for name in names))

    @classmethod
    def custom(cls, function: Callable[[Sequence[Any], int], Sequence[int]]) -> Grouping:
        """Routes by a user function: (values, number of tasks) -> indexes of the tasks that get the tuple.

        It must be a module-level function, because every worker imports it by name.
        """
        name = getattr(function, "__qualname__", "")
        if not isinstance(function, FunctionType) or "<" in name:
            raise TypeError(f"Grouping.custom() takes a function defined at the top of a module, not {function!r}")
        return cls("custom", code=f"{function.__module__}:{name}")

    def __repr__(self) -> str:
        if self.kind == "fields":
            return f"fields({', '.join(self.names)})"
        return f"custom({self.code})" if self.kind == "custom" else self.kind


for _kind in ("SHUFFLE", "LOCAL_OR_SHUFFLE", "ALL", "GLOBAL", "NONE", "DIRECT"):
    setattr(Grouping, _kind, Grouping(_kind.lower().replace("_", "-")))


def stable_hash(key: Any) -> int:
    """A 32-bit hash that is equal on every worker, in every run and release, for equal keys.

    Python's own hash of a str is salted per process. Values that Python considers equal (1, 1.0, True, Decimal("1.00")) must
    go to the same task, because the routers cache keys in dicts.
    """
    try:
        return zlib.crc32(_encode(key if type(key) is str else _canonical(key)))
    except UnicodeEncodeError:  # a lone surrogate: valid in a Python str, not in UTF-8
        return zlib.crc32(_encode(_canonical(key, lone_surrogates=True)))


def _canonical(key: Any, lone_surrogates: bool = False) -> Any:
    if isinstance(key, str | bytes):
        return key.encode("utf-8", "surrogatepass") if lone_surrogates and isinstance(key, str) else key
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    if isinstance(key, int):
        return int(key) if -(2**63) <= key < 2**64 else f"{int(key):x}"
    if isinstance(key, list | tuple):
        return [_canonical(item, lone_surrogates) for item in key]
    if isinstance(key, dict):
        return {name if isinstance(name, tuple) else _canonical(name, lone_surrogates): _canonical(item, lone_surrogates)
                for name, item in key.items()}
    if isinstance(key, Decimal) and key.is_finite():
        return _canonical(_plain_number(key))
    if isinstance(key, datetime) and key.fold:
        return key.replace(fold=0)  # in a repeated hour of one zone, both times are equal
    return key


def _plain_number(key: Decimal) -> int | float | str:
    """The equal int or float, if there is one, else the digits without trailing zeros."""
    if key == key.to_integral_value():
        return int(key)
    digits = key.normalize(Context(prec=len(key.as_tuple().digits), Emax=MAX_EMAX, Emin=MIN_EMIN))
    return float(key) if key == float(key) else str(digits)
