"""A new master of a cluster continues with what the last one has recorded: the scheduler, its settings, and the loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.control.scheduling.load_smoothing import make_estimator
from millrace.errors import StoreUnreachable
from millrace.master.load.history import History
from millrace.model.graph import ACKER, TaskId
from support.cluster.records import forget
from support.scheduling.scheduled_cluster import Flow, ScheduledCluster

CONFIG = {"limit": 1_000_000, "burst": 20, "batch": 10, "topology.chunk.tuples": 10}
WINDOWS = 4
AGAIN = ("scheduler tstorm was in use when this cluster last ran, and is again; `--scheduler` or `millrace scheduler set` "
         "names another")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def run(history: Path, scheduler: str = "", workers: int = 2, windows: int = WINDOWS, **options: Any) -> ScheduledCluster:
    """A cluster that has run the topology for some windows; its master has ended."""
    cluster = ScheduledCluster(history, workers)
    if scheduler:
        cluster.loop.choose(scheduler, options.pop("parameters", {}), options.pop("policy", {"dry_run": True}), **options)
    cluster.submit(Flow, config=CONFIG)
    cluster.windows(windows)
    cluster.end()
    return cluster


def started(history: Path, workers: int = 2, scheduler: str = "") -> ScheduledCluster:
    """The next one, in which the topology has just started."""
    cluster = ScheduledCluster(history, workers)
    if scheduler:
        cluster.loop.choose(scheduler, {}, {})
    cluster.submit(Flow, config=CONFIG)
    return cluster


def test_the_scheduler_its_parameters_and_the_policy_are_in_use_again_also_without_a_checkpoint(tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    run(history, "tstorm", parameters={"gamma": 1.3}, policy={"min_gain": 0.1, "dry_run": True}, estimator="ewma",
        estimator_parameters={"a": 0.25})
    second = started(history)
    settings = second.loop.settings()
    assert (settings["scheduler"], settings["parameters"]["gamma"]) == ("tstorm", 1.3)
    assert (settings["policy"]["min_gain"], settings["policy"]["dry_run"]) == (0.1, True)
    assert settings["estimator"] == {"name": "ewma", "parameters": {"a": 0.25}}
    assert AGAIN in second.said
    second.end()


def test_a_scheduler_that_a_user_has_named_stays(tmp_path: Path) -> None:
    run(tmp_path / "history.db", "tstorm")
    second = started(tmp_path / "history.db", scheduler="otd")
    assert second.loop.settings()["scheduler"] == "otd" and AGAIN not in second.said
    second.end()


@pytest.mark.parametrize("scheduler", ["tstorm", "slstream"])
def test_estimates_go_on_by_the_estimator_of_the_scheduler(tmp_path: Path, scheduler: str) -> None:
    """That of tstorm is the default, and slstream has another."""
    history = tmp_path / "history.db"
    first = run(history, scheduler)
    known = first.loop.load["flow"]
    second = started(history)
    assert TaskId(ACKER, 0) in second.loop.load["flow"].tasks
    assert second.loop.load["flow"].traffic == pytest.approx(dict(known.traffic))
    assert f"flow: its load is known from the last {WINDOWS} windows of the run before" in second.said
    kept = second.loop.records.open()
    assert kept is not None
    by_hand = make_estimator(second.loop.settings()["estimator"]["name"]).fresh()
    for window in kept.newest_windows("flow", WINDOWS):
        by_hand.add(window.loads["flow"])
    second.windows()
    assert second.loop.sample is not None
    expected = by_hand.add(second.loop.sample.loads["flow"])
    assert second.loop.load["flow"].traffic == pytest.approx(dict(expected.traffic))
    second.end()


def test_the_load_of_ackers_is_left_out_if_their_number_differs(tmp_path: Path) -> None:
    run(tmp_path / "history.db", workers=2)
    second = started(tmp_path / "history.db", workers=3)
    load = second.loop.load["flow"]
    assert load.tasks and load.traffic
    assert all(task.component != ACKER for task in (*load.tasks, *(task for pair in load.traffic for task in pair)))
    second.end()


def test_the_loads_of_other_tasks_are_not_taken(tmp_path: Path) -> None:
    run(tmp_path / "history.db")
    second = ScheduledCluster(tmp_path / "history.db")
    second.submit(Flow, config=CONFIG, par={"passed": 3})
    assert "flow" not in second.loop.load
    second.end()


def test_the_windows_of_the_last_run_count_as_evidence(tmp_path: Path) -> None:
    """Without them the first plan would be taken for a gain, however noisy the load is."""
    run(tmp_path / "history.db", "tstorm")
    second = started(tmp_path / "history.db")
    assert [list(window) for window in second.loop.generator._windows] == [["flow"]] * WINDOWS
    second.windows()
    assert len(second.loop.generator._windows) == WINDOWS + 1
    second.end()


@pytest.mark.parametrize(("changes", "error"), [
    ({"parameters": {"gamma": 1.3, "gone": 1}}, "scheduler 'tstorm' has no parameter 'gone'"),
    ({"policy": {"gone": 1}}, "the schedule generator has no parameter 'gone'"),
    ({"scheduler": "gone"}, "there is no scheduler named 'gone'")])
def test_a_choice_that_is_not_possible_any_more_is_reported(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    first = ScheduledCluster(tmp_path / "history.db")
    first.loop.records.choice({"scheduler": "tstorm", "parameters": {}, "policy": {}, "estimator": None, **changes})
    first.end()
    second = started(tmp_path / "history.db")
    assert second.loop.settings()["scheduler"] == "off"
    [said] = [event for event in second.events if "when this cluster last ran" in event.text]
    assert said.level == "warning" and f"and is not now: {error}" in said.text
    second.end()


def test_a_topology_starts_although_the_history_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "history.db", "tstorm")

    def unreachable(*arguments: Any) -> Any:
        raise StoreUnreachable("it does not answer")

    monkeypatch.setattr(History, "choice", unreachable)
    second = started(tmp_path / "history.db")
    assert second.loop.settings()["scheduler"] == "off" and second.master.topologies["flow"].places
    second.end()
