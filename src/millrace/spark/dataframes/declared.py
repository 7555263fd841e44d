"""The streaming DataFrames that a topology's spouts declare: made by their functions, and checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import types

from millrace.api.dataframe import check_dataframe, dataframes_of
from millrace.api.topology import Topology
from millrace.config import AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEE
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import TopologyGraph, resolve
from millrace.runtime.tasks.user_errors import USER_ERRORS, spare_interrupts
from millrace.spark.dataframes.user_functions import raised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_SOURCE = ("[DATA_SOURCE_NOT_FOUND]", "[KAFKA_DATA_SOURCE_NOT_ENABLED]")
NO_SOURCE_HINT = (". Spark loads this source from a package: name it with --set spark.jars.packages=..., in Python "
                  'spark_settings={"spark.jars.packages": ...}; for Kafka org.apache.spark:spark-sql-kafka-0-10_2.13:'
                  f"{pyspark.__version__}")
PLAIN_TYPES = (types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.FloatType,
               types.DoubleType, types.DecimalType, types.StringType, types.BinaryType, types.DateType, types.TimestampType,
               types.TimestampNTZType, types.DayTimeIntervalType, types.NullType)
KEY_TYPES = tuple(kind for kind in PLAIN_TYPES if kind is not types.NullType)


def resolve_dataframes(spark: SparkSession, topology: type[Topology]) -> dict[str, DataFrame]:
    """The streaming DataFrame of each DataFrame spout by name, with its columns in the order of the outputs.

    `TopologyError` if one is not streaming or does not match its outputs."""
    resolved: dict[str, DataFrame] = {}
    outputs = {str(spec.name): spec.outputs[0].fields for spec in topology.specs if spec.dataframe is not None}
    for name, dataframe in dataframes_of(topology).items():
        label = f"the DataFrame spout {name!r}"
        if isinstance(dataframe, str):
            dataframe = resolve(dataframe)
        if callable(dataframe):
            dataframe = _call(label, dataframe, spark)
        check_dataframe(label, dataframe, outputs[name])
        for column in dataframe.schema:
            _check_type(label, column.name, column.dataType)
        resolved[name] = dataframe.select(*[f"`{field}`" for field in outputs[name]])
    return resolved


def _call(label: str, function: Callable[[SparkSession], Any], spark: SparkSession) -> Any:
    """Call a user's function that returns a DataFrame; `TopologyError` if it raises."""
    try:
        return function(spark)
    except MillraceError:
        raise
    except USER_ERRORS as error:
        spare_interrupts(error)
        hint = NO_SOURCE_HINT if any(sign in str(error) for sign in NO_SOURCE) else ""
        raise TopologyError(f"{label} reads the DataFrame that {getattr(function, '__qualname__', repr(function))} returns, "
                            f"but that raised {raised(error)}{hint}") from error


def _check_type(label: str, column: str, kind: types.DataType) -> None:
    if isinstance(kind, types.ArrayType):
        _check_type(label, column, kind.elementType)
    elif isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, KEY_TYPES):  # a map is a dict in a tuple
            raise _unusable(label, column, kind, "use strings, numbers or times as keys")
        _check_type(label, column, kind.valueType)
    elif isinstance(kind, types.StructType):
        if len(set(kind.names)) < len(kind.names):  # so is a struct
            raise _unusable(label, column, kind, "give its fields different names")
        for field in kind:
            _check_type(label, f"{column}.{field.name}", field.dataType)
    elif not isinstance(kind, PLAIN_TYPES):
        raise _unusable(label, column, kind, "cast it to a string, a number or a time")


def _unusable(label: str, column: str, kind: types.DataType, advice: str) -> TopologyError:
    return TopologyError(f"column {column!r} of {label} is of type {kind.simpleString()}, which a tuple cannot hold: {advice} "
                         "in the DataFrame")


def check_dataframes(graph: TopologyGraph, dataframes: dict[str, Any]) -> None:
    """Raise `TopologyError` for DataFrame spouts that the resident engine cannot feed with the requested guarantee."""
    spouts = [component.name for component in graph.components if component.dataframe]
    if spouts and graph.exactly_once:
        raise TopologyError(f"{graph.name!r} asks for {EXACTLY_ONCE}, but {', '.join(spouts)} is fed by a DataFrame, which the "
                            f"resident engine reads at least once: run it with --engine microbatch (MicrobatchEngine), or set "
                            f"{GUARANTEE.key} to {AT_LEAST_ONCE}")
    if missing := [name for name in spouts if name not in dataframes]:
        raise TopologyError(f"{', '.join(missing)} of {graph.name!r} is fed by a DataFrame, which a graph does not hold: "
                            "submit the topology's class instead")
