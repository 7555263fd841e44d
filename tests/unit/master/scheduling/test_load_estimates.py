"""Estimates of all topologies: those of a new estimator, of the last run, and of an estimator that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.control.events import Say
from millrace.control.scheduling.load_smoothing import make_estimator
from millrace.master.scheduling.estimates import UNSMOOTHED, EstimatorChoice, LoadEstimates
from millrace.model.graph import TaskId
from millrace.model.load import Load, TaskLoad

TASK = TaskId("a", 0)


def load(mhz: float) -> Load:
    return Load(1.0, {TASK: TaskLoad(cpu_mhz=mhz)})


def estimate(estimates: LoadEstimates, mhz: float) -> float:
    return estimates.add({"t": load(mhz)})["t"].tasks[TASK].cpu_mhz


@dataclass(frozen=True)
class FailingParameters:
    def fresh(self) -> Any:
        return self

    def add(self, load: Load) -> Load:
        raise ZeroDivisionError


def test_another_estimator_begins_with_the_last_windows() -> None:
    estimates = LoadEstimates([].append)
    for _ in range(5):
        estimate(estimates, 100.0)
    estimates.use(EstimatorChoice("trimmed-mean", make_estimator("trimmed-mean")))
    assert estimate(estimates, 900.0) == 100.0
    estimates.add({})
    assert estimate(estimates, 900.0) == 900.0, "a topology that was gone for a window begins anew"


def test_the_windows_of_the_last_run_are_kept_when_the_estimator_changes() -> None:
    estimates = LoadEstimates([].append)
    assert estimates.recall("t", []) is None
    recalled = estimates.recall("t", [load(100.0)] * 5)
    assert recalled is not None and recalled.tasks[TASK].cpu_mhz == 100.0
    estimates.use(EstimatorChoice("trimmed-mean", make_estimator("trimmed-mean")))
    assert estimate(estimates, 900.0) == 100.0


def test_an_estimator_that_fails_at_the_last_run_is_not_used() -> None:
    said: list[Say] = []
    estimates = LoadEstimates(said.append)
    estimates.use(EstimatorChoice("theirs:Own", FailingParameters()))
    assert estimates.recall("t", [load(100.0), load(200.0)]) == load(200.0)
    assert estimates.choice.name == UNSMOOTHED and "theirs:Own failed (ZeroDivisionError" in said[0].text
