"""Millrace's formats for `spark.readStream` and `spark.read`. Engines register them in the sessions that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.spark.state_source import StateSource
from millrace.spark.stream_source import StreamSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """In a session of yours: call it once before the first `format("millrace")` or `format("millrace-state")`."""
    spark.dataSource.register(StreamSource)
    spark.dataSource.register(StateSource)
