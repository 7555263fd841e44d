"""The cores of a Spark cluster that resident workers leave to other Spark tasks, and how many of them feeding may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.spark.cluster.launcher import WORKERS_GROUP
from millrace.spark.cluster.placement import Placement

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

FEEDING = "millrace "  # begins the name of each query that feeds a spout


class FreeCores:
    """Of the executors that are alive when it is asked. A core is what runs one Spark task. `slots`: workers of the engine that
    asks; those of others on the same session are found among Spark's jobs."""

    def __init__(self, context: SparkContext, slots: int) -> None:
        self._context, self._placement, self._slots = context, Placement(context), slots
        self._each = int(context.getConf().get("spark.task.cpus", "1") or 1)

    def count(self) -> int:
        cores = sum(executor.cores // self._each for executor in self._placement.executors())
        return cores - max(self._slots, self.held())

    def held(self) -> int:
        """By workers, of whichever engine; also by such as still wait for a core."""
        return self._placement.unfinished_tasks(WORKERS_GROUP)


def feeding_queries(spark: SparkSession) -> int:
    """Those that feed resident topologies, of all engines on the session."""
    return sum((query.name or "").startswith(FEEDING) for query in spark.streams.active)


def feeding_share(free: int, feeders: int) -> int:
    """Partitions that one of so many queries may hold at the same time. They hold their cores until the topology has acked, and
    that may have to wait for a query that reads a tap: it finds a core only if feeding leaves one."""
    return max(1, (free - 1) // feeders)


def leaves_none(free: int, feeders: int) -> bool:
    """Each query needs one core at least; then nothing is left for others."""
    return 0 < free <= feeders
