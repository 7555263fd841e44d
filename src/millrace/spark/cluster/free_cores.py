"""The cores of a Spark cluster that resident workers leave free, and the share of them that feeding may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.spark.cluster.launcher import WORKERS_GROUP
from millrace.spark.cluster.placement import Placement

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

FEEDING = "millrace "  # prefix of the names of queries that feed spouts


class FreeCores:
    """Counts free cores on the executors that are alive. A core runs one Spark task at a time. `slots`: the number of workers
    of the engine that counts; workers of other engines on the same session are found among Spark's jobs."""

    def __init__(self, context: SparkContext, slots: Callable[[], int] = lambda: 0) -> None:
        self._context, self._placement, self._slots = context, Placement(context), slots
        self._each = int(context.getConf().get("spark.task.cpus", "1") or 1)

    def count(self) -> int:
        cores = sum(executor.cores // self._each for executor in self._placement.executors())
        return cores - max(self._slots(), self.held())

    def held(self) -> int:
        """Cores that workers of all engines hold, or wait for."""
        return self._placement.unfinished_tasks(WORKERS_GROUP)


def feeding_queries(spark: SparkSession) -> int:
    """The number of queries that feed resident topologies, over all engines on the session."""
    return sum((query.name or "").startswith(FEEDING) for query in spark.streams.active)


def feeding_share(free: int, feeders: int) -> int:
    """Partitions that one of `feeders` queries may run at the same time. They hold their cores until the topology has acked,
    which may depend on a query that reads a tap: it finds a core only if feeding leaves one."""
    return max(1, (free - 1) // feeders)


def leaves_none(free: int, feeders: int) -> bool:
    """True if the queries, which need a core each, take all free cores."""
    return 0 < free <= feeders
