"""The executors of a Spark application, as Spark lists them."""

from __future__ import annotations

from millrace.spark.engine import ResidentEngine


def listed_executors(engine: ResidentEngine) -> set[str]:
    listed = engine.spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return {listed.apply(number).id() for number in range(listed.size())} - {"driver"}
