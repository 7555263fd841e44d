"""`bench migration` on Spark executors: quick cases of each kind are exact and have all their figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.bench.migration import run
from millrace.bench.migration.cases import WORKLOADS, MigrationCase
from millrace.bench.migration.tables import paper_tables
from millrace.workloads.dataflows.shapes import LINEAR

CASES = [MigrationCase("handover", WORKLOADS["linear-in"]), MigrationCase("dcr", WORKLOADS["linear-in"]),
         MigrationCase("nstorm", WORKLOADS["wordcount"], 1), MigrationCase("handover", WORKLOADS["notes"], state_mb=1)]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The result of all cases, which run one after the other on one cluster."""
    kept: Path = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "keep", lambda name, result, quick: kept / name)
        patch.setattr(run, "chosen_cases", lambda *_: CASES)
        yield run.run_migration(time_scale=0.02, quick=True, live=False)


def test_every_case_is_exact_and_has_a_table(result: dict[str, Any]) -> None:
    assert not run.faulty_migrations(result), result["failed"]
    assert [figures["strategy"] for figures in result["runs"]] == [case.strategy for case in CASES]
    assert [table.name for table in paper_tables(result["runs"])] == ["scale-in", "wordcount", "state-size"]
    assert all(timeline and sum(point["rows_per_s"] for point in timeline) for timeline in result["timelines"])


def test_a_dataflow_is_migrated_by_either_strategy(result: dict[str, Any]) -> None:
    handover, drained, *_ = result["runs"]
    for figures in (handover, drained):
        assert figures["moved_tasks"] == LINEAR.total_instances and figures["guarantee"] == "exactly-once"
        assert (figures["lost"], figures["repeated"], figures["replayed"], figures["arrived_again"]) == (0, 0, 0, 0)
        assert figures["longest_gap_ms"] > 0 and figures["peak_latency_ms"] > 0 and figures["missing_s"] is not None
    assert not handover["new_pids"] and drained["new_pids"]
    assert handover["rebalance_ms"] is None and all(drained[phase] > 0 for phase in ("drain_ms", "rebalance_ms", "restore_ms"))


def test_tasks_are_redeployed(result: dict[str, Any]) -> None:
    figures = result["runs"][2]
    assert (figures["moved_tasks"], figures["migrations"], figures["new_pids"]) == (1, run.QUICK_REDEPLOYMENTS, [])
    assert figures["guarantee"] == "at-least-once" and figures["bytes_moved"] is None
    assert figures["parameters"] == pytest.approx({"supervisor_cycle": 0.2, "worker_cycle": 0.06})


def test_keyed_state_is_moved(result: dict[str, Any]) -> None:
    figures = result["runs"][3]
    assert figures["state_mb"] == 1 and figures["bytes_moved"] > 1_000_000 and figures["pause_ms"] is not None
