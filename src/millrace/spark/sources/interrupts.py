"""Ctrl-C for a program that runs a streaming query: the query stops, without tracebacks of Spark's half-finished jobs."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

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
        session = SparkSession.getActiveSession()
        if session is not None:
            session.sparkContext.setLogLevel("OFF")  # a batch that is broken off is reported at length
        query.stop()
        return True
    finally:
        signal.signal(signal.SIGINT, before)
