"""An unexpected error in a part of the scheduling loop is reported once and does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.control.events import Say
from millrace.control.scheduling.overload_warnings import OverloadWarnings
from millrace.master.failures import RETRY_SECONDS, Failures
from support.scheduling.scheduled_cluster import Flow, ScheduledCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScheduledCluster]:
    made = ScheduledCluster(tmp_path / "history.db")
    made.submit(Flow, config={"limit": 10_000})
    yield made
    made.end()


def fail(*arguments: Any) -> None:
    raise KeyError("__acker")


def test_a_warning_that_fails_stops_neither_measurement_nor_scheduling(cluster: ScheduledCluster,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverloadWarnings, "update", fail)
    asked: list[float] = []
    monkeypatch.setattr(cluster.loop, "_schedule", lambda now, sample: asked.append(now))
    cluster.windows(3)
    assert len(asked) == 3 and cluster.loop._history is not None
    cluster.loop._history.flush(60)
    assert len(cluster.loop._history.newest_windows("flow", 10)) == 3
    assert [event.text.partition(".")[0] for event in cluster.events if event.level == "error"] == [
        "warning of overload failed because of an unexpected error: KeyError: '__acker'"]


def test_a_part_that_failed_is_tried_again_after_a_while_and_another_error_is_reported() -> None:
    said: list[Say] = []
    tried: list[str] = []
    failures = Failures(said.append)

    def work(error: str) -> None:
        tried.append(error)
        raise ValueError(error)

    for now, error in ((0.0, "one"), (RETRY_SECONDS / 2, "soon"), (RETRY_SECONDS, "one"), (2 * RETRY_SECONDS, "two")):
        failures.guard("measuring", now, lambda error=error: work(error))
    assert tried == ["one", "one", "two"]
    assert [message.text.split(": ")[2].partition(".")[0] for message in said] == ["one", "two"]
    failures.guard("counting", 0.0, lambda: tried.append("counted"))
    assert tried[-1] == "counted"
