"""What is made of the batches of a run, without running any."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.bench import engine_runs, engines
from millrace.bench.other_engines.run import RivalFailed, run_child
from millrace.bench.other_engines.spark_common import FASTEST, FILES_PER_BATCH, Batch, LinkedFiles
from millrace.bench.other_engines.spark_rescale import figures
from millrace.errors import MillraceError
from millrace.master.batch_log import BatchRecord
from millrace.spark.session.settings import BATCH_JAVA_OPTIONS, batch_settings


def batches(*ends: float, version: int = 1, tuples: int = 100) -> list[BatchRecord]:
    """Batches that follow each other, and end at these times."""
    return [BatchRecord(batch=number, wave=number + 1, plan_version=version, started=before, seconds=end - before,
                        tuples_in=tuples) for number, (before, end) in enumerate(pairwise((0.0, *ends)))]


def test_the_rate_is_taken_from_the_end_of_the_first_batch_to_that_of_the_last() -> None:
    assert engine_runs.lines_per_second(batches(10.0, 11.0, 12.0)) == 100


def test_a_change_of_parallelism_is_held_against_the_batches_before_it() -> None:
    records = [*batches(1, 2, 3, 4), *batches(4, 7.5, 8.5, 10.6, 11.6, version=2)[1:]]
    found = engine_runs.rescale_figures(records, version=1, asked=4.2, batches=4)
    assert found == {"longest_ms": 3500, "usual_ms": 1000, "slow_batches": 2, "batch_ms": [3500, 1000, 2100, 1000]}


def test_a_batch_that_was_under_way_when_it_was_asked_for_counts_as_well() -> None:
    records = [*batches(1, 2, 3, 6), *batches(6, 7, 8, version=2)[1:]]
    found = engine_runs.rescale_figures(records, version=1, asked=3.5, batches=2)
    assert (found["longest_ms"], found["slow_batches"]) == (3000, 0)


def test_only_batches_by_the_newest_plan_count_as_settled() -> None:
    old, between, new = batches(1, 2), batches(3, 4, version=2), batches(5, 6, 7, version=3)
    assert engine_runs.settled(old, first=1) == []
    assert engine_runs.settled(old + between + new, first=1) == new[1:]
    assert engine_runs.settled(new[:1], first=1) == []


def test_batches_of_different_size_are_compared_by_the_tuple() -> None:
    before, after = batches(2, 4, 6, tuples=100), batches(3, 6, 9, tuples=300)
    assert engine_runs.skew_figures(before, after)["skew_batch_ratio"] == 0.5


def test_the_gap_of_a_restart_is_from_output_to_output() -> None:
    runs = [[Batch(10, start, start + 0.9, start + 1) for start in starts] for starts in ((0, 1, 2), (5, 6))]
    assert figures(runs, [0.5]) == {"gaps_ms": [3000], "usual_ms": 1000, "repartition_ms": [500]}


def test_the_usual_time_between_batches_is_no_part_of_a_gap() -> None:
    ours = {"gaps_ms": [5000, 900, 1100], "usual_ms": [700, 600, 500], "slow_batches": [1, 0, 1], "batch_ms": []}
    found = engines.rescale_gaps(ours, {"gaps_ms": [2500], "usual_ms": 500, "repartition_ms": [1]})
    assert found["microbatch_gap_ms"] == 600 and found["spark_restart_gap_ms"] == 2000
    assert found["microbatch_first_gap_ms"] == 4300 and found["microbatch_slow_batches"] == 2


def test_ratios() -> None:
    words = {"resident": 4.0, "microbatch": 2.0, "microbatch_arrow": 8.0, "microbatch_arrow_files": 5.0, "spark_sql": 10.0,
             "spark_python_state": 1.0}
    assert engines.ratios(words) == {"microbatch_arrow_to_spark_sql": 0.8, "microbatch_arrow_to_spark_python_state": 8.0,
                                     "microbatch_arrow_files_to_spark_sql": 0.5,
                                     "microbatch_to_spark_python_state": 2.0, "microbatch_to_resident": 0.5}


def test_the_share_of_the_hottest_task() -> None:
    assert engine_runs.largest_share([0, 1, 1, 1]) == 0.75


def test_structured_streaming_runs_with_the_settings_of_our_own_batches() -> None:
    _, ours = batch_settings("local[2]")
    ours["spark.driver.defaultJavaOptions"] = BATCH_JAVA_OPTIONS  # without the option for our log
    shared = {key: value for key, value in FASTEST.items() if key != "spark.driver.memory"}  # given to both by the benchmark
    assert shared.items() <= ours.items()


def test_the_answer_of_a_child_is_its_last_line() -> None:
    said = run_child("child", [sys.executable, "-c", "print('log'); print('{\"a\": 1}')"], {}, 60)
    assert json.loads(said) == {"a": 1}


def test_a_child_that_fails_or_says_nothing_is_an_error_with_its_last_words() -> None:
    with pytest.raises(RivalFailed, match="no such engine"):
        run_child("child", [sys.executable, "-c", "raise SystemExit('no such engine')"], {}, 60)
    with pytest.raises(RivalFailed, match="child ended"):
        run_child("child", [sys.executable, "-c", "pass"], {}, 60)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(MillraceError, match=r"no part speed .* words, rescale, skew"):
        engines.run_engines(live=False, parts=["speed"])


def test_linked_files_are_as_many_batches_as_wanted_of_the_same_lines(tmp_path: Path) -> None:
    given = LinkedFiles(tmp_path / "lines", seed=1, batch_lines=10)
    given.add(2)
    given.add(1)
    files = sorted(given.directory.iterdir())
    assert len(files) == 3 * FILES_PER_BATCH
    assert {file.read_text() for file in files} == {files[0].read_text()}
    assert len(files[0].read_text().splitlines()) * FILES_PER_BATCH == 10
