"""The figures of one run of `bench handover`, and the tables of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from millrace.bench.handover.sink_log import SinkLog
from millrace.bench.handover.watched import WatchedMove
from millrace.config import EXACTLY_ONCE
from millrace.control.moves import BY_ROLLBACK
from millrace.model.graph import TaskId
from millrace.workloads.audit import AuditResult

COLUMNS = {"strategy": "strategy", "moved_tasks": "tasks", "moved_groups": "key groups", "state_mb": "state, MB",
           "lost": "lost", "repeated": "repeated", "replayed": "replayed", "longest_gap_ms": "longest gap, ms",
           "usual_gap_ms": "usual", "pause_ms": "pause, ms", "throughput_ratio": "throughput",
           "p99_before_ms": "p99 before, ms", "p99_during_ms": "during", "precopied_bytes": "copied, bytes",
           "delta_bytes": "delta, bytes"}
SHORT = {"state_mb": "MB", "lost": "lost", "repeated": "repeated", "longest_gap_ms": "gap", "usual_gap_ms": "usual",
         "pause_ms": "pause", "throughput_ratio": "rate", "p99_before_ms": "p99",
         "p99_during_ms": "p99 during"}  # on a terminal


@dataclass(frozen=True, slots=True)
class Case:
    """One run: the tasks that move in one plan, the state of all of them together, and the strategy. With `groups`, that many
    key groups of one task move to another task instead; `state_mb` is the state of that task."""

    strategy: str
    tasks: int
    state_mb: int
    groups: int = 0

    @property
    def component(self) -> str:
        """The component whose tasks move: splitting has no state."""
        return "count" if self.state_mb else "split"

    @property
    def parallelism(self) -> dict[str, int]:
        return {"split": parallelism_with(self.tasks), "count": parallelism_with(self.tasks)}

    @property
    def noted_tasks(self) -> int:
        """Tasks that have the state."""
        return (self.tasks or 1) if self.state_mb else 0

    def moved(self) -> list[TaskId]:
        return [TaskId(self.component, index) for index in range(self.tasks)]

    def moved_groups(self, owners: Sequence[int]) -> dict[int, int]:
        """The key groups of the first counting task that go to the second one, with their new owner."""
        return dict.fromkeys(_groups_of(0, owners)[:self.groups], 1)

    def __str__(self) -> str:
        state = f"with {self.state_mb} MB" if self.state_mb else "stateless"
        if self.groups:
            return f"{self.strategy}, {self.groups} key groups of a task {state}"
        return f"{self.strategy}, {self.tasks} task{'s' if self.tasks > 1 else ''} {state}"


def _groups_of(task: int, owners: Sequence[int]) -> list[int]:
    return [group for group, owner in enumerate(owners) if owner == task]


def parallelism_with(moved: int) -> int:
    """Tasks of a component of which so many move. If a single one moves, there is another that does not."""
    return max(2, moved)


def targets(places: dict[TaskId, int], moved: Sequence[TaskId], slots: Sequence[int]) -> dict[TaskId, int]:
    """The next slot for each task that moves, so that the load of the slots stays much the same."""
    order = sorted(slots)
    return {task: order[(order.index(places[task]) + 1) % len(order)] for task in moved}


@dataclass(frozen=True, slots=True)
class Periods:
    """Times of a run: the measured time before the move from `steady` on, then the move until the stream has settled."""

    steady: float
    began: float
    settled: float


def run_figures(case: Case, periods: Periods, log: SinkLog, audited: AuditResult, primed: int, move: WatchedMove,
                owners: Sequence[int]) -> dict[str, Any]:
    """One of the `runs` of `bench handover --json`. `primed`: words before the timetable, which are not in the log. `owners`:
    of the counting tasks' key groups, before the move.

    `replayed`: words that came to the sinks once more. They do not count as throughput.
    """
    before, during = (periods.steady, periods.began), (periods.began, periods.settled)
    replayed = max(0, log.words - (audited.tuples_in - primed))
    usual = log.rate(*before)
    staying = log.of_groups(set(_groups_of(0, owners)) - case.moved_groups(owners).keys()) if case.groups else None
    return {"strategy": case.strategy, "moved_tasks": case.tasks, "moved_groups": case.groups, "state_mb": case.state_mb,
            "guarantee": EXACTLY_ONCE, "lost": audited.lost, "repeated": audited.repeated + audited.beyond,
            "replayed": replayed, **_disturbance(periods, log), "pause_ms": round(move.pause * 1000, 1),
            "throughput_ratio": round(log.rate(*during, less=replayed) / usual, 3) if usual else None,
            "precopied_bytes": move.copied_bytes, "delta_bytes": move.delta_bytes,
            "staying_groups": _disturbance(periods, staying) if staying is not None else None}


def _disturbance(periods: Periods, log: SinkLog) -> dict[str, Any]:
    """Gaps and latencies, before the move and during it."""
    before, during = (periods.steady, periods.began), (periods.began, periods.settled)
    return {"longest_gap_ms": round(log.longest_gap(*during) * 1000), "usual_gap_ms": round(log.longest_gap(*before) * 1000),
            "p99_before_ms": _rounded(log.worst_ms(*before)), "p99_during_ms": _rounded(log.worst_ms(*during))}


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 1)


def pause_to_rollback(runs: Sequence[dict[str, Any]]) -> float | None:
    """The pause of one task with the largest state that was measured, as a share of the pause of the whole topology in a
    roll-back; None if one of them was not measured."""
    single = [run for run in runs if run["moved_tasks"] == 1 and run["state_mb"]]
    largest = max((run["state_mb"] for run in single), default=0)
    pauses = {run["strategy"] == BY_ROLLBACK: run["pause_ms"] for run in single if run["state_mb"] == largest}
    return round(pauses[False] / pauses[True], 3) if len(pauses) == 2 and pauses[True] else None


def cells(run: dict[str, Any]) -> list[str]:
    """One row of the table of runs."""
    return [_cell(run[name]) for name in COLUMNS]


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,g}" if isinstance(value, float) \
        else f"{value:,}"


def _short(name: str, value: Any) -> str:
    return f"{value:,.0f}" if name.endswith("_ms") and value is not None else _cell(value)


def runs_table(runs: Sequence[dict[str, Any]]) -> Table:
    """The most important columns, in 80 characters."""
    table = Table(title="moves under load, exactly once; times in ms, p99 before and during the move", title_justify="left",
                  box=SIMPLE_HEAD, padding=0)
    table.add_column("strategy")
    table.add_column("moved")
    for header in SHORT.values():
        table.add_column(header, justify="right")
    for run in runs:
        moved = f"{run['moved_groups']} groups" if run["moved_groups"] else f"{run['moved_tasks']} tasks"
        table.add_row(run["strategy"], moved, *(_short(name, run[name]) for name in SHORT))
    return table
