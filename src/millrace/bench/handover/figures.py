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

COLUMNS = {"strategy": "strategy", "moved_tasks": "tasks", "state_mb": "state, MB", "lost": "lost", "repeated": "repeated",
           "replayed": "replayed", "longest_gap_ms": "longest gap, ms", "usual_gap_ms": "usual", "pause_ms": "pause, ms",
           "throughput_ratio": "throughput", "p99_before_ms": "p99 before, ms", "p99_during_ms": "during",
           "precopied_bytes": "copied, bytes", "delta_bytes": "delta, bytes"}
SHORT = {"strategy": "strategy", "moved_tasks": "tasks", "state_mb": "MB", "lost": "lost", "repeated": "again",
         "longest_gap_ms": "gap", "usual_gap_ms": "usual", "pause_ms": "pause", "throughput_ratio": "rate",
         "p99_before_ms": "p99", "p99_during_ms": "during"}  # on a terminal


@dataclass(frozen=True, slots=True)
class Case:
    """One run: the tasks that move in one plan, the state of all of them together, and the strategy."""

    strategy: str
    tasks: int
    state_mb: int

    @property
    def component(self) -> str:
        """The component whose tasks move: splitting has no state."""
        return "count" if self.state_mb else "split"

    @property
    def parallelism(self) -> dict[str, int]:
        return {"split": tasks_of(self.tasks), "count": tasks_of(self.tasks)}

    def moved(self) -> list[TaskId]:
        return [TaskId(self.component, index) for index in range(self.tasks)]

    def __str__(self) -> str:
        state = f"with {self.state_mb} MB" if self.state_mb else "stateless"
        return f"{self.strategy}, {self.tasks} task{'s' if self.tasks > 1 else ''} {state}"


def tasks_of(moved: int) -> int:
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


def run_figures(case: Case, periods: Periods, log: SinkLog, audited: AuditResult, primed: int,
                move: WatchedMove) -> dict[str, Any]:
    """One of the `runs` of `bench handover --json`. `primed`: words before the timetable, which are not in the log.

    `replayed`: words that came to the sinks once more. They do not count as throughput.
    """
    before, during = (periods.steady, periods.began), (periods.began, periods.settled)
    replayed = max(0, log.words - (audited.tuples_in - primed))
    usual = log.rate(*before)
    return {"strategy": case.strategy, "moved_tasks": case.tasks, "moved_groups": 0, "state_mb": case.state_mb,
            "guarantee": EXACTLY_ONCE, "lost": audited.lost, "repeated": audited.repeated + audited.beyond,
            "replayed": replayed, "longest_gap_ms": round(log.longest_gap(*during) * 1000),
            "usual_gap_ms": round(log.longest_gap(*before) * 1000), "pause_ms": round(move.pause * 1000, 1),
            "throughput_ratio": round(log.rate(*during, less=replayed) / usual, 3) if usual else None,
            "p99_before_ms": _rounded(log.worst_ms(*before)), "p99_during_ms": _rounded(log.worst_ms(*during)),
            "precopied_bytes": move.copied_bytes, "delta_bytes": move.delta_bytes}


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


def runs_table(runs: Sequence[dict[str, Any]]) -> Table:
    """The most important columns, in 80 characters."""
    table = Table(title="moves under load, exactly once; times in ms", title_justify="left", box=SIMPLE_HEAD,
                  padding=(0, 1, 0, 0))
    for name, header in SHORT.items():
        table.add_column(header, justify="left" if name == "strategy" else "right")
    for run in runs:
        table.add_row(*(_cell(run[name]) for name in SHORT))
    return table
