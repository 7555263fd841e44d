"""A Spark that has ended before the engine that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.spark.session.errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GONE = ("Spark has ended before the engine: its JVM died, or was told to end together with this process. What was under way is "
        "not done; a topology that keeps state goes on from its last checkpoint when it is resumed")


def is_gone(spark: SparkSession) -> bool:
    """Whether the JVM is gone, or on its way: it stops Spark first. Not if it was stopped from here."""
    java = spark.sparkContext._jsc
    try:
        return java is not None and bool(java.sc().isStopped())
    except SPARK_ERRORS:
        return True
