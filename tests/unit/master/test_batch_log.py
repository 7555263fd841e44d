"""The log of recent batches and their totals."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.master.batch_log import RECORDS_KEPT, BatchLog, BatchRecord


def record(batch: int, **changed: Any) -> BatchRecord:
    return BatchRecord(**{"batch": batch, "wave": batch + 1, "plan_version": 1, "started": 1e9, "seconds": 0.5, **changed})


def test_a_log_has_the_last_batches_and_the_totals_of_all() -> None:
    log = BatchLog()
    assert log.summary()["last"] is None and log.summary()["mean_seconds"] is None
    for batch in range(RECORDS_KEPT + 50):
        log.add(record(batch, attempts=2 if batch == 3 else 1, misplaced=1, restored=2, resident=3, spark_run_seconds=0.25,
                       seconds=1.0 if batch >= RECORDS_KEPT + 30 else 9.0))
    summary = log.summary()
    assert len(log.records) == RECORDS_KEPT and summary["count"] == RECORDS_KEPT + 50
    assert (summary["retried"], summary["misplaced"], summary["restored"]) == (1, summary["count"], 2 * summary["count"])
    assert summary["mean_seconds"] == 1.0 and summary["last"]["batch"] == RECORDS_KEPT + 49
    assert summary["spark_run_seconds"] == pytest.approx(0.25 * summary["count"])
