"""`DataFrame.mapInArrow` without its dependency on pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def map_in_arrow(dataframe: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
                 schema: str | StructType) -> DataFrame:
    """As `dataframe.mapInArrow`, which requires pandas although it does not use it."""
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = udf(*[dataframe[f"`{name}`"] for name in dataframe.columns])
    return type(dataframe)(dataframe._jdf.mapInArrow(columns._jc, False, None), dataframe.sparkSession)
