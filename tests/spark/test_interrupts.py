"""Ctrl-C in a program that runs a streaming query."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.spark.sources.interrupts import run_until_interrupted

SHARES_SPARK = True


def log_level(spark: SparkSession) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())


class InterruptedQuery:
    """A running query; Ctrl-C comes when its state is read for the first time."""

    def __init__(self, spark: SparkSession, query: StreamingQuery, error: Exception | None = None) -> None:
        self._spark, self._query, self._error = spark, query, error
        self._came = False
        self.level_at_stop = ""

    @property
    def isActive(self) -> bool:
        if not self._came:
            self._came = True
            signal.raise_signal(signal.SIGINT)
        return self._query.isActive

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    def stop(self) -> None:
        self.level_at_stop = log_level(self._spark)
        self._query.stop()
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [None, TimeoutError("it does not stop")])
def test_spark_is_silent_while_the_query_stops_and_has_its_log_level_again_after(
        shared_spark: SparkSession, tmp_path: Path, error: Exception | None) -> None:
    writer = shared_spark.readStream.format("rate").load().writeStream.format("noop")
    query = InterruptedQuery(shared_spark, writer.option("checkpointLocation", str(tmp_path)).start(), error)
    level, handler = log_level(shared_spark), signal.getsignal(signal.SIGINT)
    if error is None:
        assert run_until_interrupted(query)  # type: ignore[arg-type]
    else:
        with pytest.raises(TimeoutError):
            run_until_interrupted(query)  # type: ignore[arg-type]
    assert (query.level_at_stop, log_level(shared_spark)) == ("OFF", level)
    assert signal.getsignal(signal.SIGINT) is handler
