"""The page of figures: tables from results, and the aims."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.bench import page
from millrace.bench.wordcount import RATIOS
from millrace.bench.wordcount_rows import GROUPS, ROWS
from millrace.checkout import project_root
from millrace.errors import MillraceError

AT = {"at": 0.0, "machine": {"cores": 2, "python": "3.11", "load_average": 0.5}}
WORDCOUNT = {
    **AT, "rule": {"warm_up_seconds": 5.0, "window_seconds": 4.0, "best_of": 3},
    "rows": [{"name": row.name, "group": row.group, "engine": row.engine, "version": "1", "how": row.how, "setting": "set",
              "words_per_s": 1234567.8, "trials": [{"batch_lines": size, "words_per_s": 5.0} for size in row.sizes[1:]],
              "batch_lines": row.sizes[0], "search_ended": "it was slower"} for row in ROWS],
    "seconds": 90.0,
    "ratios": {name: 1.5 for name in RATIOS}, "latency_ms": {"process": {"p50": 0.5, "p99": 2.0}},
    "hop_us": {"inside_a_worker": {"p50": 40.0, "p99": 200.0}}}
COMPARED = {"tuples_in": 10, "tuples_out": 10, "words": 5, "lost": 0, "repeated": 0, "wrong": 0, "beyond": 0, "torn_bytes": 0,
            "counts_wrong": 0, "counts_less": 0}
FAULTS: dict[str, Any] = {
    **AT, **COMPARED, "stuck": None, "minutes": 2.0, "seconds": 150.0, "seed": 1, "seeds": [1, 2, 7],
    "kinds_without_effect": ["driver overtaken"],
    "engine": "resident", "guarantee": "exactly-once", "rate": 800, "saturation": 1000, "faults": {"worker killed": 3},
    "without_effect": {"worker killed": 1}, "recovery_ms": {"worker killed": 1500},
    "kinds": {"worker killed": {"n": 3, "gap_p50_ms": 700, "gap_max_ms": 900, "recovery_p50_ms": 1400},
              "driver overtaken": {"n": 0, "gap_p50_ms": None, "gap_max_ms": None, "recovery_p50_ms": None}},
    "drivers": {"compared": COMPARED, "no_takeover": "", "overtaken_ended_ms": 1200, "rate": 400},
    "backpressure_error": None,
    "wave_under_backpressure_ms": {"1": 800.4, "10": 900}, "latency_under_backpressure_ms": {
        "1": {"p50": 500.0, "p99": 1000.0}, "10": {"p50": 700.0, "p99": 1200.0}},
    "longest_gap_ms": 2500, "longest_uncommitted_ms": 3500}
STATE = {**AT, "shape": [7, 3], "encode_mb_s": 1000, "decode_mb_s": 400, "wave_cost": 0.05, "skipped": {"redis": "no Redis"},
         "restore_s": {"2": {"fragments": 0.5, "redis": None, "directory": 0.4}},
         "restore_instances_s": {"1": {"fragments": 0.1, "redis": None, "directory": 0.2}}}
ENGINES = {**AT, "skew_batch_ratio": 0.7, "rescale": {}, "details": {
    "rescale": {"gaps": {"microbatch_first_gap_ms": 9, "microbatch_gap_ms": 1, "microbatch_usual_ms": 4, "spark_usual_ms": 5,
                         "spark_restart_first_gap_ms": 8, "spark_restart_gap_ms": 7}},
    "skew": {"cases": [{"zipf": 1.5, "hashed": 0.76, "rebalanced": 0.5, "hashed_by_spark": 0.66, "before_ms": 1700,
                        "after_ms": 1100, "skew_batch_ratio": 0.7}]}}}
MEMORY = {**AT, "minutes": 1.0, "processed": 50_000, "second_third_max_mb": 200.0, "last_third_max_mb": 250.0, "samples_mb": []}
COMPARE = {"instances": 10, "seed": 1, "zero_optimum": 3, "unknown_optimum": 0, "common": 5, "schedulers": {
    name: {"mean_ratio": ratio, "worst_ratio": 2.0, "compared": 7, "overloaded": 0, "common_ratio": None}
    for name, ratio in (("optimal", 1.0), ("tstorm", 1.02), ("even", None))}}
SCHEDULER = {**AT, "compare": COMPARE, "sizes": [{"tasks": 100, "slots": 10, "scheduler": "tstorm", "seconds": 0.1},
                             {"tasks": 10_000, "slots": 1000, "scheduler": "tstorm", "seconds": 2.5}]}
SIMULATION = {**AT, "wrong_order": [["tstorm", "otd"]],
              "runs": [{"scheduler": "otd", "measured": 1500.0, "predicted": 1400.0, "simulated": 300.0, "plans": 7}]}
REPLANNING = {**AT, "slots": 4, "before": {"inter_node_share": 0.25, "largest_worker_load": 0.4}, "tuples_in": 10,
              "tuples_out": 9, "lost": 1, "repeated": 0, "wrong": 0}
HANDED_OVER: dict[str, Any] = {
    "strategy": "handover", "moved_tasks": 16, "moved_groups": 0, "state_mb": 100, "guarantee": "exactly-once", "lost": 0,
    "repeated": 0, "replayed": 0, "longest_gap_ms": 130, "usual_gap_ms": 20, "pause_ms": 12.5, "throughput_ratio": 0.98,
    "p99_before_ms": 9.5, "p99_during_ms": 40.0, "precopied_bytes": 100_000_000, "delta_bytes": 5000,
    "staying_groups": None}
HANDOVER: dict[str, Any] = {
    **AT, "share": 0.8, "saturation": {"2": 50_000, "16": 30_000}, "seconds_before": 5.0, "seconds": 600.0, "failed": {},
    "pause_to_rollback": 0.04, "timelines": [], "runs": [
        {**HANDED_OVER, "moved_tasks": 1, "longest_gap_ms": 40, "p99_during_ms": None}, HANDED_OVER,
        {**HANDED_OVER, "strategy": "rollback", "lost": 5, "throughput_ratio": 0.3}]}
MIGRATED: dict[str, Any] = {
    "strategy": "ccr", "variant": "", "workload": "grid-in", "moved_tasks": 21, "state_mb": 0, "lost": 0, "repeated": 0,
    "replayed": 0, "drain_ms": 400.0, "rebalance_ms": 900.0, "restore_ms": 1500.0, "catchup_ms": 1700.0, "recovery_ms": None,
    "stabilise_ms": 8000.0}
MIGRATION: dict[str, Any] = {
    **AT, "time_scale": 0.1, "seconds": 3000.0, "failed": {"dsm on star-in": "no luck"}, "timelines": [], "paper": [],
    "runs": [MIGRATED, {**MIGRATED, "strategy": "dsm", "restore_ms": 9000.0}],
    "ratios": {"dcr_ccr_lost_or_replayed": 0, "handover_to_best_other": 1.2},
    "compared": {"ccr_capture_to_dcr_drain_linear50": None, "ccr_restore_to_dsm_grid": [1500.0, 9000.0]},
    "handover_standing": [{"workload": "grid-in", "ratio": 1.2, "column": "catchup_ms", "strategy": "layered",
                           "moved_tasks": 21, "state_mb": 0, "handover": 1200.0, "other": 1000.0}]}
ELASTIC = {
    **AT, "model": "erstream", "t_max_ms": 200.0, "watched_s": 120.0, "lost": 0, "repeated": 0, "seconds": 900.0, "failed": {},
    "steps": [{"at_s": 63.5, "decision": "service 6 → 14", "predicted_ms": 170.0, "measured_ms": 181.3, "instances": 22}],
    "decisions": 1, "recovered_s": 8.0, "share_over_t_max": 0.0, "oscillations": 0, "instances": 22, "fewest_instances": 21,
    "instances_over_minimum": 0.048, "longest_gap_ms": 120, "usual_gap_ms": 60, "sine": None, "p99_ratio_to_fixed": 0.45,
    "throughput_ratio_to_fixed": 1.0, "rescales": [], "gaps": []}
RESULTS: dict[str, dict[str, Any]] = {
    "wordcount": WORDCOUNT, "engines": ENGINES, "memory": MEMORY, "scheduler": SCHEDULER, "simulation": SIMULATION,
    "replanning": REPLANNING, "state": STATE, "handover": HANDOVER, "migration": MIGRATION, "elastic": ELASTIC,
    **dict.fromkeys(page.FAULTS, FAULTS)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the real page, the real README and one result of each benchmark."""
    (tmp_path / "docs").mkdir()
    (tmp_path / page.PAGE).write_text((project_root() / page.PAGE).read_text())
    (tmp_path / page.README).write_text((project_root() / page.README).read_text())
    (tmp_path / page.RESULTS).mkdir()
    for name, result in RESULTS.items():
        (tmp_path / page.RESULTS / f"{name}-20260101-120000.json").write_text(json.dumps(result))
    return tmp_path


def test_every_aim_of_the_word_count_finds_its_figure():
    assert [aim.text for aim in page.ALL_AIMS if aim.result == "wordcount" and aim.value(WORDCOUNT) is None] == []


def test_every_result_has_its_place_on_the_page(root: Path) -> None:
    assert set(RESULTS) == set(page.TABLES)
    assert set(page.run_page([], root)) == set(RESULTS)
    text = (root / page.PAGE).read_text()
    for expected in ("| 1,234,568 |", "**Checkpointed.**", "no Redis", "| 1.5 | 76% |",
                     "| `tstorm` | 0.100 | 2.500 |", "| `tstorm` | 1.020 | 2.00 | 7 |", "1 lost",
                     "20,000: 5, 80,000: 5, 320,000: 5 | 5,000 | it was slower |", "`microbatch` (200,000)",
                     "2.5 minutes of faults with seeds 1, 2 and 7, then those of the driver. Each kind had an effect, except "
                     "for: driver overtaken.\n", "800 lines/s of 1,000 at most, 400 with faults of the driver;",
                     "an overtaken driver ended 1.2 s after the start of the second.\n",
                     "| worker killed | 3 | 1 | 0.7 | 0.9 | 1.4 |", "| driver overtaken | 0 | 0 |  |  |  |",
                     "| 1 | 800 | 500 | 1,000 |", "| `otd` | 1,500 | 1,400 | 300 |",
                     "| 63.5 | service 6 → 14 | 22 | 170 | 181.3 |", "took 1.5 minutes"):
        assert expected in text, expected


def test_the_readme_has_rows_by_guarantee_with_their_latency(root: Path) -> None:
    page.run_page([], root)
    text = (root / page.README).read_text()
    lines = text.partition("<!-- figures: comparison -->")[2].partition("<!-- end: comparison -->")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert len(cells) == len(page.SHOWN)
    assert list(dict.fromkeys(row[0] for row in cells)) == list(GROUPS)
    assert [row[0] for row in cells] == sorted((row[0] for row in cells), key=list(GROUPS).index)
    assert cells[0][3:] == ["1.23 M", "0.50 / 2.00 ms"] and cells[1][4] == "not measured"


def test_the_readme_shows_every_row_with_a_latency_run() -> None:
    assert {row.name for row in ROWS if row.latency} <= set(page.SHOWN) <= {row.name for row in ROWS}


def test_pages_have_the_figures_of_the_results_beside_them() -> None:
    root = project_root()
    if not (root / page.COPIES).is_dir():
        pytest.skip("no results yet: run the benchmarks, then millrace bench page")
    for path, text in page.pages_of(root, page.copies_in(root)).items():
        assert (root / path).read_text() == text, f"{path} differs from docs/benchmarks/*.json: run millrace bench page"


def test_pages_made_from_the_copies_are_those_that_were_written(root: Path) -> None:
    page.run_page([], root)
    assert page.pages_of(root, page.copies_in(root)) == {path: (root / path).read_text() for path in (page.PAGE, page.README)}


def test_aims_are_met_or_missed(root: Path) -> None:
    page.run_page([], root)
    rows = [line for line in (root / page.PAGE).read_text().splitlines() if line.startswith("| ")]
    lines = {row.split(" | ")[0].lstrip("| "): row for row in rows}
    assert lines["erasure code: MB/s to cut"].endswith("| 1,000 | at least 500 | met |")
    assert lines["erasure code: MB/s to rebuild"].endswith("| 400 | at least 500 | **missed** |")
    assert lines["largest state: fragments to Redis, seconds"].endswith("|  | at most 0.7 | not measured |")
    assert lines["`tstorm`, 10,000 tasks: seconds to plan"].endswith("| 2.5 | at most 0.5 | **missed** |")
    assert lines["best scheduler: mean ratio to the optimum"].endswith("| 1.02 | at most 1.01 | **missed** |")


def test_hand_over_is_judged_by_its_worst_run(root: Path) -> None:
    page.run_page([], root)
    text = (root / page.PAGE).read_text()
    for expected in ("80% of the highest rate: 50,000 lines/s with 2 tasks of each bolt, 30,000 lines/s with 16 tasks",
                     "| handover | 16 | 0 | 100 | 0 | 0 | 0 | 130 | 20 | 12.5 | 0.98 | 9.5 | 40 | 100,000,000 | 5,000 |",
                     "| hand-over: words lost or repeated | 0 | at most 0 | met |",
                     "| hand-over: ms of the longest gap at the sinks over the usual one | 110 | at most 100 | **missed** |",
                     "| hand-over: throughput during the move to before | 0.98 | at least 0.95 | met |",
                     "| hand-over: ms of the p99 latency during the move over before | 30.5 | at most 100 | met |",
                     "| hand-over: pause of a task with the largest state to that of a roll-back | 0.04 | at most 0.1 | met |"):
        assert expected in text, expected


def test_a_hand_over_that_failed_meets_no_aim(root: Path) -> None:
    failed = {**HANDOVER, "failed": {"handover, 1 task stateless": "not done"}, "pause_to_rollback": None}
    (root / page.RESULTS / "handover-20260103-120000.json").write_text(json.dumps(failed))
    page.run_page([], root)
    text = (root / page.PAGE).read_text()
    assert "**Not measured, because they failed:** handover, 1 task stateless.\n" in text
    assert "| hand-over: throughput during the move to before | -inf | at least 0.95 | **missed** |" in text
    assert "| hand-over: words lost or repeated | inf | at most 0 | **missed** |" in text


def test_figures_can_be_written_again_and_one_by_one(root: Path) -> None:
    page.run_page([], root)
    text = (root / page.PAGE).read_text()
    assert page.run_page([str(root / page.RESULTS / "memory-20260101-120000.json")], root) == ["memory"]
    assert (root / page.PAGE).read_text() == text
    assert json.loads((root / page.COPIES / "memory.json").read_text()) == MEMORY


def test_the_newest_result_of_a_kind_is_used(root: Path) -> None:
    newer = root / page.RESULTS / "memory-20260102-120000.json"
    newer.write_text(json.dumps({**MEMORY, "processed": 777}))
    os.utime(newer, (0, 0))  # the time in the name decides
    page.run_page([], root)
    assert "| 777 |" in (root / page.PAGE).read_text()


def test_a_run_that_got_stuck_is_shown_as_such(root: Path) -> None:
    stuck = root / page.RESULTS / "faults-exactly-once-20260103-120000.json"
    stuck.write_text(json.dumps({**AT, "stuck": "no wave was committed\nevents"}))
    page.run_page([], root)
    text = (root / page.PAGE).read_text()
    assert "**The run got stuck:** no wave was committed\n" in text
    assert "| words lost, repeated, torn or wrong, and wrong counts: exactly once | inf | at most 0 | **missed** |" in text


def test_a_run_of_one_seed_and_without_a_takeover() -> None:
    kinds = {"worker killed": FAULTS["kinds"]["worker killed"]}
    drivers = {**FAULTS["drivers"], "no_takeover": "there is no Redis.", "overtaken_ended_ms": None}
    text = "\n".join(page.faults_tables({**FAULTS, "seeds": [3], "kinds": kinds, "drivers": drivers}))
    assert "faults with seed 3, then those of the driver. Each kind had an effect.\n" in text
    assert " s; there is no Redis.\n" in text


def test_a_slow_sink_that_could_not_be_measured_is_shown_as_such() -> None:
    result = {**FAULTS, "wave_under_backpressure_ms": None, "latency_under_backpressure_ms": None,
              "backpressure_error": "no wave was committed in 120 s"}
    assert page.backpressure_table(result) == ["", "**Not measured before a slow sink:** no wave was committed in 120 s"]


def test_unknown_results_and_missing_marks_are_refused(root: Path) -> None:
    with pytest.raises(MillraceError, match=r"no table for 'speed'.*wordcount"):
        page.run_page([str(root / "speed-20260101-120000.json")], root)
    (root / page.PAGE).write_text("# Benchmarks\n")
    with pytest.raises(MillraceError, match="figures: memory"):
        page.run_page([str(root / page.RESULTS / "memory-20260101-120000.json")], root)


def test_without_results_the_error_names_a_command(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="millrace bench wordcount"):
        page.newest(tmp_path)


def test_the_page_has_the_worst_column_of_hand_over() -> None:
    assert "| grid-in | 21 |  | catchup_ms | 1,200 | 1,000 | layered | 1.2 |" in page.migration_tables(MIGRATION)
    [row] = [row for row in page.aims_table(RESULTS) if "in its worst column" in row]
    assert row.endswith("| 1.2 | at most 1 | **missed** |")
