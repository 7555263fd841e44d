"""An unexpected error in a part of the scheduling loop is reported once and does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.control.events import Say
from millrace.control.scheduling.overload_warnings import OverloadWarnings
from millrace.control.scheduling.schedule_generator import FAILED, ScheduleGenerator
from millrace.master.failures import RETRY_SECONDS, Failures
from millrace.master.load.cluster_links import ClusterLinks
from millrace.master.load.history import History
from millrace.master.scheduling import scheduler_process
from millrace.master.scheduling.elastic import Elasticity
from millrace.master.scheduling.estimates import LoadEstimates
from millrace.schedulers.base import NoChange
from millrace.schedulers.rules import result_to_json
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
    history = cluster.loop.records.open()
    assert len(asked) == 3 and history is not None
    history.flush(60)
    assert len(history.newest_windows("flow", 10)) == 3
    assert errors(cluster) == ["warning of overload failed because of an unexpected error: KeyError: '__acker'"]


def errors(cluster: ScheduledCluster) -> list[str]:
    return [event.text.partition(".")[0] for event in cluster.events if event.level == "error"]


@pytest.mark.parametrize(("where", "method", "part"), [
    (ClusterLinks, "end_window", "measuring links"), (LoadEstimates, "add", "estimating the load"),
    (Elasticity, "predict", "predicting latencies"), (History, "record_window", "recording the window")])
def test_a_step_before_scheduling_that_fails_does_not_stop_it(cluster: ScheduledCluster, monkeypatch: pytest.MonkeyPatch,
                                                              where: type, method: str, part: str) -> None:
    monkeypatch.setattr(where, method, fail)
    asked: list[float] = []
    monkeypatch.setattr(cluster.loop, "_schedule", lambda now, sample: asked.append(now))
    cluster.windows(3)
    assert len(asked) == 3 and cluster.loop.sample is not None and cluster.loop.sample.loads
    assert errors(cluster) == [f"{part} failed because of an unexpected error: KeyError: '__acker'"]


def chosen(cluster: ScheduledCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cluster have a scheduler that answers at once."""
    answer = result_to_json(NoChange("all is well"))
    monkeypatch.setattr(cluster.loop._process, "ask", lambda request, time_limit, done: done(answer))
    cluster.loop.choose("tstorm", {}, {})


def test_an_answer_that_cannot_be_read_is_a_failure_of_the_scheduler(cluster: ScheduledCluster,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(cluster, monkeypatch)
    monkeypatch.setattr(scheduler_process, "check_result", lambda situation, result: result.plans)
    cluster.windows(1)
    assert not cluster.loop.asking
    decision = cluster.loop.generator.decisions[-1]
    assert decision.outcome == FAILED and decision.reason.startswith("its answer cannot be read: AttributeError")


def test_an_answer_on_which_nothing_can_be_decided_is_reported_once(cluster: ScheduledCluster,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(cluster, monkeypatch)
    monkeypatch.setattr(ScheduleGenerator, "decide", fail)
    for _ in range(3):
        cluster.loop.generator.ask()
        cluster.windows(1)
        assert not cluster.loop.asking
    assert errors(cluster) == ["deciding on the scheduler's answer failed because of an unexpected error: KeyError: '__acker'"]


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
