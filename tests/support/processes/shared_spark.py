"""One local Spark, shared by the test files that can use it: starting and stopping Spark takes seconds.

A process has at most one Spark, so files that start Spark themselves stop this one first.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millrace.spark.session.session import make_session

SLOTS = 4  # resident workers that have room beside Spark's own jobs
SETTINGS = {"spark.stage.maxConsecutiveAttempts": "1", "spark.sql.shuffle.partitions": "2"}

_session: SparkSession | None = None


def shared_session() -> SparkSession:
    """The running session, or a new one."""
    global _session
    if _session is None:
        _session = make_session("local[2]", "tests", SLOTS, SETTINGS)
    return _session


def stop_shared_session() -> None:
    global _session
    if _session is not None:
        _session.stop()
        _session = None
