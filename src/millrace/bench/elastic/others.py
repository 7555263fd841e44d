"""Gaps of other engines at a change of parallelism: Structured Streaming measured in the run, Flink and Storm once before."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from millrace.bench.engines import FULL, QUICK, rescale_spark, spark_gaps

OWN_MEASUREMENT = ("our own measurement, not a published figure: word count with Python components and little state, on "
                   "another machine of the same kind")


@dataclass(frozen=True, slots=True)
class GapElsewhere:
    """The time without output at one change of parallelism, which we measured, but not in this run."""

    engine: str
    how: str
    gap_ms: int
    source: str


GAPS_ELSEWHERE = (
    GapElsewhere("Flink 2.3 (PyFlink)", "adaptive scheduler", 1500, OWN_MEASUREMENT),
    GapElsewhere("Flink 2.3 (PyFlink)", "stop with a savepoint, start", 2700, OWN_MEASUREMENT),
    GapElsewhere("Storm 2.8.2", "rebalance without a delay, counts in memory are lost", 10_200, OWN_MEASUREMENT),
)


def measured_spark(quick: bool) -> dict[str, int]:
    """The gap of Structured Streaming that is stopped, repartitioned and started, beyond the usual time between two batches."""
    gaps = spark_gaps(rescale_spark(QUICK if quick else FULL))
    return {"gap_ms": gaps["spark_restart_gap_ms"], "first_gap_ms": gaps["spark_restart_first_gap_ms"],
            "usual_ms": gaps["spark_usual_ms"]}


def gap_rows(ours: list[dict[str, Any]], spark: dict[str, int] | None) -> list[dict[str, Any]]:
    """The table of gaps: ours at worst, that of Structured Streaming, and those that we measured before. `gap_ms`: beyond the
    usual time between two rows or batches."""
    rows = []
    if ours:
        worst = max(change["longest_gap_ms"] - change["usual_gap_ms"] for change in ours)
        rows.append({"engine": "Millrace, resident", "how": "by hand-over, the worst of all changes", "gap_ms": max(0, worst),
                     "source": "this run"})
    if spark is not None:
        rows.append({"engine": "Structured Streaming", "how": "stop, repartition, start; median", "gap_ms": spark["gap_ms"],
                     "source": "this run"})
    return [*rows, *map(asdict, GAPS_ELSEWHERE)]
