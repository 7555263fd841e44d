"""`bench engines` runs, counts correctly, and reports every figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from millrace.bench import engines


@pytest.fixture(autouse=True)
def _kept_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "keep", lambda name, result: tmp_path / name)


def test_skewed_keys_are_shared_out_while_they_come() -> None:
    result = engines.run_engines(live=False, quick=True, parts=["skew"])
    assert result["skew_batch_ratio"] > 0
    case, = result["details"]["skew"]["cases"]
    assert "key groups of count go to other tasks" in case["decisions"][0]
    assert case["shared_out"] < case["hashed"] < 1 and 0.5 <= case["hashed_by_spark"] < 1


@pytest.mark.slow
def test_another_parallelism_on_either_engine() -> None:
    result = engines.run_engines(live=False, quick=True, parts=["rescale"])
    assert set(result["rescale"]) == set(engines.GAPS)
    assert len(result["details"]["rescale"]["spark"]["gaps_ms"]) == 2


@pytest.mark.parametrize("name", ["microbatch_arrow_files", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "resident", "microbatch", "microbatch_arrow", "spark_sql"))])
def test_words_a_second(name: str) -> None:
    """Each measurement checks its own counts. The one of Python state needs an environment that the suite does not install."""
    figures = engines.measure(name, engines.QUICK, Console(stderr=True))
    assert figures["words_per_s"] > 0
    if "best" in figures:
        assert figures["best"]["batches"] > 0 and figures["best"]["lines_in_a_batch"] > 0
