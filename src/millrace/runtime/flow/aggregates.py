"""Combines tuples of equal keys by the aggregates that a subscription declares: rows by Python's functions, batches by Arrow's.

What comes out has the fields and types of what went in, so a receiver cannot tell it from a tuple that was emitted. What cannot
be combined so, such as a None in a sum, or a sum beyond the type of its column, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import reduce
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import EmitError
from millrace.hotpath.plain import Rows

Values = Sequence[Any]
IN_ORDER = ("first", "last")
SUMMED = ({int, float}, {int, Decimal}, {timedelta})  # types that can be added to each other
NOTHING = type(None)
ROW = "row"  # the name of a column with the numbers of rows; the others are named by numbers


class _StaysAsItIs(Exception):
    """Raised for values that are in order but cannot be combined."""


# -- rows: the value of each key, in the order of their first rows --------------------------------------------------------


def _firsts(keys: Values, values: Values) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values):
        if key not in found:
            found[key] = value
    return found


def _lasts(keys: Values, values: Values) -> dict[Any, Any]:
    return dict(zip(keys, values))


def _sums(keys: Values, values: Values) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values):
        if key in found:
            found[key] += value
        else:
            found[key] = value
    return found


def _least(keys: Values, values: Values) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values):
        if key not in found or value < found[key]:
            found[key] = value
    return found


def _greatest(keys: Values, values: Values) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values):
        if key not in found or value > found[key]:
            found[key] = value
    return found


_OF_ROWS: dict[str, Callable[[Values, Values], dict[Any, Any]]] = {
    "sum": _sums, "min": _least, "max": _greatest, "first": _firsts, "last": _lasts,
    "all": _least, "any": _greatest}  # of bool only


class Aggregates:
    """The aggregates of one subscription. An error, such as the sum of texts, is reported once, and what it concerns is sent as
    it is."""

    def __init__(self, fields: Sequence[str], keys: Sequence[int], combine: Sequence[tuple[str, str]],
                 report: Callable[[BaseException], None]) -> None:
        """`keys`: the positions of the fields that the stream is grouped by."""
        self._keys, self._report = tuple(keys), report
        self._how = {fields.index(field): how for field, how in combine}  # by position
        self._ordered = any(how in IN_ORDER for how in self._how.values())
        self._declared = ", ".join(f"{how} of {field}" for field, how in combine)
        self._reported = self._not_batches = False

    def rows(self, rows: Rows) -> Rows:
        """One row for each key, in the order of their first rows, or the rows as they are."""
        try:
            return self._combined_rows(rows)
        except _StaysAsItIs:
            return rows
        except (TypeError, ValueError, ArithmeticError) as error:
            self._cannot(f"tuples like {rows[0]!r:.200}", error)
            return rows

    def _combined_rows(self, rows: Rows) -> Rows:
        columns = {position: list(map(itemgetter(position), rows)) for position in self._how}
        lacking = {number for position, how in self._how.items() for number in _lacking(columns[position], how)}
        if lacking:
            self._refuse_order()
            whole = [row for number, row in enumerate(rows) if number not in lacking]
            return [*(self._combined_rows(whole) if whole else ()), *(rows[number] for number in sorted(lacking))]
        keys = list(map(itemgetter(*self._keys), rows))
        found = {position: _OF_ROWS[how](keys, columns[position]) for position, how in self._how.items()}
        distinct = list(next(iter(found.values())))
        if len(distinct) == len(rows):
            return rows
        of_keys = dict(zip(self._keys, [distinct] if len(self._keys) == 1 else zip(*distinct)))
        return list(zip(*(found[position].values() if position in found else of_keys[position]
                          for position in range(len(rows[0])))))

    def _refuse_order(self) -> None:
        """Raise if it matters in which order the rows of a key are sent: those that cannot be combined come last."""
        if self._ordered:
            raise _StaysAsItIs

    def _cannot(self, what: str, error: BaseException) -> None:
        if not self._reported:
            self._reported = True
            self._report(EmitError(f"{what} cannot be combined by {self._declared}, and are sent as they are: {error}"))

    # -- batches -----------------------------------------------------------------------------------------------------------

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with one row for each key, or as it is."""
        if batch.num_rows < 2 or self._not_batches:
            return batch
        try:
            return self._combined_batch(batch)
        except _StaysAsItIs:
            return batch
        except pa.ArrowException as error:
            self._not_batches = True
            columns = ", ".join(f"{field.name} {field.type}" for field in batch.schema)
            self._cannot(f"batches of {columns}", error)
            return batch

    def _combined_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        whole = self._whole(batch)
        if whole is None:
            return self._grouped(batch)
        self._refuse_order()
        return pa.concat_batches([self._grouped(batch.filter(whole)), batch.filter(pc.invert(whole))])

    def _whole(self, batch: pa.RecordBatch) -> pa.Array | None:
        """True for the rows that can be combined, without nulls or, where values are compared, NaN. None: all can."""
        lacks = [pc.is_null(column, nan_is_null=how != "sum") for position, how in self._how.items()
                 if how not in IN_ORDER and ((column := batch.column(position)).null_count
                                             or (how != "sum" and pa.types.is_floating(column.type)))]
        lacking = reduce(pc.or_, lacks) if lacks else None
        return pc.invert(lacking) if lacking is not None and lacking.true_count else None

    def _grouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, names = list(batch.columns), list(map(str, range(batch.num_columns)))
        if self._ordered:  # Arrow has no first and last for every type
            columns, names = [*columns, pa.array(np.arange(batch.num_rows))], [*names, ROW]
        wanted = {position: _of_batch(how, names[position], batch.column(position)) for position, how in self._how.items()}
        table = pa.Table.from_arrays(columns, names).group_by([names[key] for key in self._keys], use_threads=False).aggregate(
            list(dict.fromkeys(wanted.values()))).combine_chunks()
        if table.num_rows == batch.num_rows:
            return batch

        def column(position: int) -> pa.Array:
            of_position = wanted.get(position)
            values = _whole_column(table.column("_".join(of_position) if of_position else names[position]))
            if of_position and of_position[0] == ROW:
                return batch.column(position).take(values)
            return _as_type(values, batch.schema.field(position).type)

        return pa.RecordBatch.from_arrays(list(map(column, range(batch.num_columns))), schema=batch.schema)


def _lacking(values: Values, how: str) -> list[int]:
    """The numbers of values that cannot be combined: None, or NaN if values are compared. TypeError if the aggregate does not
    take the others."""
    if how in IN_ORDER:
        return []
    kinds, compared = set(map(type, values)), how in ("min", "max")
    if not compared:
        _check_types(kinds - {NOTHING}, how)
    if NOTHING in kinds or (compared and float in kinds):
        return [number for number, value in enumerate(values) if value is None or (compared and value != value)]
    return []


def _check_types(kinds: set[type], how: str) -> None:
    if not any(kinds <= allowed for allowed in (SUMMED if how == "sum" else ({bool},))):
        raise TypeError(f"{how} takes {'numbers or durations' if how == 'sum' else 'bool'}, not "
                        f"{' and '.join(sorted(kind.__name__ for kind in kinds))}")


def _of_batch(how: str, name: str, column: pa.Array) -> tuple[str, str]:
    """The column that Arrow aggregates in its place, and how."""
    if how in IN_ORDER:
        return ROW, "min" if how == "first" else "max"
    if how == "sum":
        _check_sum(column)
    return name, how


def _check_sum(column: pa.Array) -> None:
    """Arrow's sums of 64 bits, and of decimals, overflow silently: refuse those that might."""
    kind = column.type
    if pa.types.is_boolean(kind):
        raise pa.ArrowTypeError("sum takes numbers, not bool")
    if kind in (pa.int64(), pa.uint64()) or pa.types.is_decimal(kind):
        ends = pc.min_max(column)
        most = max(abs(ends["min"].as_py() or 0), abs(ends["max"].as_py() or 0))
        if most * len(column) >= _limit(kind):
            raise _StaysAsItIs


def _limit(kind: pa.DataType) -> int | Decimal:
    """The least number that Arrow's sums for the type cannot hold."""
    if pa.types.is_decimal(kind):
        return Decimal(10) ** ((76 if pa.types.is_decimal256(kind) else 38) - kind.scale)
    return 2**63 if kind == pa.int64() else 2**64


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """A sum in the type of its column; it has been computed in a larger one."""
    if values.type == kind:
        return values
    try:
        return values.cast(kind, safe=not pa.types.is_floating(kind))
    except pa.ArrowInvalid:
        raise _StaysAsItIs from None


def _whole_column(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
