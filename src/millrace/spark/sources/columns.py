"""Arrow record batches with a declared schema, made from Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millrace.connectors.checked_column import UNFIT, column
from millrace.errors import MillraceError


def record_batch(columns: Sequence[Sequence[Any]], schema: StructType, what: str) -> pa.RecordBatch:
    """A record batch of these columns; an error names the first value that does not fit. `what`: the stream or state that the
    error names."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [_array(values, arrow.field(index), schema.fields[index].dataType.simpleString(), what)
              for index, values in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _array(values: Sequence[Any], field: pa.Field, declared: str, what: str) -> pa.Array:
    try:
        return column(values, field)
    except UNFIT as error:
        culprit = next(value for value in values if not _fits(value, field))
        raise MillraceError(f"{what}: column {field.name!r} is declared {declared}, but {culprit!r:.200} "
                            f"({type(culprit).__name__}) does not fit: {error}. Declare another type in .schema(...)") from None


def _fits(value: Any, field: pa.Field) -> bool:
    try:
        column([value], field)
    except UNFIT:
        return False
    return True


def inferred_schema(rows: Sequence[Sequence[Any]], names: Sequence[str], what: str) -> StructType:
    """A schema inferred from these rows; an error if a column's type cannot be inferred."""
    columns = list(zip(*rows, strict=True)) or [() for _ in names]
    fields = []
    for name, values in zip(names, columns, strict=True):
        try:
            kind = pa.array(values).type
        except UNFIT as error:
            raise MillraceError(f"{what}: no type holds all values of column {name!r} ({error}): declare it in "
                                ".schema(...)") from None
        if pa.types.is_null(kind):
            seen = f"the first {len(values)} rows have no value in it" if values else "there is no row yet"
            raise MillraceError(f"{what}: the type of column {name!r} cannot be inferred: {seen}. Declare it: "
                                f".schema(\"{', '.join(f'{column} TYPE' for column in names)}\")")
        fields.append(pa.field(name, kind))
    return from_arrow_schema(pa.schema(fields))
