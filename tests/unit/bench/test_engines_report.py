"""Figures computed from the batches and windows of a run, without running any."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.bench import engines, engines_child
from millrace.bench.other_engines import job
from millrace.bench.other_engines.run import EngineFailed, run_child
from millrace.bench.other_engines.spark_common import BATCHES_AHEAD, FASTEST, Batch, CorpusLinks, files_per_batch
from millrace.bench.other_engines.spark_rescale import figures
from millrace.bench.skew_topologies import zipf_words
from millrace.bench.wordcount import ratios
from millrace.errors import MillraceError
from millrace.master.batch_log import BatchRecord
from millrace.spark.session.settings import BATCH_JAVA_OPTIONS, batch_settings


def batches(*ends: float, version: int = 1, tuples: int = 100) -> list[BatchRecord]:
    """Batches that follow each other, and end at these times."""
    return [BatchRecord(batch=number, wave=number + 1, plan_version=version, started=before, seconds=end - before,
                        tuples_in=tuples) for number, (before, end) in enumerate(pairwise((0.0, *ends)))]


def test_a_change_of_parallelism_is_compared_with_the_batches_before_it() -> None:
    records = [*batches(1, 2, 3, 4), *batches(4, 7.5, 8.5, 10.6, 11.6, version=2)[1:]]
    change = engines_child.rescale_figures(records, version=1, requested=4.2, batches=4)
    assert change == {"longest_ms": 3500, "usual_ms": 1000, "slow_batches": 2, "batch_ms": [3500, 1000, 2100, 1000]}


def test_a_batch_that_was_under_way_at_the_request_counts_as_well() -> None:
    records = [*batches(1, 2, 3, 6), *batches(6, 7, 8, version=2)[1:]]
    change = engines_child.rescale_figures(records, version=1, requested=3.5, batches=2)
    assert (change["longest_ms"], change["slow_batches"]) == (3000, 0)


def test_only_batches_by_the_newest_plan_count_as_settled() -> None:
    old, between, new = batches(1, 2), batches(3, 4, version=2), batches(5, 6, 7, version=3)
    assert engines_child.settled(old, first=1) == []
    assert engines_child.settled(old + between + new, first=1) == new[1:]
    assert engines_child.settled(new[:1], first=1) == []


def test_batches_of_different_size_are_compared_by_the_tuple() -> None:
    before, after = batches(2, 4, 6, tuples=100), batches(3, 6, 9, tuples=300)
    assert engines_child.skew_figures(before, after)["skew_batch_ratio"] == 0.5


def test_the_gap_of_a_restart_is_from_output_to_output() -> None:
    runs = [[Batch(0, 10, start, start + 0.9, start + 1) for start in starts] for starts in ((0, 1, 2), (5, 6))]
    assert figures(runs, [0.5]) == {"gaps_ms": [3000], "usual_ms": 1000, "repartition_ms": [500]}


def test_the_usual_time_between_batches_is_no_part_of_a_gap() -> None:
    ours = {"gaps_ms": [5000, 900, 1100], "usual_ms": [700, 600, 500], "slow_batches": [1, 0, 1], "batch_ms": []}
    gaps = engines.rescale_gaps(ours, {"gaps_ms": [2500], "usual_ms": 500, "repartition_ms": [1]})
    assert gaps["microbatch_gap_ms"] == 600 and gaps["spark_restart_gap_ms"] == 2000
    assert gaps["microbatch_first_gap_ms"] == 4300 and gaps["microbatch_slow_batches"] == 2


def test_ratios_are_of_rows_that_were_both_measured() -> None:
    words = {"process": 4.0, "bytewax": 2.0, "process_checkpointed": 3.0, "microbatch_arrow_files": 5.0, "spark_sql": 10.0}
    assert ratios(words) == {"process_to_bytewax": 2.0, "exactly_once_to_process": 0.75,
                             "microbatch_arrow_files_to_spark_sql": 0.5}


def test_the_truth_of_skewed_words_follows_from_the_positions() -> None:
    table = zipf_words(1.5)
    assert engines_child.skewed_truth([2, 1], 1.5) == {word: table[:3].count(word) for word in table[:3]}


def test_the_share_of_the_hottest_task() -> None:
    assert engines_child.largest_share([0, 1, 1, 1]) == 0.75


def test_structured_streaming_runs_with_the_settings_of_our_own_batches() -> None:
    _, ours = batch_settings("local[2]")
    ours["spark.driver.defaultJavaOptions"] = BATCH_JAVA_OPTIONS  # without the option for our log
    shared = {key: value for key, value in FASTEST.items() if key != "spark.driver.memory"}  # given to both by the benchmark
    assert shared.items() <= ours.items()


def test_the_result_of_a_child_is_its_last_line() -> None:
    assert run_child("child", [sys.executable, "-c", "print('log'); print('{\"a\": 1}')"], {}, 60) == {"a": 1}


def test_a_child_that_fails_or_prints_nothing_is_an_error_with_its_last_output() -> None:
    with pytest.raises(EngineFailed, match="no such engine"):
        run_child("child", [sys.executable, "-c", "raise SystemExit('no such engine')"], {}, 60)
    with pytest.raises(EngineFailed, match="child printed no result"):
        run_child("child", [sys.executable, "-c", "pass"], {}, 60)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(MillraceError, match=r"no part speed .* words, rescale, skew"):
        engines.run_engines(live=False, parts=["speed"])


def test_spark_gets_the_files_of_the_corpus_over_and_over(tmp_path: Path) -> None:
    corpus = job.write_corpus(tmp_path / "corpus", seed=1, files=2, lines_per_file=5)
    links = CorpusLinks(tmp_path / "links", corpus)
    links.add(3)
    files = sorted(links.directory.iterdir())
    assert [file.read_text() for file in files] == [corpus.files[number].read_text() for number in (0, 1, 0)]
    assert links.counts() == corpus.counts([15])
    links.keep_ahead(files_read=4, files_per_batch=2)
    assert links.files == 4 + 2 * BATCHES_AHEAD
    links.keep_ahead(files_read=4, files_per_batch=2)
    assert links.files == 4 + 2 * BATCHES_AHEAD


def test_the_files_that_spark_has_read_are_in_its_log(tmp_path: Path) -> None:
    """Spark takes links to one file together, whatever their names; its log is compacted now and then."""
    corpus = job.write_corpus(tmp_path / "corpus", seed=1, files=2, lines_per_file=5)
    links = CorpusLinks(tmp_path / "links", corpus)
    links.add(6)
    log = tmp_path / "checkpoint" / "sources" / "0"
    log.mkdir(parents=True)
    entries = [f'{{"path":"file:///links/{number:06d}.txt","timestamp":1,"batchId":{batch}}}'
               for batch, numbers in enumerate([(0, 2), (4, 1), (3, 5)]) for number in numbers]
    (log / "1.compact").write_text("\n".join(["v1", *entries[:4]]))
    (log / "2").write_text("\n".join(["v1", *entries[4:]]))
    (log / ".2.crc").write_bytes(b"\xff\xfe")
    assert links.counts_after(20, tmp_path) == corpus.counts_in([0, 0, 0, 1])
    assert links.counts_after(30, tmp_path) == links.counts()


def test_spark_reads_whole_files(tmp_path: Path) -> None:
    corpus = job.write_corpus(tmp_path, seed=1, files=2, lines_per_file=5)
    assert files_per_batch(corpus, 15) == 3
    with pytest.raises(SystemExit, match="multiple of 5"):
        files_per_batch(corpus, 7)
