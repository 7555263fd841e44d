"""The rates that `run` shows."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.running import RATE_SECONDS, Rates


def status(lines: int, count: int) -> dict[str, Any]:
    rows = [{"name": "lines", "kind": "spout", "emitted": lines, "executed": 0},
            {"name": "count", "kind": "bolt", "emitted": 0, "executed": count}]
    return {"topologies": [{"name": "words", "components": rows}]}


def test_rates_cover_the_last_seconds() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    assert rates.of(status(100, 1000)) == {"words": {"lines": 0.0, "count": 0.0}}
    now = 1.0
    assert rates.of(status(110, 1200)) == {"words": {"lines": 10.0, "count": 200.0}}
    for second in range(2, 40):
        now = float(second)
        shown = rates.of(status(110 + 30 * (second - 1), 1200))
    assert shown == {"words": {"lines": pytest.approx(30.0), "count": 0.0}}


def test_batches_give_an_even_rate() -> None:
    """The rate is the same whether a refresh falls into a batch or between two."""
    now = 0.0
    rates, shown = Rates(lambda: now), []
    for look in range(100):
        now = look * 0.5
        shown.append(rates.of(status(int(now) * 1000, 0))["words"]["lines"])
    settled = shown[int(RATE_SECONDS * 2) + 1:]
    assert 800 <= min(settled) <= max(settled) <= 1200
