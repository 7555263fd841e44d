"""`bench engines` and the rows of `bench wordcount` run, count right, and give every figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from millrace.bench import engines
from millrace.bench.wordcount_rows import BY_NAME, corpus_in_memory, measure_latency, measure_row


@pytest.fixture(autouse=True)
def _kept_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "keep", lambda name, result, quick: tmp_path / name)


@pytest.mark.slow
def test_skewed_keys_are_rebalanced_while_they_arrive() -> None:
    result = engines.run_engines(live=False, quick=True, parts=["skew"])
    assert result["skew_batch_ratio"] > 0
    case, = result["details"]["skew"]["cases"]
    assert "key groups of count move to other tasks" in case["decisions"][0]
    assert case["rebalanced"] < case["hashed"] < 1 and 0.5 <= case["hashed_by_spark"] < 1


@pytest.mark.slow
def test_another_parallelism_on_either_engine() -> None:
    result = engines.run_engines(live=False, quick=True, parts=["rescale"])
    assert set(result["rescale"]) == set(engines.GAPS)
    assert len(result["details"]["rescale"]["spark"]["gaps_ms"]) == 2


@pytest.mark.parametrize("name", ["microbatch_arrow_files", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "process_checkpointed", "microbatch", "microbatch_arrow", "spark_sql"))])
def test_words_per_second(name: str) -> None:
    """Each row checks its counts. Python state needs its own environment, which the suite does not install."""
    row = engines.measure(name, engines.QUICK, Console(stderr=True))
    assert row["words_per_s"] > 0 and row["group"] == "checkpointed"
    assert row["checked_counts"] == 2_000 and row["checked_words"] >= 10 * row["batch_lines"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["process", "process_rows", "process_arrow", "process_acked"])
def test_rows_without_a_checkpoint_report_their_counts(name: str) -> None:
    with corpus_in_memory(files=2, lines_per_file=5_000) as corpus:
        row = measure_row(BY_NAME[name].with_size(1_000), corpus, engines.QUICK.rule, Console(stderr=True))
    assert row["words_per_s"] > 0 and row["checked_counts"] == 2_000


@pytest.mark.slow
def test_latency_is_measured_from_due_to_visible() -> None:
    with corpus_in_memory(files=2, lines_per_file=5_000) as corpus:
        latency = measure_latency(BY_NAME["process"], corpus, engines.QUICK.rule, Console(stderr=True))
    assert latency["lines_measured"] >= 2_000 and 0 < latency["p50_ms"] <= latency["p99_ms"]
