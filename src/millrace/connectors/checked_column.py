"""Converts Python values to Arrow columns that Spark can read. Arrow accepts values on which every Spark job would fail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)  # raised by a value that does not fit its column
_DAYS = (date.min.toordinal() - date(1970, 1, 1).toordinal(), date.max.toordinal() - date(1970, 1, 1).toordinal())
_MICROSECONDS = ((datetime.min - datetime(1970, 1, 1)) // timedelta(microseconds=1),
                 (datetime.max - datetime(1970, 1, 1)) // timedelta(microseconds=1))
_NANOSECONDS_OF_DAY = (0, 24 * 60 * 60 * 10**9 - 1)


def column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """The values as one column; raises one of `UNFIT` if Arrow cannot hold a value, or Spark could not read it."""
    if pa.types.is_integer(field.type):
        _check_whole(values)
    array = pa.array(values, field.type)
    _check(array, field, field.name)
    return array


def misfit(values: Sequence[Any], field: pa.Field, declared: str) -> str:
    """Describes the first of these values that does not fit the column. `declared`: the type of the column as the user wrote
    it."""
    for value in values:
        try:
            column([value], field)
        except UNFIT as error:
            return (f"column {field.name!r} is declared {declared}, but {value!r:.100} ({type(value).__name__}) does not fit: "
                    f"{error}")
    raise AssertionError(f"every value fits column {field.name!r}")


def _check_whole(values: Sequence[Any]) -> None:
    """Refuses fractions: Arrow would truncate them."""
    if float in set(map(type, values)):
        for value in values:
            if type(value) is float and not value.is_integer():
                raise ValueError(f"{value!r} is not a whole number")


def _check(array: pa.Array, field: pa.Field, path: str) -> None:
    """Checks a column, including the values inside arrays, maps and structs."""
    if array.null_count:
        if not field.nullable:
            raise ValueError(f"{path} is declared not null, and has no value")
        array = array.drop_null()  # fields inside a null value need no value
    kind = field.type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            _check(array.field(index), kind.field(index), f"{path}.{kind.field(index).name}")
    elif pa.types.is_map(kind):
        _check_keys(array, path)
        _check(array.keys, kind.key_field, f"a key of {path}")
        _check(array.items, kind.item_field, f"a value of {path}")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _check(array.flatten(), kind.value_field, f"an element of {path}")
    elif pa.types.is_date32(kind):
        _check_range(array.view(pa.int32()), _DAYS, f"{path} is a date", "years 1 to 9999")
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        _check_range(array.view(pa.int64()), _MICROSECONDS, f"{path} is a time", "years 1 to 9999")
    elif pa.types.is_time64(kind) and kind.unit == "ns":
        _check_range(array.view(pa.int64()), _NANOSECONDS_OF_DAY, f"{path} is a time of day", "24 hours")


def _check_range(numbers: pa.Array, bounds: tuple[int, int], what: str, limit: str) -> None:
    """Refuses dates and times, as numbers, that Spark can hold and Python cannot."""
    extremes = pc.min_max(numbers).as_py()
    if len(numbers) and not bounds[0] <= extremes["min"] <= extremes["max"] <= bounds[1]:
        wrong = extremes["min"] if extremes["min"] < bounds[0] else extremes["max"]
        raise ValueError(f"{what}, and {wrong} is beyond the {limit}")


def _check_keys(maps: pa.MapArray, path: str) -> None:
    """Refuses duplicate keys: Spark would keep both values of a key, and readers would disagree about it."""
    for entries in maps.to_pylist():
        keys = [repr(key) for key, _ in entries]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{path} is a map, and has a key twice: {max(keys, key=keys.count):.200}")
