"""`bench elastic` on Spark executors: every run is exact and has its figures. A loop that decides once takes the place of the
engine's own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.bench.elastic import run
from millrace.spark.running_topology import RunningTopology


class OneDecision:
    """Adds tasks as soon as it is set."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, running: RunningTopology) -> None:
        self._running = running

    def set(self, model: str, **values: Any) -> dict[str, Any]:
        at, par = time.time(), {"service": 10, "count": 6}
        self._running.scale(par)
        self.made[:] = [{"at": at, "outcome": "enacted", "par": par, "expected_ms": 100.0}]
        return {}

    def off(self) -> dict[str, Any]:
        return {}

    def history(self, limit: int = 20) -> Sequence[Mapping[str, Any]]:
        return self.made


def test_changes_of_parallelism_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "keep", lambda name, result, quick: tmp_path / name)
    lengths = run.ElasticLengths(after=4.0, before=2.0, trial=2.0, period=2.0, periods=2, between=1.5)
    monkeypatch.setattr(run.ElasticLengths, "of", lambda seconds: lengths)
    result = run.run_elastic(4.0, 60_000.0, parts=["step", "sine", "rescale"], live=False, quick=True, control=OneDecision)
    assert not run.faulty_parts(result)
    [step] = result["steps"]
    assert step["decision"] == "service 6 → 10, count 4 → 6" and step["instances"] == result["instances"] == 17
    assert step["predicted_ms"] == 100.0 and step["measured_ms"] > 0
    assert result["oscillations"] == 0
    assert [(sum(trial["par"].values()), trial["met"]) for trial in result["trials"]] == [(17, True), (16, True)]
    assert result["fewest_instances"] == 16 and result["instances_over_minimum"] == 0.062  # fewer would not keep up
    assert result["sine"]["fixed"]["instances"] == result["sine"]["elastic"]["instances"] == 17
    assert result["p99_ratio_to_fixed"] > 0 and result["throughput_ratio_to_fixed"] > 0
    assert len(result["rescales"]) == len(run.CHANGES)
    assert result["key_groups_minimum"] <= result["key_groups_moved"] <= result["key_groups_minimum"] + len(run.CHANGES)
    assert all(row["longest_gap_ms"] > 0 and row["usual_gap_ms"] > 0 for row in result["rescales"])
