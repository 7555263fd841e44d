"""Groupings: the rules by which tuples are spread over the tasks of a bolt. Plain data; the engine routes by it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from types import FunctionType
from typing import Any, ClassVar

import msgspec

AGGREGATES = ("sum", "min", "max", "first", "last", "all", "any")  # for the fields of tuples that are combined
MERGE = "merge"  # combine by the static method of that name of the bolt

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Grouping:
    """One of the constants below, `Grouping.fields(...)` or `Grouping.custom(...)`."""

    kind: str
    names: tuple[str, ...] = ()
    code: str = ""  # custom: "module:qualified.name" of a function (values, number of tasks) -> task indexes
    combine: tuple[tuple[str, str], ...] | str = ()  # fields: (field, aggregate) of all others, or MERGE

    SHUFFLE: ClassVar[Grouping]  # spread evenly over the tasks
    LOCAL_OR_SHUFFLE: ClassVar[Grouping]  # tasks in the same worker if there are any, else shuffle
    ALL: ClassVar[Grouping]  # a copy to every task
    GLOBAL: ClassVar[Grouping]  # all tuples to the task with the lowest index
    NONE: ClassVar[Grouping]  # any task; today the same as shuffle
    DIRECT: ClassVar[Grouping]  # the producer names the task with `direct_task`

    @classmethod
    def fields(cls, *names: str | Sequence[str], combine: Mapping[str, str] | str | None = None) -> Grouping:
        """Equal values of these fields go to the same task: `fields("a", "b")` or `fields(["a", "b"])`.

        `combine`: each sender combines the tuples of a key into one before it sends a chunk, and so do the senders of Arrow
        batches. It names an aggregate for every other field: sum, min, max, first, last, all or any, for example
        `fields("word", combine={"count": "sum"})`. Or it is "merge": rows are combined by the bolt's own `merge`.
        """
        if len(names) == 1 and isinstance(names[0], list | tuple):
            names = tuple(names[0])
        if not names:
            raise ValueError("Grouping.fields() needs the name of at least one field")
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"Grouping.fields() takes field names, not {name!r} ({type(name).__name__})")
        keys = tuple(str(name) for name in names)
        return cls("fields", keys, combine=_checked_combine(keys, combine))

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
            return f"fields({', '.join(self.names)}{f'; {self._combined()}' if self.combine else ''})"
        return f"custom({self.code})" if self.kind == "custom" else self.kind

    def _combined(self) -> str:
        return self.combine if isinstance(self.combine, str) else ", ".join(f"{how} {field}" for field, how in self.combine)


for _kind in ("SHUFFLE", "LOCAL_OR_SHUFFLE", "ALL", "GLOBAL", "NONE", "DIRECT"):
    setattr(Grouping, _kind, Grouping(_kind.lower().replace("_", "-")))


def _checked_combine(keys: Sequence[str], combine: Any) -> tuple[tuple[str, str], ...] | str:
    """The declaration as a Grouping has it. Whether it suits the stream is checked with the topology."""
    if combine is None or combine == MERGE:
        return combine or ()
    if not isinstance(combine, Mapping):
        raise TypeError(f'combine must be a dict of field to aggregate, or "{MERGE}", not {combine!r} '
                        f"({type(combine).__name__})")
    if not combine:
        raise ValueError("combine is empty: name an aggregate for each field that the stream is not grouped by, for example "
                         'combine={"count": "sum"}')
    for field, how in combine.items():
        if not isinstance(field, str):
            raise TypeError(f"combine has the key {field!r} ({type(field).__name__}): fields are named by str")
        if how not in AGGREGATES:
            raise ValueError(f"combine has {how!r} for the field {field!r}: the aggregates are {', '.join(AGGREGATES)}. For "
                             f'any other, define a static method `merge` in the bolt and say combine="{MERGE}"')
        if field in keys:
            raise ValueError(f"combine has {how!r} for the field {field!r}, by which the stream is grouped: tuples that are "
                             "combined have the same value there. Leave it out")
    return tuple(combine.items())


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
