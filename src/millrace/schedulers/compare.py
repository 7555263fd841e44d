"""Compares schedulers on the same situations, with each other and with the optimum where that is known.

The ratio is the traffic between nodes over the least possible within the nodes' CPU. It is defined only if that least is
above 0; situations where it is 0 are counted separately, with the number that a scheduler solved (0 as well). A plan that
overloads a node may go below the least, so it has no ratio: it is counted as overloaded and left out of the mean. The means of
two schedulers may therefore cover different situations; the common ratio covers those in which every scheduler has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Scheduler
from millrace.schedulers.optimal import Least, fits
from millrace.schedulers.problem import Figures, Ints, Problem

NOTHING = 1e-6  # tuples per second: less counts as none

ReadClock = Callable[[], float]  # seconds


@dataclass(frozen=True)
class Outcome:
    """The result of one scheduler in one situation. `after` is None if it gave no plan: `error` has the reason."""

    before: Figures
    after: Figures | None
    overloaded: bool
    seconds: float
    reason: str
    optimum: float | None = None  # tuples per second; None if it is not known
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        """Traffic between nodes over the optimum; None if they are not comparable."""
        if self.after is None or self.overloaded or self.optimum is None or self.optimum <= NOTHING:
            return None
        return self.after.inter_node / self.optimum

    @property
    def solved_zero(self) -> bool:
        """True if the optimum is no traffic between nodes, and the plan has none."""
        return (self.optimum is not None and self.optimum <= NOTHING and self.after is not None and not self.overloaded
                and self.after.inter_node <= NOTHING)


def outcome(scheduler: Scheduler, situation: Situation, clock: ReadClock, least: Least | None = None) -> Outcome:
    """Runs one scheduler. An exception is part of the outcome and does not end the comparison."""
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    before = problem.figures(problem.current)
    optimum = least.value if least is not None and least.proven else None
    started = clock()
    try:
        result = scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)
    except Exception as error:  # it may be a user's scheduler
        return Outcome(before, None, False, clock() - started, "", optimum, f"{type(error).__name__}: {error}")
    seconds = clock() - started
    match result:
        case NewPlan(plans=plans, reason=reason):
            assignment = assignment_of(problem, situation, {**situation.plan, **plans})
        case NoChange(reason=reason):
            assignment = problem.current
        case CannotPlace(reason=reason):
            return Outcome(before, None, False, seconds, reason, optimum, reason)
    if (assignment < 0).any():
        return Outcome(before, None, False, seconds, reason, optimum, f"{int((assignment < 0).sum())} tasks have no live "
                                                                      f"slot: {reason}")
    return Outcome(before, problem.figures(assignment), not fits(problem, assignment), seconds, reason, optimum)


def assignment_of(problem: Problem, situation: Situation, plans: Mapping[str, Any]) -> Ints:
    """The slots that these plans give the problem's tasks."""
    return Problem.of(situation.graphs, situation.cluster, {}, plans).current


def in_common(outcomes: Mapping[str, Sequence[Outcome]]) -> set[int]:
    """The situations in which every scheduler has a ratio."""
    count = max(map(len, outcomes.values()), default=0)
    return {number for number in range(count) if all(each[number].ratio is not None for each in outcomes.values())}


def summary(outcomes: Sequence[Outcome], common: set[int] | None = None) -> dict[str, Any]:
    """One scheduler over many situations: means, and counts of overloads and failures. `common`: the situations for the common
    ratio."""
    ratios = [result.ratio for result in outcomes if result.ratio is not None]
    shared = [result.ratio for number, result in enumerate(outcomes) if result.ratio is not None and number in (common or ())]
    fair = [(result.after.inter_node, result.optimum) for result in outcomes
            if result.ratio is not None and result.after is not None and result.optimum is not None]
    placed = [result.after for result in outcomes if result.after is not None]
    return {
        "mean_ratio": _mean(ratios), "worst_ratio": max(ratios, default=None), "compared": len(ratios),
        "ratio_of_sums": sum(sent for sent, _ in fair) / sum(least for _, least in fair) if fair else None,
        "common_ratio": _mean(shared),
        "zero_solved": sum(result.solved_zero for result in outcomes),
        "overloaded": sum(result.overloaded for result in outcomes),
        "failed": sum(result.error is not None for result in outcomes),
        "nodes_used": _mean([figures.nodes_used for figures in placed]),
        "moved": _mean([figures.moved for figures in placed]),
        "inter_node": _mean([figures.inter_node for figures in placed]),
        "inter_process": _mean([figures.inter_process for figures in placed]),
        "largest_load": _mean([figures.largest_load for figures in placed]),
        "plan_ms": _mean([result.seconds * 1000 for result in outcomes]),
        "error": next((result.error for result in outcomes if result.error is not None), None),
    }


def details(result: Outcome) -> dict[str, Any]:
    """One scheduler in one situation, as plain data for output."""
    after = result.after
    return {
        "inter_node": after and after.inter_node, "inter_process": after and after.inter_process,
        "nodes_used": after and after.nodes_used, "largest_load": after and after.largest_load,
        "moved": after and after.moved, "plan_ms": result.seconds * 1000, "ratio": result.ratio,
        "overloaded": result.overloaded, "reason": result.reason, "error": result.error,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
