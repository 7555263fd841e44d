"""Hand-over against the other strategies of `bench migration`: the column in which it stands worst, by workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from millrace.bench.migration.arrivals import slice_seconds
from millrace.bench.migration.cases import REDEPLOYED, WORKLOADS
from millrace.bench.migration.figures import RunFigures, figure_of, has_papers_delays
from millrace.control.migrations import BUCKET_SECONDS, LEVELS
from millrace.control.moves import BY_HANDOVER

TIME_RESOLUTION = BUCKET_SECONDS * 1000  # milliseconds: of two times that differ by less, neither is better
THROUGHPUT_RESOLUTION = 0.05

COUNTS = ("lost", "repeated", "replayed", "arrived_again")
TIMES = ("drain_ms", "rebalance_ms", "restore_ms", "catchup_ms", "recovery_ms", "stabilise_ms", "longest_gap_ms",
         "peak_latency_ms", "pause_ms")
DEGRADED = tuple(f"degraded_{level}_s" for level in LEVELS)


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column in which strategies are compared. `resolution`: the difference up to which two figures are equal."""

    name: str
    figure: Callable[[RunFigures], float | None]
    resolution: float = 0.0
    more_is_better: bool = False

    def ratio(self, ours: float, theirs: float) -> float:
        """Our figure to theirs, or theirs to ours, so that more than 1 is worse; at most 1 if they are equal."""
        above, below = (theirs, ours) if self.more_is_better else (ours, theirs)
        if above - below <= self.resolution:
            return min(1.0, above / below) if below > 0 else 1.0
        least = max(below, self.resolution)
        return above / least if least > 0 else above + 1  # a count, and theirs is 0


@dataclass(frozen=True, slots=True)
class Standing:
    """The worst ratio of hand-over on a workload to the best of the other strategies: in which column, against which strategy,
    with how many tasks moved and how much state, and both figures."""

    workload: str
    ratio: float
    column: str
    strategy: str
    moved_tasks: int
    state_mb: int
    handover: float
    other: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (f"{self.workload}: {self.ratio:g} in {self.column}, {self.handover:g} to {self.other:g} by {self.strategy}"
                f"{f' with {self.moved_tasks} tasks moved' if self.moved_tasks else ''}"
                f"{f' and {self.state_mb} MB' if self.state_mb else ''}")


def worst_of_handover(runs: Iterable[RunFigures]) -> list[Standing]:
    """The standing of hand-over on each workload that it and another strategy have run on."""
    worst: dict[str, Standing] = {}
    for group in _groups(runs):
        for standing in _standings(group):
            known = worst.get(standing.workload)
            if known is None or standing.ratio > known.ratio:
                worst[standing.workload] = standing
    return list(worst.values())


def _groups(runs: Iterable[RunFigures]) -> list[list[RunFigures]]:
    """The runs that differ in nothing but the strategy and its cycles."""
    groups: dict[tuple[Any, ...], list[RunFigures]] = {}
    for run in runs:
        alike = run["workload"], run["moved_tasks"], run["state_mb"], has_papers_delays(run)
        groups.setdefault(alike, []).append(run)
    return list(groups.values())


def _standings(group: Sequence[RunFigures]) -> Iterable[Standing]:
    """Hand-over in each column that it and another strategy have. Hand-over without such a phase is no worse than any."""
    for ours in (run for run in group if run["strategy"] == BY_HANDOVER):
        others = [run for run in group if run["strategy"] != BY_HANDOVER]
        for column in columns_of(ours["workload"]):
            figure = _stable_after(ours) if column.name == "stabilise_ms" else column.figure(ours)
            theirs = [(number, run["strategy"]) for run in others if (number := column.figure(run)) is not None]
            if figure is None or not theirs:
                continue
            best, strategy = (max if column.more_is_better else min)(theirs)
            yield Standing(ours["workload"], round(column.ratio(figure, best), 3), column.name, strategy, ours["moved_tasks"],
                           ours["state_mb"], figure, best)


def _stable_after(run: RunFigures) -> float | None:
    """The time until the rate was stable; at least as long as it was watched if that is not known."""
    stable: float | None = run["stabilise_ms"]
    watched = WORKLOADS[run["workload"]].kind != REDEPLOYED
    return run["period_s"] * 1000 if stable is None and watched else stable


def columns_of(workload: str) -> list[ComparedColumn]:
    slice_length = slice_seconds(WORKLOADS[workload].rate)
    return [*(ComparedColumn(name, _named(name)) for name in COUNTS),
            *(ComparedColumn(name, _named(name), TIME_RESOLUTION) for name in TIMES),
            *(ComparedColumn(name, _named(name), slice_length) for name in (*DEGRADED, "missing_s")),
            ComparedColumn("throughput_ratio", _named("throughput_ratio"), THROUGHPUT_RESOLUTION, more_is_better=True),
            ComparedColumn("bytes_moved", _named("bytes_moved"))]


def _named(name: str) -> Callable[[RunFigures], float | None]:
    return lambda run: figure_of(run, name)
