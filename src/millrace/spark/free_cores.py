"""The cores of a Spark cluster that resident workers leave to other Spark tasks, and how many of them feeding may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.spark.placement import Placement

if TYPE_CHECKING:
    from pyspark import SparkContext


class FreeCores:
    """Of the executors that are alive when it is asked. A core is what runs one Spark task."""

    def __init__(self, context: SparkContext, slots: int) -> None:
        self._placement, self._slots = Placement(context), slots
        self._each = int(context.getConf().get("spark.task.cpus", "1") or 1)

    def count(self) -> int:
        return sum(executor.cores // self._each for executor in self._placement.executors()) - self._slots


def feeding_share(free: int, feeders: int) -> int:
    """Partitions that one of so many queries may hold at the same time. They hold their cores until the topology has acked, and
    that may have to wait for a query that reads a tap: it finds a core only if feeding leaves one."""
    return max(1, (free - 1) // feeders)


def leaves_none(free: int, feeders: int) -> bool:
    """Each query needs one core at least; then nothing is left for others."""
    return 0 < free <= feeders
