"""A slow batch, as `status` shows it."""

from __future__ import annotations

import time

from millrace.cli.dashboard import batch_lines
from millrace.master.batch_log import REST, RUN_TASKS, BatchLog, BatchRecord, UnderWay


def shown(log: BatchLog) -> str:
    return "\n".join(line.label + line.text for line in batch_lines(log.summary()))


def test_its_age_and_its_tasks_are_shown() -> None:
    log = BatchLog()
    assert log.summary()["running"] is None and "now:" not in shown(log)
    log.under_way = UnderWay(batch=7, attempt=2, since=time.monotonic() - 95, doing=RUN_TASKS, tasks=["count[1]"])
    assert "now: batch 7, attempt 2, for 95 s: run its tasks (count[1])" in shown(log)


def test_the_step_that_it_waits_for_is_shown() -> None:
    log = BatchLog()
    log.under_way = UnderWay(batch=7, attempt=1, since=time.monotonic(), doing=RUN_TASKS, tasks=[])
    assert "run its tasks (no task has a core)" in shown(log)
    log.under_way = UnderWay(batch=7, attempt=1, since=time.monotonic(), doing="write the manifest", tasks=[])
    assert "s: write the manifest" in shown(log)


def test_a_committed_batch_is_reported_as_such() -> None:
    """It is not reported as unfinished."""
    log = BatchLog()
    log.under_way = UnderWay(batch=0, attempt=1, since=time.monotonic() - 95, doing="write the rows kept by the sinks",
                             tasks=[], committed=True)
    assert shown(log).strip() == ("now: batch 0 is committed; for 95 s the engine has been trying to write the rows kept by "
                                  "the sinks")


def test_failed_attempts_are_shown_with_the_last_error() -> None:
    log = BatchLog()
    log.under_way = UnderWay(batch=7, attempt=12, since=time.monotonic() - 300, doing=REST, tasks=[], error="OSError: no room")
    assert f"now: batch 7, attempt 12, for 300 s: {REST}\n  its last error: OSError: no room" in shown(log)
    assert log.summary()["running"]["error"] == "OSError: no room"


def test_a_finished_batch_is_not_shown() -> None:
    log = BatchLog()
    log.under_way = UnderWay(batch=7, attempt=1, since=time.monotonic(), doing=RUN_TASKS, tasks=[])
    log.add(BatchRecord(batch=7, wave=8, plan_version=1, started=0.0, seconds=0.1))
    assert log.summary()["running"] is None and "now:" not in shown(log)
