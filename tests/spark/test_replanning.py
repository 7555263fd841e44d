"""Schedulers on Spark: two executors are two nodes, tasks move between them, and algorithms are swapped at run time."""

from __future__ import annotations

import pytest

from millrace.bench import replanning
from millrace.bench.replanning import SWAPS, run_replanning


@pytest.mark.slow
def test_otd_lowers_the_traffic_between_nodes_and_swapping_algorithms_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanning, "WINDOW_SECONDS", 0.5)
    result = run_replanning(seconds=1.5, rate=300, live=False)
    assert result["otd"]["moves"] >= 1
    assert result["otd"]["inter_node_share"] < result["before"]["inter_node_share"]
    assert sum(result[f"then {name}"]["plans"] for name in SWAPS) >= 1
    assert result["tuples_in"] > 0 and (result["lost"], result["wrong"]) == (0, 0)
