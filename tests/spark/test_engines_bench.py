"""The measurement of engines: that it runs, counts right, and gives every figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.bench import engines


@pytest.fixture(autouse=True)
def _kept_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "keep", lambda name, result: tmp_path / name)


def test_skewed_keys_are_shared_out_while_they_come() -> None:
    result = engines.run_engines(live=False, quick=True, parts=["skew"])
    assert result["skew_batch_ratio"] > 0
    assert "key groups of sign go to other tasks" in result["details"]["skew"]["decisions"][0]
