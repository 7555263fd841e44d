"""Log of a topology's batches: a record of each recent one, and totals of all."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import msgspec

RECORDS_KEPT = 200
RUN_TASKS = "run its tasks"  # the longest step of a batch
REST = "rest before the next attempt"
RECENT = 20  # batches in the mean


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One batch. `misplaced`: tasks that ran on another executor than planned. `resident`: tasks that found their state in
    their process; `restored`: tasks that had to load it. `spark_run_seconds`, `own_busy_seconds`: time spent in partitions as
    measured by Spark and by Millrace; Spark reports its figure late, so neither includes the other."""

    batch: int
    wave: int
    plan_version: int
    started: float  # unix time
    seconds: float
    attempts: int = 1
    tuples_in: int = 0
    tuples_processed: int = 0
    stages: int = 0
    tasks: int = 0
    misplaced: int = 0
    resident: int = 0
    restored: int = 0
    spark_run_seconds: float = 0.0
    spark_shuffle_bytes: int = 0
    own_busy_seconds: float = 0.0


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that has been running for a while. `doing`: its current step. `tasks`: its tasks that have a core. `committed`:
    its state is committed, but its sinks have not published yet. `error`: why its last attempt failed."""

    batch: int
    attempt: int
    doing: str
    since: float  # by the clock of `time.monotonic`
    tasks: list[str]
    committed: bool = False
    error: str = ""

    def summary(self) -> dict[str, Any]:
        return {"batch": self.batch, "attempt": self.attempt, "seconds": round(time.monotonic() - self.since, 1),
                "doing": self.doing, "tasks": self.tasks, "committed": self.committed, "error": self.error}


class BatchLog:
    """The batches of one topology."""

    under_way: UnderWay | None = None

    def __init__(self) -> None:
        self.records: deque[BatchRecord] = deque(maxlen=RECORDS_KEPT)
        self.count = self.retried = self.misplaced = self.resident = self.restored = 0
        self.tuples_in = self.tuples_processed = self.spark_shuffle_bytes = 0
        self.seconds = self.spark_run_seconds = self.own_busy_seconds = 0.0

    def add(self, record: BatchRecord) -> None:
        self.records.append(record)
        self.under_way = None
        self.count += 1
        self.retried += record.attempts - 1
        for name in ("misplaced", "resident", "restored", "tuples_in", "tuples_processed", "spark_shuffle_bytes", "seconds",
                     "spark_run_seconds", "own_busy_seconds"):
            setattr(self, name, getattr(self, name) + getattr(record, name))

    def summary(self) -> dict[str, Any]:
        """The log as `status` shows it."""
        recent = list(self.records)[-RECENT:]
        last = recent[-1] if recent else None
        return {
            "count": self.count, "retried": self.retried, "misplaced": self.misplaced, "resident": self.resident,
            "restored": self.restored, "tuples_in": self.tuples_in, "tuples_processed": self.tuples_processed,
            "seconds": round(self.seconds, 3), "spark_run_seconds": round(self.spark_run_seconds, 3),
            "own_busy_seconds": round(self.own_busy_seconds, 3), "spark_shuffle_bytes": self.spark_shuffle_bytes,
            "mean_seconds": round(sum(record.seconds for record in recent) / len(recent), 4) if recent else None,
            "running": self.under_way.summary() if self.under_way is not None else None,
            "last": msgspec.to_builtins(last) if last is not None else None,
        }
