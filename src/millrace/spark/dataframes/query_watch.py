"""Watches a query that feeds a spout: reports its end, its lack of a core, and tasks that keep failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.spark.session.errors import SPARK_ERRORS, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.status import SparkStageInfo

LOOK_SECONDS = 1
IDLE_SECONDS = 10.0  # without a running Spark task for a micro-batch, before a warning
TASK_FAILURES = 8  # of one stage: Spark itself would keep trying, as it must for workers


class QueryWatch:
    """A thread that watches one query until it ends.

    The callbacks take predicates, such as "waits for a core". `warn`: the query has trouble. `ended`: it has ended; the second
    argument is Spark's error, or empty. `abandon`: it must be stopped.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery, name: str, warn: Callable[[str], None],
                 ended: Callable[[str, str], None], abandon: Callable[[str], None]) -> None:
        self._spark, self._query = spark, query
        self._warn, self._ended, self._abandon = warn, ended, abandon
        self._idle_since: float | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(timeout=seconds)

    def _run(self) -> None:
        try:
            while not self._query.awaitTermination(LOOK_SECONDS):
                stages = self._stages()
                self._check_cores(stages)
                for stage in stages:
                    if stage.numFailedTasks >= TASK_FAILURES:
                        # Spark retries a failing task up to a million times without reporting it: an error in the user's
                        # DataFrame would go unnoticed.
                        reason = self._failure_of(stage.stageId, stage.currentAttemptId)
                        self._abandon(f"was stopped after {stage.numFailedTasks} failed Spark tasks of one stage: {reason}")
                        return
            self._ended("was stopped by someone else", "")
        except SPARK_ERRORS as error:
            self._ended("failed", first_line(error))

    def _stages(self) -> list[SparkStageInfo]:
        """The stages of the current micro-batch."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(self._query.runId))]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None and job.status == "RUNNING"
                  for stage in job.stageIds]
        return [stage for stage in stages if stage is not None]

    def _check_cores(self, stages: list[SparkStageInfo]) -> None:
        """Warn once if no task of the query runs: workers hold their cores for good, and if they hold all of them Spark waits
        without reporting it."""
        now = time.monotonic()
        if not stages or any(stage.numActiveTasks for stage in stages):
            self._idle_since = None
            return
        self._idle_since = self._idle_since or now
        if now - self._idle_since > IDLE_SECONDS and not self._warned:
            self._warned = True
            self._warn("waits for a core: give the Spark cluster more cores than it has workers")

    def _failure_of(self, stage: int, attempt: int) -> str:
        """The error message of the stage's last failed task."""
        store = self._spark.sparkContext._jsc.sc().statusStore()
        tasks = store.taskList(stage, attempt, 1000)
        messages = [tasks.apply(i).errorMessage() for i in range(tasks.size())]
        texts = [message.get() for message in messages if message.isDefined()]
        lines = [line.strip() for line in (texts[-1] if texts else "").splitlines() if line.strip()]
        named = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "..."))]
        return " ".join(named[:1] + named[-1:])[:500] if len(named) > 1 else " ".join(named) or "Spark gives no reason"
