"""The benchmark of the schedulers."""

from __future__ import annotations

import pytest

from millrace.bench.aims import SCHEDULER_AIMS
from millrace.bench.page import scheduler_tables
from millrace.bench.scheduler import LARGEST, SIZES, measured, simulated
from millrace.control.scheduling.plan_acceptance import Thresholds
from millrace.schedulers.registry import SCHEDULERS


def test_figures_of_one_scheduler() -> None:
    figures = measured("multilevel", 60, 8)
    assert set(figures) == {"seconds", "inter_node", "moved", "plans", "input_mb", "peak_mb"}
    assert 0 < figures["inter_node"] < measured("even", 60, 8)["inter_node"]
    assert figures["peak_mb"] >= figures["input_mb"] > 0 and figures["moved"] > 0


def test_a_plan_that_is_refused_leaves_its_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    enacted, even = measured("multilevel", 60, 8), measured("even", 60, 8)
    assert enacted["plans"] > 0 == even["plans"]
    monkeypatch.setattr(Thresholds, "gains", lambda *_: False)
    refused = measured("multilevel", 60, 8)
    assert (refused["inter_node"], refused["plans"], refused["moved"]) == (even["inter_node"], 0, 0)


def test_the_largest_size_is_run_and_only_schedulers_that_exist_have_limits() -> None:
    assert set(LARGEST) <= set(SCHEDULERS) and LARGEST["multilevel"] == max(tasks for tasks, _ in SIZES)


def test_the_page_has_a_table_for_each_figure() -> None:
    row = {"tasks": 100, "slots": 10, "scheduler": "multilevel", **measured("multilevel", 60, 8)}
    lines = scheduler_tables({"sizes": [row], "compare": None})
    assert [line for line in lines if "100 tasks, 10 slots" in line] == [
        f"| {title} | 100 tasks, 10 slots |" for title in ("seconds to plan", "tuples/s between nodes", "peak memory, MB")]


def test_a_simulation_reports_every_hour_and_its_figures(capfd: pytest.CaptureFixture[str]) -> None:
    row = simulated("tstorm", 2.0, nodes=2, tasks=8)
    assert (row["scheduler"], row["nodes"], row["tasks"], row["hours"]) == ("tstorm", 2, 8, pytest.approx(2.0))
    assert row["seconds"] > 0 and row["peak_mb"] > 0
    told = " ".join(capfd.readouterr().err.split())
    assert "tstorm: 1 of 2 h simulated" in told and "tstorm: 2 of 2 h simulated" in told
    lines = scheduler_tables({"sizes": [], "simulated": [row], "compare": None})
    assert any(line.startswith("| `tstorm` | 2 | 8 | 2 |") for line in lines)


def test_aims_of_simulation_and_of_t_storm_that_may_improve() -> None:
    aims = {aim.text: aim for aim in SCHEDULER_AIMS}
    day = next(aim for text, aim in aims.items() if "24 h" in text)
    rows = [{"scheduler": name, "nodes": 1000, "tasks": 10_000, "hours": hours, "seconds": seconds}
            for name, hours, seconds in (("even", 24.0, 300.0), ("tstorm", 24.0, 500.0), ("otd", 1.0, 900.0))]
    assert day.value({"simulated": rows, "compare": None}) == 500.0 and day.is_met(500.0) and not day.is_met(601.0)
    assert day.value({"simulated": rows[2:], "compare": None}) is None is day.value({"compare": None})
    better = next(aim for text, aim in aims.items() if "improve" in text)
    assert better.value({"compare": {"schedulers": {"tstorm improve=true capacity=1": {"mean_ratio": 1.5}}}}) == 1.5
    assert better.value({"compare": None}) is None is better.value({"compare": {"schedulers": {}}})
