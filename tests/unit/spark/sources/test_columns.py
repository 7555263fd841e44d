"""Columns of declared types made from rows, and types inferred from rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

from millrace.errors import MillraceError
from millrace.spark.sources.columns import inferred_schema, record_batch


def schema_of(kind: DataType) -> StructType:
    return StructType([StructField("column", kind)])


@pytest.mark.parametrize(("kind", "values"), [
    (LongType(), [1, None, -(2**63)]), (DoubleType(), [1.5, 2.0]), (StringType(), ["a", None]), (BooleanType(), [True]),
    (TimestampType(), [datetime(2026, 1, 2, tzinfo=UTC)]),
])
def test_values_come_back(kind: DataType, values: list[Any]) -> None:
    assert record_batch([values], schema_of(kind), "t").column(0).to_pylist() == values


@pytest.mark.parametrize(("kind", "values", "message"), [
    (LongType(), [1, "two"], r"t: column 'column' is declared bigint, but 'two' \(str\) does not fit"),
    (LongType(), [2**63], r"9223372036854775808 \(int\) does not fit"),
    (StringType(), ["a", 1], r"declared string, but 1 \(int\)"),
    (TimestampType(), [0, 2**62], r"declared timestamp, but 4611686018427387904 \(int\) does not fit: .* beyond the years"),
])
def test_the_first_value_that_does_not_fit_is_named(kind: DataType, values: list[Any], message: str) -> None:
    with pytest.raises(MillraceError, match=message):
        record_batch([values], schema_of(kind), "t")


def test_a_column_that_must_have_a_value() -> None:
    schema = StructType([StructField("column", LongType(), nullable=False)])
    assert record_batch([[1, 2]], schema, "t").num_rows == 2
    with pytest.raises(MillraceError, match=r"declared bigint, but None .* does not fit: column is declared not null"):
        record_batch([[1, None]], schema, "t")


def test_types_are_inferred_from_the_rows() -> None:
    schema = inferred_schema([(1, None, [1.5], True), (2, "a", [], False)], ["n", "text", "list", "flag"], "t")
    assert schema.simpleString() == "struct<n:bigint,text:string,list:array<double>,flag:boolean>"


@pytest.mark.parametrize(("rows", "message"), [
    ([], r"type of column 'a' cannot be inferred: there is no row yet.*schema\(\"a TYPE, b TYPE\"\)"),
    ([(1, None), (2, None)], "type of column 'b' cannot be inferred: the first 2 rows have no value in it"),
    ([(1, "a"), ("b", 2)], "no type holds all values of column 'a'"),
])
def test_types_that_cannot_be_inferred_must_be_declared(rows: list[Any], message: str) -> None:
    with pytest.raises(MillraceError, match=message):
        inferred_schema(rows, ["a", "b"], "t")
