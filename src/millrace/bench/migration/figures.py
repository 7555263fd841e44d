"""The figures of one run of `bench migration`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from millrace.bench.migration.arrivals import LoggedArrivals
from millrace.bench.migration.cases import PAPERS_DELAYS, REDEPLOYED, MigrationCase
from millrace.control.migrations import LEVELS, in_ms
from millrace.workloads.audit import AuditResult

RunFigures = dict[str, Any]
PHASES = ("drain_ms", "rebalance_ms", "restore_ms", "catchup_ms", "recovery_ms")  # from the engine's record
LEAST_ROWS = 20  # that are expected during migrations: with fewer, a single one would change the ratio too much
LEAST_USUAL_SECONDS = 1.0  # of the slices in which the usual gap is measured, as in the record


@dataclass(frozen=True, slots=True)
class MigrationSpan:
    """Times of a run by the monotonic clock: the stream is measured from `steady` to `settled`. `migrations`: when each began
    and ended."""

    steady: float
    migrations: tuple[tuple[float, float], ...]
    settled: float

    @property
    def began(self) -> float:
        return self.migrations[0][0]

    @property
    def seconds(self) -> list[float]:
        """The length of each migration."""
        return [ended - began for began, ended in self.migrations]


def migration_figures(case: MigrationCase, span: MigrationSpan, log: LoggedArrivals, audited: AuditResult,
                      records: Sequence[Mapping[str, Any]], moved_tasks: int) -> RunFigures:
    """One of the `runs` of `bench migration --json`. `records`: of the migrations, as `migrations --json` has them.
    `moved_tasks`: by each of them. In a run of several migrations, times are those of one on average, counts and bytes are sums
    of all, and gap, pause and latency are the worst. After a re-deployment, there is no time until the rate is stable: the next
    one begins too soon. With the papers' own delays there is none, either: the engine measures it in the window of the time
    scale."""
    usual = log.expected_rate
    degraded = log.degraded(span.began, span.settled, usual) if usual else dict.fromkeys(map(str, LEVELS))
    moves = [move for record in records for move in record["moved"]]
    return {
        "strategy": case.strategy, "variant": case.variant, "workload": case.workload.name,
        "moved_tasks": moved_tasks, "state_mb": case.state_mb, "guarantee": case.guarantee, "migrations": len(records),
        "new_pids": [pid for record in records for pid in record["new_pids"]],
        "lost": audited.lost, "repeated": audited.repeated + audited.beyond,
        "replayed": sum(record["replayed"] for record in records),
        "arrived_again": max(0, log.total - (audited.tuples_in - audited.lost)),
        **{phase: _mean(record.get(phase) for record in records) for phase in PHASES},
        "stabilise_ms": (None if case.workload.kind == REDEPLOYED or case.variant == PAPERS_DELAYS
                         else records[0].get("stabilise_ms")),
        "pause_ms": _longest(move["pause_ms"] for move in moves),
        "longest_gap_ms": in_ms(log.longest_gap(span.began, span.settled)),
        "usual_gap_ms": in_ms(log.usual_gap(span.steady, span.began, max(LEAST_USUAL_SECONDS, mean(span.seconds)))),
        "throughput_ratio": _throughput_ratio(log, span),
        "missing_s": round(_missing_seconds(log, span) / len(records), 2) if usual else None,
        "period_s": round((span.settled - span.began) / len(records), 2),
        "degraded_s": {level: None if seconds is None else round(seconds / len(records), 2)
                       for level, seconds in degraded.items()},
        "latency_before_ms": in_ms(log.worst_latency(span.steady, span.began)),
        "peak_latency_ms": in_ms(log.worst_latency(span.began, span.settled)),
        "bytes_moved": _bytes_moved(moves),
        "migration_ms": _mean(record["phases_ms"]["done"] for record in records),
        "parameters": dict(records[0].get("parameters", {})), "steps_ms": [record.get("steps_ms") for record in records],
    }


def _throughput_ratio(log: LoggedArrivals, span: MigrationSpan) -> float | None:
    """Rows during migrations as a share of those that were due; None if they were too short to tell."""
    expected = log.expected_rate * sum(span.seconds)
    rows = sum(log.rows_between(began, ended) for began, ended in span.migrations)
    return round(rows / expected, 3) if expected >= LEAST_ROWS else None


def _missing_seconds(log: LoggedArrivals, span: MigrationSpan) -> float:
    """The rows that were missing from the first migration on, in seconds of the usual rate. It does not matter for how long
    the stream was measured after a migration: what is missing without one does not count."""
    before, after = (log.capped_share(*times, log.expected_rate)
                     for times in ((span.steady, span.began), (span.began, span.settled)))
    return max(0.0, before - after) * (span.settled - span.began)


def _bytes_moved(moves: Iterable[Mapping[str, Any]]) -> int | None:
    """The state that tasks have handed over; None if none did, because what is restored from a wave is not counted."""
    handed = [move["precopied_bytes"] + move["delta_bytes"] for move in moves if move["pause_ms"] is not None]
    return sum(handed) if handed else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(mean(known), 1) if known else None


def _longest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def figure_of(run: RunFigures, metric: str) -> float | None:
    """A figure of a run by its name; `degraded_60_s` is one of those in `degraded_s`."""
    if metric.startswith("degraded_"):
        figure: float | None = run["degraded_s"].get(metric.removeprefix("degraded_").removesuffix("_s"))
        return figure
    value: float | None = run.get(metric)
    return value


def has_papers_delays(run: RunFigures) -> bool:
    """True if no time scale has shortened the delays of a run."""
    return bool(run["variant"] == PAPERS_DELAYS)
