"""`bench handover` on Spark executors: every run is exact and has all its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.bench.handover import run
from millrace.control.moves import BY_HANDOVER, BY_ROLLBACK


def test_tasks_move_under_load_by_either_strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "keep", lambda name, result, quick: tmp_path / name)
    result = run.run_handover(1.0, [2], [1], live=False, quick=True)
    assert not run.faulty_runs(result), result["failed"]
    handover, rollback, groups = result["runs"]
    assert (handover["strategy"], rollback["strategy"]) == (BY_HANDOVER, BY_ROLLBACK)
    assert handover["precopied_bytes"] > 1_000_000 and handover["replayed"] == 0
    assert rollback["pause_ms"] > 0 and rollback["precopied_bytes"] == 0
    assert groups["moved_groups"] == run.GROUPS and groups["replayed"] == 0 and groups["precopied_bytes"] > 0
    assert groups["staying_groups"]["p99_during_ms"] > 0
    for figures in result["runs"]:
        assert figures["moved_tasks"] == (0 if figures is groups else 2) and figures["state_mb"] == 1
        assert figures["throughput_ratio"] > 0
        assert figures["p99_before_ms"] > 0 and figures["p99_during_ms"] > 0
    assert all(timeline and sum(window["words"] for window in timeline) for timeline in result["timelines"])
    assert result["saturation"]["2"] > 0 and result["pause_to_rollback"] is None
