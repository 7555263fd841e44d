"""Column types that a `DataFrameSink` accepts."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from millrace.errors import TopologyError
from millrace.spark.dataframes.writer import check_type


@pytest.mark.parametrize("kind", [StringType(), DecimalType(10, 2), DateType(), TimestampType(),
                                  MapType(StringType(), LongType()),
                                  ArrayType(StructType([StructField("x", LongType(), nullable=False)]))])
def test_a_type_that_a_tuple_can_hold(kind: DataType) -> None:
    check_type("the sink", StructField("c", kind))


@pytest.mark.parametrize("kind", [YearMonthIntervalType(), VarcharType(3), VariantType(), ArrayType(VariantType())])
def test_a_type_that_no_tuple_can_hold(kind: DataType) -> None:
    with pytest.raises(TopologyError, match=r"the sink has a column 'c' of type .* cannot be made from a tuple's values"):
        check_type("the sink", StructField("c", kind))
