"""The benchmark of the schedulers."""

from __future__ import annotations

from millrace.bench.page import scheduler_tables
from millrace.bench.scheduler import LARGEST, SIZES, measured
from millrace.schedulers.registry import SCHEDULERS


def test_figures_of_one_scheduler() -> None:
    figures = measured("multilevel", 60, 8)
    assert set(figures) == {"seconds", "inter_node", "moved", "input_mb", "peak_mb"}
    assert 0 < figures["inter_node"] < measured("even", 60, 8)["inter_node"]
    assert figures["peak_mb"] >= figures["input_mb"] > 0 and figures["moved"] > 0


def test_the_largest_size_is_run_and_only_schedulers_that_exist_have_limits() -> None:
    assert set(LARGEST) <= set(SCHEDULERS) and LARGEST["multilevel"] == max(tasks for tasks, _ in SIZES)


def test_the_page_has_a_table_for_each_figure() -> None:
    row = {"tasks": 100, "slots": 10, "scheduler": "multilevel", **measured("multilevel", 60, 8)}
    lines = scheduler_tables({"sizes": [row], "compare": None})
    assert [line for line in lines if "100 tasks, 10 slots" in line] == [
        f"| {title} | 100 tasks, 10 slots |" for title in ("seconds to plan", "tuples/s between nodes", "peak memory, MB")]
