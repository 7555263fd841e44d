"""Hand-over against the other strategies, in every column of `bench migration`."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.bench.migration.ratios import ratios_of
from millrace.bench.migration.standing import columns_of, worst_of_handover
from millrace.bench.page import ALL_AIMS

EQUAL: dict[str, Any] = {
    "variant": "", "moved_tasks": 21, "state_mb": 0, "migrations": 1, "lost": 0, "repeated": 0, "replayed": 0,
    "arrived_again": 0, "drain_ms": None, "rebalance_ms": None, "restore_ms": None, "catchup_ms": 500.0, "recovery_ms": None,
    "stabilise_ms": 0.0, "longest_gap_ms": 200.0, "peak_latency_ms": 600.0, "pause_ms": 12.0, "throughput_ratio": 1.0,
    "missing_s": 0.0, "period_s": 10.0, "degraded_s": {level: 0.0 for level in ("20", "40", "60", "80", "100")},
    "bytes_moved": 1000}


def run(strategy: str, workload: str = "grid-in", **changes: Any) -> dict[str, Any]:
    return {**EQUAL, "strategy": strategy, "workload": workload, **changes}


def standing(ours: dict[str, Any], **theirs: Any) -> tuple[float, str, str]:
    """The worst ratio against one other strategy, with its column and that strategy."""
    [found] = worst_of_handover([run("handover", **ours), run("dcr", **theirs)])
    return found.ratio, found.column, found.strategy


def test_equal_strategies() -> None:
    assert standing({})[0] == 1.0


@pytest.mark.parametrize(("ours", "theirs", "ratio", "column"), [
    ({"longest_gap_ms": 250.0}, {"longest_gap_ms": 200.0}, 1.0, None),  # a gap is known to 50 ms
    ({"longest_gap_ms": 260.0}, {"longest_gap_ms": 200.0}, 1.3, "longest_gap_ms"),
    ({"stabilise_ms": 500.0}, {"stabilise_ms": 0.0}, 10.0, "stabilise_ms"),
    ({"lost": 1}, {"lost": 0}, 2.0, "lost"), ({"replayed": 6}, {"replayed": 2}, 3.0, "replayed"),
    ({"throughput_ratio": 0.5}, {"throughput_ratio": 1.0}, 2.0, "throughput_ratio"),
    ({"throughput_ratio": 0.97}, {"throughput_ratio": 1.0}, 1.0, None),
    ({"missing_s": 1.0}, {"missing_s": 0.0}, 1.0, None),  # one slice of a stream with 8 events in a second
    ({"missing_s": 3.0}, {"missing_s": 0.0}, 3.0, "missing_s"),
    ({"degraded_s": {"20": 5.0}}, {"degraded_s": {"20": 2.0}}, 2.5, "degraded_20_s"),
    ({"bytes_moved": 2000}, {"bytes_moved": 1000}, 2.0, "bytes_moved"),
    ({"bytes_moved": 2000}, {"bytes_moved": None, "pause_ms": None}, 1.0, None)])  # whose bytes nobody has counted
def test_the_worst_column(ours: dict[str, Any], theirs: dict[str, Any], ratio: float, column: str | None) -> None:
    found = standing(ours, **theirs)
    assert found[0] == pytest.approx(ratio) and column in (None, found[1])


def test_a_column_that_one_of_them_does_not_have_is_no_worse() -> None:
    assert standing({"catchup_ms": None, "throughput_ratio": None}, restore_ms=5.0)[0] == 1.0
    assert standing({"catchup_ms": 5000.0}, catchup_ms=None)[0] == 1.0


def test_hand_over_that_never_became_stable_is_worse() -> None:
    assert standing({"stabilise_ms": None}, stabilise_ms=2000.0) == (5.0, "stabilise_ms", "dcr")
    redeployed = [run(strategy, "wordcount", stabilise_ms=None) for strategy in ("handover", "nstorm")]
    assert worst_of_handover(redeployed)[0].ratio == 1.0


def test_only_runs_that_differ_in_the_strategy_alone_are_compared() -> None:
    runs = [run("handover", "wordcount", moved_tasks=16, longest_gap_ms=400.0),
            run("nstorm", "wordcount", moved_tasks=1, longest_gap_ms=100.0),
            run("nstorm", "wordcount", moved_tasks=16, longest_gap_ms=300.0),
            run("storm", "wordcount", moved_tasks=16, longest_gap_ms=9000.0),
            run("handover", "notes", state_mb=1), run("layered", "notes", state_mb=10, longest_gap_ms=1.0)]
    [found] = worst_of_handover(runs)
    assert found.to_json() == {"workload": "wordcount", "ratio": 1.333, "column": "longest_gap_ms", "strategy": "nstorm",
                               "moved_tasks": 16, "state_mb": 0, "handover": 400.0, "other": 300.0}
    assert str(found) == "wordcount: 1.333 in longest_gap_ms, 400 to 300 by nstorm with 16 tasks moved"


def test_the_aim_is_met_if_no_column_of_any_workload_is_worse() -> None:
    [aim] = [aim for aim in ALL_AIMS if "its worst column" in aim.text]
    star, grid = [run("handover", "star-in"), run("ccr", "star-in")], [run("handover"), run("ccr", lost=5, catchup_ms=100.0)]
    for runs, failed, figure in ((star, {}, 1.0), (star + grid, {}, 5.0), ([], {}, None),
                                 (star, {"handover on grid-in": "no luck"}, float("inf"))):
        value = aim.value({"ratios": ratios_of(runs), "failed": failed})
        assert value == figure and (value is None or aim.is_met(value) == (figure == 1.0))
    assert ratios_of(star + grid)["handover_to_best_other_star-in"] == 1.0


def test_every_column_of_a_run_is_compared() -> None:
    compared = {column.name for column in columns_of("grid-in")}
    described = {"strategy", "variant", "workload", "moved_tasks", "state_mb", "migrations", "period_s", "degraded_s"}
    assert compared == EQUAL.keys() - described | {f"degraded_{level}_s" for level in EQUAL["degraded_s"]}
