"""The ratios between the runs of `bench migration`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from millrace.bench.migration.cases import PAPERS_DELAYS, SAME_CYCLES, SCALED, WORKLOADS
from millrace.bench.migration.figures import RunFigures, figure_of, has_papers_delays
from millrace.bench.migration.standing import worst_of_handover

SERIOUS = "60"  # percent of the throughput missing: the level at which the N-Storm paper compares
HANDOVER_WORST = "handover_to_best_other"  # alone: on all workloads
FigurePair = tuple[float, float]


class RunIndex:
    """The runs by strategy, workload, moved tasks and variant."""

    def __init__(self, runs: Iterable[RunFigures]) -> None:
        self.runs = list(runs)

    def find(self, strategy: str, workload: str, moved_tasks: int | None = None, variant: str = "") -> RunFigures | None:
        wanted = strategy, workload, variant
        return next((run for run in self.runs if (run["strategy"], run["workload"], run["variant"]) == wanted
                     and moved_tasks in (None, run["moved_tasks"])), None)

    def pair(self, metric: str, strategy: str, other: str, workload: str, moved_tasks: int | None = None,
             variants: tuple[str, str] = ("", "")) -> FigurePair | None:
        """A figure of one strategy and that of another; None if one of them has none."""
        run, base = (self.find(name, workload, moved_tasks, variant) for name, variant in zip((strategy, other), variants))
        return _both(metric, run, base)

    def worst_pair(self, metric: str, strategy: str, other: str, workloads: Iterable[str]) -> FigurePair | None:
        """The pair with the highest ratio, of the workloads on which both have run."""
        pairs = (self.pair(metric, strategy, other, workload) for workload in dict.fromkeys(workloads))
        return max((pair for pair in pairs if pair is not None), key=_size, default=None)

    def share(self, run: RunFigures) -> float | None:
        """The throughput of a run as a share of the usual one, over the same time for all runs of its workload with the same
        delays: a migration in as much time as the slowest of them needed."""
        period = max(each["period_s"] for each in self.runs if _same_delays(each, run))
        return None if run["missing_s"] is None else 1 - run["missing_s"] / period

    def throughput_to(self, other: str, run: RunFigures) -> float | None:
        """The throughput of a run as a share of that by another strategy with as many tasks moved."""
        base = self.find(other, run["workload"], run["moved_tasks"], PAPERS_DELAYS if has_papers_delays(run) else "")
        ours, theirs = self.share(run), self.share(base) if base is not None else None
        return None if ours is None or theirs is None else round(_size((ours, theirs)), 3)


def pairs_of(runs: Iterable[RunFigures]) -> dict[str, FigurePair | None]:
    """The figures that the papers compare: one of a strategy, and one of another. `None`: not measured."""
    index = RunIndex(runs)
    dataflows = [run["workload"] for run in index.runs if WORKLOADS[run["workload"]].kind == SCALED]
    grids = [workload for workload in dataflows if workload.startswith("grid")]
    serious = f"degraded_{SERIOUS}_s"
    return {
        "ccr_capture_to_dcr_drain_linear50": index.pair("drain_ms", "ccr", "dcr", "linear50-in"),
        "ccr_capture_linear50_to_linear": _both("drain_ms", index.find("ccr", "linear50-in"), index.find("ccr", "linear-in")),
        "dcr_restore_to_dsm": index.worst_pair("restore_ms", "dcr", "dsm", dataflows),
        "ccr_restore_to_dsm": index.worst_pair("restore_ms", "ccr", "dsm", dataflows),
        "ccr_restore_to_dsm_grid": index.worst_pair("restore_ms", "ccr", "dsm", grids),
        "ccr_restore_to_dsm_grid_scale_1": index.pair("restore_ms", "ccr", "dsm", "grid-out",
                                                      variants=(PAPERS_DELAYS, PAPERS_DELAYS)),
        "nstorm_degradation_to_storm*": index.pair(serious, "nstorm", "storm*", "wordcount", 1),
        # storm* has no delays, so a scale changes nothing for it
        "nstorm_degradation_to_storm*_scale_1": index.pair(serious, "nstorm", "storm*", "wordcount", 1, (PAPERS_DELAYS, "")),
        "nstorm_degradation_to_storm*_16": index.pair(serious, "nstorm", "storm*", "wordcount", 16),
        "nstorm+_degradation_to_nstorm": index.pair(serious, "nstorm+", "nstorm", "wordcount", 16),
        "nstorm+_degradation_to_nstorm_topn": index.pair(serious, "nstorm+", "nstorm", "topn", 4),
        "nstorm+_degradation_to_nstorm_long_cycles": index.pair(serious, "nstorm+", "nstorm", "wordcount", 16,
                                                                (SAME_CYCLES, "")),
    }


def ratios_of(runs: Iterable[RunFigures]) -> dict[str, float | None]:
    """The ratios by which the papers compare strategies, all in one run, and the worst of hand-over to the best of the others,
    of all workloads and of each. `None`: not measured, or a ratio to 0, of which `pairs_of` has both figures."""
    runs = list(runs)
    worst = {each.workload: each.ratio for each in worst_of_handover(runs)}
    touched = [run["lost"] + run["replayed"] + run["arrived_again"] for run in runs if run["strategy"] in ("dcr", "ccr")]
    return {
        "dcr_ccr_lost_or_replayed": sum(touched) if touched else None,
        **{name: round(pair[0] / pair[1], 3) if pair and pair[1] else None for name, pair in pairs_of(runs).items()},
        HANDOVER_WORST: max(worst.values(), default=None),
        **{f"{HANDOVER_WORST}_{workload}": ratio for workload, ratio in worst.items()},
    }


def ratio_text(ratio: float | None, pair: Sequence[float] | None) -> str:
    """A ratio for people to read; a ratio to 0 is shown by its two figures."""
    if ratio is not None:
        return f"{ratio:,g}"
    return "not measured" if pair is None else f"{pair[0]:,g} to {pair[1]:,g}"


def _both(metric: str, run: RunFigures | None, base: RunFigures | None) -> FigurePair | None:
    ours, theirs = (figure_of(each, metric) if each is not None else None for each in (run, base))
    return None if ours is None or theirs is None else (ours, theirs)


def _size(pair: FigurePair) -> float:
    """The ratio of a pair: 1 if both are 0, without end if only the second is."""
    ours, theirs = pair
    return ours / theirs if theirs else inf if ours else 1.0


def _same_delays(run: RunFigures, other: RunFigures) -> bool:
    return run["workload"] == other["workload"] and has_papers_delays(run) == has_papers_delays(other)
