"""The formats `millrace` and `millrace-state` for `spark.readStream` and `spark.read`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register both formats in a session. Engines do this in sessions that they create; call it once in your own."""
    # Imported here: Spark's Python processes unpickle one source and should not load the other.
    from millrace.spark.sources.state import StateSource
    from millrace.spark.sources.stream import StreamSource

    spark.dataSource.register(StreamSource)
    spark.dataSource.register(StateSource)
