"""What goes wrong in Spark, as the driver sees it."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_ERRORS = (Py4JError, PySparkException)  # what a job or a query that failed raises


def lines_of(error: BaseException) -> list[str]:
    """Its text, which may go on for pages of stack traces."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def first_line(error: BaseException) -> str:
    return lines_of(error)[0]
