"""A simulation puts schedulers in the order of a real run, and the model predicts the traffic of other placements.

recorded_runs.json was recorded by `millrace bench simulation --save`. The situation is that of the even placement, so the
figures of `even` agree by themselves; those of the other runs do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.model.graph import ACKER
from millrace.model.situation import Situation
from millrace.simulation.real_runs import ALIKE, RealRun, apart, compared_runs, distinct, wrong_order

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "recorded_runs.json").read_text())
NEAR = 0.08  # of the traffic of the even placement


@pytest.fixture(scope="module")
def runs() -> list[RealRun]:
    return compared_runs(RECORD)


def named(runs: list[RealRun], name: str) -> RealRun:
    return next(run for run in runs if run.scheduler == name)


def test_the_record_has_bytes_and_the_load_of_ackers() -> None:
    load = Situation.from_json(RECORD["situation"]).load["recorded"]
    assert load.traffic_bytes.keys() == load.traffic.keys()
    assert sum(load.traffic[pair] for pair in load.traffic if ACKER in (pair[0].component, pair[1].component)) > 0
    assert any(row.cpu_mhz > 0 for task, row in load.tasks.items() if task.component == ACKER)


def test_the_load_of_one_placement_predicts_the_traffic_of_others(runs: list[RealRun]) -> None:
    even = named(runs, "even").measured
    placements = {row["scheduler"]: row["placement"] for row in RECORD["runs"]}
    assert all(placements[name] != placements["even"] for name in placements if name != "even")
    for run in runs:
        assert run.predicted == pytest.approx(run.measured, abs=NEAR * even), run


def test_schedulers_come_in_the_order_of_the_real_run(runs: list[RealRun]) -> None:
    """`otd` and `slstream` come the other way round, as near to each other as to tell little; all others are in order."""
    assert distinct(runs) >= 5 and len(apart(runs)) >= 15, runs
    assert set(wrong_order(runs)) <= {("otd", "slstream")}, runs
    assert abs(named(runs, "otd").simulated - named(runs, "slstream").simulated) < ALIKE * named(runs, "even").measured


def test_results_that_are_alike_count_once() -> None:
    runs = [RealRun("x", measured, 0.0, 0.0, 1) for measured in (100.0, 97.0, 93.0, 50.0, 45.0, 0.0)]
    assert distinct(runs) == 3 and distinct(runs[-1:]) == 1


def test_a_wrong_order_is_found() -> None:
    one, other, third = (RealRun(name, measured, measured, simulated, 1) for name, measured, simulated in (
        ("a", 100.0, 90.0), ("b", 50.0, 95.0), ("c", 45.0, 0.0)))
    assert [(less.scheduler, more.scheduler) for less, more in apart([one, other, third])] == [("c", "a"), ("b", "a")]
    assert wrong_order([one, other, third]) == [("b", "a")], "b and c are too close to be put in order"
