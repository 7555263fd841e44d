"""The regression guard: its figures on little input, and its verdicts. What a tuple costs is no matter of a test."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.bench import guard, instructions
from millrace.bench.instructions import CPU_NANOSECONDS, INSTRUCTIONS, WorkMeter


def figures(unit: str = INSTRUCTIONS, python: str = "3.11.7", machine: str = "x86_64", compiled: bool = True,
            **steps: float) -> dict[str, Any]:
    return {"unit": unit, "python": python, "machine": machine, "compiled": compiled, "steps": steps}


def test_every_step_is_measured() -> None:
    result = guard.measure(share=0.005)
    assert list(result["steps"]) == list(guard.STEPS) and all(cost > 0 for cost in result["steps"].values())


def test_more_work_counts_more() -> None:
    with WorkMeter() as meter:
        counts = []
        for size in (10_000, 1_000_000):
            before = meter.read()
            sum(range(size))
            counts.append(meter.read() - before)
    assert counts[1] > 10 * counts[0] > 0


def test_without_a_counter_it_is_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "_CALLS", {})
    with WorkMeter() as meter:
        before = meter.read()
        sum(range(1_000_000))
        assert meter.unit == CPU_NANOSECONDS and meter.read() > before


def test_a_step_that_costs_more_is_named() -> None:
    result = guard.compared(figures(emit=105.1, route=80.0, new=7.0), [figures(emit=100.0, route=100.0)])
    assert result["slower"] == ["emit"] and result["not_comparable"] == ""
    assert result["steps"] == [{"step": "emit", "per_tuple": 105.1, "kept": 100.0, "ratio": 1.051},
                               {"step": "route", "per_tuple": 80.0, "kept": 100.0, "ratio": 0.8},
                               {"step": "new", "per_tuple": 7.0, "kept": None, "ratio": None}]


def test_cpu_time_may_vary_more() -> None:
    kept = [figures(CPU_NANOSECONDS, emit=100.0)]
    assert guard.compared(figures(CPU_NANOSECONDS, emit=130.0), kept)["slower"] == []
    assert guard.compared(figures(CPU_NANOSECONDS, emit=150.0), kept)["slower"] == ["emit"]


@pytest.mark.parametrize("kept", [
    [], [figures(python="3.12.1", emit=1.0)], [figures(machine="aarch64", emit=1.0)],
    [figures(CPU_NANOSECONDS, emit=1.0), figures(compiled=False, emit=1.0)],
], ids=["none", "python", "machine", "unit and path"])
def test_other_figures_say_nothing(kept: Any) -> None:
    result = guard.compared(figures(emit=100.0), kept)
    missing = "instructions of the compiled hot path with Python 3.11 on x86_64"
    assert result["not_comparable"] == f"docs/guard.json has no figures for {missing}"
    assert result["slower"] == [] and result["steps"][0]["ratio"] is None


def test_figures_that_are_kept_replace_those_of_like_runs() -> None:
    others = [figures(compiled=False, emit=1.0), figures(CPU_NANOSECONDS, emit=2.0)]
    kept = guard.replaced([*others, figures(emit=3.0)], figures(emit=4.0))
    assert kept == [*others, figures(emit=4.0)]
    assert guard.compared(figures(emit=4.0), kept)["steps"][0]["ratio"] == 1
