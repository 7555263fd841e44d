"""Aims of the benchmarks: a figure of a result, and its bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]
Figure = float | tuple[float, float]


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim: a figure of a result and its bound. `value` returns None if the run has no such figure, and two figures if the
    first is to be so many times the second. `strict`: equal is not enough."""

    result: str
    text: str
    value: Callable[[Result], Figure | None]
    bound: float
    at_most: bool = False
    strict: bool = False

    def is_met(self, figure: Figure) -> bool:
        ours, theirs = figure if isinstance(figure, tuple) else (figure, 1.0)
        bound = self.bound * theirs
        if ours == bound:
            return not self.strict
        return ours < bound if self.at_most else ours > bound

    @property
    def bound_text(self) -> str:
        kinds = ("more than", "less than") if self.strict else ("at least", "at most")
        return f"{kinds[self.at_most]} {self.bound:g}"


def _planning_seconds(scheduler: str, tasks: int) -> Callable[[Result], float | None]:
    return lambda result: next((row["seconds"] for row in result["sizes"]
                                if row["scheduler"] == scheduler and row["tasks"] == tasks), None)


def _planning_ratio(scheduler: str, other: str, tasks: int) -> Callable[[Result], float | None]:
    """The traffic of a scheduler's plan over that of another's."""
    def ratio(result: Result) -> float | None:
        traffic = {row["scheduler"]: row.get("inter_node") for row in result["sizes"] if row["tasks"] == tasks}
        ours, theirs = traffic.get(scheduler), traffic.get(other)
        return round(ours / theirs, 3) if ours and theirs else None
    return ratio


def _best_mean_ratio(result: Result) -> float | None:
    rows = result["compare"]["schedulers"] if result["compare"] else {}
    return min((row["mean_ratio"] for name, row in rows.items() if name != "optimal" and row["mean_ratio"]), default=None)


def _simulation_seconds(nodes: int, tasks: int, hours: float) -> Callable[[Result], float | None]:
    """Seconds of the slowest simulation of that size; None if none was so long."""
    def slowest(result: Result) -> float | None:
        rows = [row for row in result.get("simulated", ())
                if (row["nodes"], row["tasks"]) == (nodes, tasks) and row["hours"] >= hours - 1e-6]
        return max((row["seconds"] for row in rows), default=None)
    return slowest


def _compared_ratio(scheduler: str) -> Callable[[Result], float | None]:
    """The mean ratio to the optimum of a scheduler or variant."""
    return lambda result: (result["compare"] or {"schedulers": {}})["schedulers"].get(scheduler, {}).get("mean_ratio")


SCHEDULER_AIMS = (
    Aim("scheduler", "best scheduler: mean ratio to the optimum", _best_mean_ratio, 1.01, at_most=True),
    Aim("scheduler", "`tstorm`, 10,000 tasks: seconds to plan", _planning_seconds("tstorm", 10_000), 0.5, at_most=True),
    Aim("scheduler", "`multilevel`, 100,000 tasks: seconds to plan", _planning_seconds("multilevel", 100_000), 20.0,
        at_most=True),
    Aim("scheduler", "`multilevel`, 1,000 tasks: traffic between nodes to that of `slstream`",
        _planning_ratio("multilevel", "slstream", 1000), 1.05, at_most=True),
    Aim("scheduler", "`tstorm improve=true`, without headroom as the optimum: mean ratio to that",
        _compared_ratio("tstorm improve=true capacity=1"), 1.6, at_most=True),
    Aim("scheduler", "`simulate`, 24 h on 1,000 nodes with 10,000 tasks: seconds of the slower of two schedulers",
        _simulation_seconds(1000, 10_000, 24.0), 600, at_most=True),
    Aim("simulation", "pairs of schedulers that a simulation puts in another order than a real run",
        lambda result: len(result["wrong_order"]), 0, at_most=True),
)
