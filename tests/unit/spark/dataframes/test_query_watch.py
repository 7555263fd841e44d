"""The watch of a feeding query, with stand-ins for the query and for Spark's status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from millrace.spark.dataframes import query_watch
from millrace.spark.dataframes.query_watch import TASK_FAILURES, QueryWatch

RUN = "run-1"


class FakeQuery:
    """Runs for some looks, then ends, or fails with the error."""

    runId = RUN

    def __init__(self, looks: int = 0, error: Exception | None = None) -> None:
        self._looks, self._error = looks, error

    def awaitTermination(self, seconds: float) -> bool:
        self._looks -= 1
        if self._looks >= 0:
            return False
        if self._error is not None:
            raise self._error
        return True


def option(value: str | None) -> Any:
    """A Scala option."""
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


def spark_with(active: int, failed: int, messages: list[str | None]) -> Any:
    """A session with one running stage of the query."""
    stage = SimpleNamespace(stageId=7, currentAttemptId=0, numActiveTasks=active, numFailedTasks=failed)
    tasks = [SimpleNamespace(errorMessage=lambda message=message: option(message)) for message in messages]
    listed = SimpleNamespace(size=lambda: len(tasks), apply=lambda number: tasks[number])
    tracker = SimpleNamespace(getJobIdsForGroup=lambda group: [3] if group == RUN else [],
                              getJobInfo=lambda job: SimpleNamespace(status="RUNNING", stageIds=[7]),
                              getStageInfo=lambda number: stage)
    store = SimpleNamespace(taskList=lambda number, attempt, most: listed if number == 7 else None)
    scala = SimpleNamespace(statusStore=lambda: store)
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker,
                                                        _jsc=SimpleNamespace(sc=lambda: scala)))


def watched(query: FakeQuery, active: int = 1, failed: int = 0, messages: list[str | None] | None = None
            ) -> list[tuple[str, ...]]:
    """The calls that the watch makes until it ends."""
    calls: list[tuple[str, ...]] = []
    watch = QueryWatch(spark_with(active, failed, messages or []), query, "watch",  # type: ignore[arg-type]
                       lambda text: calls.append(("warn", text)), lambda how, error: calls.append(("ended", how, error)),
                       lambda how: calls.append(("abandon", how)))
    watch.start()
    watch.join(30)
    return calls


def test_a_query_that_ends_without_an_error_was_stopped_by_someone_else() -> None:
    assert watched(FakeQuery(looks=2)) == [("ended", "was stopped by someone else", "")]


def test_the_error_of_a_failed_query_is_passed_on_in_one_line() -> None:
    assert watched(FakeQuery(looks=1, error=PySparkException("no such table\nmore"))) == [("ended", "failed", "no such table")]


def test_a_query_whose_tasks_keep_failing_is_abandoned_with_the_last_error() -> None:
    message = "org.apache.spark.SparkException: task failed\n  File \"x.py\"\nTraceback\nValueError: bad row\n\tat java"
    calls = watched(FakeQuery(looks=100), failed=TASK_FAILURES, messages=["an earlier error", message, None])
    assert calls == [("abandon", f"was stopped after {TASK_FAILURES} failed Spark tasks of one stage: "
                                 "org.apache.spark.SparkException: task failed ValueError: bad row")]


def test_a_few_failures_are_left_to_spark() -> None:
    assert watched(FakeQuery(looks=3), failed=TASK_FAILURES - 1) == [("ended", "was stopped by someone else", "")]


def test_one_warning_while_no_task_gets_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_watch, "IDLE_SECONDS", -1.0)
    calls = watched(FakeQuery(looks=5), active=0)
    assert [call[0] for call in calls] == ["warn", "ended"] and calls[0][1].startswith("waits for a core")
    assert [call[0] for call in watched(FakeQuery(looks=5), active=1)] == ["ended"]
