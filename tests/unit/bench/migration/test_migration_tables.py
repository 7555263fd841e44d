"""Figures, tables, report and command of `bench migration`."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace.bench.handover.timetable import Timetable
from millrace.bench.migration import published as published_module
from millrace.bench.migration import run as bench
from millrace.bench.migration import tables
from millrace.bench.migration.arrivals import LoggedArrivals, row_key
from millrace.bench.migration.cases import PAPERS_DELAYS, SAME_CYCLES, WORKLOADS, MigrationCase
from millrace.bench.migration.driving import faulty
from millrace.bench.migration.figures import MigrationSpan, figure_of, migration_figures
from millrace.bench.migration.published import ALL_DATAFLOWS, PUBLISHED, STORM_HERE, published
from millrace.bench.migration.ratios import RunIndex, pairs_of, ratio_text, ratios_of
from millrace.bench.migration.report import check_report, panels_of, write_report
from millrace.bench.migration.standing import worst_of_handover
from millrace.bench.migration.tables import markdown_table, paper_tables, published_rows, terminal_table
from millrace.bench.page import ALL_AIMS, aims_table
from millrace.cli.main import app
from millrace.control.strategies.catalogue import STRATEGIES
from millrace.errors import MillraceError
from millrace.workloads.audit import AuditResult

KEYS = {"strategy", "workload", "moved_tasks", "state_mb", "guarantee", "new_pids", "lost", "replayed", "repeated", "drain_ms",
        "rebalance_ms", "restore_ms", "catchup_ms", "recovery_ms", "stabilise_ms", "longest_gap_ms", "usual_gap_ms",
        "throughput_ratio", "degraded_s", "peak_latency_ms", "bytes_moved"}
SPAN = MigrationSpan(100.0, ((104.0, 105.5),), 115.0)
SEVERAL = MigrationSpan(100.0, ((104.0, 105.5), (107.0, 107.5), (109.0, 110.5), (112.0, 113.0)), 115.0)
TIMELINE = [{"at_ms": at, "rows_per_s": 100.0 if at else 0.0, "mean_ms": 5.0 if at else None} for at in range(-1000, 2000, 250)]


def record(**changes: Any) -> dict[str, Any]:
    moved = [{"task": "t1[0]", "pause_ms": 12.0, "precopied_bytes": 100, "delta_bytes": 5},
             {"task": "t2[0]", "pause_ms": None, "precopied_bytes": 0, "delta_bytes": 0}]
    return {"id": 1, "replayed": 3, "moved": moved, "phases_ms": {"arm": 1.0, "switch": 2.0, "done": 1500.0}, "drain_ms": 40.0,
            "rebalance_ms": 900.0, "restore_ms": 1100.0, "catchup_ms": None, "recovery_ms": None,
            "stabilise_ms": 1000.0, "new_pids": [7, 8], "parameters": {"drain": 2.0}, "steps_ms": [["hold", 1.0]], **changes}


def log() -> LoggedArrivals:
    """100 rows per second, except for the second after the request."""
    times = [second + number / 100 for second in range(100, 115) if second != 104 for number in range(100)]
    keys = np.array([row_key(number, 0) for number in range(len(times))], np.uint64)
    return LoggedArrivals(np.array(times), keys, Timetable(100.0, 100.0, 1, priming=0))


def figures(strategy: str = "dcr", workload: str = "linear-in", moved: int = 0, state_mb: int = 0,
            **changes: Any) -> dict[str, Any]:
    case = MigrationCase(strategy, WORKLOADS[workload], moved, state_mb)
    audited = AuditResult(1400, 1401, 0, 1, 0)
    return {**migration_figures(case, SPAN, log(), audited, [record()], moved or 5), **changes}


RUNS = [figures("dsm", "grid-in", restore_ms=9000.0, replayed=50), figures("dcr", "grid-in", restore_ms=4000.0, replayed=0),
        figures("ccr", "grid-in", restore_ms=1500.0, replayed=0), figures("handover", "grid-out", restore_ms=20.0),
        figures("dcr", "linear50-in", drain_ms=5000.0, replayed=0), figures("ccr", "linear50-in", drain_ms=600.0, replayed=0),
        figures("storm", "wordcount", 1, missing_s=10.0, period_s=20.0),
        figures("storm*", "wordcount", 1, missing_s=6.0, period_s=8.0),
        figures("nstorm", "wordcount", 1, degraded_s={"20": 1.0, "40": 0.5, "60": 0.05, "80": 0.0, "100": 0.0}),
        figures("nstorm", "wordcount", 16), figures("nstorm+", "wordcount", 16),
        figures("nstorm+", "wordcount", 16, variant=SAME_CYCLES),
        figures("nstorm", "wordcount", 1, variant=PAPERS_DELAYS, period_s=60.0), figures("handover", "notes", 0, 100)]
BESIDE = figures("dcr", "grid-out", longest_gap_ms=500.0)  # which hand-over is worse than
RESULT: dict[str, Any] = {"master": "local-cluster[2,5,700]", "slots": 9, "time_scale": 0.1, "seconds": 60.0, "runs": RUNS,
                          "timelines": [TIMELINE] * len(RUNS), "failed": {"ccr on star-in": "no luck\nlast events:"},
                          "paper": [figure.to_json() for figure in PUBLISHED], "compared": pairs_of(RUNS),
                          "ratios": ratios_of(RUNS),
                          "handover_standing": [each.to_json() for each in worst_of_handover([*RUNS, BESIDE])]}


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_run_has_all_figures() -> None:
    run = figures()
    assert run.keys() >= KEYS and (run["lost"], run["repeated"], run["replayed"], run["arrived_again"]) == (0, 1, 3, 0)
    assert (run["drain_ms"], run["restore_ms"], run["catchup_ms"]) == (40.0, 1100.0, None)
    assert run["new_pids"] == [7, 8] and run["bytes_moved"] == 105 and run["pause_ms"] == 12.0 and run["moved_tasks"] == 5
    assert run["longest_gap_ms"] == pytest.approx(1010, abs=1) and run["usual_gap_ms"] == pytest.approx(10, abs=1)
    assert run["throughput_ratio"] == pytest.approx(1 / 3, abs=0.01) and run["stabilise_ms"] == 1000.0
    assert run["missing_s"] == pytest.approx(1.0, abs=0.26) and run["period_s"] == 11.0 and run["parameters"] == {"drain": 2.0}
    assert figure_of(run, "degraded_100_s") == run["degraded_s"]["100"] == pytest.approx(1.0, abs=0.26)
    assert json.loads(json.dumps(run)) == run


def test_several_re_deployments_in_one_run() -> None:
    case = MigrationCase("nstorm", WORKLOADS["wordcount"], 4)
    records = [record(drain_ms=None, rebalance_ms=ms) for ms in (100.0, 200.0, 900.0, 200.0)]
    run = migration_figures(case, SEVERAL, log(), AuditResult(1400, 1400, 0, 0, 0), records, 4)
    assert (run["moved_tasks"], run["rebalance_ms"], run["drain_ms"], run["replayed"]) == (4, 350.0, None, 12)
    assert run["new_pids"] == [7, 8] * 4
    assert run["degraded_s"]["100"] == pytest.approx(0.25, abs=0.07) and run["stabilise_ms"] is None
    assert run["throughput_ratio"] == pytest.approx(3.5 / 4.5, abs=0.01) and run["period_s"] == 2.75
    assert run["missing_s"] == pytest.approx(0.25, abs=0.07)


def test_a_short_migration_has_no_throughput() -> None:
    """19 rows are expected in the one, 20 in the other."""
    case = MigrationCase("handover", WORKLOADS["grid-in"])
    ratios = [migration_figures(case, MigrationSpan(100.0, ((107.0, ended),), 115.0), log(), AuditResult(1, 1, 0, 0, 0),
                                [record()], 21)["throughput_ratio"] for ended in (107.19, 107.2001)]
    assert ratios[0] is None and ratios[1] == pytest.approx(1.0, abs=0.06)


def test_a_variant_has_the_name_of_its_strategy_and_is_found_only_as_a_variant() -> None:
    run = figures("nstorm+", "wordcount", 16, variant=SAME_CYCLES)
    index = RunIndex([run])
    assert run["strategy"] == "nstorm+" and index.find("nstorm+", "wordcount") is None
    assert index.find("nstorm+", "wordcount", 16, SAME_CYCLES) is run


def test_state_that_is_restored_from_a_wave_is_no_state_that_moved() -> None:
    restored = record(moved=[{"task": "t1[0]", "pause_ms": None, "precopied_bytes": 0, "delta_bytes": 0}])
    case = MigrationCase("dcr", WORKLOADS["grid-in"])
    assert migration_figures(case, SPAN, log(), AuditResult(1, 1, 0, 0, 0), [restored], 21)["bytes_moved"] is None


def test_a_record_without_phases_gives_none() -> None:
    bare = {name: value for name, value in record().items() if name not in ("drain_ms", "restore_ms", "steps_ms")}
    case = MigrationCase("handover", WORKLOADS["grid-in"])
    run = migration_figures(case, SPAN, log(), AuditResult(1, 1, 0, 0, 0), [bare], 21)
    assert run["drain_ms"] is run["restore_ms"] is None and run["steps_ms"] == [None]


def test_a_stream_that_never_came_has_no_ratios() -> None:
    empty = LoggedArrivals(np.zeros(0), np.zeros(0, np.uint64), Timetable(100.0, 100.0, 1, priming=0))
    case = MigrationCase("dcr", WORKLOADS["grid-in"])
    run = migration_figures(case, SPAN, empty, AuditResult(5, 0, 5, 0, 0), [record()], 21)
    assert run["throughput_ratio"] is run["missing_s"] is run["degraded_s"]["60"] is run["peak_latency_ms"] is None
    assert run["lost"] == 5


def test_ratios_between_strategies() -> None:
    ratios = ratios_of(RUNS)
    assert ratios["dcr_ccr_lost_or_replayed"] == 0 and ratios["ccr_capture_to_dcr_drain_linear50"] == 0.12
    assert (ratios["ccr_restore_to_dsm_grid"], ratios["dcr_restore_to_dsm"]) == (0.167, 0.444)
    assert 0 < (ratios["nstorm_degradation_to_storm*"] or 0) < 0.1 and ratios["nstorm+_degradation_to_nstorm"] == 1.0
    assert ratios["nstorm+_degradation_to_nstorm_long_cycles"] == ratios["nstorm_degradation_to_storm*_scale_1"] == 1.0
    assert ratios["ccr_restore_to_dsm_grid_scale_1"] is None
    assert ratios["ccr_capture_linear50_to_linear"] is ratios["handover_to_best_other"] is None
    assert set(ratios_of([]).values()) == set(pairs_of([]).values()) == {None}


def test_restoring_is_compared_on_the_worst_of_all_dataflows() -> None:
    runs = [*RUNS, figures("dsm", "star-in", restore_ms=1000.0), figures("ccr", "star-in", restore_ms=1200.0),
            figures("ccr", "linear-in", restore_ms=9999.0)]
    pairs = pairs_of(runs)
    assert pairs["ccr_restore_to_dsm"] == (1200.0, 1000.0) and pairs["ccr_restore_to_dsm_grid"] == (1500.0, 9000.0)


@pytest.mark.parametrize(("nstorm", "storm", "text", "met"), [
    (0.0, 0.0, "0 to 0", True), (0.5, 0.0, "0.5 to 0", False), (0.5, 10.0, "0.05", True), (1.5, 10.0, "0.15", False)])
def test_a_ratio_to_zero_is_shown_and_judged_by_both_figures(nstorm: float, storm: float, text: str, met: bool) -> None:
    runs = [figures(strategy, "wordcount", 1, degraded_s={"60": seconds}) for strategy, seconds in
            (("nstorm", nstorm), ("storm*", storm))]
    name = "nstorm_degradation_to_storm*"
    pair = pairs_of(runs)[name]
    assert pair == (nstorm, storm) and ratio_text(ratios_of(runs)[name], pair) == text
    [row] = [row for row in aims_table({"migration": {**RESULT, "compared": json.loads(json.dumps(pairs_of(runs)))}})
             if "one task: `nstorm` to `storm*`, cycles shortened" in row]
    assert row.endswith(f"| {text} | at most 0.1 | {'met' if met else '**missed**'} |")


def test_shorter_means_that_equal_is_not_enough() -> None:
    [aim] = [aim for aim in ALL_AIMS if "captures to `dcr` drains" in aim.text]
    assert aim.bound_text == "less than 1" and [aim.is_met((ours, 5.0)) for ours in (4.9, 5.0, 5.1)] == [True, False, False]
    assert not aim.is_met((0.0, 0.0))


def test_throughput_is_compared_over_the_same_time() -> None:
    """The slower run was measured for longer, and another one of its workload for even longer."""
    index = RunIndex([figures("storm", "wordcount", 1, missing_s=10.0, period_s=16.0),
                      figures("storm*", "wordcount", 1, missing_s=6.0, period_s=8.0),
                      figures("storm", "wordcount", 16, missing_s=15.0, period_s=20.0),
                      figures("dsm", "grid-in", missing_s=15.0, period_s=100.0)])
    storm, restarted, *_ = index.runs
    assert (index.share(storm), index.share(restarted)) == (0.5, 0.7)
    assert index.throughput_to("storm", restarted) == 1.4 and index.throughput_to("storm", storm) == 1.0
    assert index.throughput_to("nstorm", storm) is None
    stopped = RunIndex([figures("storm", "wordcount", 1, missing_s=20.0, period_s=20.0), restarted])
    assert stopped.throughput_to("storm", restarted) == float("inf") and stopped.throughput_to("storm", stopped.runs[0]) == 1.0
    assert "∞ (1.41)" in paper_tables(stopped.runs)[0].rows[1]


def test_time_after_a_migration_without_a_loss_does_not_change_what_is_missing() -> None:
    case, audited = MigrationCase("storm", WORKLOADS["wordcount"], 1), AuditResult(1, 1, 0, 0, 0)
    missing = [migration_figures(case, replace(SPAN, settled=until), log(), audited, [record()], 1)["missing_s"]
               for until in (108.0, 115.0)]
    assert missing[0] == pytest.approx(missing[1], abs=0.05) and missing[0] == pytest.approx(1.0, abs=0.26)


def test_runs_that_break_their_guarantee_are_faulty() -> None:
    assert faulty([figures(repeated=0), figures("nstorm", "wordcount", 1, repeated=4)]) == []
    assert faulty([figures(repeated=2), figures("nstorm", "wordcount", 1, lost=1, repeated=0)]) == [
        "dcr on linear-in: 0 lost, 2 repeated", "nstorm on wordcount: 1 lost, 0 repeated"]


# -- the papers --------------------------------------------------------------------------------------------------------


def test_published_figures_belong_to_strategies_and_workloads() -> None:
    for figure in PUBLISHED:
        assert figure.strategy.removesuffix(", wait 0") in STRATEGIES and figure.value >= 0, figure
        assert figure.workload in (*WORKLOADS, ALL_DATAFLOWS, "linear50"), figure
        entry = figure.to_json()
        assert {"table", "strategy", "workload", "metric", "value"} <= entry.keys()
        assert entry["theirs"] == entry["other_hardware"] == (figure.source != STORM_HERE)
        assert not (figure.bound and figure.about), figure
    assert len({(figure.table, figure.strategy, figure.workload, figure.metric, figure.moved_tasks) for figure in PUBLISHED}) \
        == len(PUBLISHED)


def test_bounds_and_estimates_are_marked() -> None:
    marks = {(figure.strategy, figure.workload, figure.metric): figure.mark for figure in PUBLISHED}
    assert marks["ccr", ALL_DATAFLOWS, "restore_ms"] == marks["nstorm", "wordcount", "longest_gap_ms"] == "≤"
    assert marks["dsm", "grid-in", "migration_ms"] == marks["dcr", ALL_DATAFLOWS, "rebalance_ms"] == "≈"
    assert marks["dsm", "grid-in", "restore_ms"] == ""
    values = "".join(published_rows(PUBLISHED))
    assert "| ≈220,000 |" in values and "| ≤27,000 |" in values and "| 91,000 |" in values


def test_the_figure_of_one_re_deployment_keeps_its_source_and_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    [theirs] = [of for of in PUBLISHED if (of.strategy, of.metric, of.moved_tasks) == ("nstorm", "degraded_60_s", 16)]
    monkeypatch.setattr(published_module, "PUBLISHED", [replace(theirs, bound=True)])
    one = tables._by_redeployment(figures("nstorm", "wordcount", 16), "degraded_60_s")
    assert one == replace(theirs, bound=True, value=11.8)


def test_a_figure_of_the_workload_itself_comes_before_one_of_all_dataflows() -> None:
    own, of_all = published("ccr", "grid-in", "restore_ms"), published("ccr", "star-out", "restore_ms")
    assert own is not None and own.value == 15_000 and not own.bound
    assert of_all is not None and of_all.value == 27_000 and of_all.bound
    assert published("ccr", "wordcount", "restore_ms") is None and published("handover", "grid-in", "restore_ms") is None
    assert published("nstorm", "wordcount", "degraded_60_s", 2) is None
    assert {published("nstorm", "wordcount", "degraded_60_s", moved).value for moved in (1, 16)} == {20, 118}  # type: ignore[union-attr]


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_tables_have_the_papers_figures_beside_ours() -> None:
    by_name = {table.name: table for table in paper_tables(RUNS)}
    assert list(by_name) == ["scale-in", "scale-out", "linear50", "wordcount", "state-size"]
    inward = by_name["scale-in"]
    restore = inward.header.index("restore")
    assert [row[restore] for row in inward.rows] == ["9 (91)", "4 (41)", "1.5 (15)"]
    assert inward.rows[0][inward.header.index("rebal.")] == "0.9 (≈7.26)"
    assert inward.rows[2][inward.header.index("stable")] == "1 (≤140)"
    assert "4,400 ms longer" in by_name["linear50"].note and "4,352" in by_name["linear50"].note
    words = by_name["wordcount"]
    serious, to_storm = words.header.index("60 %"), words.header.index("to storm")
    by_run = {(row[0], row[1]): row for row in words.rows}
    assert by_run["1", "nstorm"][serious] == "0.05 (2)" and by_run["1", "storm*"][to_storm] == "1.4 (1.41)"
    assert "10,200" in words.note and by_run["16", "nstorm"][to_storm] == "-"
    assert by_run["1", "nstorm (scale 1)"][serious] == "1 (2)" and by_run["16", "nstorm+ (long cycles)"][serious] == "1 (8.4)"
    assert by_run["16", "nstorm+"][serious] == "1"
    assert by_name["state-size"].rows[0][:3] == ("100", "handover", "12") and "4.4 s for 8 tasks" in by_name["state-size"].note


def test_tables_fit_the_terminal_and_markdown() -> None:
    for table in paper_tables(RUNS):
        console = Console(file=io.StringIO(), width=84)
        console.print(terminal_table(table))
        assert max(map(len, console.file.getvalue().splitlines())) <= 84  # type: ignore[attr-defined]
        lines = markdown_table(table)
        assert len(lines) == 2 + len(table.rows) and len({line.count("|") for line in lines}) == 1
    assert len(published_rows(PUBLISHED)) == 2 + len(PUBLISHED)


def test_a_panel_has_the_runs_that_differ_in_the_strategy_alone() -> None:
    by_name = {table.name: table for table in paper_tables(RUNS)}
    assert panels_of(by_name["scale-in"]) == {"dataflow grid-in": [0, 1, 2]}
    assert panels_of(by_name["wordcount"]) == {"M 1": [0, 1, 2], "M 1, scale 1": [3], "M 16": [4, 5, 6]}


def test_the_report_has_every_table_with_its_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = write_report(check_report(str(tmp_path / "new" / "report")), RESULT).read_text()
    for table in paper_tables(RUNS):
        assert f"]({table.name}.svg)" in text and markdown_table(table)[-1] in text
        assert "<svg" in (tmp_path / "new" / "report" / f"{table.name}.svg").read_text()
    assert "ccr on star-in: no luck\n" in text and "on their hardware" in text and "Shukla" in text
    assert "| grid-out | 5 |  | longest_gap_ms | 1,010 | 500 | dcr | 2.02 |" in text


def test_a_report_that_cannot_be_written_is_refused_before_the_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    with pytest.raises(MillraceError, match="cannot write there"):
        check_report(str(tmp_path / "file" / "report"))


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(engine: Any, scratch: Path, case: MigrationCase, *_: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if case.strategy == "ccr":
            raise MillraceError("no luck\nlast events: none")
        if case.strategy == "dsm":
            raise ZeroDivisionError("an unexpected one")
        return figures(case.strategy, case.workload.name, repeated=0, replayed=0), TIMELINE

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "_engine", lambda *_: nullcontext(None))
    monkeypatch.setattr(bench, "keep", lambda name, result, quick: tmp_path / name)
    outcome = CliRunner().invoke(app, ["bench", "migration", "--strategies", "dcr,ccr,dsm", "--strategies", "handover",
                                       "--workloads", "star-in", "--json", "--time-scale", "0.2"])
    result = json.loads(outcome.stdout.splitlines()[0])
    assert [run["strategy"] for run in result["runs"]] == ["dcr", "handover"] and len(result["timelines"]) == 2
    assert result["failed"] == {"ccr on star-in": "no luck\nlast events: none",
                                "dsm on star-in": "ZeroDivisionError: an unexpected one"} and result["time_scale"] == 0.2
    [standing] = result["handover_standing"]
    assert result["ratios"]["handover_to_best_other"] == result["ratios"]["handover_to_best_other_star-in"] == standing["ratio"]
    assert standing["strategy"] == "dcr" and "handover to the best of the others, at worst: star-in" in outcome.stderr
    assert len(result["paper"]) == len(PUBLISHED) and outcome.exit_code != 0
    assert bench.faulty_migrations(result) == "ccr on star-in: no luck; dsm on star-in: ZeroDivisionError: an unexpected one"
    assert "4 of 4" in outcome.stderr and "minutes left" in outcome.stderr


def test_progress_says_how_long_the_rest_takes() -> None:
    case = MigrationCase("dcr", WORKLOADS["grid-in"])
    assert bench.progress(1, 4, 2.0, case) == "1 of 4, after 2 s: dcr on grid-in ..."
    assert bench.progress(3, 4, 120.0, case) == "3 of 4, after 120 s, about 2 minutes left: dcr on grid-in ..."
