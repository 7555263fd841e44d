"""Arrow record batches with a declared schema, made from Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from millrace.connectors.checked_column import UNFIT, column, misfit
from millrace.errors import MillraceError

SPARK_ENCODED = {b"variant", b"geometry", b"geography"}  # Spark's marks on fields of structs in its own encoding


def check_columns(schema: StructType, what: str) -> None:
    """Refuse types that no value of a tuple or a state can have. `what`: the stream or state that the error names."""
    for field in schema:
        if not is_usable(field):
            raise MillraceError(f"{what}: column {field.name!r} is declared {field.dataType.simpleString()}, which cannot be "
                                "made from Python's values: declare a string, a number, a time, or arrays, maps and structs of "
                                "them in .schema(...), and cast it in the DataFrame")


def is_usable(column: StructField) -> bool:
    """True if Spark converts the column's type to a plain Arrow type."""
    try:
        return not _is_spark_encoded(to_arrow_schema(StructType([column]), timezone="UTC").field(0))
    except PySparkException:
        return False


def _is_spark_encoded(field: pa.Field) -> bool:
    """True if the field, or a field inside it, is a struct in Spark's own encoding: variant, geometry, geography."""
    inner = [field.type.field(index) for index in range(field.type.num_fields)]
    return any((part.metadata or {}).keys() & SPARK_ENCODED or _is_spark_encoded(part) for part in inner)


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
    except UNFIT:
        raise MillraceError(f"{what}: {misfit(values, field, declared)}. Declare another type in .schema(...)") from None


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
