"""The stream that drives a batched topology: its DataFrames, and a beat for the spouts that run in the batch itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millrace.model.graph import TopologyGraph

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TAG = "__spout"


def stream_of(spark: SparkSession, graph: TopologyGraph, sources: Mapping[str, DataFrame]) -> DataFrame:
    """Union of the DataFrames, because a query reads just one; each row carries the name of its spout."""
    beats = any(not spout.dataframe for spout in graph.spouts)
    if len(sources) == 1 and not beats:
        return next(iter(sources.values()))
    parts = [_tagged(dataframe, name, sources) for name, dataframe in sources.items()]
    if beats:
        parts.append(_tagged(_beat(spark), "", sources))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def rows_of(batch: DataFrame, sources: Mapping[str, DataFrame], name: str) -> DataFrame:
    """The rows of the batch that are for that spout."""
    if TAG not in batch.columns:
        return batch
    return batch.where(F.col(TAG) == name).select(F.col(f"`{name}`.*"))


def _tagged(dataframe: DataFrame, name: str, sources: Mapping[str, DataFrame]) -> DataFrame:
    columns = [F.struct(*[F.col(f"`{column}`") for column in source.columns]).alias(other) if other == name
               else F.lit(None).cast(source.schema).alias(other) for other, source in sources.items()]
    return dataframe.select(F.lit(name).alias(TAG), *columns)


def _beat(spark: SparkSession) -> DataFrame:
    """A stream with a row in each batch, so that spouts run in one batch after the other."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
