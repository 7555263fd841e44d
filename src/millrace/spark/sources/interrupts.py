"""Ctrl-C for a program that runs a streaming query: the query stops, without tracebacks of Spark's half-finished jobs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LOOK_SECONDS = 0.2
BATCH_SECONDS = 10.0  # that a batch may take to finish after Ctrl-C


def run_until_interrupted(query: StreamingQuery) -> bool:
    """Wait until the query ends, or stop it at Ctrl-C after its current batch. Returns True if it was interrupted; raises the
    error of a query that failed. Call it in the main thread."""
    interrupted = threading.Event()
    # Spark's own handler cancels all jobs at once, each with a traceback.
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
    try:
        while query.isActive and not interrupted.wait(LOOK_SECONDS):
            pass
        if not interrupted.is_set():
            query.awaitTermination()
            return False
        deadline = time.monotonic() + BATCH_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        with _silent_spark():  # a batch that is broken off is reported at length
            query.stop()
        return True
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _silent_spark() -> Iterator[None]:
    """Spark, if it runs, logs nothing meanwhile."""
    session = SparkSession.getActiveSession()
    if session is None:
        yield
        return
    context = session.sparkContext
    jvm: Any = context._jvm
    level = str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(level)
